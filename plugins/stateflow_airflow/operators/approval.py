"""The operator that asks a user to approve the plan of a restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import timezone

from stateflow_airflow.failures import PermanentFailure, StateflowTaskFailed, translate_errors
from stateflow_airflow.operators.restore_plan import parse_plan
from stateflow_airflow.operators.task_requests import request_id, requester
from stateflow_airflow.operators.template_values import checked_root
from stateflow_airflow.retry import RetryByErrorCode
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()

_ASKED = "asked"
"""Key of the XCom with the digest of the plan that the question is about."""
APPROVE = "Approve"


class StateflowApprovalOperator(ApprovalOperator):
    """Asks a user to approve or reject the plan of a restore.

    **Approve**: the downstream tasks run. **Reject**, or no answer within `response_timeout`: the task fails with the
    code ``rejected`` and is not retried, so the DAG run fails. The job's history gets a record of kind ``rejection``
    with the user and the reason; a retry of the task adds no second one. The job is not changed.

    The user who triggered the DAG run cannot approve: the task fails with the code ``not-approved``. Clear it to ask
    again.

    **Returns** (XCom), also for a rejection: ``chosen_options``, ``params_input``, ``responded_at``,
    ``responded_by_user``, and ``plan``: the digest of the plan that the question was about, which alone
    `StateflowRestoreOperator` then executes.

    Args:
        job_root: the job's root. Templated.
        plan: the output of `StateflowRestorePlanOperator` (``plan.output``). Templated.
        self_approval: whether the user who triggered the DAG run may approve.

    Other arguments are those of Airflow's ApprovalOperator. A param `note` is recorded as the reason.
    """

    template_fields: Sequence[str] = ("subject", "body", "job_root", "plan")
    template_fields_renderers = {"plan": "json"}
    ui_color = "#fdf1cf"

    def __init__(self, *, job_root: str, plan: object, self_approval: bool = False, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        kwargs.setdefault("defaults", self.REJECT)
        super().__init__(fail_on_reject=True, **kwargs)
        self.job_root = job_root
        self.plan = plan
        self.self_approval = self_approval

    def execute(self, context: Context) -> None:
        """Asks the question, with the time until which it can be answered."""
        # Until the answer, another try of the planning task could replace the plan.
        context["ti"].xcom_push(key=_ASKED, value=parse_plan(self.plan).digest)
        if self.response_timeout:
            until = timezone.utcnow() + self.response_timeout
            deadline = f"**Answer by** {until:%Y-%m-%d %H:%M} UTC. No answer by then counts as a rejection."
            self.body = f"{self.body or ''}\n\n{deadline}"
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Returns the answer if it is an approval. Raises PermanentFailure for any other."""
        try:
            given = super().execute_complete(context, event)
        except HITLRejectException:
            # Airflow stores the return value of a task only, and this task raises.
            answer = {key: event.get(key) for key in ("chosen_options", "params_input", "responded_by_user")}
            at = event["responded_at"].isoformat(timespec="milliseconds")
            context["ti"].xcom_push(key="return_value", value={**answer, "responded_at": at})
            rejected = Answer.of(answer)
            try:
                self._record(context, rejected, at)
            except StateflowTaskFailed as error:
                # Only logged: a retry would ask the user again, who has decided.
                self.log.error("Could not record the rejection in the job's history: %s", error)
            raise rejected.failure() from None
        if not self.self_approval:
            Answer.of(given).check_other_than(requester(context))
        return {**given, "plan": context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED)}

    def _record(self, context: Context, answer: Answer, at: str) -> None:
        with translate_errors():
            from stateflow.operations import Rejection, record_rejection

            plan = parse_plan(self.plan)
            request = request_id(context, plan.digest)
            rejection = Rejection(request, answer.user or "timeout", answer.reason, at, requester(context))
            record_rejection(checked_root(self.job_root), plan, rejection)


@dataclass(frozen=True)
class Answer:
    """A user's answer to the question.

    Attributes:
        user: name or id; empty if no user answered in time.
        note: what the user entered; may be empty.
        approves: whether the user approved.
        plan: digest of the plan that the question was about; empty if unknown.
        names: name and id of the user.
    """

    user: str
    note: str
    approves: bool = False
    plan: str = ""
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Answer:
        """Returns the answer in Airflow's document."""
        user = answer.get("responded_by_user") or {}
        user = user if isinstance(user, Mapping) else {}
        names = [str(user[key]) for key in ("name", "id") if user.get(key)]
        note = (answer.get("params_input") or {}).get("note") or ""
        chosen = list(answer.get("chosen_options") or ())
        return cls(
            user=names[0] if names else "",
            note=str(note).strip(),
            approves=chosen == [APPROVE] and bool(names),
            plan=str(answer.get("plan") or ""),
            names=frozenset(names),
        )

    def check_other_than(self, requested_by: str) -> None:
        """Raises PermanentFailure if the user who answered is the one who triggered the DAG run."""
        if requested_by in self.names:
            raise PermanentFailure(
                "not-approved",
                f"{requested_by} has triggered this restore, and so cannot approve it",
                "clear the task that asks, and let another user answer; self_approval=True in StateflowJob permits it",
                {"by": requested_by},
            )

    def check_approves(self, plan: str) -> None:
        """Raises PermanentFailure unless a user has approved the plan with this digest."""
        if not self.approves:
            raise PermanentFailure(
                "not-approved",
                "no user approved this plan, so nothing was changed",
                "clear the task that plans: it creates a new plan and asks for approval again",
            )
        if self.plan != plan:
            raise PermanentFailure(
                "not-approved",
                "the approval is for another plan, so nothing was changed",
                "clear the tasks that plan and ask: they create a plan and ask for its approval",
                {"approved": self.plan, "plan": plan},
            )

    @property
    def reason(self) -> str:
        """Why the plan was rejected; may be empty."""
        return self.note if self.user else "no answer in time"

    def failure(self) -> PermanentFailure:
        """Returns the failure of the task after a rejection."""
        rejected = f"{self.user} rejected the plan"
        message = (f"{rejected}: {self.reason}" if self.reason else rejected) if self.user else self.reason
        return PermanentFailure(
            "rejected",
            message,
            "nothing was changed; for another target, trigger the DAG again",
            {"by": self.user, "note": self.note},
        )
