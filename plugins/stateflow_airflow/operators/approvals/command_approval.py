"""Operators that ask for approval of a stop, and of a retention that keeps less than the job's configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow_airflow.operators.approvals.approval import JobApprovalOperator, Question, request_digest
from stateflow_airflow.operators.base import escape, require_paused, restrict_library
from stateflow_airflow.operators.retention_limits import (
    Limit,
    Retention,
    read_retention,
    retention_loss,
    savepoint_to_delete,
)
from stateflow_airflow.operators.template_values import check_job_root, to_bool

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
    from stateflow.operations import JobDescription
    from stateflow_airflow.spark import SparkSubmit


class StateflowStopApprovalOperator(JobApprovalOperator):
    """Asks a user to approve a stop, as it is now: of this run of this job, with these options.

    An approval is void once another run of the job has started. See `JobApprovalOperator`.

    Args:
        name: see `StateflowStopOperator`. Templated.
        origin: see `StateflowStopOperator`. Templated.
        reason: see `StateflowStopOperator`. Templated.
        drain: see `StateflowStopOperator`. Templated.
        run_dag: see `StateflowStopOperator`. No user is asked to approve a stop that would be refused.
        spark: see `StateflowStopOperator`. No user is asked to approve a drain for which the task would have to run the
            job itself with a connection in cluster mode.
    """

    template_fields: Sequence[str] = (*JobApprovalOperator.template_fields, "name", "origin", "reason", "drain")

    def __init__(
        self,
        *,
        name: str = "",
        origin: str = "stop",
        reason: str = "",
        drain: bool | str = False,
        run_dag: str = "",
        spark: SparkSubmit | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.origin = origin
        self.reason = reason
        self.drain = drain
        self.run_dag = run_dag
        self.spark = spark

    def execute(self, context: Context) -> None:
        """Asks the question, unless the stop would be refused."""
        require_paused(context, self.run_dag)
        self._check_drain()
        super().execute(context)

    def _check_drain(self) -> None:
        """Raises PermanentFailure if the stop would have to run the job itself, and cannot."""
        from stateflow.operations import describe

        with restrict_library(self.locations):
            if self.spark is None or not to_bool("drain", self.drain):
                return
            if not describe(check_job_root(self.job_root)).run_open:
                from stateflow_airflow.hooks import StateflowSubmitHook

                StateflowSubmitHook(self.spark).check_client_mode()

    def question(self) -> Question:
        """Returns the stop, with the run that is the newest one now."""
        with restrict_library(self.locations):
            drain = to_bool("drain", self.drain)
            return stop_question(self.job_root, self.name, self.origin, self.reason, drain)[0]


def stop_question(job_root: str, name: str, origin: str, reason: str, drain: bool) -> tuple[Question, int]:
    """Returns the question whether a stop may be executed, and the job's newest run, on which its digest depends."""
    from stateflow.operations import describe, run_name

    status = describe(check_job_root(job_root))
    origin = "stop" if origin == "manual" else origin
    digest = request_digest(
        action="stop",
        job=status.job_uuid,
        root=job_root,
        generation=status.generation,
        name=name,
        origin=origin,
        reason=reason,
        drain=drain,
    )
    run = run_name(status.run, status.generation)
    text = _describe_stop(status, run, name, drain)
    question = Question(digest, f"stop of {run}", status.head_seq, text, drain=drain, generation=status.generation)
    return question, status.generation


def _describe_stop(status: JobDescription, run: str, name: str, drain: bool) -> str:
    from stateflow.checkpoint.restore.plan_document import RESTORE_OPEN

    ended = RESTORE_OPEN if status.restore_open else "no run is active"
    saved = f"savepoint **{escape(name)}**" if name else "savepoint"
    lines = [
        f"**Job**: {escape(status.job)}, at {escape(status.label)}",
        f"**Run**: {run}, " + ("not ended" if status.run_open else f"ended: {ended}"),
        f"**Result**: the run ends after its next checkpoint, with a {saved} of it"
        if status.run_open
        else f"**Result**: a {saved} of the newest checkpoint",
    ]
    if drain:
        lines.append("**Drain**: every event-time timer fires first, which closes every open session")
    return "\n\n".join(lines)


