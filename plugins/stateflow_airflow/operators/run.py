"""The operator that runs a stateflow job and survives the death of its Airflow worker.

Its task launches a program, follows it, and finds it again in its next try.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pendulum
from airflow.sdk import Asset, conf
from airflow.sdk.exceptions import TaskDeferred
from croniter import croniter

from stateflow_airflow import graceful_end
from stateflow_airflow.failures import StateflowTaskFailed, failure_without_result, log_failure, translate_errors
from stateflow_airflow.launch import Command, Launch, Launcher, read_record, result_file
from stateflow_airflow.launch_trigger import UNREACHABLE, LaunchEvent, LaunchTrigger, to_launch
from stateflow_airflow.lineage import lineage_variables, operator_lineage
from stateflow_airflow.operators.approvals.approval import ApprovalCheck, claim_question
from stateflow_airflow.operators.base import JobOperator, TaskArgument, allowed_locations
from stateflow_airflow.operators.template_values import (
    check_job_file,
    check_job_root,
    check_task_location,
    to_bool,
    to_claim_mode,
    to_lines,
    to_names,
    to_settings,
    to_text,
    to_words,
)
from stateflow_airflow.renewal import PREDECESSOR, LogFollower, Renewal, check_renewal, counting_launch, last_lines
from stateflow_airflow.run_result import RunResultFile, read_result
from stateflow_airflow.spark import SETTINGS, SparkSubmit, collect_environment, settings_file
from stateflow_airflow.versions import ResumableJobMixin, require_supported

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.sdk.types import DagRunProtocol
    from pydantic import JsonValue

    from stateflow_airflow.lineage import TaskLineage

log = logging.getLogger("airflow.task")


RUNNING, FINISHED, FAILED, CLEARED = "running", "finished", "failed", "cleared"


_LOG_SECONDS = 0.5
"""Interval at which the driver's log is copied. The end of the driver is detected immediately."""
_KEPT_LAUNCHES = 5
_REPEATED_LOG_BYTES = 64 * 1024
"""How much of the log a try copies of a program that an earlier try launched."""


require_supported()


