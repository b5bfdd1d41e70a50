"""The question between a restore's plan and its execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.exceptions import HITLRejectException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import timezone

from stateflow_airflow.failures import PermanentFailure, StateflowTaskFailed
from stateflow_airflow.plans import as_proposal
from stateflow_airflow.retry import RetryByErrorCode
from stateflow_airflow.task_requests import asker, check_root, request_id, told_as_failures
from stateflow_airflow.versions import require_supported

if TYPE_CHECKING:
    from airflow.sdk import Context

require_supported()


class StateflowApprovalOperator(ApprovalOperator):
    """Asks a person whether a restore's plan is carried out.

    **Approve**: the tasks after this one run. **Reject**, or no answer within `response_timeout`: the task fails with
    the code ``rejected`` and is not retried, so that the DAG run fails, and the job's history gets a record of kind
    ``rejection`` with who rejected what and why; a retry of the task adds no second one. The job is not changed.

    **Returns** (XCom), also of a rejection: ``chosen_options``, ``params_input``, ``responded_at`` and
    ``responded_by_user``.

    Args:
        job_root: the job's root. Templated.
        plan: what `StateflowRestorePlanOperator` returned (``plan.output``). Templated.
        other arguments: as Airflow's ApprovalOperator has them. A param `note` is the reason that the history gets.
    """

    template_fields: Sequence[str] = ("subject", "body", "job_root", "plan")
    template_fields_renderers = {"plan": "json"}
    ui_color = "#fdf1cf"

    def __init__(self, *, job_root: str, plan: Any, **kwargs: Any) -> None:
        kwargs.setdefault("retry_policy", RetryByErrorCode())
        kwargs.setdefault("defaults", self.REJECT)
        super().__init__(fail_on_reject=True, **kwargs)
        self.job_root = job_root
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Asks; the question says until when it waits for an answer."""
        if self.response_timeout:
            until = timezone.utcnow() + self.response_timeout
            waits = f"**Waits for an answer** until {until:%Y-%m-%d %H:%M} UTC; none by then counts as a rejection."
            self.body = f"{self.body or ''}\n\n{waits}"
        super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Returns the answer when it is an approval, and raises PermanentFailure for a rejection."""
        try:
            return super().execute_complete(context, event)
        except HITLRejectException:
            # Airflow stores what a task returns, and this one does not return.
            answer = {key: event.get(key) for key in ("chosen_options", "params_input", "responded_by_user")}
            at = event["responded_at"].isoformat(timespec="milliseconds")
            context["ti"].xcom_push(key="return_value", value={**answer, "responded_at": at})
            try:
                self._record(context, answer, at)
            except StateflowTaskFailed as error:
                # A retry would ask the person again, who has decided.
                self.log.error("The job's history has no record of this rejection: %s", error)
            raise self._failure(answer) from None

    def _record(self, context: Context, answer: Mapping[str, Any], at: str) -> None:
        with told_as_failures():
            from stateflow.recovery import Rejection, record_rejection

            proposal = as_proposal(self.plan)
            request = request_id(context, proposal.digest)
            rejection = Rejection(request, _who(answer) or "nobody", _why(answer), at, asker(context))
            record_rejection(check_root(self.job_root), proposal, rejection)

    def _failure(self, answer: Mapping[str, Any]) -> PermanentFailure:
        who, why = _who(answer), _why(answer)
        return PermanentFailure(
            "rejected",
            f"{who} rejected the plan: {why}" if who and why else f"{who} rejected the plan" if who else why,
            "nothing was changed; for another target, trigger the DAG again",
        )


def _who(answer: Mapping[str, Any]) -> str:
    user = answer.get("responded_by_user") or {}
    return str(user.get("name") or user.get("id") or "")


def _why(answer: Mapping[str, Any]) -> str:
    note = str((answer.get("params_input") or {}).get("note") or "").strip()
    return note if _who(answer) else "no answer in time"
