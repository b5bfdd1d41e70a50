"""Going back as two tasks with a person between them; forks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from airflow.sdk import DAG
from structlog.testing import capture_logs
from syrupy.assertion import SnapshotAssertion

from stateflow.checkpoint.restore.plan_document import RestorePlan
from stateflow.operations.savepoints import list_all
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.recovery import (
    StateflowForkOperator,
    StateflowRestoreOperator,
    StateflowRestorePlanOperator,
    StateflowVerifyOperator,
)
from stateflow_airflow.operators.restore_plan import as_markdown
from tests.airflow.failing import fails
from tests.airflow.fakes import FakeRun
from tests.airflow.jobs import ACCOUNTS, new_run, run_task, settings, use_submit
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.screens import normalized

ADA = {"id": "ada", "name": "ada"}
APPROVED = {"chosen_options": ["Approve"], "params_input": {"note": "seen"}, "responded_by_user": ADA}
REJECTED = {"chosen_options": ["Reject"], "params_input": {}, "responded_by_user": ADA}


@pytest.fixture
def early(tmp_path: Path) -> Iterator[AccountsJob]:
    """A job with a savepoint at its 50th event that went on to the 120th."""
    box = AccountsJob(tmp_path / "job", {"checkpoints__retained": 100})
    box.deliver(50)
    box.finish()
    assert box.command("savepoint", "create", "--name", "early").code == 0
    box.deliver(120)
    box.finish()
    yield box
    box.end_all()


def plan(box: AccountsJob, target: str = "early", **more: Any) -> dict[str, Any]:
    operator = StateflowRestorePlanOperator(
        task_id="plan", job=ACCOUNTS, job_root=str(box.root), settings=settings(box), target=target, **more
    )
    return operator.execute(FakeRun(task_id="plan").next_try())


def restore(box: AccountsJob, run: FakeRun, **given: Any) -> dict[str, Any]:
    operator = StateflowRestoreOperator(
        task_id="restore", job=ACCOUNTS, job_root=str(box.root), settings=settings(box), **given
    )
    return operator.execute(run.next_try())


def everything(box: AccountsJob) -> dict[str, str]:
    return root_files.digests(box.root, box.folder / "tables")


def rows(box: AccountsJob) -> Any:
    return multiset(root_files.folder_rows(box.table("movements")))


def test_a_plan_is_a_document_and_a_table_and_changes_nothing(early: AccountsJob, golden: SnapshotAssertion) -> None:
    before = everything(early)
    planned = plan(early)
    assert everything(early) == before
    assert (planned["plan"]["target"], planned["plan"]["savepoint"]) == ("early", _path_of(early, "early"))
    (movements, _), (events,) = planned["plan"]["sinks"], planned["plan"]["sources"]
    assert (movements["uid"], movements["now"], movements["then"]) == ("movements", 12, 5)
    assert (movements["rows_removed"], movements["table"]) == (70, str(early.table("movements")))
    assert (events["now"], events["then"], events["held"]) == ('{"row": 120}', '{"row": 50}', True)
    assert planned["plan"]["rows_again"] == 70
    assert planned["plan"]["job_file"] == ACCOUNTS and planned["plan"]["job_file_changed_at"]
    assert not planned["plan"]["run_open"] and planned["dag"] is None
    states = {s["uid"]: s for s in planned["plan"]["states"]}
    assert states["balances"]["action"] == "matched" and 0 < states["balances"]["bytes_now"]
    # The checkpoint that the savepoint was made of is older than all that are dropped.
    assert planned["plan"]["dropped_checkpoints"] and planned["plan"]["saved"] == []
    assert normalized(planned["markdown"], folder=early.folder, job_file=ACCOUNTS) == golden


def _path_of(box: AccountsJob, savepoint: str) -> str:
    (found,) = (made.path for made in list_all(str(box.root)) if made.name == savepoint)
    return found


def test_checkpoints_that_a_savepoint_keeps_can_still_be_gone_back_to(early: AccountsJob) -> None:
    assert early.command("savepoint", "create", "--name", "late").code == 0
    newest = root_files.head(early.root).checkpoint
    document = plan(early)["plan"]
    assert document["saved"] == [{"checkpoint_id": newest, "savepoint": "late"}]
    assert newest in document["dropped_checkpoints"]
    run = new_run("2026-01-01", task_id="restore")
    restore(early, run, plan=plan(early), approval=APPROVED)
    assert plan(early, "late")["plan"]["target_checkpoint"] == newest


def test_a_run_that_was_killed_is_in_the_plan_until_another_one_ends(early: AccountsJob) -> None:
    early.deliver(130)
    early.start("batch.begin").wait()
    assert plan(early)["plan"]["run_open"]
    run = new_run("2026-01-01", task_id="restore")
    restore(early, run, plan=plan(early), approval=APPROVED)
    assert not plan(early)["plan"]["run_open"], "a restore is no run"
    early.finish()
    assert not plan(early)["plan"]["run_open"]


class FakeDag:
    """What a task asks Airflow about another DAG."""

    def __init__(self, paused: bool, active: int) -> None:
        self.is_paused = paused
        self._active = active

    def get_dag(self, _: str) -> FakeDag:
        return self

    def get_dr_count(self, _: str, states: list[str]) -> int:
        return self._active if set(states) == {"running", "queued"} else 0


@pytest.mark.parametrize(("paused", "active"), [(True, 0), (False, 1)], ids=["paused", "active"])
def test_a_plan_has_whether_the_dag_is_paused_and_runs(
    early: AccountsJob, paused: bool, active: int, golden: SnapshotAssertion
) -> None:
    operator = StateflowRestorePlanOperator(
        task_id="plan",
        job=ACCOUNTS,
        job_root=str(early.root),
        settings=settings(early),
        target="early",
        run_dag="job_of_accounts",
    )
    context = {**FakeRun().next_try(), "ti": FakeDag(paused, active)}
    planned = operator.execute(context)
    assert planned["dag"] == {"paused": paused, "active_runs": active}
    notes = [line for line in planned["markdown"].splitlines() if "job_of_accounts" in line]
    assert normalized("\n".join(notes)) == golden


def test_it_goes_back_and_the_log_has_who_approved_and_why(early: AccountsJob) -> None:
    run = new_run("2026-01-01", task_id="restore")
    run.user = "bob"
    done = restore(early, run, plan=plan(early), approval=APPROVED, reason="wrong version")
    assert done["offsets"] == {"events": {"row": 50}} and set(done["tables"]) == {"movements", "totals"}
    (record,) = [r for r in root_files.history(early.root) if r.get("kind") == "restore"]
    assert record["by"] == "ada" and re.fullmatch("wrong version.+seen.+bob", record["reason"])
    notes = [e.doc["note"] for e in root_files.entries(early.root)]
    assert any("ada" in note and record["reason"] in note for note in notes)
    assert rows(early) == multiset(expected(early.delivered[:50]).movements)
    read = StateflowVerifyOperator(task_id="verify", job_root=str(early.root)).execute(run.next_try())
    assert (read["offsets"], read["files"] > 0) == ({"events": {"row": 50}}, True)
    early.replace_events(since=50)
    early.finish()
    early.check_results()
    early.check_clean()


def test_neither_a_retry_nor_a_clear_goes_back_twice(early: AccountsJob) -> None:
    run, planned = new_run("2026-01-01", task_id="restore"), plan(early)
    done = restore(early, run, plan=planned, approval=APPROVED)
    assert not done["repeated"]
    assert restore(early, run, plan=planned, approval=APPROVED) == {**done, "repeated": True}
    early.finish()
    newest, before = root_files.head(early.root), rows(early)
    run.clear()
    with capture_logs() as logged:
        again = restore(early, run, plan=planned, approval=APPROVED)
    warnings = [str(line) for line in logged if line["log_level"] == "warning"]
    assert again["repeated"] and any(again["position"] in line for line in warnings), logged
    assert again["offsets"] == {"events": {"row": 120}}, "where the job stands, not where the plan went back to"
    assert (root_files.head(early.root).seq, rows(early)) == (newest.seq, before)


def test_a_plan_that_was_made_and_approved_anew_is_carried_out(early: AccountsJob) -> None:
    """Clearing the task that plans makes another plan, and asks again: who approves that one means it."""
    run = new_run("2026-01-01", task_id="restore")
    restore(early, run, plan=plan(early), approval=APPROVED)
    early.finish()
    run.clear()
    done = restore(early, run, plan=plan(early), approval=APPROVED)
    assert not done["repeated"] and root_files.head(early.root).position == 50
    early.finish()
    # So does another DAG run.
    restore(early, new_run("2026-01-02", task_id="restore"), plan=plan(early), approval=APPROVED)
    assert root_files.head(early.root).position == 50
    early.replace_events(since=50)
    early.finish()
    early.check_results()


def test_a_plan_is_not_carried_out_with_other_settings(early: AccountsJob) -> None:
    planned, before = plan(early), everything(early)
    early.settings = {**early.settings, "parallelism": 3}
    with fails(PermanentFailure, "plan-outdated") as caught:
        restore(early, new_run("2026-01-01"), plan=planned, approval=APPROVED)
    (difference,) = caught.value.facts["differs"]
    assert "parallelism" in difference
    assert everything(early) == before


def test_a_table_without_a_sink_is_left_only_when_it_is_named(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    with fails(PermanentFailure, "config", sinks=["totals"]) as caught:
        plan(early, drop="turnovers")
    assert "--keep-table" in caught.value.hint
    planned = plan(early, drop="turnovers", keep_tables="totals")
    assert [left["uid"] for left in planned["plan"]["left"]] == ["totals"]


@pytest.mark.parametrize(
    "approval",
    [REJECTED, {}, "", {"chosen_options": ["Approve"], "responded_by_user": None}, {**APPROVED, "chosen_options": []}],
    ids=["rejected", "nothing", "no-xcom", "timed-out", "no-choice"],
)
def test_without_an_approval_nothing_happens(early: AccountsJob, approval: Any) -> None:
    planned, before = plan(early), everything(early)
    with fails(PermanentFailure, "not-approved"):
        restore(early, new_run("2026-01-01"), plan=planned, approval=approval)
    assert everything(early) == before


def test_an_answer_that_is_gone_is_no_approval(early: AccountsJob) -> None:
    """The task that asks was cleared, or marked as a success by hand: its XCom is None."""
    planned, before = plan(early), everything(early)
    with DAG("a_dag"):
        asks = StateflowVerifyOperator(task_id="approve", job_root=str(early.root))
        operator = StateflowRestoreOperator(
            task_id="restore",
            job=ACCOUNTS,
            job_root=str(early.root),
            settings=settings(early),
            plan=planned,
            approval=asks.output,
        )
    operator.approval = None
    with fails(PermanentFailure, "not-approved"):
        operator.execute(new_run("2026-01-01").next_try())
    assert everything(early) == before


def test_a_job_that_moved_on_is_refused_for_good(early: AccountsJob) -> None:
    planned = plan(early)
    early.deliver(130)
    early.finish()
    before = everything(early)
    with fails(PermanentFailure, "plan-outdated") as caught:
        restore(early, new_run("2026-01-01"), plan=planned, approval=APPROVED)
    assert "differs" not in caught.value.facts
    assert everything(early) == before


def test_a_run_that_was_killed_over_it_is_completed_by_the_next_task(
    early: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that restores dies after the intent; the run that comes first does the rest."""
    use_submit(early.folder.parent, monkeypatch)
    planned = plan(early)
    run = new_run("2026-01-01", task_id="restore")
    _die_in_restore(early, run, planned, monkeypatch)
    early.replace_events(since=50)
    ran = run_task(early).execute(new_run("2026-01-02").next_try())
    assert ran["rows_in"] == 70
    early.check_results()
    newest = root_files.head(early.root)
    restore(early, run, plan=planned, approval=APPROVED)
    assert root_files.head(early.root).seq == newest.seq, "it went back twice"
    early.check_clean()