class StateflowRunOperator(ResumableJobMixin, JobOperator):
    """Runs a stateflow job until it has processed all new input, or until a limit of its settings.

    **DAG runs.** A run always continues from the job's newest checkpoint; the logical date of the DAG run has no
    influence on what is read. Catch-up and backfill are therefore several runs in a row, of which the first processes
    all new input. Clearing a task, of any DAG run, runs the job again from the newest checkpoint. None of these
    processes a row twice, and none restores an earlier state. A DAG runs one of these tasks at a time
    (``max_active_tis_per_dag=1`` by default). If two runs of a job overlap, the later one fences the earlier: the job
    stays consistent, but the earlier task fails and its work since its last checkpoint is lost.

    **Retries.** The program runs in a session of its own and outlives its Airflow worker. If the worker dies, the next
    try on the same host waits for the program that is still running; a try on another host launches a new one, which
    fences the old. A program that crashed is launched again and continues from the newest checkpoint. The task's
    `retries` and `retry_delay` apply; errors that a retry cannot fix are not retried. A task that is cleared, marked or
    timed out ends its program, and so does a worker that is shut down: a run that stays up ends with a checkpoint if it
    makes one within `end_timeout`, every other run at once. After a clear, a new program is always launched.

    **Returns** (XCom) the `RunResult` of the run: ``checkpoint_id``, ``offsets``, ``rows_in``, ``rows_out``,
    ``batches``, ``start_checkpoint_id``, ``start_label``, ``generation``, ``stopped_because``, ``quarantined_count``,
    ``quarantined``, ``late_rows_dropped``, ``hot_keys`` (of joins that compare millions of pairs of one key:
    ``operator``, ``key``, ``pairs``), ``waiting`` (rows that wait for rows of other sources: ``operator``, ``input``,
    ``rows``, ``waits_for``, ``watermark_at``), ``backlog`` (the input that waits at the end of the run: ``rows``,
    ``oldest_at``, ``catch_up_ms``, ``sources`` and others), ``idle`` (whether there was nothing to do, so that Spark
    was not started), ``duration_ms``, with a warning in the log if it exceeds the schedule's interval, and others.
    ``offsets`` has positions in each source's format, such as ``{"payments": {"logOffset": 4}}``.
    Each asset in `outlets` gets an event with the first two.

    Args:
        job: absolute path of the job file, on the worker. Templated.
        job_root: location of the job's checkpoints: a URI, or an absolute path. Templated.
        from_savepoint: path or URI of a savepoint from which a new job root starts. Retries and later runs continue
            from the job's newest checkpoint, so the argument may stay. Templated; empty for none.
        tables: how to treat tables that the same sink of another job root has written: ``refuse``; with
            `from_savepoint`, ``continue``, to take them over from the savepoint's job if nothing was published after
            the savepoint; ``keep``, to take them over in any case, or without `from_savepoint`, to write to tables that
            another job writes to. Templated.
        from_other_job: with `from_savepoint`, whether the savepoint may be of a job with another name.
        drop: with `from_savepoint`, uids of operators that are not in the job, whose state is dropped; a list, or a
            comma-separated text. Templated.
        maps: with `from_savepoint`, other names in the job, as for `StateflowRestorePlanOperator`. Templated.
        sources: with `from_savepoint`, positions of sources, as for `StateflowRestorePlanOperator`. Templated.
        claim_mode: with `from_savepoint`, as for `StateflowRestorePlanOperator`. Templated. The constant ``claim`` is
            the decision of the DAG's author; from a template it needs `approval`.
        approval: the output of `StateflowClaimApprovalOperator`. Templated.
        self_approval: whether the user who triggered the DAG run may have approved.
        settings: settings of stateflow (``source.max_files_per_batch``) and of the job (``job.<name>``), as for
            ``--set``. Templated.
        spark: the connection and further options of spark-submit. Its `conf` and `env_vars` are templated.
        run_folder: folder for logs and results of launches; by default Airflow's setting ``[stateflow] run_folder``,
            or ``stateflow-runs`` in AIRFLOW_HOME. Templated. The last five launches of each task are kept.
        kept_runs: number of DAG runs whose launches are kept.
        end_timeout: how long a run that stays up may take to end with a checkpoint, before its processes are killed.
        renew_after: age of a run at which its successor is started, with the job file and packages of that time. It
            starts Spark, and then takes over. One that fails before that leaves the run as it is, and is repeated after
            ten minutes. Requires the setting ``run.take_over``; None for never.
        deferrable: whether the task gives its worker slot back while the program runs, see `LaunchTrigger`. The log is
            copied at the end. The triggerer must run on the workers' host, or share `run_folder` with them.
    """

    template_fields: Sequence[str] = (
        "job",
        "job_root",
        "from_savepoint",
        "tables",
        "drop",
        "maps",
        "sources",
        "claim_mode",
        "approval",
        "settings",
        "conf",
        "env_vars",
        "run_folder",
    )
    template_fields_renderers = {"settings": "json", "conf": "json", "env_vars": "json", "approval": "json"}
    ui_color = "#d7ecf7"
    # Airflow stores this key for tries that may still be running when this code is replaced: never rename it.
    external_id_key = "stateflow_launch"
    _launcher: Launcher | None = None
    _stored: Launch | None = None
    """The launch that Airflow has stored for the task."""
    _killed = False
    _lineage: Mapping[str, object] | None = None

    def __init__(
        self,
        *,
        job: str,
        job_root: str,
        settings: Mapping[str, object] | str | None = None,
        spark: SparkSubmit | None = None,
        run_folder: str | None = None,
        from_savepoint: str = "",
        tables: str = "refuse",
        from_other_job: bool = False,
        drop: str | Sequence[str] = (),
        maps: str | Sequence[str] = (),
        sources: str | Sequence[str] = (),
        claim_mode: str = "no-claim",
        approval: object = None,
        self_approval: bool = False,
        kept_runs: int = 50,
        end_timeout: timedelta = timedelta(minutes=1),
        renew_after: timedelta | None = None,
        deferrable: bool = False,
        # Limits all runs of the DAG; max_active_runs of the DAG does not count the runs of a backfill.
        max_active_tis_per_dag: int | None = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            job=job, job_root=job_root, settings=settings, max_active_tis_per_dag=max_active_tis_per_dag, **kwargs
        )
        self.spark = spark or SparkSubmit()
        self.conf, self.env_vars = self.spark.conf, self.spark.env_vars
        self.run_folder = run_folder
        self.from_savepoint, self.from_other_job = from_savepoint, from_other_job
        self.tables, self.drop = tables, drop
        self.maps, self.sources = maps, sources
        self.claim_mode = claim_mode
        # Not after templates are rendered: then it can be a user's.
        self.needs_approval = claim_mode != "claim" or approval is not None
        self.approval, self.self_approval = approval, self_approval
        self.kept_runs, self.end_timeout, self.deferrable = kept_runs, end_timeout, deferrable
        known = settings if isinstance(settings, Mapping) else None
        self.renew_after = check_renewal(renew_after, known, deferrable)

    @classmethod
    def partial(cls, **kwargs: TaskArgument) -> OperatorPartial:
        """Returns an operator to be mapped, whose tasks run one at a time as well: Airflow calls no constructor yet."""
        return super().partial(**{"max_active_tis_per_dag": 1, **kwargs})

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the job, or waits for the program that an earlier try launched."""
        self.open_launches(context)
        return self._completed(context, lambda: cast("dict[str, Any]", self.execute_resumable(context)))

    def execute_complete(self, context: Context, event: LaunchEvent) -> dict[str, Any]:
        """Returns the result of a run that a trigger has followed, or follows it if the trigger could not find it."""
        self.open_launches(context)
        self._stored = to_launch(event["launch"])
        self.deferrable = False
        return self._completed(context, lambda: self.result_of_event(event) or self.execute_resumable(context))

    def _completed(self, context: Context, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            returned = run()
        except StateflowTaskFailed:
            # The next try, on any host, finds a driver by this launch only.
            if self._lost_launch(self._task_launcher())[0] is None:
                self.forget_launch(context)
            raise
        warn_if_longer(returned["duration_ms"], self.get_dag(), context["dag_run"])
        self._update_outlets(returned, context)
        self.forget_launch(context)
        return returned

    def command(
        self, folder: Path, context: Context, launch_id: str | None = None, *, follow_only: bool = False
    ) -> Command:
        """Returns the command of the run, with its settings and Spark's in files of the folder.

        Args:
            launch_id: id of the launch whose driver in the cluster is followed, if it is active; None for a new one.
            follow_only: whether no other driver is submitted if that one has failed.
        """
        from stateflow.clock import SystemClock
        from stateflow_airflow.hooks import ClusterLaunch, StateflowSubmitHook, prepend_check

        _check_paths(self.job, self.job_root, self.from_savepoint)
        settings, env_vars = to_settings("settings", self.settings), to_settings("env_vars", self.env_vars)
        check_renewal(self.renew_after, settings, self.deferrable)
        _check_failpoint(env_vars)
        arguments = ["run", self.job, "--job-root", self.job_root]
        if self.from_savepoint or self.tables != "refuse":
            arguments += ["--tables", self.tables]
        if self.from_savepoint:
            arguments += ["--from-savepoint", self.from_savepoint]
            arguments += ["--from-other-job"] if to_bool("from_other_job", self.from_other_job) else []
            arguments += [f"--drop={uid}" for uid in sorted(to_names(self.drop))]
            arguments += [f"--map={text}" for text in to_words(self.maps)]
            arguments += [f"--source={text}" for text in to_lines(self.sources)]
            arguments += ["--claim-mode", self._permitted_claim_mode(context)]
        files = {SETTINGS: settings_file({key: to_text(value) for key, value in settings.items()})}
        arguments += ["--config", str(folder / SETTINGS), "--result-file", str(result_file(folder))]
        arguments += ["--run-id", run_id(context), "--log-format", "text"]
        spark = self.spark.with_rendered(self.conf, self.env_vars)
        with_log = settings.get("spark.log") != "full"
        name = f"stateflow {Path(self.job).stem}"
        hook = StateflowSubmitHook(spark)
        launch = ClusterLaunch(launch_id or SystemClock().new_id(), self.end_timeout, follow_only)
        command = hook.cluster_command(name, arguments, folder, launch)
        if command is None:
            command = prepend_check(hook.command(name, arguments, folder, with_log=with_log))
        environment = {**collect_environment(), **lineage_variables(context["ti"]), **command.env}
        environment |= allowed_locations(self.locations)
        return replace(command, env=environment, files={**files, **command.files})

    def open_launches(self, context: Context) -> None:
        """Finds the launches of this task; to be called before `execute_resumable`."""
        runs = root_folder(self.run_folder)
        # Airflow raises max_tries when a task is cleared, and only then; if it runs, when its worker has ended it.
        self._launcher = Launcher(run_folder(runs, context), context["ti"].max_tries, runs)

    def submit_job(self, context: Context) -> JsonValue:
        """Launches the program, unless the one of an earlier try is still active."""
        launcher = self._task_launcher()
        with translate_errors(), launcher.hold_lock():
            # An earlier worker may have died before Airflow stored the return value of this method.
            active = launcher.active_launches()
            if active and launcher.is_of_this_turn(active[0]):
                self.log.info("Waiting for the active run of an earlier try: %s", active[0].folder)
                return asdict(active[0])
            if active:
                self.log.info("The task was cleared, so the active run ends first: %s", active[0].folder)
                self._end(active)
            launcher.remove_old(_KEPT_LAUNCHES)
            remove_old_runs(task_folder(root_folder(self.run_folder), context), self.kept_runs)
            folder = launcher.next_folder()
            lost, successor = self._lost_launch(launcher)
            # What continues the job if the lost driver has failed is its successor.
            command = self.command(folder, context, lost, follow_only=successor is not None)
            launch = launcher.start(folder, command)
        self.log.info("Started process %d; its files are in %s", launch.pid, launch.folder)
        return asdict(replace(launch, successor_id=successor))

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Returns the launch's status, from its process and then from its result file."""
        launcher, launch = self._task_launcher(), to_launch(cast("dict[str, object]", external_id))
        self._stored = launch
        if not launcher.is_of_this_turn(launch):
            return CLEARED
        if launch.process() or any(map(launcher.is_of_this_turn, launcher.active_launches())):
            return RUNNING
        if self._lacks_successor(launch):
            return RUNNING
        launch = self._counting(external_id)
        if launch.launch_id and not launch.is_local:
            self.log.info("The run was submitted by host %s; its driver is in the cluster", launch.host)
        elif not launch.is_local:
            self.log.warning(
                "The last run was launched on host %s and cannot be found from here; a new one fences it", launch.host
            )
        return FINISHED if (result := read_result(launch.result_file)) and result.finished else FAILED

    def is_job_active(self, status: str) -> bool:
        return status == RUNNING

    def is_job_succeeded(self, status: str) -> bool:
        return status == FINISHED

    # The base class declares None, but returns this value for a try that only waited (and would push no XCom for None).
    def poll_until_complete(  # type: ignore[override]
        self, external_id: JsonValue, context: Context
    ) -> dict[str, object]:
        """Copies the program's log until the program ends, or defers until then. Returns its result."""
        launch = self._counting(external_id)
        # A task that was killed meanwhile has no trigger that a user could end.
        if self.deferrable and not self._killed:
            trigger = LaunchTrigger(asdict(launch), self.end_timeout.total_seconds(), job_root=self.job_root)
            raise TaskDeferred(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
        launcher = self._task_launcher()
        start = partial(self._start_successor, context)
        self._follow_lost_successor(to_launch(cast("dict[str, object]", external_id)), launch, context)
        renewal = Renewal(launcher, start, self.renew_after, self.end_timeout)
        while True:
            self._follow(launch, renewal)
            following = renewal.next_after(launch)
            if following == launch:
                return self._returned(launch, read_result(launch.result_file), launch.exit_code())
            launch = following
            self._store_launch(launch, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, object]:
        """Returns the program's result. Raises the failure of a program that failed."""
        launch = self._counting(external_id)
        return self._returned(launch, read_result(launch.result_file), launch.exit_code())

    def result_of_event(self, event: LaunchEvent) -> dict[str, object] | None:
        """Returns the program's result after a deferral; None if the triggerer could not find the program.

        Raises the failure of a program that failed.
        """
        launch = to_launch(event["launch"])
        if event["status"] == UNREACHABLE:
            self.log.warning("The triggerer has no access to %s on host %s", launch.folder, launch.host)
            return None
        if launch.log_file.exists():
            with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG_BYTES):
                self.log.info("The end of the run's log:")
        # Ends what the program has left.
        self._task_launcher().wait(launch, 0)
        result = event["result"]
        return self._returned(launch, None if result is None else RunResultFile(result), event["exit_code"])

    def on_kill(self) -> None:
        """Ends the program, its successor and all their child processes, within the five seconds that Airflow allows.

        A driver may take `end_timeout` to end with a checkpoint; another program ends it if this process does not last.
        """
        self._killed = True
        if self._launcher:
            # The oldest first: a successor may have no driver yet, and is waited for.
            for launch in reversed(self._launcher.active_launches()):
                graceful_end.end_in_background(self._launcher, launch, self.end_timeout.total_seconds())

    def _follow(self, launch: Launch, renewal: Renewal) -> None:
        """Copies the log of a launch until it ends, and has its successor started when it is due."""
        launcher = self._task_launcher()
        with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG_BYTES) as log:
            while not launcher.wait(launch, _LOG_SECONDS):
                log.copy()
                if self._killed:
                    self._end(launcher.active_launches())
                else:
                    renewal.renew_if_due(launch)

    def _start_successor(self, context: Context, current: Launch, launch_id: str | None = None) -> Launch:
        launcher = self._task_launcher()
        launcher.remove_old(_KEPT_LAUNCHES)
        folder = launcher.next_folder()
        command = self.command(folder, context, launch_id)
        if command.launch_id is not None:
            # Before its driver can be in the cluster: a try on another host finds it by this id only.
            self._store_launch(replace(current, successor_id=command.launch_id), context)
        files = {**command.files, PREDECESSOR: Path(current.folder).name}
        return launcher.start(folder, replace(command, files=files), current)

    def _lost_launch(self, launcher: Launcher) -> tuple[str | None, str | None]:
        """Returns the id of this turn's newest launch, if its driver is in a cluster and the end of it is not known.

        The program that has followed it may have ended before it, or have died together with its host, on which its
        launch folder may be. Returns the id of its successor as well, if Airflow has stored one.
        """
        launches = self._launches_of_this_turn()
        stored = self._stored if self._stored and launcher.is_of_this_turn(self._stored) else None
        known = next(iter(launches), stored)
        if stored and stored.launch_id and stored.launch_id not in {launch.launch_id for launch in launches}:
            # Of another host, on which the task was tried after the launches here had ended.
            known = stored
        if known is None or _has_ended(known):
            return None, None
        return known.launch_id, stored.successor_id if stored and stored.launch_id == known.launch_id else None

    def _launches_of_this_turn(self) -> list[Launch]:
        launcher = self._task_launcher()
        return list(filter(launcher.is_of_this_turn, launcher.launches()))

    def _lacks_successor(self, stored: Launch) -> bool:
        """Returns whether a process has followed a stored launch on this host, and none its successor."""
        known = {launch.launch_id for launch in self._launches_of_this_turn()}
        return bool(stored.successor_id) and stored.launch_id in known and stored.successor_id not in known

    def _follow_lost_successor(self, stored: Launch, current: Launch, context: Context) -> None:
        """Starts the process that follows a successor whose host is lost; it submits a driver that is not known."""
        if not self._lacks_successor(stored):
            return
        with translate_errors(), self._task_launcher().hold_lock():
            # Another try of the task, whose worker is only believed to be dead, may have been faster.
            if self._lacks_successor(stored):
                self._start_successor(context, current, stored.successor_id)

    def _end(self, launches: list[Launch]) -> None:
        graceful_end.end_all(self._task_launcher(), launches, self.end_timeout.total_seconds())

    def _counting(self, external_id: JsonValue) -> Launch:
        """Returns the launch that counts; Airflow has stored the first one of the try that started it."""
        return counting_launch(self._task_launcher()) or to_launch(cast("dict[str, object]", external_id))

    def _task_launcher(self) -> Launcher:
        assert self._launcher is not None, "execute() was not called"
        return self._launcher

    def _returned(self, launch: Launch, result: RunResultFile | None, exit_code: int | None) -> dict[str, object]:
        self._lineage = result.lineage if result else None
        if result is None:
            if launch.log_file.exists():
                self.log.error("The last lines of the run's log:\n%s", "\n".join(last_lines(launch.log_file, 20)))
            raise log_failure(failure_without_result(exit_code))
        if not result.finished:
            raise log_failure(result.failure())
        return result.to_xcom()

    def get_openlineage_facets_on_start(self) -> TaskLineage:
        """Returns what the provider for OpenLineage reports about a task that starts."""
        return operator_lineage(None)

    def get_openlineage_facets_on_complete(self, task_instance: object) -> TaskLineage:
        """Returns what the provider for OpenLineage reports about a task that has ended."""
        return operator_lineage(self._lineage)

    def _store_launch(self, launch: Launch, context: Context) -> None:
        """Lets Airflow store a successor: a try on another host would find the end of the run that it has replaced."""
        store = context.get("task_state_store")
        if self.durable and store is not None:
            store.set(self.external_id_key, cast("JsonValue", asdict(launch)))

    def forget_launch(self, context: Context) -> None:
        """Removes the launch from Airflow's store of the task: a cleared task launches a new program."""
        store = context.get("task_state_store")
        if self.durable and store is not None:
            store.delete(self.external_id_key)

    def _permitted_claim_mode(self, context: Context) -> str:
        """Returns the claim mode. Raises PermanentFailure if a user has chosen to claim, and none has approved that."""
        mode = to_claim_mode(self.claim_mode)
        if mode == "claim" and self.needs_approval:
            with self.library():
                question = claim_question(self.job_root, self.from_savepoint)
            if question is not None:
                ApprovalCheck(self.approval, self.self_approval).decision(question.digest, context)
        return mode

    def _update_outlets(self, returned: Mapping[str, Any], context: Context) -> None:
        for asset in self.outlets:
            if isinstance(asset, Asset):
                extra = context["outlet_events"][asset].extra
                extra.update(checkpoint_id=returned["checkpoint_id"], offsets=returned["offsets"])


