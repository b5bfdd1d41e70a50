"""Operators that ask a user to approve a request or the claim of a savepoint, and the check of the answer."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator, HITLOperator
from airflow.sdk import timezone

from stateflow_airflow.failures import (
    BY_ERROR_CODE,
    PermanentFailure,
    StateflowTaskFailed,
    config_failure,
    hide_tracebacks,
    log_failure,
    translate_errors,
)
from stateflow_airflow.operators.base import (
    airflow_user,
    escape,
    find_requester,
    request_id,
    requester,
    restrict_library,
    triggering_user,
)
from stateflow_airflow.operators.restore_plan import parse_plan
from stateflow_airflow.operators.template_values import (
    as_list,
    check_job_root,
    check_task_location,
    check_texts,
    to_claim_mode,
)
from stateflow_airflow.versions import RetryPolicy, add_retry_policy, require_supported

if TYPE_CHECKING:
    from airflow.providers.standard.triggers.hitl import HITLTriggerEventSuccessPayload
    from airflow.sdk import Context

    from stateflow.operations import SavepointReport


require_supported()


_ASKED = "asked"
"""Key of the XCom with the digest of the request that the question is about."""
APPROVE = "Approve"


@dataclass(frozen=True)
class Question:
    """A request that a user has to approve.

    Attributes:
        digest: identifies the request; an approval counts for no other one.
        label: what is requested, for the record of a rejection.
        seq: newest log entry of the job when it was requested.
        markdown: description of the request for the approver, in Markdown.
        loss: what the request deletes although the configuration keeps it, as text.
        checkpoints: ids of the checkpoints among it, for the page of the approval.
        savepoints: names of the savepoints among it.
        generation: generation of the run that the request ends; None if it ends none.
        drain: whether the run fires every event-time timer before it ends.
    """

    digest: str
    label: str
    seq: int
    markdown: str = ""
    loss: Sequence[str] = ()
    checkpoints: Sequence[int] = ()
    savepoints: Sequence[str] = ()
    generation: int | None = None
    drain: bool = False


def request_digest(**parts: object) -> str:
    """Returns the digest of a request from everything that distinguishes it from another one."""
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class JobApprovalOperator(ApprovalOperator):
    """Asks a user to approve or reject a request for one job root. Subclasses define the request.

    **Approve**: the downstream tasks run. **Reject**: all downstream tasks are skipped, and the DAG run succeeds. No
    answer within `response_timeout`: the task fails with the code ``rejected`` and is not retried. For both, the job's
    history gets a record of kind ``rejection`` with the user and the reason; a retry of the task adds no second one.
    The job is not changed.

    The question names the user who triggered the DAG run. That user cannot approve: Airflow refuses the answer where
    `assigned_users` is given; otherwise the task asks again, and says so.

    **Returns** (XCom), also for a rejection: ``chosen_options``, ``params_input``, ``responded_at``,
    ``responded_by_user``, and ``plan``: the digest of the request, which alone is then executed, with ``loss``: what it
    deletes. Returns None for a request that needs no approval.

    Args:
        job_root: the job's root. Templated.
        self_approval: whether the user who triggered the DAG run may approve.
        locations: see `JobRootOperator`.

    Other arguments are passed to Airflow's ApprovalOperator. A param `note` is recorded as the reason.
    """

    template_fields: Sequence[str] = ("subject", "body", "job_root")
    ui_color = "#fdf1cf"

    def __init__(
        self,
        *,
        job_root: str,
        self_approval: bool = False,
        locations: str | Sequence[str] = (),
        retry_policy: RetryPolicy | None = BY_ERROR_CODE,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("defaults", self.REJECT)
        add_retry_policy(kwargs, retry_policy)
        super().__init__(**kwargs)
        self.job_root = job_root
        self.self_approval = self_approval
        self.locations = as_list(locations)

    @abstractmethod
    def question(self) -> Question | None:
        """Returns the request as it is now; None if it needs no approval."""

    def pre_execute(self, context: Context) -> None:
        """Hides the tracebacks of failures whose messages explain them, and checks rendered texts."""
        hide_tracebacks()
        check_texts(self)

    def execute(self, context: Context) -> None:
        """Asks the question, with the user who triggered the DAG run and the time until which it can be answered."""
        self._ask(context)

    def _ask(self, context: Context, refused: str = "") -> None:
        """Asks the question, after an answer that was refused for the given reason."""
        asked = self.question()
        if asked is None:
            self.log.info("This request needs no approval")
            return
        # Until the answer, what the request depends on can change.
        context["ti"].xcom_push(key=_ASKED, value=asdict(asked))
        self._exclude_requester(triggering_user(context))
        parts = [f"**{escape(refused)}**" if refused else "", asked.markdown, self.body or ""]
        parts.append(f"**Requested by**: {escape(find_requester(context))}" + self._excluded(context))
        if self.response_timeout:
            until = timezone.utcnow() + self.response_timeout
            parts.append(f"**Answer by** {until:%Y-%m-%d %H:%M} UTC. No answer by then counts as a rejection.")
        self.body = "\n\n".join(part for part in parts if part)
        super().execute(context)

    def _exclude_requester(self, user: str) -> None:
        """Removes the user who triggered the DAG run from those who may answer: Airflow then refuses the answer."""
        if self.self_approval is True or not user or not self.assigned_users:
            return
        self.assigned_users = [each for each in self.assigned_users if user not in (each["id"], each["name"])]
        if not self.assigned_users:
            raise config_failure(
                f"{user} has triggered this DAG run, and is the only user who may answer",
                "let another user trigger it, or add approvers; self_approval=True in StateflowJob permits it",
                by=user,
            )

    def _excluded(self, context: Context) -> str:
        return "" if self.self_approval is True or not triggering_user(context) else ", who cannot approve it"

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Returns an approval, skips the downstream tasks after a rejection, and asks again after a refused answer.

        Raises PermanentFailure if no user has answered in time.
        """
        given = HITLOperator.execute_complete(self, context, event)
        answer = Answer.of(given)
        if given["chosen_options"] != [APPROVE]:
            return self._reject(context, given, answer)
        user = triggering_user(context)
        if user in answer.names and self.self_approval is not True:
            self.log.warning("%s has triggered this DAG run, and so cannot approve it; asking again", user)
            self._ask(context, f"{user} has triggered this DAG run, so that another user has to answer")
        asked = self._asked(context)
        return {**given, "plan_digest": asked.digest, "loss": list(asked.loss)}

    def _reject(self, context: Context, given: HITLTriggerEventSuccessPayload, answer: Answer) -> dict[str, object]:
        """Records the rejection, and skips all downstream tasks, whatever their trigger rules.

        Raises PermanentFailure if no user has answered: another than the one who waits has to notice that.
        """
        at = given["responded_at"].isoformat(timespec="milliseconds")
        returned: dict[str, object] = {**given, "responded_at": at}
        # Airflow stores the return value of a task that returns: skipping the others is an exception, too.
        context["ti"].xcom_push(key="return_value", value=returned)
        try:
            self._record(context, answer, at)
        except StateflowTaskFailed as error:
            # Only logged: a retry would ask the user again, who has decided.
            self.log.error("Could not record the rejection in the job's history: %s", error)
        failed = answer.failure()
        if not answer.user:
            raise log_failure(failed)
        self.log.warning("%s; nothing was changed, and all downstream tasks are skipped", failed.message)
        self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))
        return returned

    def _asked(self, context: Context) -> Question:
        return Question(**context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED))

    def _record(self, context: Context, answer: Answer, at: str) -> None:
        with translate_errors():
            from stateflow.operations import Rejection, record_rejection
            from stateflow.requesters import by_process

            asked = self._asked(context)
            rejection = Rejection(
                request=request_id(context, asked.digest),
                by=airflow_user(answer.user) if answer.user else by_process("timeout"),
                note=answer.reason,
                at=at,
                seq=asked.seq,
                label=asked.label,
                requested_by=other_requester(context, answer),
            )
            record_rejection(check_job_root(self.job_root), rejection)