def test_the_try_that_completes_it_puts_it_into_the_history(
    early: AccountsJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, run = plan(early), new_run("2026-01-01", task_id="restore")
    _die_in_restore(early, run, planned, monkeypatch)
    intent = root_files.head(early.root).doc["rewind"]["seq"]
    for _ in range(2):
        restore(early, run, plan=planned, approval=APPROVED)
    (record,) = [r for r in root_files.history(early.root) if r.get("kind") == "restore"]
    assert (record["seq"], record["by"], record["facts"]["base"]) == (
        intent,
        "ada",
        str(planned["plan"]["target_checkpoint"]),
    )


def _die_in_restore(box: AccountsJob, run: FakeRun, planned: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from stateflow import failpoints

    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == "rewind.table":
            raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(failpoints, "hit", die)
        restore(box, run, plan=planned, approval=APPROVED)


@pytest.mark.parametrize("bad", [None, "", "{}", {"plan": 1}, "no json"])
def test_what_is_no_plan_is_refused(early: AccountsJob, bad: Any) -> None:
    with fails(PermanentFailure, "config", plan=repr(bad)):
        restore(early, new_run("2026-01-01"), plan=bad)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"sinks": "some"}, {"sinks": "some"}),
        ({"from_other_job": "perhaps"}, {"from_other_job": "perhaps"}),
        ({"drop": "a, b"}, {"uids": ["a", "b"]}),
    ],
)
def test_wrong_wishes_are_refused_before_anything_is_done(
    early: AccountsJob, arguments: dict[str, Any], facts: dict[str, Any]
) -> None:
    before = everything(early)
    with fails(PermanentFailure, "config", **facts):
        plan(early, **arguments)
    assert everything(early) == before


