"""Approval of stops, and of retentions that delete what the configuration keeps, against a user with no other right."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators import hitl
from airflow.sdk.exceptions import TaskAwaitingInput

from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.operations import prune_savepoints
from stateflow.requesters import airflow_user
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approvals.approval import ApprovalCheck, JobApprovalOperator
from stateflow_airflow.operators.approvals.command_approval import (
    StateflowRetentionApprovalOperator,
    StateflowStopApprovalOperator,
)
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.operators.retention_limits import Retention
from stateflow_airflow.operators.savepoint import StateflowSavepointOperator, StateflowStopOperator
from tests.airflow.fakes import FakeRun, fails
from tests.airflow.jobs import job_arguments, new_run, run_task, use_submit
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

ADA = {"id": "ada", "name": "ada"}
STOP: dict[str, Any] = {"name": "last", "origin": "manual", "reason": "upgrade", "drain": "False"}
SEVEN = Retention(checkpoints=4, savepoints=3)


def task(user: str | None = "bob", task_id: str = "approve", **more: Any) -> FakeRun:
    """A task of a DAG run that `user` has triggered."""
    run = new_run("2026-01-01", task_id=task_id, **more)
    run.user = user
    return run


def asked(operator: JobApprovalOperator, monkeypatch: pytest.MonkeyPatch, run: FakeRun) -> str:
    """The question that a user is asked; empty if the task asks nothing."""
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    try:
        operator.execute(run.next_try())
    except TaskAwaitingInput:
        return str(detail["body"])
    assert not detail
    return ""


def answered(operator: JobApprovalOperator, run: FakeRun, option: str = "Approve", user: Any = None) -> Any:
    """What the task that asks returns; raises TaskAwaitingInput if it asks again."""
    question = operator.question()
    assert question is not None
    run.ti.pushed.setdefault("asked", asdict(question))
    event = {
        "chosen_options": [option],
        "params_input": {"note": "seen"},
        "responded_at": datetime(2026, 1, 31, 3, 0, tzinfo=UTC),
        "responded_by_user": user or ADA,
    }
    return operator.execute_complete(run.next_try(), event)


def everything(job: AccountsJob) -> dict[str, str]:
    return root_files.digests(job.root, job.folder / "tables")


# -- stops ------------------------------------------------------------------------------------------------------------


def asks_to_stop(job: AccountsJob, **more: Any) -> StateflowStopApprovalOperator:
    given = {"subject": "?", "params": {"note": None}, "job_root": str(job.root), **STOP, **more}
    return StateflowStopApprovalOperator(task_id="approve", **given)


def stop(job: AccountsJob, approval: object, run: FakeRun | None = None, **more: Any) -> dict[str, Any]:
    operator = StateflowStopOperator(task_id="stop", approval=approval, **{**job_arguments(job), **STOP, **more})
    return operator.execute((run or task(task_id="stop")).next_try())


def test_a_stop_without_an_approval_of_exactly_this_stop_changes_nothing(idle_job: AccountsJob) -> None:
    before = everything(idle_job)
    yes = answered(asks_to_stop(idle_job), task())
    attacks: list[tuple[object, dict[str, str]]] = [
        (None, {}),
        ("", {}),
        ({"chosen_options": ["Approve"], "responded_by_user": ADA}, {}),
        ({**yes, "chosen_options": ["Reject"]}, {}),
        ({**yes, "responded_by_user": None}, {}),
        (yes, {"drain": "True"}),
        (yes, {"name": "other"}),
        (yes, {"reason": "whim"}),
        (yes, {"origin": "upgrade"}),
    ]
    for approval, more in attacks:
        with fails(PermanentFailure, "not-approved"):
            stop(idle_job, approval, None, **more)
    assert everything(idle_job) == before
    made = stop(idle_job, yes)
    stored = root_files.savepoints(idle_job.root)["last"]
    assert made["origin"] == "stop" and stored["by"] == airflow_user("ada")
    assert {"upgrade", "approval: seen", "requested by bob"} == set(stored["reason"].split("; "))


def test_an_approval_of_a_stop_is_void_after_another_run_has_started(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_submit(idle_job.folder, monkeypatch)
    yes = answered(asks_to_stop(idle_job), task())
    idle_job.deliver(70)
    idle_job.finish()
    before = everything(idle_job)
    with fails(PermanentFailure, "not-approved", approved=yes["plan"]):
        stop(idle_job, yes)
    assert everything(idle_job) == before
    # A try of this task that was killed has begun the stop, and has changed the newest run by draining the job itself.
    run = task(task_id="stop")
    stop(idle_job, answered(asks_to_stop(idle_job), task()), run)
    again = answered(asks_to_stop(idle_job), task())
    idle_job.deliver(90)
    idle_job.finish()
    assert stop(idle_job, again, run)["name"] == "last"
    run.clear()
    with fails(PermanentFailure, "not-approved"):
        stop(idle_job, again, run)


def test_a_run_that_begins_after_an_approval_is_checked_does_not_end(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes = answered(asks_to_stop(idle_job), task())
    decision = ApprovalCheck.decision

    def slow_decision(*arguments: Any) -> tuple[str, str]:
        decided = decision(*arguments)
        idle_job.deliver(70)
        idle_job.finish()
        return decided

    monkeypatch.setattr(ApprovalCheck, "decision", slow_decision)
    with fails(PermanentFailure, "plan-outdated"):
        stop(idle_job, yes)
    assert root_files.savepoints(idle_job.root) == {}


def test_a_retried_stop_with_drain_does_not_end_a_run_that_began_meanwhile(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try that was killed had not begun a run of its own."""
    run, yes = task(task_id="stop"), answered(asks_to_stop(idle_job, drain="True"), task())
    with monkeypatch.context() as patch:
        patch.setattr(StateflowStopOperator, "_savepoint_request", _killed)
        with pytest.raises(KeyboardInterrupt):
            stop(idle_job, yes, run, drain="True")
    idle_job.run_to(70)
    with fails(PermanentFailure, "plan-outdated"):
        stop(idle_job, yes, run, drain="True")
    assert root_files.savepoints(idle_job.root) == {}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_approval_of_a_stop_does_not_approve_that_of_another_job(idle_job: AccountsJob, tmp_path: Any) -> None:
    other = AccountsJob(tmp_path / "other", settings=idle_job.settings, variables=idle_job.variables)
    other.run_to(10)
    with fails(PermanentFailure, "not-approved"):
        stop(other, answered(asks_to_stop(idle_job), task()))
    assert root_files.savepoints(other.root) == {}


