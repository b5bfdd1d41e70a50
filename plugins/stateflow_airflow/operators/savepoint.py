"""Savepoints of a job, while it runs and while it does not, and the end of a run with one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

from stateflow_airflow.failures import misconfigured
from stateflow_airflow.operators.base import JobOperator
from stateflow_airflow.results import with_offsets
from stateflow_airflow.spark import SparkSubmit
from stateflow_airflow.task_requests import (
    as_truth,
    asker,
    check_root,
    default_name,
    job_code,
    request_id,
    told_as_failures,
)
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.recovery import SavepointAsk, SavepointReport

require_supported()

_ORIGINS = ("manual", "periodic", "upgrade", "stop")


class StateflowSavepointOperator(JobOperator):
    """Takes a savepoint: at the next barrier of the job's run, or from its newest checkpoint when there is no run.

    It needs no Spark, and no slot of the job's pool: a run goes on meanwhile. A try after this one, whatever ended it,
    gives the same savepoint; a task that is killed takes its request back.

    **Returns** (XCom) ``id``, ``name``, ``path``, ``job``, ``checkpoint_id``, ``offsets``, ``bytes``, ``origin``,
    ``made_at`` and ``taken_by`` (``run`` or ``head``). Each asset in `outlets` gets an event with the first three and
    the checkpoint's id.

    Args:
        job_root: the job's root, as in `StateflowRunOperator`. Templated.
        name: of the savepoint; empty for its origin and the time of the DAG run. Templated.
        origin: ``manual``, ``upgrade`` or ``periodic``; retention deletes periodic ones only. Templated.
        reason: why; kept with it. Templated.
        by: who; empty for who triggered the DAG run. Templated.
        job: absolute path of the job file. Needed only when a run died before it published its output. Templated.
        settings: as in `StateflowRunOperator`; only with `job`. Templated.
        timeout: how long to wait for the run's next barrier.
    """

    template_fields: Sequence[str] = ("job_root", "name", "origin", "reason", "by", "job", "settings")
    template_fields_renderers = {"settings": "json"}
    ui_color = "#dff2e1"

    def __init__(  # noqa: PLR0913 - an operator takes what a task needs, by name
        self,
        *,
        job_root: str,
        name: str = "",
        origin: str = "manual",
        reason: str = "",
        by: str = "",
        job: str = "",
        settings: Mapping[str, Any] | None = None,
        timeout: timedelta = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, job_root=job_root, settings=settings, **kwargs)
        self.name = name
        self.origin = origin
        self.reason = reason
        self.by = by
        self.timeout = timeout
        self._request = ""

    def execute(self, context: Context) -> dict[str, Any]:
        """Takes it, or finds what an earlier try has taken."""
        self._request = self._id(context)
        with told_as_failures():
            ask = self._ask(context)
            made = self._make(ask)
            how = self._how(made, ask)
        self.log.info(
            "Savepoint %s of checkpoint %d, %d bytes, taken %s, in %s",
            made.name, made.checkpoint_id, made.bytes, how, made.path,
        )  # fmt: skip
        for asset in self.outlets:
            if isinstance(asset, Asset):
                context["outlet_events"][asset].extra.update(
                    savepoint_id=made.id, name=made.name, path=made.path, checkpoint_id=made.checkpoint_id
                )
        return with_offsets(asdict(made))

    def _how(self, made: SavepointReport, ask: SavepointAsk) -> str:
        from stateflow.recovery import why_no_run

        if made.taken_by == "run":
            return "by the run"
        return f"from the newest checkpoint: {why_no_run(self.job_root, ask)}"

    def on_kill(self) -> None:
        """Takes the request back: a run that has not begun with it does not make what nobody waits for."""
        if self._request:
            from stateflow.recovery import withdraw

            with told_as_failures():
                withdraw(self.job_root, self._request)

    def _id(self, context: Context) -> str:
        return request_id(context)

    def _make(self, ask: SavepointAsk) -> SavepointReport:
        from stateflow.recovery import create_savepoint

        return create_savepoint(check_root(self.job_root), ask)

    def _ask(self, context: Context) -> SavepointAsk:
        from stateflow.checkpoint.documents import Origin
        from stateflow.recovery import SavepointAsk

        if self.origin not in _ORIGINS:
            raise misconfigured(
                f"{self.origin!r} is no origin of a savepoint", f"it is one of {', '.join(_ORIGINS)}"
            )
        return SavepointAsk(
            name=self.name or default_name(self.origin, context, self._request),
            origin=Origin(self.origin),
            by=self.by or asker(context),
            reason=self.reason,
            request=self._request,
            code=job_code(self.job, self.settings) if self.job else None,
            timeout=self.timeout,
        )


class StateflowStopOperator(StateflowSavepointOperator):
    """Ends the job's run after its next checkpoint, with a savepoint of exactly that checkpoint.

    The run's own task ends well. Without a run it takes the savepoint from the newest checkpoint. Returns, and
    announces to `outlets`, what `StateflowSavepointOperator` does. A try after this one gives the same
    savepoint. A task that is cleared stops the job once more; with a name of its own it gives the savepoint that it has
    made, unless the job has gone on since: then the name is taken.

    Args:
        origin: ``stop`` or ``upgrade``; ``manual`` counts as *stop*. Templated.
        drain: whether every event-time timer fires before the savepoint. Only for the last run. Without a run this
            needs `job`: the task runs the job itself, and reads no input. Templated.
        spark: as in `StateflowRunOperator`, for a job on Spark that is drained without a run. Without it, Spark starts
            as its configuration on the worker says.
    """

    template_fields: Sequence[str] = (
        *StateflowSavepointOperator.template_fields,
        "drain",
        "conf",
        "env_vars",
    )
    template_fields_renderers = {"settings": "json", "conf": "json", "env_vars": "json"}
    ui_color = "#f7e3d4"

    def __init__(self, *, drain: bool | str = False, spark: SparkSubmit | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("origin", "stop")
        super().__init__(**kwargs)
        self.drain = drain
        self.spark = spark
        self.conf = dict(spark.conf) if spark else {}
        self.env_vars = dict(spark.env_vars) if spark else {}

    def _id(self, context: Context) -> str:
        # Airflow raises max_tries when a task is cleared, and at no other time.
        return request_id(context, context["ti"].max_tries)

    def _ask(self, context: Context) -> SavepointAsk:
        from dataclasses import replace

        if self.origin == "manual":  # one form asks for both kinds
            self.origin = "stop"
        # A task that was killed after its work, and cleared, has made its savepoint under an earlier id.
        earlier = tuple(request_id(context, tries) for tries in range(context["ti"].max_tries))
        return replace(super()._ask(context), earlier=earlier, drain=as_truth("drain", self.drain))

    def _make(self, ask: SavepointAsk) -> SavepointReport:
        from stateflow.recovery import stop

        with self._spark_of_connection() if ask.drain and self.spark else nullcontext():
            made = stop(check_root(self.job_root), ask, savepoint=True, may_run=True)
        assert made is not None, "a stop with a savepoint gives one"
        return made

    @contextmanager
    def _spark_of_connection(self) -> Iterator[None]:
        """A Spark that this process starts is the one of the connection."""
        from stateflow_airflow.hooks import StateflowSubmitHook

        assert self.spark is not None
        spark = SparkSubmit(
            conn_id=self.spark.conn_id, conf=self.conf, env_vars=self.env_vars, options=self.spark.options
        )
        before = dict(os.environ)
        os.environ.update(StateflowSubmitHook(spark).session_environment(f"stateflow stop {self.task_id}"))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
