"""What a restore brings in is a checkpoint of the job: every command takes it, and lost output leads back to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.restores import begin, check_after, go_back, plan

TABLES = ["movements", "totals"]


@pytest.fixture
def early(box: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 30th event that went on to the 60th."""
    box.settings = {"checkpoints__retained": 100}
    box.run_to(30)
    box.create_savepoint("early")
    box.run_to(60)
    return box


@pytest.mark.parametrize("retained", [2, 100])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("target", ["early", "checkpoint"])
def test_output_lost_after_a_restore_leads_back_to_where_it_went(
    early: AccountsJob, target: str, table: str, retained: int
) -> None:
    """The tables stand at the restore; older checkpoints would bring rows in twice."""
    early.settings = {"checkpoints__retained": retained}
    go_back(early, target if target == "early" else str(early.commit_at(30).seq))
    early.replace_events(since=30)
    early.reach("commit.after:1")
    early.lose_output(table)
    check_after(early)


def test_it_can_be_kept_as_a_savepoint_and_forked(early: AccountsJob, tmp_path: Path) -> None:
    go_back(early, "early")
    early.create_savepoint("again")
    early.create_savepoint("from-head", "--from-head")
    early.command("stop", "--savepoint", "--name", "stopped").check()
    early.command("fork", "latest", "--into", str(tmp_path / "fork"), "--shadow").check()
    assert AccountsJob(early.folder, root_folder=tmp_path / "fork").head.position == 30
    early.replace_events(since=30)
    early.finish()
    go_back(early, "from-head")
    check_after(early, since=30)


def test_it_can_be_gone_back_to(early: AccountsJob) -> None:
    """As ``latest`` right away, and by its id when the job has gone on."""
    go_back(early, "early")
    point = early.head.checkpoint
    go_back(early, "latest")
    assert early.head.checkpoint == point
    early.replace_events(since=30)
    early.finish()
    go_back(early, str(point))
    check_after(early, since=30)


def test_a_fork_can_be_forked_and_kept_before_its_first_run(early: AccountsJob, tmp_path: Path) -> None:
    first, second = (AccountsJob(early.folder, early.settings, root_folder=tmp_path / n) for n in ("first", "second"))
    early.command("fork", "early", "--into", str(first.root), "--shadow").check()
    first.create_savepoint("mine")
    first.command("fork", "latest", "--into", str(second.root), "--shadow").check()
    assert second.head.position == 30


def test_a_savepoint_of_the_head_is_never_of_a_branch_that_was_left(early: AccountsJob, tmp_path: Path) -> None:
    """A reader may still pin a checkpoint of that branch, with a higher id."""
    early.command("fork", "latest", "--into", str(tmp_path / "fork"), failpoint="savepoint.pinned")
    go_back(early, str(early.commit_at(30).seq))
    made = early.create_savepoint("head", "--from-head")
    assert made["checkpoint_id"] == early.head.checkpoint


def test_a_checkpoint_whose_state_was_dropped_can_still_be_gone_back_to(early: AccountsJob) -> None:
    """Dropped is only what the job goes on with."""
    target = early.commit_at(60).seq
    early.settings = {**early.settings, "job__parts": "movements"}
    go_back(early, str(target), "--drop", "turnovers", "--sinks", "keep")
    early.collect()
    early.settings = {"checkpoints__retained": 100}
    assert target in {r["id"] for r in early.head.doc["retained"]}
    go_back(early, str(target))
    early.deliver(80)
    check_after(early)


@pytest.mark.parametrize("wakes", ["before", "between", "never"])
def test_a_kept_table_gets_what_was_committed_whether_a_driver_wakes_or_not(early: AccountsJob, wakes: str) -> None:
    """Rows after the target come again; which ones never depends on a driver that sleeps before publishing."""
    early.deliver(80)
    sleeper = early.start("commit.after:1:stop").wait_stopped()
    committed = early.head.position
    if wakes == "before":
        sleeper.resume().wait().check()
    plan(early, str(early.commit_at(60).seq), "--sinks", "keep")
    going = begin(early, failpoint="rewind.table:1:stop").wait_stopped()
    if wakes == "between":
        sleeper.resume().wait().check_error(3, "fenced")
    going.resume().wait().check()
    shown = 80 if wakes == "before" else committed
    assert multiset(early.rows("movements")) == multiset(expected(early.delivered[:shown]).movements)