def test_the_user_who_requests_a_stop_cannot_approve_the_stop_unless_permitted(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    for user in ({"id": "7", "name": "bob"}, {"id": "bob", "name": "Bob B."}):
        with pytest.raises(TaskAwaitingInput):
            answered(asks_to_stop(idle_job), task(), user=user)
        assert detail["body"].startswith("**bob ")
        detail.clear()
    mine = answered(asks_to_stop(idle_job, self_approval=True), task(), user={"id": "7", "name": "bob"})
    with fails(PermanentFailure, "not-approved", by="bob"):
        stop(idle_job, mine)
    assert stop(idle_job, mine, self_approval=True)["name"] == "last"


def test_the_question_shows_what_is_stopped_and_hostile_text_only_as_text(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = asks_to_stop(idle_job, name="x](http://evil) **now**", drain="true", response_timeout=timedelta(days=1))
    body = asked(operator, monkeypatch, task())
    head = root_files.head(idle_job.root)
    assert f"generation {head.doc['generation']}" in body and f"checkpoint {head.checkpoint}" in body
    assert r"x\](http" in body
    assert "**now" not in body and "event-time timer" in body and "UTC" in body


def test_the_question_names_the_requester_and_airflow_lets_only_other_approvers_answer(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    detail: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **given: detail.update(given))
    approvers = [{"id": name, "name": name} for name in ("ada", "bob")]
    for user, permitted in (("bob", ["ada"]), ("eve", ["ada", "bob"]), (None, ["ada", "bob"])):
        with pytest.raises(TaskAwaitingInput):
            asks_to_stop(idle_job, assigned_users=approvers).execute(task(user).next_try())
        assert [each["id"] for each in detail["assigned_users"]] == permitted
        assert (user or "DAG a_dag") in detail["body"]
    with fails(PermanentFailure, "config", by="ada"):
        asks_to_stop(idle_job, assigned_users=approvers[:1]).execute(task("ada").next_try())
    with pytest.raises(TaskAwaitingInput):
        asks_to_stop(idle_job, assigned_users=approvers, self_approval=True).execute(task("bob").next_try())
    assert detail["assigned_users"] == approvers


def test_a_rejected_stop_is_recorded_and_the_job_unchanged(idle_job: AccountsJob) -> None:
    before = everything(idle_job)
    assert answered(asks_to_stop(idle_job), task(), "Reject")["chosen_options"] == ["Reject"]
    (record,) = [r for r in root_files.history(idle_job.root) if r.get("kind") == "rejection"]
    assert (record["by"], record["facts"]["asked_by"]) == (airflow_user("ada"), "bob")
    assert record["facts"]["plan"] == f"stop of generation {root_files.head(idle_job.root).doc['generation']}"
    assert everything(idle_job).items() >= before.items()


# -- retention --------------------------------------------------------------------------------------------------------


def take(job: AccountsJob, name: str) -> None:
    """Takes a periodic savepoint."""
    operator = StateflowSavepointOperator(task_id="savepoint", job_root=str(job.root), name=name, origin="periodic")
    operator.execute(new_run(f"savepoint-{name}").next_try())


def asks_to_delete(job: AccountsJob, **more: Any) -> StateflowRetentionApprovalOperator:
    given = {"subject": "?", "params": {"note": None}, "job_root": str(job.root), "configured": SEVEN, **more}
    return StateflowRetentionApprovalOperator(task_id="approve", **given)


def collect(job: AccountsJob, approval: object = None, **more: Any) -> dict[str, Any]:
    given = {"job_root": str(job.root), "configured": SEVEN, "approval": approval, **more}
    return StateflowRetentionOperator(task_id="collect", **given).execute(task(task_id="collect").next_try())


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"retain": "4", "savepoints": "3"},
        {"retain": "100", "savepoints": "None"},
        {"retain": "1", "savepoints": "1", "preview": "True"},
    ],
    ids=["unchanged", "as-configured", "more", "preview"],
)
def test_at_least_the_configured_numbers_need_no_approval(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str]
) -> None:
    if "preview" not in limits:
        assert asked(asks_to_delete(saved, **limits), monkeypatch, task(None)) == ""
    assert collect(saved, **limits)["savepoints_deleted"] == [] or "preview" in limits
    assert set(root_files.savepoints(saved.root)) == {"p1", "p2", "p3", "mine"}


