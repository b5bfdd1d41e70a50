"""Operators that take a savepoint of a job, stop the job with one, or copy one with another max parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import config_failure
from stateflow_airflow.operators.approvals.approval import Answer, ApprovalCheck, Decision
from stateflow_airflow.operators.approvals.command_approval import stop_question
from stateflow_airflow.operators.base import (
    JobOperator,
    JobRootOperator,
    default_name,
    environment,
    request_id,
    requester,
    require_paused,
)
from stateflow_airflow.operators.template_values import (
    check_job_root,
    check_task_location,
    job_code,
    savepoint_settings,
    to_bool,
    to_count,
    to_duration,
    to_member,
)
from stateflow_airflow.spark import SparkSubmit, collect_environment
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.operations import SavepointReport, SavepointRequest

require_supported()

_BEGUN = "stateflow_stop"
"""Key of Airflow's store of the task for the stop that a try has begun: the task's number of tries, the digest of the
approval, and the run that was approved."""


class StateflowSavepointOperator(JobOperator):
    """Takes a savepoint: at the next barrier of an active run, otherwise from the newest checkpoint.

    It needs no Spark and no slot of the job's pool; an active run continues. A retry returns the same savepoint, and a
    task that is killed withdraws its request.

    **Returns** (XCom) ``id``, ``name``, ``path``, ``job``, ``checkpoint_id``, ``offsets``, ``bytes``, ``origin``,
    ``made_at`` and ``made_from`` (``run`` or ``head``). Each asset in `outlets` receives an event with the first three
    and the checkpoint's id.

    Args:
        job_root: the job's root, see `StateflowRunOperator`. Templated.
        name: name of the savepoint; by default, its origin and the time of the DAG run. Templated.
        origin: ``manual``, ``upgrade`` or ``periodic``; retention deletes periodic savepoints only. Templated.
        reason: stored with the savepoint. Templated.
        job: absolute path of the job file. Required only if a run died before it published its output. Templated.
        settings: see `StateflowRunOperator`. Templated.
        stored_as: ``native`` or ``canonical`` format; by default, native for a savepoint, and for a stop as the setting
            ``savepoint.stop_format`` says. Templated.
        timeout: how long to wait for the next barrier of the run. The task occupies its worker slot meanwhile.
    """

    template_fields: Sequence[str] = ("job_root", "name", "origin", "reason", "job", "settings", "stored_as")
    template_fields_renderers = {"settings": "json"}
    ui_color = "#dff2e1"

    def __init__(
        self,
        *,
        job_root: str,
        name: str = "",
        origin: str = "manual",
        reason: str = "",
        job: str = "",
        settings: Mapping[str, object] | str | None = None,
        stored_as: str = "",
        timeout: timedelta | str = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.name = name
        self.origin = origin
        self.reason = reason
        self.stored_as = stored_as
        self.timeout = timeout
        self._request = ""

    def execute(self, context: Context) -> dict[str, object]:
        """Takes the savepoint, or finds the one that an earlier try took."""
        from stateflow.outputs import to_object

        self._request = self._request_id(context)
        with self.library():
            request = self._savepoint_request(context)
            made = self._make(request)
            how = self._made_from(made, request)
        self.log.info(
            "Savepoint %s of checkpoint %d, %d bytes, taken %s, stored in %s",
            made.name,
            made.checkpoint_id,
            made.size_bytes,
            how,
            made.path,
        )
        facts = {"name": made.name, "path": made.path, "checkpoint_id": made.checkpoint_id}
        self.add_to_assets(context, {"savepoint_id": made.id, **facts})
        return to_object(made)

    def _made_from(self, made: SavepointReport, request: SavepointRequest) -> str:
        from stateflow.operations import why_no_run

        if made.made_from == "run":
            return "by the run"
        return f"from the newest checkpoint: {why_no_run(self.job_root, request)}"

    def on_kill(self) -> None:
        """Withdraws the request, so that the run does not take a savepoint that no task waits for."""
        if self._request:
            from stateflow.operations import withdraw

            with self.library():
                withdraw(self.job_root, self._request)

    def _request_id(self, context: Context) -> str:
        return request_id(context)

    def _make(self, request: SavepointRequest) -> SavepointReport:
        from stateflow.operations import create_savepoint

        return create_savepoint(check_job_root(self.job_root), request)

    def _savepoint_request(self, context: Context) -> SavepointRequest:
        from stateflow.checkpoint.log.documents import Origin, SavepointFormat
        from stateflow.operations import SavepointRequest

        stored_as = to_member("stored_as", self.stored_as, SavepointFormat) if self.stored_as else None
        origin = to_member("origin", self.origin, Origin)
        return SavepointRequest(
            name=self.name or default_name(self.origin, context, self._request),
            origin=origin,
            by=requester(context),
            reason=self.reason,
            request_id=self._request,
            code=job_code(self.job, self.settings) if self.job else None,
            format=stored_as,
            settings=savepoint_settings(self.settings),
            timeout=to_duration("timeout", self.timeout) or timedelta(0),
        )


class StateflowStopOperator(StateflowSavepointOperator):
    """Stops the job's run after its next checkpoint, with a savepoint of exactly that checkpoint.

    The run's own task succeeds. If no run is active, it takes the savepoint from the newest checkpoint. It returns and
    sends to `outlets` the same as `StateflowSavepointOperator`. A retry returns the same savepoint. A task that is
    cleared stops the job again; if it has a `name`, it returns the savepoint that it took before, or fails because the
    name is in use if the job has a newer checkpoint.

    It needs an approval of exactly this stop: of the run that was the job's newest one when the user was asked.

    `origin` is ``stop`` or ``upgrade``; ``manual`` is treated as ``stop``. Other arguments are as for
    `StateflowSavepointOperator`.

    Args:
        approval: the output of `StateflowStopApprovalOperator` with the same arguments. Its user and note are stored
            with the savepoint. Templated.
        self_approval: whether the user who triggered the DAG run may have approved.
        needs_approval: whether the stop is refused without an approval. False lets everyone who may trigger the DAG
            stop the job.
        drain: whether every event-time timer fires before the savepoint; for the last run only. If no run is active,
            this requires `job`: the task runs the job itself and reads no input. Templated.
        spark: see `StateflowRunOperator`; used if the task itself runs a job on Spark to drain it. By default, Spark
            starts with its configuration on the worker. A connection in cluster mode is refused then: drain the job
            while a run is active, or by a run with the setting ``run.drain``.
        run_dag: id of a DAG that starts a run whenever one has ended. Unless it is paused, the stop is refused with the
            error ``dag-not-paused``.
    """

    template_fields: Sequence[str] = (
        *StateflowSavepointOperator.template_fields,
        "drain",
        "conf",
        "env_vars",
        "approval",
    )
    template_fields_renderers = {"settings": "json", "conf": "json", "env_vars": "json", "approval": "json"}
    ui_color = "#f7e3d4"

    def __init__(
        self,
        *,
        drain: bool | str = False,
        spark: SparkSubmit | None = None,
        approval: object = None,
        self_approval: bool = False,
        needs_approval: bool = True,
        run_dag: str = "",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("origin", "stop")
        super().__init__(**kwargs)
        self.approval = approval
        self.self_approval = self_approval
        self.needs_approval = needs_approval
        self.run_dag = run_dag
        self.drain = drain
        self.spark = spark
        self._generation = 0
        self.conf: Mapping[str, str] = spark.conf if spark else {}
        self.env_vars: Mapping[str, str] = spark.env_vars if spark else {}

    def execute(self, context: Context) -> dict[str, object]:
        """Stops the job, if a user has approved it."""
        require_paused(context, self.run_dag)
        self._decided = self._decision(context) if self.needs_approval else Decision(requester(context))
        return super().execute(context)

    def _decision(self, context: Context) -> Decision:
        """Returns who is responsible. Raises PermanentFailure if an approval is missing."""
        with self.library():
            drain = to_bool("drain", self.drain)
            question, generation = stop_question(self.job_root, self.name, self.origin, self.reason, drain)
        digest, approved = question.digest, Answer.of(self.approval).plan
        store, begun = context.get("task_state_store"), f"{context['ti'].max_tries}:{approved}:"
        earlier = str(store.get(_BEGUN) or "") if store is not None else ""
        if earlier.startswith(begun):
            # A try that was killed may have run the job to drain it, and so have changed its newest run; `stop` knows.
            digest, generation = approved, int(earlier.removeprefix(begun))
        decided = ApprovalCheck(self.approval, self.self_approval).decision(digest, context)
        # The request names the run that was approved: one that begins from here on does not end by it.
        self._generation = generation
        if store is not None:
            store.set(_BEGUN, f"{begun}{generation}")
        return decided

    def _request_id(self, context: Context) -> str:
        # Airflow raises max_tries when a task is cleared, and only then.
        return request_id(context, context["ti"].max_tries)

    def _savepoint_request(self, context: Context) -> SavepointRequest:
        from dataclasses import replace

        if self.origin == "manual":  # the default of the form, which has one field for both operators
            self.origin = "stop"
        # A task that was killed after its work and then cleared took its savepoint under an earlier id.
        earlier = tuple(request_id(context, tries) for tries in range(context["ti"].max_tries))
        decided = self._decided
        drain = to_bool("drain", self.drain)
        asked = super()._savepoint_request(context)
        return replace(
            asked,
            by=decided.by,
            requested_by=decided.requested_by,
            note=decided.note,
            earlier_request_ids=earlier,
            drain=drain,
            generation=self._generation,
        )

    def _make(self, request: SavepointRequest) -> SavepointReport:
        from stateflow.operations import stop

        with self._job_environment() if request.drain else nullcontext():
            made = stop(check_job_root(self.job_root), request, savepoint=True, may_run=True)
        assert made is not None, "a stop with savepoint=True returns one"
        return made

    @contextmanager
    def _job_environment(self) -> Iterator[None]:
        """Sets the environment in which this process runs the job: a driver's, with the connection's options."""
        # The job's code is in this process, but what Spark starts inherits only this.
        passed = collect_environment()
        with TemporaryDirectory(prefix="stateflow-") as folder:
            options = self._spark_session(Path(folder)) if self.spark else {}
            with environment({**passed, **options}):
                yield

    def _spark_session(self, folder: Path) -> Mapping[str, str]:
        """Writes Spark's settings into a folder; returns the variables with which a Spark session reads them."""
        from stateflow.private_files import write_private
        from stateflow_airflow.hooks import StateflowSubmitHook

        assert self.spark is not None
        spark = self.spark.with_rendered(self.conf, self.env_vars)
        session = StateflowSubmitHook(spark).session(f"stateflow stop {self.task_id}", folder)
        for name, content in session.files.items():
            write_private(folder / name, content.encode())
        return session.env


