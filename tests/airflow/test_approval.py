"""Approval of a restore's plan: what an answer comes to, in Airflow and in the job's history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskAwaitingInput

from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.approval import StateflowApprovalOperator
from stateflow_airflow.operators.recovery import StateflowRestorePlanOperator
from tests.airflow.fakes import FakeRun
from tests.airflow.jobs import ACCOUNTS, new_run, settings
from tests.recovery import disk
from tests.recovery.harness import AccountsBox

ADA = {"id": "ada", "name": "ada"}
AT = datetime(2026, 1, 31, 3, 0, tzinfo=UTC)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsBox]:
    """A job with some checkpoints."""
    box = AccountsBox(tmp_path / "job", {"checkpoints__retained": 100})
    box.deliver(50)
    box.finish()
    yield box
    box.end_all()


def planned(box: AccountsBox) -> dict[str, Any]:
    target = str(disk.kept_entries(box.root)[0].seq)
    operator = StateflowRestorePlanOperator(
        task_id="plan", job=ACCOUNTS, job_root=str(box.root), settings=settings(box), target=target
    )
    return operator.execute(FakeRun(task_id="plan").next_try())


def answer(plan: Any, run: FakeRun, root: Path | str, option: str, **more: Any) -> Any:
    operator = StateflowApprovalOperator(
        task_id="approve", subject="?", body="", job_root=str(root), plan=plan, params={"note": None}
    )
    event = {
        "chosen_options": [option],
        "params_input": {},
        "responded_at": AT,
        "responded_by_user": ADA,
        **more,
    }
    return operator.execute_complete(run.next_try(), event)


def rejections(box: AccountsBox) -> list[dict[str, Any]]:
    return [record for record in disk.history(box.root) if record.get("kind") == "rejection"]


def test_an_approval_is_returned_and_recorded_by_the_restore_only(box: AccountsBox) -> None:
    given = answer(planned(box), new_run("2026-01-01", task_id="approve"), box.root, "Approve")
    assert (given["chosen_options"], given["responded_by_user"]) == (["Approve"], ADA)
    assert rejections(box) == []


def test_a_rejection_fails_for_good_and_the_history_has_who_and_why(box: AccountsBox) -> None:
    run = new_run("2026-01-01", task_id="approve")
    run.user = "bob"
    plan = planned(box)
    before = disk.digests(box.root, box.folder / "tables")
    with pytest.raises(PermanentFailure) as caught:
        answer(plan, run, box.root, "Reject", params_input={"note": "not now"})
    assert caught.value.code == "rejected"
    assert "ada" in caught.value.message and "not now" in caught.value.message
    (record,) = rejections(box)
    assert (record["by"], record["reason"], record["at"]) == (
        "ada",
        "not now",
        AT.isoformat(timespec="milliseconds"),
    )
    assert (record["facts"]["plan"], record["facts"]["asked_by"]) == (plan["plan"]["label"], "bob")
    assert run.pushed["return_value"]["chosen_options"] == ["Reject"]
    assert disk.digests(box.root, box.folder / "tables").items() >= before.items()
    told = box.command("history").out
    assert "rejection by ada (not now)" in told


def test_a_retry_records_a_rejection_once_also_after_the_job_went_on(box: AccountsBox) -> None:
    run, plan = new_run("2026-01-01", task_id="approve"), planned(box)
    for delivered in (50, 70):
        box.deliver(delivered)
        box.finish()
        with pytest.raises(PermanentFailure):
            answer(plan, run, box.root, "Reject")
    assert len(rejections(box)) == 1
    # Another plan, or another DAG run, is another decision.
    with pytest.raises(PermanentFailure):
        answer(planned(box), run, box.root, "Reject")
    with pytest.raises(PermanentFailure):
        answer(plan, new_run("2026-01-02", task_id="approve"), box.root, "Reject")
    assert len(rejections(box)) == 3


def test_no_answer_in_time_is_a_rejection_by_nobody(box: AccountsBox) -> None:
    with pytest.raises(PermanentFailure) as caught:
        answer(planned(box), new_run("2026-01-01"), box.root, "Reject", responded_by_user=None, timedout=True)
    assert caught.value.code == "rejected"
    (record,) = rejections(box)
    assert record["by"] == "nobody" and record["reason"]


def test_a_rejection_counts_although_the_history_cannot_be_written(box: AccountsBox, tmp_path: Path) -> None:
    with pytest.raises(PermanentFailure) as caught:
        answer(planned(box), new_run("2026-01-01"), tmp_path / "gone", "Reject")
    assert caught.value.code == "rejected"


def test_the_question_says_until_when_it_waits(box: AccountsBox, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.standard.operators import hitl

    asked: dict[str, Any] = {}
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **detail: asked.update(detail))
    operator = StateflowApprovalOperator(
        task_id="approve", subject="?", body="the plan", job_root=str(box.root), plan={},
        response_timeout=timedelta(days=1),
    )  # fmt: skip
    before = datetime.now(UTC)
    context = FakeRun().next_try()
    context["task_instance"] = context["ti"]
    with pytest.raises(TaskAwaitingInput):
        operator.execute(context)
    limits = [f"{moment + timedelta(days=1):%Y-%m-%d %H:%M} UTC" for moment in (before, datetime.now(UTC))]
    assert "the plan" in asked["body"] and any(limit in asked["body"] for limit in limits)
    assert asked["defaults"] == ["Reject"]