@pytest.mark.parametrize(
    ("limits", "lost"),
    [
        ({"retain": "3"}, "checkpoint"),
        ({"savepoints": "2"}, "savepoint p1"),
        ({"savepoints_max_age": timedelta(microseconds=1)}, "savepoint p1, savepoint p2"),
    ],
    ids=["checkpoints", "savepoints", "age"],
)
def test_less_than_the_configured_numbers_is_deleted_with_an_approval_only(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], lost: str
) -> None:
    before = everything(saved)
    assert lost in asked(asks_to_delete(saved, **limits), monkeypatch, task())
    yes = answered(asks_to_delete(saved, **limits), task())
    other = {"retain": "1", "savepoints": "1", "savepoints_max_age": "30d"}
    for approval, given in ((None, limits), ({**yes, "plan": ""}, limits), (yes, other)):
        with fails(PermanentFailure, "not-approved"):
            collect(saved, approval, **given)
    with pytest.raises(TaskAwaitingInput):
        answered(asks_to_delete(saved, **limits), task(), user={"id": "bob", "name": "bob"})
    assert everything(saved) == before
    done = collect(saved, yes, **limits)
    assert len(done["retained"]) == int(limits.get("retain", 5)) or "retain" not in limits
    assert "p1" not in root_files.savepoints(saved.root) or "retain" in limits


LESS: dict[str, Any] = {"retain": "1", "savepoints": "1"}


def test_an_approval_does_not_cover_what_was_made_after_the_question(saved: AccountsJob) -> None:
    yes = answered(asks_to_delete(saved, **LESS), task())
    take(saved, "p4")
    before = everything(saved)
    for approval in (yes, {**yes, "loss": [*yes["loss"], "savepoint p3"]}):
        with fails(PermanentFailure, "not-approved", approved=yes["plan"]):
            collect(saved, approval, **LESS)
    assert everything(saved) == before
    again = answered(asks_to_delete(saved, **LESS), task())
    assert collect(saved, again, **LESS)["savepoints_deleted"] == ["p1", "p2", "p3"]