_WITHOUT_THE_DRIVER = ("cluster-failed", "interrupted", "storage", "internal")
"""Codes of errors with which the process that follows a driver in a cluster may end before the driver does."""


def _has_ended(launch: Launch) -> bool:
    """Returns whether the driver of a launch in a cluster is known to have ended.

    The exit code does not say so: a killed process has an exit code of its own, and the driver continues.
    """
    result = read_result(launch.result_file)
    return result is not None and (result.finished or result.failure().code not in _WITHOUT_THE_DRIVER)


def _check_failpoint(env_vars: Mapping[str, object]) -> None:
    """Fails before Spark starts; the program would reject an unknown name only at its first failpoint."""
    from stateflow.failpoints import check

    if wanted := env_vars.get("STATEFLOW_FAILPOINT"):
        with translate_errors():
            check(str(wanted))


def _check_paths(job: str, job_root: str, from_savepoint: str) -> None:
    check_job_file(job)
    check_job_root(job_root)
    if from_savepoint:
        check_task_location("from_savepoint", from_savepoint)


def root_folder(given: str | None) -> Path:
    """Returns the folder of all launches: `given`, or Airflow's setting, or a folder in AIRFLOW_HOME."""
    default = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "stateflow-runs"
    return Path(given or conf.get("stateflow", "run_folder", fallback=None) or default).absolute()


