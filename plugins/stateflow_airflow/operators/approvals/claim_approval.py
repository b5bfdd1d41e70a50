"""The operator that asks for approval before a new job root claims the savepoint that it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stateflow_airflow.operators.approvals.approval import JobApprovalOperator, Question, request_digest
from stateflow_airflow.operators.base import restricted_library
from stateflow_airflow.operators.markdown import escaped
from stateflow_airflow.operators.template_values import checked_location, checked_root, to_claim_mode

if TYPE_CHECKING:
    from stateflow.operations import SavepointReport


class StateflowClaimApprovalOperator(JobApprovalOperator):
    """Asks a user to approve that a job claims the savepoint that its new job root begins with.

    It asks nothing for ``no-claim``, and for a job root that has begun: its runs ignore the savepoint. See
    `JobApprovalOperator`.

    Args:
        from_savepoint: see `StateflowRunOperator`. Templated.
        claim_mode: see `StateflowRunOperator`. Templated.
    """

    template_fields: Sequence[str] = (*JobApprovalOperator.template_fields, "from_savepoint", "claim_mode")

    def __init__(self, *, from_savepoint: str, claim_mode: str = "no-claim", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.from_savepoint = from_savepoint
        self.claim_mode = claim_mode

    def question(self) -> Question | None:
        """Returns the claim of exactly this savepoint; None if there is nothing to claim."""
        if to_claim_mode(self.claim_mode) == "no-claim" or not self.from_savepoint:
            return None
        with restricted_library(self.locations):
            return claim_question(self.job_root, self.from_savepoint)


def claim_question(job_root: str, savepoint: str) -> Question | None:
    """Returns the question whether a new job root may claim a savepoint; None for a job root that has begun."""
    from stateflow.operations import initial_savepoint

    root = checked_root(job_root)
    found = initial_savepoint(root, checked_location("from_savepoint", savepoint))
    if found is None:
        return None
    digest = request_digest(action="claim", root=root, savepoint=found.path, id=found.id)
    return Question(digest, f"claim of savepoint {found.name}", 0, _describe(root, found))


def _describe(root: str, found: SavepointReport) -> str:
    lines = [
        f"**New job root**: {escaped(root)}",
        f"**Savepoint**: {escaped(found.path)}, of the job {escaped(found.job)}, made at {escaped(found.made_at)}",
        "**Claim**: the new job owns this savepoint, and deletes it once its state is no longer one of the job's "
        "retained checkpoints",
    ]
    return "\n\n".join(lines)