def test_an_approval_covers_a_new_checkpoint_only_after_another_question(saved: AccountsJob) -> None:
    yes = answered(asks_to_delete(saved, **LESS), task())
    saved.run_to(60)
    with fails(PermanentFailure, "not-approved", approved=yes["plan"]):
        collect(saved, yes, **LESS)


def test_what_is_made_after_an_approval_was_compared_is_kept(
    saved: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the limits needed no approval before that."""
    monkeypatch.setattr(StateflowRetentionOperator, "_permitted_by", lambda *_: _meanwhile(saved))
    done = collect(saved, **LESS)
    assert done["savepoints_deleted"] == ["p1", "p2"] and set(root_files.savepoints(saved.root)) == {"p3", "p4", "mine"}
    assert len(done["retained"]) == 2
    done = collect(saved, **LESS)
    assert done["savepoints_deleted"] == ["p3"] and len(done["retained"]) == 1


def _meanwhile(job: AccountsJob) -> str:
    """The job makes a checkpoint and a periodic savepoint, once."""
    if "p4" not in root_files.savepoints(job.root):
        job.run_to(60)
        take(job, "p4")
    return "ada"


def test_an_approval_counts_if_less_is_left_to_delete(saved: AccountsJob) -> None:
    """Such as for a retry, after a task that was killed had deleted a part."""
    yes = answered(asks_to_delete(saved, **LESS), task())
    assert saved.command("savepoint", "dispose", "p1").code == 0
    assert collect(saved, yes, **LESS)["savepoints_deleted"] == ["p2"]
    assert collect(saved, yes, **LESS)["savepoints_deleted"] == []


def test_a_number_of_the_dag_file_is_configured_and_one_from_a_template_is_not(saved: AccountsJob) -> None:
    assert collect(saved, configured=None, retain=2, savepoints=2)["savepoints_deleted"] == ["p1"]
    operator = StateflowRetentionOperator(
        task_id="collect", job_root=str(saved.root), savepoints="{{ params.savepoints }}", retain="{{ params.retain }}"
    )
    operator.savepoints, operator.retain = "1", "None"
    with fails(PermanentFailure, "not-approved"):
        operator.execute(task(task_id="collect").next_try())
    operator.savepoints, operator.retain = "2", "1"
    with fails(PermanentFailure, "not-approved"):
        operator.execute(task(task_id="collect").next_try())
    assert set(root_files.savepoints(saved.root)) == {"p2", "p3", "mine"}


def test_identity_comes_from_airflow_and_not_from_what_a_user_enters(idle_job: AccountsJob) -> None:
    """`run.user` is what Airflow has authenticated; form and configuration of the DAG run are the attacker's."""
    run = task("mallory", "savepoint")
    context = run.next_try()
    context["params"] = {"by": "ana", "triggering_user_name": "ana"}
    context["dag_run"].conf = {"by": "ana", "triggering_user_name": "ana"}
    operator = StateflowSavepointOperator(task_id="savepoint", job_root=str(idle_job.root), name="mine")
    assert "by" not in operator.template_fields
    operator.execute(context)
    assert root_files.savepoints(idle_job.root)["mine"]["by"] == airflow_user("mallory")


def test_a_task_that_runs_the_job_cannot_stop_or_delete(idle_job: AccountsJob) -> None:
    assert not {"retain", "savepoints", "name", "origin"} & set(run_task(idle_job).template_fields)


@pytest.mark.parametrize("then", ["run", "savepoint"])
def test_an_approval_of_a_retention_is_void_after_another_run_or_periodic_savepoint(
    saved: AccountsJob, then: str
) -> None:
    limits = {"retain": "1", "savepoints": "2"}
    yes = answered(asks_to_delete(saved, **limits), task())
    # A try that was killed has done a part of it.
    prune_savepoints(str(saved.root), SavepointRule(2))
    assert len(collect(saved, yes, **limits)["retained"]) == 1
    if then == "run":
        saved.deliver(70)
        saved.finish()
    else:
        operator = StateflowSavepointOperator(
            task_id="savepoint", job_root=str(saved.root), name="p4", origin="periodic"
        )
        operator.execute(new_run("2026-01-05").next_try())
    before = everything(saved)
    # The user who requested it clears the task that deletes: no user is asked again.
    with fails(PermanentFailure, "not-approved", approved=yes["plan"]):
        collect(saved, yes, **limits)
    assert everything(saved) == before