def test_a_target_that_is_not_there_is_answered_with_those_that_are(early: AccountsJob) -> None:
    with fails(PermanentFailure, "config", target="nothing") as caught:
        plan(early, target="nothing")
    assert "early" in caught.value.hint and str(root_files.head(early.root).checkpoint) in caught.value.hint


def test_tables_can_be_kept(early: AccountsJob) -> None:
    planned, before = plan(early, sinks="keep"), rows(early)
    assert [(s["mode"], s["then"], s["rows_removed"]) for s in planned["plan"]["sinks"]] == [("keep", None, 0)] * 2
    restore(early, new_run("2026-01-01"), plan=planned["plan"], by="ada")
    assert rows(early) == before and root_files.head(early.root).position == 50


def test_a_fork_is_made_once(early: AccountsJob, tmp_path: Path) -> None:
    run = new_run("2026-01-01", task_id="fork")
    forked = AccountsJob(early.folder, early.settings)
    forked.root_folder = tmp_path / "fork"

    def fork() -> dict[str, Any]:
        operator = StateflowForkOperator(
            task_id="fork",
            job_root=str(early.root),
            target="early",
            into=str(forked.root),
            shadow="True",
            reason="a try",
        )
        return operator.execute(run.next_try())

    made = fork()
    assert (made["shadow"], made["job"]) == (True, "accounts") and made["bytes"] > 0
    assert fork() == made
    forked.settings = {**early.settings, "local_dir": tmp_path / "local"}
    forked.finish()
    shadow = multiset(root_files.folder_rows(early.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(expected(early.delivered).movements[50:])
    early.check_results()
    with fails(PermanentFailure, "config", root=forked.root.as_uri()):
        fork()


def test_what_a_person_must_see_is_in_the_markdown(golden: SnapshotAssertion) -> None:
    state = {"uid": "a", "action": "dropped", "bytes": 2_500_000, "from_parallelism": 4, "to_parallelism": 0}
    source = {"uid": "s", "now": '{"row": 9}', "then": "x" * 99, "held": False}
    sink = {
        "uid": "t|1",
        "mode": "restore",
        "table_id": "i",
        "table": "/tables/t",
        "now": 9,
        "then": 3,
        "rows_removed": None,
        "others": ["MERGE by <b>ada</b>"],
    }
    kept = {**sink, "uid": "k", "mode": "keep", "table": "/tables/k", "then": None, "rows_removed": 0, "others": []}
    plan = msgspec.convert(
        {
            "job": "j",
            "checkpoint_id": 9,
            "label": "checkpoint 3",
            "target_at": "2026-01-31T03:00:00+00:00",
            "states": [{**state, "action": "matched", "to_parallelism": 2}, state],
            "sources": [source],
            "sinks": [sink, kept],
            "foreign": True,
            "of_job": "other 77",
            "dropped_checkpoints": [5, 9],
            "mode": "restore",
            "left": [{"uid": "old", "table_id": "o", "checkpoint_id": 9}],
            "run_open": True,
            "saved": [{"checkpoint_id": 9, "savepoint": "late"}],
            "job_uuid": "u",
            "head": 9,
            "generation": 1,
            "ordinal": 3,
            "target": "3",
            "target_checkpoint": 3,
            "target_sha256": "s",
            "parallelism": 2,
            "operators": ["a"],
            "made_at": "now",
        },
        RestorePlan,
    )
    assert as_markdown(plan) == golden


def test_templates() -> None:
    with DAG("a_dag"):
        task = StateflowRestorePlanOperator(
            task_id="plan",
            job="{{ f }}",
            job_root="{{ r }}",
            target="{{ t }}",
            drop="{{ d }}",
            from_other_job="{{ x }}",
        )
    context: Any = {"f": "/j.py", "r": "/jobs/j", "t": "latest", "d": "a,b", "x": False}
    task.render_template_fields(context)
    assert (task.job, task.job_root, task.target, task.drop, task.from_other_job) == (
        "/j.py",
        "/jobs/j",
        "latest",
        "a,b",
        "False",
    )
