"""Approval of a restore's plan: what an answer comes to, in Airflow and in the job's history."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators import hitl
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule
from airflow.sdk.exceptions import DownstreamTasksSkipped, TaskAwaitingInput
from syrupy.assertion import SnapshotAssertion

from stateflow.requesters import airflow_user, by_process
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approvals.approval import StateflowApprovalOperator
from stateflow_airflow.operators.restore_plan import parse_plan
from tests.airflow.fakes import FakeRun, fails
from tests.airflow.jobs import new_run, plan_restore
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.screens import normalized

ADA = {"id": "ada", "name": "ada"}
AT = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)


def planned(job: AccountsJob) -> dict[str, Any]:
    return plan_restore(job, str(root_files.kept_entries(job.root)[0].seq))


def approving(date: str = "2026-01-01") -> FakeRun:
    return new_run(date, task_id="approve")


def asks(root: Path, plan: Any, **more: Any) -> StateflowApprovalOperator:
    given: dict[str, Any] = {"subject": "?", "body": "the plan", "params": {"note": None}}
    return StateflowApprovalOperator(task_id="approve", job_root=str(root), plan=plan, **given, **more)


def answer(plan: Any, run: FakeRun, root: Path, option: str, **more: Any) -> Any:
    event = {"chosen_options": [option], "params_input": {}, "responded_at": AT, "responded_by_user": ADA, **more}
    operator = asks(root, plan)
    run.ti.pushed["asked"] = asdict(operator.question())
    return operator.execute_complete(run.next_try(), event)


def rejections(job: AccountsJob) -> list[dict[str, Any]]:
    return [record for record in root_files.history(job.root) if record.get("kind") == "rejection"]


def test_an_approval_is_returned_and_recorded_by_the_restore_only(idle_job: AccountsJob) -> None:
    run = approving()
    given = answer(planned(idle_job), run, idle_job.root, "Approve")
    assert (given["chosen_options"], given["responded_by_user"]) == (["Approve"], ADA)
    assert given["plan"] == run.ti.pushed["asked"]["digest"]
    assert rejections(idle_job) == []


def test_the_user_who_triggered_a_restore_cannot_approve_the_plan(
    idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **_: None)
    run = approving()
    run.user = "ada"
    # The task asks again: the DAG run does not fail for it.
    with pytest.raises(TaskAwaitingInput):
        answer(planned(idle_job), run, idle_job.root, "Approve")
    operator = asks(idle_job.root, planned(idle_job), self_approval=True)
    event = {"chosen_options": ["Approve"], "params_input": {}, "responded_at": AT, "responded_by_user": ADA}
    assert operator.execute_complete(run.next_try(), event)["chosen_options"] == ["Approve"]
    # The user may still reject it.
    assert answer(planned(idle_job), run, idle_job.root, "Reject")["chosen_options"] == ["Reject"]


def test_a_rejection_skips_all_downstream_tasks_whatever_their_trigger_rules(idle_job: AccountsJob) -> None:
    with DAG("a_dag"):
        operator = asks(idle_job.root, planned(idle_job))
        always = EmptyOperator(task_id="always", trigger_rule=TriggerRule.NONE_FAILED)
        operator >> EmptyOperator(task_id="restore") >> always
    run = approving()
    run.ti.pushed["asked"] = asdict(operator.question())
    event = {"chosen_options": ["Reject"], "params_input": {}, "responded_at": AT, "responded_by_user": ADA}
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        operator.execute_complete(run.next_try(), event)
    assert set(skipped.value.tasks) == {"restore", "always"}
    assert len(rejections(idle_job)) == 1


def test_the_history_has_who_rejected_a_plan_and_why(idle_job: AccountsJob, golden: SnapshotAssertion) -> None:
    run = approving()
    run.user = "bob"
    plan = planned(idle_job)
    before = root_files.digests(idle_job.root, idle_job.folder / "tables")
    answer(plan, run, idle_job.root, "Reject", params_input={"note": "not now"})
    (record,) = rejections(idle_job)
    at = AT.isoformat(timespec="milliseconds")
    assert (record["by"], record["reason"], record["at"]) == (airflow_user("ada"), "not now", at)
    assert (record["facts"]["plan"], record["facts"]["asked_by"]) == (plan["plan"]["label"], "bob")
    assert run.ti.pushed["return_value"]["chosen_options"] == ["Reject"]
    assert root_files.digests(idle_job.root, idle_job.folder / "tables").items() >= before.items()
    assert normalized(idle_job.command("history").out) == golden


def test_a_retry_records_a_rejection_once_also_after_further_runs_of_the_job(idle_job: AccountsJob) -> None:
    run, plan = approving(), planned(idle_job)
    for delivered in (50, 70):
        idle_job.deliver(delivered)
        idle_job.finish()
        answer(plan, run, idle_job.root, "Reject")
    assert len(rejections(idle_job)) == 1
    # Another plan, or another DAG run, is another decision.
    answer(planned(idle_job), run, idle_job.root, "Reject")
    answer(plan, approving("2026-01-02"), idle_job.root, "Reject")
    assert len(rejections(idle_job)) == 3


def test_no_answer_in_time_is_a_rejection_without_a_person(idle_job: AccountsJob) -> None:
    with fails(PermanentFailure, "rejected", by="", note=""):
        answer(planned(idle_job), approving(), idle_job.root, "Reject", responded_by_user=None, timedout=True)
    (record,) = rejections(idle_job)
    assert record["by"] == by_process("timeout") and record["reason"]


def test_a_rejection_counts_although_the_history_cannot_be_written(idle_job: AccountsJob, tmp_path: Path) -> None:
    given = answer(planned(idle_job), approving(), tmp_path / "gone", "Reject")
    assert (given["chosen_options"], given["responded_by_user"]) == (["Reject"], ADA)


def test_the_question_has_the_deadline_for_an_answer(idle_job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **detail: asked.update(detail))
    plan = planned(idle_job)
    operator = asks(idle_job.root, plan, response_timeout=timedelta(days=1))
    before = datetime.now(UTC)
    context = approving().next_try()
    with pytest.raises(TaskAwaitingInput):
        operator.execute(context)
    limits = [f"{moment + timedelta(days=1):%Y-%m-%d %H:%M} UTC" for moment in (before, datetime.now(UTC))]
    assert "the plan" in asked["body"] and any(limit in asked["body"] for limit in limits)
    assert asked["defaults"] == ["Reject"]
    assert context["ti"].pushed["asked"]["digest"] == parse_plan(plan).digest