def task_folder(root: Path, context: Context) -> Path:
    """Returns the folder of a task, which has one folder per DAG run."""
    ti = context["ti"]
    return root / _segment(ti.dag_id) / _segment(ti.task_id)


def run_folder(root: Path, context: Context) -> Path:
    """Returns the folder of a task in one DAG run."""
    parts = (context["ti"].run_id, *map_index(context))
    return task_folder(root, context).joinpath(*(_segment(part) for part in parts))


def run_id(context: Context) -> str:
    """Returns the id of a try of a task, as the job's log stores it."""
    ti = context["ti"]
    return "/".join([ti.dag_id, ti.run_id, ti.task_id, *map_index(context), str(ti.try_number)])


def map_index(context: Context) -> list[str]:
    """Returns the index of a mapped task as the only element; nothing for other tasks."""
    index = context["ti"].map_index
    return [] if index is None or index < 0 else [str(index)]


def _segment(name: str) -> str:
    """Returns `name` as a folder name; different names give different folders."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"


_SCHEDULED = "scheduled"
"""Type of the DAG runs that a schedule has created."""


def interval_after(timetable: object, due: datetime) -> timedelta | None:
    """Returns the time between a scheduled DAG run and the next one.

    Returns None for a schedule without times in advance: none, ``@once``, ``@continuous``, assets, and timetables of
    other classes than those that Airflow makes of cron expressions and durations.

    Args:
        timetable: the DAG's.
        due: when the DAG run was due.
    """
    delta, expression = getattr(timetable, "delta", None), getattr(timetable, "expression", None)
    if delta is not None:
        following: datetime = due + delta
    elif isinstance(expression, str):
        zone = getattr(timetable, "timezone", None)
        begin = due.astimezone(pendulum.timezone(zone) if isinstance(zone, str) else zone)
        following = croniter(expression, begin).get_next(datetime)
    else:
        return None
    return following - due


def warn_if_longer(duration_ms: float, dag: DAG | None, dag_run: DagRunProtocol) -> bool:
    """Logs a warning if a scheduled run took longer than until the next one was due; returns whether it did.

    DAG runs that users or assets have triggered, and those of backfills, are not compared.

    Args:
        duration_ms: how long the program ran.
        dag: the DAG; None for a task outside of a DAG.
        dag_run: the DAG run.
    """
    if dag is None or dag_run.run_type != _SCHEDULED:
        return False
    interval = interval_after(dag.timetable, dag_run.run_after)
    duration = timedelta(milliseconds=duration_ms)
    if interval is None or duration <= interval:
        return False
    log.warning(
        "the run took %s, longer than the schedule's interval of %s, so the next run starts late: "
        "schedule the DAG less often, give the job more resources, or keep it running with run.until",
        timedelta(seconds=round(duration_ms / 1000)),
        interval,
    )
    return True


def remove_old_runs(parent: Path, keep: int) -> None:
    """Removes folders of old DAG runs from the folder of their task, except those with an active launch.

    The age of a run is the age of its last launch: DAG runs may run in any order of their names.

    Args:
        parent: has one folder per DAG run.
        keep: number of newest DAG runs to keep.
    """
    ages = {folder: _last_change(folder) for folder in parent.iterdir() if folder.is_dir()}
    for folder in sorted(ages, key=lambda folder: ages[folder])[: max(0, len(ages) - keep)]:
        _remove_unless_used(folder)


def _last_change(folder: Path) -> float:
    times = [0.0]
    for path in (folder, *_locks(folder)):
        # A worker on another host may remove the folder concurrently.
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return max(times)


def _locks(folder: Path) -> list[Path]:
    return [*folder.glob("lock"), *folder.glob("*/lock")]


def _remove_unless_used(folder: Path) -> None:
    with contextlib.ExitStack() as locks:
        try:
            for path in _locks(folder):
                # A worker that is launching a program in this folder holds the lock.
                fcntl.flock(locks.enter_context(path.open()), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        records = (read_record(path.parent) for path in folder.rglob("launch.json"))
        if not any(launch and launch.may_be_active for launch in records):
            shutil.rmtree(folder, ignore_errors=True)
