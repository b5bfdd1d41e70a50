"""Approval of a restore's plan: what an answer comes to, in Airflow and in the job's history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskAwaitingInput
from syrupy.assertion import SnapshotAssertion

from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approval import StateflowApprovalOperator
from stateflow_airflow.operators.recovery import StateflowRestorePlanOperator
from tests.airflow.failing import fails
from tests.airflow.fakes import FakeRun
from tests.airflow.jobs import ACCOUNTS, new_run, settings
from tests.support import root_files
from tests.support.job_fixture import AccountsJob
from tests.support.screens import normalized

ADA = {"id": "ada", "name": "ada"}
AT = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    """A job with some checkpoints."""
    box = AccountsJob(tmp_path / "job", {"checkpoints__retained": 100})
    box.deliver(50)
    box.finish()
    yield box
    box.end_all()


def planned(box: AccountsJob) -> dict[str, Any]:
    target = str(root_files.kept_entries(box.root)[0].seq)
    operator = StateflowRestorePlanOperator(
        task_id="plan", job=ACCOUNTS, job_root=str(box.root), settings=settings(box), target=target
    )
    return operator.execute(FakeRun(task_id="plan").next_try())


def answer(plan: Any, run: FakeRun, root: Path | str, option: str, **more: Any) -> Any:
    operator = StateflowApprovalOperator(
        task_id="approve", subject="?", body="", job_root=str(root), plan=plan, params={"note": None}
    )
    event = {"chosen_options": [option], "params_input": {}, "responded_at": AT, "responded_by_user": ADA, **more}
    return operator.execute_complete(run.next_try(), event)


def rejections(box: AccountsJob) -> list[dict[str, Any]]:
    return [record for record in root_files.history(box.root) if record.get("kind") == "rejection"]


def test_an_approval_is_returned_and_recorded_by_the_restore_only(box: AccountsJob) -> None:
    given = answer(planned(box), new_run("2026-01-01", task_id="approve"), box.root, "Approve")
    assert (given["chosen_options"], given["responded_by_user"]) == (["Approve"], ADA)
    assert rejections(box) == []


def test_a_rejection_fails_for_good_and_the_history_has_who_and_why(
    box: AccountsJob, golden: SnapshotAssertion
) -> None:
    run = new_run("2026-01-01", task_id="approve")
    run.user = "bob"
    plan = planned(box)
    before = root_files.digests(box.root, box.folder / "tables")
    with fails(PermanentFailure, "rejected", by="ada", note="not now") as caught:
        answer(plan, run, box.root, "Reject", params_input={"note": "not now"})
    assert "ada" in str(caught.value) and "not now" in str(caught.value)
    (record,) = rejections(box)
    assert (record["by"], record["reason"], record["at"]) == ("ada", "not now", AT.isoformat(timespec="milliseconds"))
    assert (record["facts"]["plan"], record["facts"]["asked_by"]) == (plan["plan"]["label"], "bob")
    assert run.pushed["return_value"]["chosen_options"] == ["Reject"]
    assert root_files.digests(box.root, box.folder / "tables").items() >= before.items()
    assert normalized(box.command("history").out) == golden


def test_a_retry_records_a_rejection_once_also_after_the_job_went_on(box: AccountsJob) -> None:
    run, plan = new_run("2026-01-01", task_id="approve"), planned(box)
    for delivered in (50, 70):
        box.deliver(delivered)
        box.finish()
        with fails(PermanentFailure, "rejected"):
            answer(plan, run, box.root, "Reject")
    assert len(rejections(box)) == 1
    # Another plan, or another DAG run, is another decision.
    with fails(PermanentFailure, "rejected"):
        answer(planned(box), run, box.root, "Reject")
    with fails(PermanentFailure, "rejected"):
        answer(plan, new_run("2026-01-02", task_id="approve"), box.root, "Reject")
    assert len(rejections(box)) == 3


def test_no_answer_in_time_is_a_rejection_without_a_person(box: AccountsJob) -> None:
    with fails(PermanentFailure, "rejected", by="", note=""):
        answer(planned(box), new_run("2026-01-01"), box.root, "Reject", responded_by_user=None, timedout=True)
    (record,) = rejections(box)
    assert record["by"] == "nobody" and record["reason"]


def test_a_rejection_counts_although_the_history_cannot_be_written(box: AccountsJob, tmp_path: Path) -> None:
    with fails(PermanentFailure, "rejected", by="ada"):
        answer(planned(box), new_run("2026-01-01"), tmp_path / "gone", "Reject")


def test_the_question_has_the_time_until_which_it_waits(box: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl

    asked: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **detail: asked.update(detail))
    operator = StateflowApprovalOperator(
        task_id="approve",
        subject="?",
        body="the plan",
        job_root=str(box.root),
        plan={},
        response_timeout=timedelta(days=1),
    )
    before = datetime.now(UTC)
    context = FakeRun().next_try()
    context["task_instance"] = context["ti"]
    with pytest.raises(TaskAwaitingInput):
        operator.execute(context)
    limits = [f"{moment + timedelta(days=1):%Y-%m-%d %H:%M} UTC" for moment in (before, datetime.now(UTC))]
    assert "the plan" in asked["body"] and any(limit in asked["body"] for limit in limits)
    assert asked["defaults"] == ["Reject"]
