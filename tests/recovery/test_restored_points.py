"""What a restore brings in is a checkpoint of the job: every command takes it, and lost output leads back to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stateflow.checkpoint.log.checkpoint_log import lineage_ranges
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.restores import ask, begin, check_after, continue_past_savepoint, go_back, plan

TABLES = ["movements", "totals"]


@pytest.fixture
def early(job: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 30th event that continued to the 60th."""
    return continue_past_savepoint(job, at=30, until=60)


@pytest.mark.parametrize("retained", [2, 100])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("target", ["early", "checkpoint"])
def test_output_lost_after_a_restore_rewinds_the_job_to_the_restored_checkpoint(
    early: AccountsJob, target: str, table: str, retained: int
) -> None:
    """The tables are at the restore; older checkpoints would bring rows in twice."""
    early.settings = {"checkpoints__retained": retained}
    go_back(early, target if target == "early" else str(early.commit_at(30).seq))
    early.replace_events(since=30)
    early.reach("commit.after:1")
    early.lose_output(table)
    check_after(early)


def test_a_restored_checkpoint_can_be_kept_as_a_savepoint_and_forked(early: AccountsJob, tmp_path: Path) -> None:
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


def test_a_restored_checkpoint_can_be_the_target_of_a_restore(early: AccountsJob) -> None:
    """As ``latest`` right away, and by its id when the job has gone on."""
    go_back(early, "early")
    point = early.head.checkpoint
    go_back(early, "latest")
    assert early.head.checkpoint == point
    early.replace_events(since=30)
    early.finish()
    go_back(early, str(point))
    check_after(early, since=30)


def test_a_fork_can_be_forked_and_kept_as_a_savepoint_before_its_first_run(early: AccountsJob, tmp_path: Path) -> None:
    first, second = (AccountsJob(early.folder, early.settings, root_folder=tmp_path / n) for n in ("first", "second"))
    early.command("fork", "early", "--into", str(first.root), "--shadow").check()
    first.create_savepoint("mine")
    first.command("fork", "latest", "--into", str(second.root), "--shadow").check()
    assert second.head.position == 30


def test_a_savepoint_of_the_head_is_never_of_an_undone_branch(early: AccountsJob, tmp_path: Path) -> None:
    """A reader may still pin a checkpoint of that branch, with a higher id."""
    early.command("fork", "latest", "--into", str(tmp_path / "fork"), failpoint="savepoint.pinned")
    go_back(early, str(early.commit_at(30).seq))
    made = early.create_savepoint("head", "--from-head")
    assert made["checkpoint_id"] == early.head.checkpoint


def test_a_checkpoint_whose_state_was_dropped_can_still_be_restored(early: AccountsJob) -> None:
    """Dropped is only what the job continues with."""
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
def test_a_kept_table_gets_committed_output_whether_an_old_driver_resumes_or_not(
    early: AccountsJob, wakes: str
) -> None:
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


# -- before:TIME and before:SOURCE=OFFSET ------------------------------------------------------------------------------


@pytest.fixture
def undone(job: AccountsJob) -> AccountsJob:
    """A job with savepoints *good* (30 events) and *bad* (50), that went back to *good*."""
    job.settings = {"checkpoints__retained": 100}
    for name, rows in (("good", 30), ("bad", 50)):
        job.run_to(rows)
        job.create_savepoint(name)
    go_back(job, "good")
    return job


def _position(job: AccountsJob, target: str) -> int:
    """Up to which event the source was read there."""
    return int(json.loads(plan(job, target)["sources"][0]["then"])["row"])


@pytest.mark.parametrize(("target", "then"), [("before:2999-01-01", 60), ("before:events=50", 50)])
def test_a_target_condition_ignores_an_undone_branch(undone: AccountsJob, target: str, then: int) -> None:
    assert _position(undone, target) == 30
    undone.replace_events(since=30)
    undone.run_to(60)
    assert _position(undone, target) == then


def test_undone_branches_are_known_without_the_history(undone: AccountsJob) -> None:
    shutil.rmtree(undone.root / "history")
    undone.replace_events(since=30)
    undone.run_to(60, history__retained=1, checkpoints__retained=1)
    assert len(list((undone.root / "history").iterdir())) == 1
    assert _position(undone, "before:events=55") == 30
    shutil.rmtree(undone.root / "history")
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50


def test_savepoints_without_recorded_ancestry_are_skipped_with_a_warning(undone: AccountsJob) -> None:
    """The log as a version wrote it that knew of restores from the history alone."""
    rare = {"checkpoints__retained": 1}
    undone.replace_events(since=30)
    undone.run_to(40, **rare)
    newest = undone.head
    old = {k: v for k, v in newest.doc.items() if k != "ancestry"}
    root_files.entry_path(undone.root, newest.seq).write_bytes(root_files.sealed(old))
    ended = ask(undone, "before:events=35")
    assert (ended.code, ended.error.facts) == (2, {"before": "events=35"}), str(ended)
    warnings = ended.err.partition("error [")[0].splitlines()
    for name in ("good", "bad"):
        assert sum(f" {name}: " in line for line in warnings) == 1, str(ended)
    # From the next entry on it is recorded.
    undone.run_to(60, **rare)
    undone.create_savepoint("new")
    undone.run_to(70, **rare)
    assert _position(undone, "before:events=65") == 60
    assert _position(undone, "bad") == 50


def test_a_restore_to_an_undone_branch_makes_that_branch_current(undone: AccountsJob) -> None:
    go_back(undone, "bad")
    assert _position(undone, "before:2999-01-01") == 50
    # The checkpoints between the two were released when the job first went back.
    assert _position(undone, "before:events=49") == 30


def test_a_later_savepoint_of_an_older_checkpoint_counts_as_older(job: AccountsJob) -> None:
    job.deliver(100)
    run = job.start("commit.after:4:stop").wait_stopped()
    # The newest checkpoint's output is not published: this is the one before it, and made later.
    job.create_savepoint("older", "--from-head")
    newest, stored = job.head.checkpoint, job.savepoints["older"]
    assert stored["checkpoint_id"] < newest
    committed = {ref["id"]: ref["at"] for ref in root_files.kept_refs(job.root)}
    assert stored["committed_at"] == committed[stored["checkpoint_id"]]
    for time in (stored["made_at"].replace("+00:00", "Z"), "2999-01-01"):
        planned = plan(job, f"before:{time}")
        assert (planned["target_checkpoint"], planned["savepoint"]) == (newest, "")
    run.resume().wait().check()


def test_a_target_condition_skips_a_checkpoint_without_its_manifest(job: AccountsJob) -> None:
    job.settings = {"checkpoints__retained": 100}
    job.run_to(50)
    first, second, *_ = root_files.kept_entries(job.root)
    (job.root / second.doc["manifest"]["key"]).unlink()
    assert plan(job, f"before:events={second.position}")["target_checkpoint"] == first.seq


def test_the_lineage_of_a_checkpoint_follows_every_restore() -> None:
    def numbers(restores: dict[int, int], newest: int) -> set[int]:
        return {n for part in lineage_ranges(restores, newest) for n in part}

    assert numbers({}, 5) == {1, 2, 3, 4, 5}
    assert numbers({6: 2}, 9) == {1, 2, 6, 7, 8, 9}
    assert numbers({6: 2, 10: 8}, 12) == {1, 2, 6, 7, 8, 10, 11, 12}
    # Back to where the first restore had gone away from.
    assert numbers({6: 2, 10: 5}, 12) == {1, 2, 3, 4, 5, 10, 11, 12}
    assert numbers({6: 0}, 8) == {6, 7, 8}