class StateflowRetentionApprovalOperator(JobApprovalOperator):
    """Asks a user to approve a deletion of what the configured numbers keep, or of a savepoint; otherwise asks nothing.

    An approval is void once the retention would delete a checkpoint or savepoint that the question does not list. See
    `JobApprovalOperator`.

    Args:
        retain: see `StateflowRetentionOperator`. Templated.
        savepoints: see `StateflowRetentionOperator`. Templated.
        savepoints_max_age: see `StateflowRetentionOperator`. Templated.
        dispose: see `StateflowRetentionOperator`. No user is asked about a savepoint that does not exist. Templated.
        reason: see `StateflowRetentionOperator`. Templated.
        configured: see `StateflowRetentionOperator`.
    """

    template_fields: Sequence[str] = (
        *JobApprovalOperator.template_fields,
        "retain",
        "savepoints",
        "savepoints_max_age",
        "dispose",
        "reason",
    )

    def __init__(
        self,
        *,
        retain: Limit = None,
        savepoints: Limit = None,
        savepoints_max_age: timedelta | str | None = None,
        dispose: str = "",
        reason: str = "",
        configured: Retention | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.retain = retain
        self.savepoints = savepoints
        self.savepoints_max_age = savepoints_max_age
        self.dispose = dispose
        self.reason = reason
        self.configured = configured
        self._given = (retain, savepoints, savepoints_max_age)

    def question(self) -> Question | None:
        """Returns what is to be deleted below the configured numbers; None if nothing is."""
        configured = self.configured or read_retention(*self._given)
        with restrict_library(self.locations):
            requested = Retention.of_arguments(self.retain, self.savepoints, self.savepoints_max_age)
            root = check_job_root(self.job_root)
            disposed = savepoint_to_delete(root, self.dispose.strip(), must_exist=True)
            question = retention_question(self.job_root, requested, configured, disposed=disposed)
        if question is None or not self.reason.strip():
            return question
        return replace(question, markdown=f"{question.markdown}\n\n**Reason**: {escape(self.reason.strip())}")


def retention_question(
    job_root: str,
    requested: Retention,
    configured: Retention,
    *,
    approved: Sequence[str] = (),
    disposed: StoredSavepoint | None = None,
) -> Question | None:
    """Returns the question whether a retention may be executed; None if the configuration permits it.

    Its digest depends on what is deleted although the configuration keeps it.

    Args:
        job_root: the job root.
        requested: the limits that are to be applied.
        configured: the limits that need no approval.
        approved: the loss that a user has approved. A smaller one is the same request: something has vanished since.
        disposed: the savepoint that a user wants to delete.
    """
    from stateflow.operations import describe

    root = check_job_root(job_root)
    checkpoints, savepoints = retention_loss(root, requested, configured, disposed)
    loss = [*(f"checkpoint {id}" for id in checkpoints), *(f"savepoint {name}" for name in savepoints)]
    if disposed:
        # With its id: another savepoint may get its name.
        loss.append(f"savepoint {disposed.document.name} with the id {disposed.document.id}")
        savepoints.append(disposed.document.name)
    if not loss:
        return None
    status = describe(root)
    named = list(loss if Counter(loss) - Counter(approved) else approved)
    digest = request_digest(action="retention", job=status.job_uuid, root=job_root, loss=named, **requested.parts)
    lines = [
        f"**Job**: {escape(status.job)}",
        f"**To be kept**: {requested}. Configured: {configured}",
        f"**Deleted although the configuration keeps them**: {escape(', '.join(loss))}",
    ]
    return Question(
        digest,
        f"retention of {requested}",
        status.head_seq,
        "\n\n".join(lines),
        loss,
        checkpoints=checkpoints,
        savepoints=savepoints,
    )
