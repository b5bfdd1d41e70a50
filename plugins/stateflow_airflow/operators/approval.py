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


class StateflowApprovalOperator(ApprovalOperator):
    """Asks a user to approve or reject the plan of a restore.

    **Approve**: the downstream tasks run. **Reject**, or no answer within `response_timeout`: the task fails with the
    code ``rejected`` and is not retried, so the DAG run fails. The job's history gets a record of kind ``rejection``
    with the user and the reason; a retry of the task adds no second one. The job is not changed.

    **Returns** (XCom), also for a rejection: ``chosen_options``, ``params_input``, ``responded_at`` and
    ``responded_by_user``.

    Args:
        job_root: the job's root. Templated.
        plan: the output of `StateflowRestorePlanOperator` (``plan.output``). Templated.

    Other arguments are those of Airflow's ApprovalOperator. A param `note` is recorded as the reason.
    """

    template_fields: Sequence[str] = ("subject", "body", "job_root", "plan")
    template_fields_renderers = {"plan": "json"}
    ui_color = "#fdf1cf"

    def __init__(self, *, job_root: str, plan: object, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        kwargs.setdefault("defaults", self.REJECT)
        super().__init__(fail_on_reject=True, **kwargs)
        self.job_root = job_root
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Asks the question, with the time until which it can be answered."""
        if self.response_timeout:
            until = timezone.utcnow() + self.response_timeout
            deadline = f"**Answer by** {until:%Y-%m-%d %H:%M} UTC. No answer by then counts as a rejection."
            self.body = f"{self.body or ''}\n\n{deadline}"
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Returns the answer if it is an approval. Raises PermanentFailure for a rejection."""
        try:
            return super().execute_complete(context, event)
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
    """

    user: str
    note: str

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Answer:
        """Returns the answer in Airflow's document."""
        user = answer.get("responded_by_user") or {}
        note = (answer.get("params_input") or {}).get("note") or ""
        return cls(str(user.get("name") or user.get("id") or ""), str(note).strip())

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
