"""Launches a stateflow job, waits for it, and survives what happens to Airflow meanwhile."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import Asset, ResumableJobMixin, conf

from stateflow_airflow.failures import StateflowTaskFailed, ended_without_result, misconfigured, report
from stateflow_airflow.launcher import Command, Launch, Launcher, forget_old_runs, result_file
from stateflow_airflow.logs import LogFollower, last_lines
from stateflow_airflow.operators.base import JobOperator
from stateflow_airflow.results import read_result
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.task_requests import as_names, as_text, told_as_failures
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

require_supported()

RUNNING, FINISHED, FAILED, CLEARED = "running", "finished", "failed", "cleared"

# How often the driver's log is copied; its end is noticed at once.
_COPY_SECONDS = 0.5
_KEPT_LAUNCHES = 5
_KEPT_RUNS = 50
# How much of the log a try sees of a program that it did not start itself.
_REPEATED_LOG = 64 * 1024


class StateflowRunOperator(ResumableJobMixin, JobOperator):
    """Runs a stateflow job until it has caught up with its sources, or has reached a limit it was given.

    **What a DAG run means.** A run always continues from the job's last checkpoint, its *head*; the logical
    date of the DAG run has no influence on what is read. So catch-up and backfill are several runs in a row,
    of which the first does all the work and the others find nothing new. Clearing a task, of the latest or
    of an older DAG run, runs the job once more from the head. Nothing is processed twice by any of these. To
    go back in time is another thing, and never happens by running a task again. One DAG runs one of these at
    a time (``max_active_tis_per_dag=1``, unless you say otherwise). When two runs of a job do meet, the later
    one fences the earlier: no harm is done, but the earlier one's task fails and its work since its last
    checkpoint is wasted.

    **Retries.** The program is started in a session of its own and outlives its Airflow worker. When the
    worker dies, the next try on the same host waits for the program that still runs, instead of starting its
    twin; on another host it starts a new one, which fences the old. A program that crashed is started again
    and continues from the head. `retries` and `retry_delay` are the task's own; errors that another try
    cannot mend are not retried. A task that is cleared, marked or timed out takes its program with it, and
    after a clear the program always runs anew, whatever became of the one before.

    **Returns** (XCom) ``checkpoint_id``, ``offsets``, ``rows_in``, ``rows_out``, ``batches``,
    ``started_from``, ``generation``, ``stopped_because``, ``quarantined_count`` and ``quarantined``. ``offsets`` has
    each source's position as the source has it, such as ``{"payments": {"logOffset": 4}}``. Each asset in `outlets`
    gets an event with the first two of them.

    Args:
        job: absolute path of the job file, on the worker. Templated.
        job_root: where the job's checkpoints live: a URI, or an absolute path. Templated.
        from_savepoint: path or URI of a savepoint with which a new job root begins, wherever it is. Retries and later
            runs go on from the job's newest checkpoint, so the argument may stay. Templated; empty for none.
        tables: with `from_savepoint`, what to do about tables that the savepoint's job has written: ``refuse``;
            ``continue``, to go on in them if nothing was published after the savepoint; ``keep``, in any case.
            Templated.
        from_other_job: with `from_savepoint`, whether the savepoint may be of a job with another name.
        drop: with `from_savepoint`, uids of operators that the job does not have, whose state is dropped; a list, or
            a text with commas. Templated.
        settings: settings of stateflow (``source.max_files_per_batch``) and of the job itself
            (``job.<name>``), as ``--set`` takes them. Templated.
        spark: the connection to launch with, and everything else that spark-submit is told. Its `conf` and
            `env_vars` are templated.
        run_folder: where logs and results of launches are kept; without it, Airflow's setting ``[stateflow]
            run_folder``, or ``stateflow-runs`` in AIRFLOW_HOME. Templated. Each task keeps its last five
            launches of a DAG run, and its last fifty DAG runs.
    """

    template_fields: Sequence[str] = (
        "job", "job_root", "from_savepoint", "tables", "drop", "settings", "conf", "env_vars", "run_folder",
    )  # fmt: skip
    template_fields_renderers = {"settings": "json", "conf": "json", "env_vars": "json"}
    ui_color = "#d7ecf7"
    # Stored by tries that may still run when this code is replaced: never rename it.
    external_id_key = "stateflow_launch"

    def __init__(  # noqa: PLR0913 - an operator takes what a task needs, by name
        self,
        *,
        job: str,
        job_root: str,
        settings: Mapping[str, Any] | None = None,
        spark: SparkSubmit | None = None,
        run_folder: str | None = None,
        from_savepoint: str = "",
        tables: str = "refuse",
        from_other_job: bool = False,
        drop: str | Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        # Counts over all runs of the DAG; a backfill's runs are not counted by the DAG's max_active_runs.
        kwargs.setdefault("max_active_tis_per_dag", 1)
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.spark = spark or SparkSubmit()
        self.conf = dict(self.spark.conf)
        self.env_vars = dict(self.spark.env_vars)
        self.run_folder = run_folder
        self.from_savepoint = from_savepoint
        self.tables = tables
        self.from_other_job = from_other_job
        self.drop = drop
        self._launcher: Launcher | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the job, or waits for the run that an earlier try started."""
        # Airflow raises max_tries when a task is cleared, also one that runs, and at no other time.
        turn = context["ti"].max_tries
        self._launcher = Launcher(_run_folder(self._run_folder(), context), turn)
        try:
            returned = cast("dict[str, Any]", self.execute_resumable(context))
        except StateflowTaskFailed:
            self._forget(context)
            raise
        self._announce(returned, context)
        self._forget(context)
        return returned

    def submit_job(self, context: Context) -> JsonValue:
        """Starts the program, unless one that was started for this task is found alive."""
        launcher = self._launches()
        with launcher.locked():
            # Its worker may have died before Airflow had stored what it returned here.
            live = launcher.live()
            if live and launcher.is_of_this_turn(live):
                self.log.info("An earlier try's run is still alive, waiting for it: %s", live.folder)
                return asdict(live)
            launcher.forget_old(_KEPT_LAUNCHES)
            forget_old_runs(_task_folder(self._run_folder(), context), _KEPT_RUNS)
            folder = launcher.next_folder()
            launch = launcher.start(folder, self._command(folder, context))
        self.log.info("Started process %d; its files are in %s", launch.pid, launch.folder)
        return asdict(launch)

    def get_job_status(self, external_id: JsonValue, context: Context) -> str:
        """Looks at the process, then at what it wrote."""
        launch = _launch(external_id)
        if not self._launches().is_of_this_turn(launch):
            return CLEARED
        if launch.process():
            return RUNNING
        if not launch.is_local:
            self.log.warning(
                "The last run was started on host %s and cannot be seen from here; a new one will fence it",
                launch.host,
            )
        result = read_result(launch.result_file)
        return FINISHED if result and result.finished else FAILED

    def is_job_active(self, status: str) -> bool:
        return status == RUNNING

    def is_job_succeeded(self, status: str) -> bool:
        return status == FINISHED

    # The base declares None, but returns what this returns to a try that only waited (and no XCom without).
    def poll_until_complete(  # type: ignore[override]
        self, external_id: JsonValue, context: Context
    ) -> dict[str, Any]:
        """Copies the program's log until it ends; returns its result."""
        launch = _launch(external_id)
        launcher = self._launches()
        with LogFollower(launch.log_file, self.log.info, _REPEATED_LOG) as log:
            while not launcher.wait(launch, _COPY_SECONDS):
                log.copy()
                if self._killed:
                    launcher.stop(launch)
        return self.get_job_result(external_id, context)

    def get_job_result(self, external_id: JsonValue, context: Context) -> dict[str, Any]:
        """What the program returned; raises the failure that ended it otherwise."""
        launch = _launch(external_id)
        result = read_result(launch.result_file)
        if result is None:
            raise report(self._unexplained(launch))
        if not result.finished:
            raise report(result.failure())
        return result.returned()

    def on_kill(self) -> None:
        """Ends the program and all its children; within the five seconds that Airflow grants."""
        self._killed = True
        if self._launcher and (launch := self._launcher.live()):
            self._launcher.stop(launch)

    def _launches(self) -> Launcher:
        assert self._launcher is not None, "execute() was not called"
        return self._launcher

    def _run_folder(self) -> Path:
        default = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "stateflow-runs"
        return Path(
            self.run_folder or conf.get("stateflow", "run_folder", fallback=None) or default
        ).absolute()

    def _command(self, folder: Path, context: Context) -> Command:
        from stateflow_airflow.hooks import StateflowSubmitHook

        _check_paths(self.job, self.job_root, self.from_savepoint)
        self._check_failpoint()
        arguments = ["run", self.job, "--job-root", self.job_root]
        if self.from_savepoint:
            arguments += ["--from-savepoint", self.from_savepoint, "--tables", self.tables]
            arguments += ["--from-other-job"] if self.from_other_job else []
            arguments += [f"--drop={uid}" for uid in sorted(as_names(self.drop))]
        for key, value in self.settings.items():
            arguments += ["--set", f"{key}={as_text(value)}"]
        arguments += ["--result-file", str(result_file(folder))]
        arguments += ["--run-id", _run_id(context), "--log-format", "text"]
        quiet = None if self.settings.get("spark.log") == "full" else folder
        spark = SparkSubmit(
            conn_id=self.spark.conn_id, conf=self.conf, env_vars=self.env_vars, options=self.spark.options
        )
        return StateflowSubmitHook(spark).command(f"stateflow {Path(self.job).stem}", arguments, quiet)

    def _check_failpoint(self) -> None:
        """Fails before Spark starts: the program itself would only see a wrong name at its first failpoint."""
        from stateflow.failpoints import check

        if wanted := self.env_vars.get("STATEFLOW_FAILPOINT"):
            with told_as_failures():
                check(wanted)

    def _unexplained(self, launch: Launch) -> StateflowTaskFailed:
        if launch.log_file.exists():
            self.log.error("The run's last words:\n%s", "\n".join(last_lines(launch.log_file, 20)))
        return ended_without_result(launch.exit_code())

    def _announce(self, returned: Mapping[str, Any], context: Context) -> None:
        for asset in self.outlets:
            if isinstance(asset, Asset):
                extra = context["outlet_events"][asset].extra
                extra.update(checkpoint_id=returned["checkpoint_id"], offsets=returned["offsets"])

    def _forget(self, context: Context) -> None:
        store = context.get("task_state_store")
        if self.durable and store is not None:
            store.delete(self.external_id_key)


def _launch(external_id: JsonValue) -> Launch:
    return Launch(**cast("dict[str, Any]", external_id))


def _check_paths(job: str, job_root: str, from_savepoint: str) -> None:
    if not Path(job).is_absolute() or not Path(job).is_file():
        raise misconfigured(f"there is no job file {job!r} on this worker", "give its absolute path")
    paths = {"job root": job_root, **({"savepoint": from_savepoint} if from_savepoint else {})}
    for what, path in paths.items():
        if "://" not in path and not Path(path).is_absolute():
            raise misconfigured(
                f"the {what} {path!r} is neither a URI nor an absolute path",
                "the driver's working directory is not the DAG's: give its whole path, as /data/jobs/flights",
            )


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
    """`name` as one folder's name; different names never give the same one."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return safe if safe == name else f"{safe}-{sha256(name.encode()).hexdigest()[:8]}"
