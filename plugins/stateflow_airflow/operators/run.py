"""The operator that runs a stateflow job and survives the death of its Airflow worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset

from stateflow_airflow.failures import StateflowTaskFailed, translate_errors
from stateflow_airflow.launches.driver_environment import passed_environment
from stateflow_airflow.launches.hidden_settings import SETTINGS, settings_file
from stateflow_airflow.launches.launch import result_file
from stateflow_airflow.launches.launch_trigger import LaunchEvent
from stateflow_airflow.launches.launcher import Command
from stateflow_airflow.launches.launching_task import LaunchingTask
from stateflow_airflow.launches.renewal import checked_renewal
from stateflow_airflow.launches.schedule_interval import warn_if_longer
from stateflow_airflow.launches.task_folders import run_id
from stateflow_airflow.operators.approvals.approval import ApprovalCheck
from stateflow_airflow.operators.approvals.claim_approval import claim_question
from stateflow_airflow.operators.base import JobOperator, TaskArgument
from stateflow_airflow.operators.locations import allowed_locations
from stateflow_airflow.operators.template_values import (
    check_job_file,
    checked_location,
    checked_root,
    to_bool,
    to_claim_mode,
    to_lines,
    to_names,
    to_settings,
    to_text,
    to_words,
)
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

require_supported()


class StateflowRunOperator(LaunchingTask, JobOperator):
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

    **Returns** (XCom) ``checkpoint_id``, ``offsets``, ``rows_in``, ``rows_out``, ``batches``, ``started_from``,
    ``started_at``, ``generation``, ``stopped_because``, ``quarantined_count``, ``quarantined``, ``late_rows_dropped``,
    ``hot_keys`` (of joins that compare millions of pairs of one key: ``operator``, ``key``, ``pairs``),
    ``waiting`` (rows that wait for rows of other sources: ``operator``, ``input``, ``rows``, ``waits_for``,
    ``watermark``), ``idle`` (whether there was nothing to do, so that Spark was not started) and ``duration_s``, with a
    warning in the log if it exceeds the schedule's interval. ``offsets`` has positions in each source's format, such as
    ``{"payments": {"logOffset": 4}}``.
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
        self.renew_after = checked_renewal(renew_after, known, deferrable)

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
        self.deferrable = False
        return self._completed(context, lambda: self.result_of_event(event) or self.execute_resumable(context))

    def _completed(self, context: Context, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            returned = run()
        except StateflowTaskFailed:
            self.forget_launch(context)
            raise
        warn_if_longer(returned["duration_s"], self.get_dag(), context["dag_run"])
        self._update_outlets(returned, context)
        self.forget_launch(context)
        return returned

    def command(self, folder: Path, context: Context) -> Command:
        """Returns the command of the run, with its settings and Spark's in files of the folder."""
        from stateflow_airflow.hooks import StateflowSubmitHook, checked_first

        _check_paths(self.job, self.job_root, self.from_savepoint)
        settings, env_vars = to_settings("settings", self.settings), to_settings("env_vars", self.env_vars)
        checked_renewal(self.renew_after, settings, self.deferrable)
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
        spark = self.spark.rendered(self.conf, self.env_vars)
        with_log = settings.get("spark.log") != "full"
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

    def _update_outlets(self, returned: Mapping[str, Any], context: Context) -> None:
        for asset in self.outlets:
            if isinstance(asset, Asset):
                extra = context["outlet_events"][asset].extra
                extra.update(checkpoint_id=returned["checkpoint_id"], offsets=returned["offsets"])


def _check_failpoint(env_vars: Mapping[str, object]) -> None:
    """Fails before Spark starts; the program would reject an unknown name only at its first failpoint."""
    from stateflow.failpoints import check

    if wanted := env_vars.get("STATEFLOW_FAILPOINT"):
        with translate_errors():
            check(str(wanted))


def _check_paths(job: str, job_root: str, from_savepoint: str) -> None:
    check_job_file(job)
    checked_root(job_root)
    if from_savepoint:
        checked_location("from_savepoint", from_savepoint)
