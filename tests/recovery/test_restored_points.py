"""What a restore brings in is a point of the job's line: nothing goes behind it, and everything can be done with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended

TABLES = ["movements", "totals"]


@pytest.fixture
def early(box: AccountsJob) -> AccountsJob:
    """A job with a savepoint at its 30th event that went on to the 60th."""
    box.settings = {"checkpoints__retained": 100}
    box.deliver(30)
    box.finish()
    assert box.command("savepoint", "create", "--name", "early").code == 0
    box.deliver(60)
    box.finish()
    return box


def _plan(box: AccountsJob, target: str, *more: str) -> Path:
    file = box.folder / "plan.json"
    ended = box.begin("restore", box.job_file, "--plan", target, "--out", str(file), *more, with_job=True).wait()
    assert ended.code == 0, str(ended)
    return file


def _execute(box: AccountsJob, plan: Path) -> None:
    ended = box.begin("restore", box.job_file, "--execute", str(plan), with_job=True).wait()
    assert ended.code == 0, str(ended)


def _restore(box: AccountsJob, target: str, *more: str) -> None:
    _execute(box, _plan(box, target, *more))


def _committed(box: AccountsJob, position: int) -> root_files.Entry:
    return next(e for e in root_files.kept_entries(box.root) if e.doc["kind"] == "commit" and e.position == position)


# -- what is lost later does not lead behind it -----------------------------------------------------------------------


@pytest.mark.parametrize("retained", [2, 100])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("target", ["early", "checkpoint"])
def test_output_lost_after_a_restore_leads_back_to_where_it_went(
    early: AccountsJob, target: str, table: str, retained: int
) -> None:
    """The tables stand at the restore; older checkpoints would bring rows in twice."""
    early.settings = {"checkpoints__retained": retained}
    _restore(early, target if target == "early" else str(_committed(early, 30).seq))
    early.replace_events(since=30)
    assert early.run("commit.after:1").code == -9
    newest = root_files.head(early.root)
    (early.table(table) / "data" / newest.pending[table][0]).unlink()
    early.finish()
    early.check_results()
    early.check_clean()


# -- everything that takes a checkpoint takes it ----------------------------------------------------------------------


def test_it_can_be_kept_as_a_savepoint(early: AccountsJob) -> None:
    _restore(early, "early")
    for name, more in {"again": (), "from-head": ("--from-head",)}.items():
        made = early.command("savepoint", "create", "--name", name, *more)
        assert made.code == 0, str(made)
    stopped = early.command("stop", "--savepoint", "--name", "stopped")
    assert stopped.code == 0, str(stopped)
    early.replace_events(since=30)
    early.finish()
    _restore(early, "from-head")
    early.replace_events(since=30)
    early.finish()
    early.check_results()
    early.check_clean()


def test_it_can_be_gone_back_to(early: AccountsJob) -> None:
    """As ``latest`` right away, and by its id when the job has gone on."""
    _restore(early, "early")
    point = root_files.head(early.root).checkpoint
    _restore(early, "latest")
    assert root_files.head(early.root).checkpoint == point
    early.replace_events(since=30)
    early.finish()
    _restore(early, str(point))
    early.replace_events(since=30)
    early.finish()
    early.check_results()
    early.check_clean()


def test_it_can_be_forked(early: AccountsJob, tmp_path: Path) -> None:
    _restore(early, "early")
    ended = early.command("fork", "latest", "--into", str(tmp_path / "fork"), "--shadow")
    assert ended.code == 0, str(ended)
    assert root_files.head(tmp_path / "fork").position == 30


def test_a_fork_can_be_forked_and_kept_before_its_first_run(early: AccountsJob, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert early.command("fork", "early", "--into", str(first), "--shadow").code == 0
    forked = AccountsJob(early.folder, early.settings, root_folder=first)
    assert forked.command("savepoint", "create", "--name", "mine").code == 0
    assert forked.command("fork", "latest", "--into", str(second), "--shadow").code == 0
    assert root_files.head(second).position == 30


def test_a_savepoint_of_the_head_is_never_of_a_branch_that_was_left(early: AccountsJob, tmp_path: Path) -> None:
    """A reader may still pin a checkpoint of that branch, with a higher id."""
    early.settings = {"checkpoints__retained": 100}
    fork = early.begin("fork", "latest", "--into", str(tmp_path / "fork"), failpoint="savepoint.pinned")
    fork.wait()
    _restore(early, str(_committed(early, 30).seq))
    made = early.command("savepoint", "create", "--name", "head", "--from-head")
    assert made.code == 0, str(made)
    assert root_files.savepoints(early.root)["head"]["checkpoint_id"] == root_files.head(early.root).checkpoint


# -- what stays -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_whose_state_was_dropped_can_still_be_gone_back_to(early: AccountsJob) -> None:
    """Dropped is only what the job goes on with."""
    target = _committed(early, 60).seq
    early.settings = {**early.settings, "job__parts": "movements"}
    _restore(early, str(target), "--drop", "turnovers", "--sinks", "keep")
    early.collect()
    early.settings = {"checkpoints__retained": 100}
    assert target in {r["id"] for r in root_files.head(early.root).doc["retained"]}
    _restore(early, str(target))
    early.deliver(80)
    early.finish()
    early.check_results()
    early.check_clean()


def test_another_job_s_savepoint_leaves_own_checkpoints_to_go_back_to(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", early.settings)
    other.deliver(20)
    other.finish()
    newest = root_files.head(other.root).checkpoint
    (folder,) = (early.root / "savepoints").iterdir()
    _restore(other, str(folder), "--from-other-job")
    assert newest in {r["id"] for r in root_files.head(other.root).doc["retained"]}
    other.end_all()


# -- kept tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wakes", ["before", "between", "never"])
def test_a_kept_table_gets_what_was_committed_whether_a_driver_wakes_or_not(early: AccountsJob, wakes: str) -> None:
    """Rows behind the target come again; which ones never depends on a driver that sleeps before publishing."""
    early.deliver(80)
    sleeper = early.start("commit.after:1:stop")
    sleeper.wait_stopped()
    early.marker.unlink()
    committed = root_files.head(early.root).position
    if wakes == "before":
        _end(sleeper.resume, sleeper.wait, 0)
    plan = _plan(early, str(_committed(early, 60).seq), "--sinks", "keep")
    going = early.begin(
        "restore", early.job_file, "--execute", str(plan), failpoint="rewind.table:1:stop", with_job=True
    )
    going.wait_stopped()
    if wakes == "between":
        _end(sleeper.resume, sleeper.wait, 3)
    going.resume()
    assert going.wait().code == 0
    shown = 80 if wakes == "before" else committed
    rows = multiset(root_files.folder_rows(early.table("movements")))
    assert rows == multiset(expected(early.delivered[:shown]).movements)
    early.end_all()


def _end(resume: object, wait: object, code: int) -> None:
    assert callable(resume) and callable(wait)
    resume()
    ended = wait()
    assert isinstance(ended, Ended) and ended.code == code, str(ended)