class StateflowApprovalOperator(JobApprovalOperator):
    """Asks a user to approve or reject the plan of a restore. See `JobApprovalOperator`.

    Args:
        plan: the output of `StateflowRestorePlanOperator` (``plan.output``). Templated.
    """

    template_fields: Sequence[str] = (*JobApprovalOperator.template_fields, "plan")
    template_fields_renderers = {"plan": "json"}

    def __init__(self, *, plan: object, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def question(self) -> Question:
        """Returns the plan; the template of the body describes it."""
        plan = parse_plan(self.plan)
        return Question(plan.digest, plan.target_label, plan.head_seq)


@dataclass(frozen=True)
class Answer:
    """A user's answer to the question.

    Attributes:
        user: name or id; empty if no user answered in time.
        note: what the user entered; may be empty.
        approves: whether the user approved.
        plan: digest of the plan that the question was about; empty if unknown.
        names: name and id of the user.
        loss: what the question named as deleted.
    """

    user: str
    note: str
    approves: bool = False
    plan: str = ""
    names: frozenset[str] = frozenset()
    loss: tuple[str, ...] = ()

    @classmethod
    def of(cls, answer: object) -> Answer:
        """Returns the answer in Airflow's document; for any other value one that does not approve."""
        answer = answer if isinstance(answer, Mapping) else {}
        user = answer.get("responded_by_user") or {}
        user = user if isinstance(user, Mapping) else {}
        loss = answer.get("loss")
        names = [str(user[key]) for key in ("name", "id") if user.get(key)]
        note = (answer.get("params_input") or {}).get("note") or ""
        chosen = list(answer.get("chosen_options") or ())
        return cls(
            user=names[0] if names else "",
            note=str(note).strip(),
            approves=chosen == [APPROVE] and bool(names),
            plan=str(answer.get("plan_digest") or ""),
            names=frozenset(names),
            loss=tuple(map(str, loss)) if isinstance(loss, Sequence) else (),
        )

    def check_other_than(self, requested_by: str) -> None:
        """Raises PermanentFailure if the user who answered is the one who triggered the DAG run."""
        if requested_by in self.names:
            raise PermanentFailure(
                "not-approved",
                f"{requested_by} has triggered this DAG run, and so cannot approve it",
                "clear the task that asks, and let another user answer; self_approval=True in StateflowJob permits it",
                {"by": requested_by},
            )

    def check_approves(self, plan: str) -> None:
        """Raises PermanentFailure unless a user has approved the plan or request with this digest."""
        if not self.approves:
            raise PermanentFailure(
                "not-approved",
                "no user approved this, so nothing was changed",
                "clear the task that plans or asks: approval is then requested again",
            )
        if self.plan != plan:
            raise PermanentFailure(
                "not-approved",
                "the approval is for another request, or the job has changed since, so nothing was changed",
                "clear the tasks that plan and ask: they request approval of what is to be done now",
                {"approved": self.plan, "plan": plan},
            )

    @property
    def reason(self) -> str:
        """Why the plan was rejected; may be empty."""
        return self.note if self.user else "no answer in time"

    def failure(self) -> PermanentFailure:
        """Returns the failure of the task after a rejection."""
        rejected = f"{self.user} rejected the request"
        message = (f"{rejected}: {self.reason}" if self.reason else rejected) if self.user else self.reason
        return PermanentFailure(
            "rejected",
            message,
            "nothing was changed; for another request, trigger the DAG again",
            {"by": self.user, "note": self.note},
        )


@dataclass(frozen=True)
class Decision:
    """Who is responsible for a request, as stored in the job's records.

    Attributes:
        by: the user who approved it; without an approval, who requested it.
        requested_by: who requested it, if another user approved it; empty otherwise.
        note: what the user entered who approved it.
    """

    by: str
    requested_by: str = ""
    note: str = ""


def other_requester(context: Context, answer: Answer) -> str:
    """Returns who requested what a user has answered, as stored in records; empty if that is the same user."""
    return "" if find_requester(context) in answer.names else requester(context)


@dataclass(frozen=True)
class ApprovalCheck:
    """The check of an approval by the task that executes the request.

    Attributes:
        approval: the output of the task that asks.
        self_approval: whether the user who triggered the DAG run may have approved.
    """

    approval: object
    self_approval: bool

    @property
    def answer(self) -> Answer:
        """The answer; without an approval, one that approves nothing."""
        return Answer.of(self.approval)

    def decision(self, digest: str, context: Context) -> Decision:
        """Returns the decision to record.

        Args:
            digest: of the request that is to be executed.
            context: of the task that executes it.

        Raises PermanentFailure unless a user has approved exactly this request, and may approve it.
        """
        answer = self.answer
        answer.check_approves(digest)
        # Not a text, which a template in a DAG file would be.
        if self.self_approval is not True:
            answer.check_other_than(triggering_user(context))
        return Decision(airflow_user(answer.user), other_requester(context, answer), answer.note)


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
        with restrict_library(self.locations):
            return claim_question(self.job_root, self.from_savepoint)


def claim_question(job_root: str, savepoint: str) -> Question | None:
    """Returns the question whether a new job root may claim a savepoint; None for a job root that has begun."""
    from stateflow.operations import initial_savepoint

    root = check_job_root(job_root)
    found = initial_savepoint(root, check_task_location("from_savepoint", savepoint))
    if found is None:
        return None
    digest = request_digest(action="claim", root=root, savepoint=found.path, id=found.id)
    return Question(digest, f"claim of savepoint {found.name}", 0, _describe(root, found))


def _describe(root: str, found: SavepointReport) -> str:
    lines = [
        f"**New job root**: {escape(root)}",
        f"**Savepoint**: {escape(found.path)}, of the job {escape(found.job)}, made at {escape(found.made_at)}",
        "**Claim**: the new job owns this savepoint, and deletes it once its state is no longer one of the job's "
        "retained checkpoints",
    ]
    return "\n\n".join(lines)