class StateflowRekeyOperator(JobRootOperator):
    """Copies a savepoint with another max parallelism, in the canonical format.

    It needs no Spark, and the job may run: the savepoint is only read. Start a new job root from the copy, with
    `from_savepoint` of `StateflowRunOperator`, or restore the copy. A retry continues where an earlier try was killed,
    and returns the same copy.

    **Returns** (XCom) the same as `StateflowSavepointOperator`, for the copy.

    Args:
        job_root: the root of the savepoint's job, see `StateflowRunOperator`. Templated.
        savepoint: name of a savepoint of the job, or the path or URI of a savepoint's folder. Templated.
        max_parallelism: number of key groups of the copy. Templated.
        into: path or URI of a folder for the copy's folder, below one of `locations`, or one that Airflow's
            configuration allows; not in the job root. Templated.
        name: name of the copy; by default, the savepoint's name. Templated.
        reason: stored with the copy. Templated.
    """

    template_fields: Sequence[str] = ("job_root", "savepoint", "max_parallelism", "into", "name", "reason")
    ui_color = "#dff2e1"

    def __init__(
        self,
        *,
        job_root: str,
        savepoint: str,
        max_parallelism: int | str,
        into: str,
        name: str = "",
        reason: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.savepoint = savepoint
        self.max_parallelism = max_parallelism
        self.into = into
        self.name = name
        self.reason = reason

    def execute(self, context: Context) -> dict[str, object]:
        """Makes the copy, or finds the one that an earlier try made."""
        from stateflow.operations import RekeyRequest, rekey_savepoint
        from stateflow.outputs import to_object

        groups = to_count("max_parallelism", self.max_parallelism, "key groups")
        if groups is None:
            raise config_failure("max_parallelism is not given", "pass the number of key groups of the copy")
        if not self.savepoint:
            raise config_failure("savepoint is not given", "pass the name of a savepoint, or the path of its folder")
        with self.library():
            into = check_task_location("into", self.into)
            request = RekeyRequest(self.savepoint, groups, into, self.name, requester(context), self.reason)
            made = rekey_savepoint(request, check_job_root(self.job_root))
        self.log.info(
            "Savepoint %s with %d key groups, %d bytes, stored in %s", made.name, groups, made.size_bytes, made.path
        )
        return to_object(made)
