"""The operator that runs a stateflow job and survives the death of its Airflow worker."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset, ResumableJobMixin, conf

from stateflow_airflow.failures import StateflowTaskFailed, ended_without_result, log_failure, translate_errors
from stateflow_airflow.launches.driver_environment import passed_environment
from stateflow_airflow.launches.hidden_settings import SETTINGS, settings_file
from stateflow_airflow.launches.launch import Launch, result_file
from stateflow_airflow.launches.launcher import Command, Launcher
from stateflow_airflow.launches.log_follower import LogFollower, last_lines
from stateflow_airflow.launches.old_runs import remove_old_runs
from stateflow_airflow.launches.run_result import read_result
from stateflow_airflow.launches.schedule_interval import warn_if_longer
from stateflow_airflow.operators.approval import ApprovalCheck
from stateflow_airflow.operators.base import JobOperator
from stateflow_airflow.operators.claim_approval import claim_question
from stateflow_airflow.operators.locations import allowed_locations
from stateflow_airflow.operators.template_values import (
    check_job_file,
    checked_location,
    checked_root,
    to_claim_mode,
    to_lines,
    to_names,
    to_text,
    to_words,
)
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

require_supported()

RUNNING, FINISHED, FAILED, CLEARED = "running", "finished", "failed", "cleared"

_LOG_SECONDS = 0.5
"""Interval at which the driver's log is copied. The end of the driver is detected immediately."""
_KEPT_LAUNCHES = 5
_REPEATED_LOG_BYTES = 64 * 1024
"""How much of the log a try copies of a program that an earlier try launched."""


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
    timed out ends its program. After a clear, a new program is always launched.

    **Returns** (XCom) ``checkpoint_id``, ``offsets``, ``rows_in``, ``rows_out``, ``batches``, ``started_from``,
    ``started_at``, ``generation``, ``stopped_because``, ``quarantined_count``, ``quarantined``, ``idle`` (whether there
    was nothing to do, so that Spark was not started) and ``duration_s``, with a warning in the log if it exceeds the
    schedule's interval. ``offsets`` has positions in each source's format, such as ``{"payments": {"logOffset": 4}}``.
    Each asset in `outlets` gets an event with the first two.

    Args:
        job: absolute path of the job file, on the worker. Templated.
        job_root: location of the job's checkpoints: a URI, or an absolute path. Templated.
        from_savepoint: path or URI of a savepoint from which a new job root starts. Retries and later runs continue
            from the job's newest checkpoint, so the argument may stay. Templated; empty for none.
        tables: with `from_savepoint`, how to treat tables that the savepoint's job has written: ``refuse``;
            ``continue``, to append to them if nothing was published after the savepoint; ``keep``, to append to them in
            any case. Templated.
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

    def __init__(  # noqa: PLR0913 - one keyword argument per templated field
        self,
        *,
        job: str,
        job_root: str,
        settings: Mapping[str, object] | None = None,
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
        **kwargs: Any,
    ) -> None:
        # Limits all runs of the DAG; max_active_runs of the DAG does not count the runs of a backfill.
        kwargs.setdefault("max_active_tis_per_dag", 1)
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.spark = spark or SparkSubmit()
        self.conf, self.env_vars = dict(self.spark.conf), dict(self.spark.env_vars)
        self.run_folder = run_folder
        self.from_savepoint, self.from_other_job = from_savepoint, from_other_job
        self.tables, self.drop = tables, drop
        self.maps, self.sources = maps, sources
        self.claim_mode = claim_mode
        # Not after templates are rendered: then it can be a user's.
        self.needs_approval = claim_mode != "claim" or approval is not None
        self.approval, self.self_approval = approval, self_approval
        self.kept_runs = kept_runs
        self._launcher: Launcher | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the job, or waits for the program that an earlier try launched."""
        runs = self._root_folder()
        # Airflow raises max_tries when a task is cleared, even while it runs, and only then.
        self._launcher = Launcher(_run_folder(runs, context), context["ti"].max_tries, runs)
        try:
            returned = cast("dict[str, Any]", self.execute_resumable(context))
        except StateflowTaskFailed:
            self._forget_launch(context)
            raise
        warn_if_longer(returned["duration_s"], self.get_dag(), context["dag_run"])
        self._update_outlets(returned, context)
        self._forget_launch(context)
        return returned

    def submit_job(self, context: Context) -> JsonValue:
        """Launches the program, unless the one of an earlier try is still active."""
        launcher = self._task_launcher()
        with translate_errors(), launcher.locked():
            # An earlier worker may have died before Airflow stored the return value of this method.
            active = launcher.active()
            if active and launcher.is_of_this_turn(active):
                self.log.info("Waiting for the active run of an earlier try: %s", active.folder)
                return asdict(active)
            launcher.remove_old(_KEPT_LAUNCHES)
            remove_old_runs(_task_folder(self._root_folder(), context), self.kept_runs)
            folder = launcher.next_folder()
            launch = launcher.start(folder, self._command(folder, context))
        self.log.info("Started process %d; its files are in %s", launch.pid, launch.folder)
        return asdict(launch)

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Returns the launch's status, from its process and then from its result file."""
        launch = _launch(external_id)
        if not self._task_launcher().is_of_this_turn(launch):
            return CLEARED
        if launch.process():
            return RUNNING
        if not launch.is_local:
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
        """Copies the program's log until the program ends. Returns its result."""
        launch = _launch(external_id)
        launcher = self._task_launcher()
        with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG_BYTES) as log:
            while not launcher.wait(launch, _LOG_SECONDS):
                log.copy()
                if self._killed:
                    launcher.stop(launch)
        return self.get_job_result(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, object]:
        """Returns the program's result. Raises the failure of a program that failed."""
        launch = _launch(external_id)
        result = read_result(launch.result_file)
        if result is None:
            raise log_failure(self._failure_without_result(launch))
        if not result.finished:
            raise log_failure(result.failure())
        return result.returned()

    def on_kill(self) -> None:
        """Ends the program and all its child processes, within the five seconds that Airflow allows."""
        self._killed = True
        if self._launcher and (launch := self._launcher.active()):
            self._launcher.stop(launch)

    def _task_launcher(self) -> Launcher:
        assert self._launcher is not None, "execute() was not called"
        return self._launcher

    def _root_folder(self) -> Path:
        default = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "stateflow-runs"
        return Path(self.run_folder or conf.get("stateflow", "run_folder", fallback=None) or default).absolute()

    def _command(self, folder: Path, context: Context) -> Command:
        from stateflow_airflow.hooks import StateflowSubmitHook, checked_first

        _check_paths(self.job, self.job_root, self.from_savepoint)
        self._check_failpoint()
        arguments = ["run", self.job, "--job-root", self.job_root]
        if self.from_savepoint:
            arguments += ["--from-savepoint", self.from_savepoint, "--tables", self.tables]
            arguments += ["--from-other-job"] if self.from_other_job else []
            arguments += [f"--drop={uid}" for uid in sorted(to_names(self.drop))]
            arguments += [f"--map={text}" for text in to_words(self.maps)]
            arguments += [f"--source={text}" for text in to_lines(self.sources)]
            arguments += ["--claim-mode", self._permitted_claim_mode(context)]
        files = {SETTINGS: settings_file({key: to_text(value) for key, value in self.settings.items()})}
        arguments += ["--config", str(folder / SETTINGS), "--result-file", str(result_file(folder))]
        arguments += ["--run-id", _run_id(context), "--log-format", "text"]
        spark = SparkSubmit(
            conn_id=self.spark.conn_id, conf=self.conf, env_vars=self.env_vars, options=self.spark.options
        )
        with_log = self.settings.get("spark.log") != "full"
        name = f"stateflow {Path(self.job).stem}"
        command = checked_first(StateflowSubmitHook(spark).command(name, arguments, folder, with_log=with_log))
        environment = {**passed_environment(), **command.env, **allowed_locations(self.locations)}
        return Command(command.argv, environment, {**files, **command.files})

    def _permitted_claim_mode(self, context: Context) -> str:
        """Returns the claim mode. Raises PermanentFailure if a user has chosen to claim, and none has approved that."""
        mode = to_claim_mode(self.claim_mode)
        if mode == "claim" and self.needs_approval:
            with self.library():
                question = claim_question(self.job_root, self.from_savepoint)
            if question is not None:
                ApprovalCheck(self.approval, self.self_approval).decision(question.digest, context, "")
        return mode

    def _check_failpoint(self) -> None:
        """Fails before Spark starts; the program would reject an unknown name only at its first failpoint."""
        from stateflow.failpoints import check

        if wanted := self.env_vars.get("STATEFLOW_FAILPOINT"):
            with translate_errors():
                check(wanted)

    def _failure_without_result(self, launch: Launch) -> StateflowTaskFailed:
        if launch.log_file.exists():
            self.log.error("The last lines of the run's log:\n%s", "\n".join(last_lines(launch.log_file, 20)))
        return ended_without_result(launch.exit_code())

    def _update_outlets(self, returned: Mapping[str, Any], context: Context) -> None:
        for asset in self.outlets:
            if isinstance(asset, Asset):
                extra = context["outlet_events"][asset].extra
                extra.update(checkpoint_id=returned["checkpoint_id"], offsets=returned["offsets"])

    def _forget_launch(self, context: Context) -> None:
        store = context.get("task_state_store")
        if self.durable and store is not None:
            store.delete(self.external_id_key)


def _launch(external_id: JsonValue) -> Launch:
    return Launch(**cast("dict[str, Any]", external_id))


def _check_paths(job: str, job_root: str, from_savepoint: str) -> None:
    check_job_file(job)
    checked_root(job_root)
    if from_savepoint:
        checked_location("from_savepoint", from_savepoint)


def _run_id(context: Context) -> str:
    ti = context["ti"]
    return "/".join([ti.dag_id, ti.run_id, ti.task_id, *_map_index(context), str(ti.try_number)])


def _task_folder(runs: Path, context: Context) -> Path:
    ti = context["ti"]
    return runs / _segment(ti.dag_id) / _segment(ti.task_id)


def _run_folder(runs: Path, context: Context) -> Path:
    parts = (context["ti"].run_id, *_map_index(context))
    return _task_folder(runs, context).joinpath(*(_segment(part) for part in parts))


def _map_index(context: Context) -> list[str]:
    index = context["ti"].map_index
    return [] if index is None or index < 0 else [str(index)]


def _segment(name: str) -> str:
    """Returns `name` as a folder name; different names give different folders."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"
