"""Another writer appends to a job's table while a restore has its intent in the log and its tables not yet back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.other_writer import TABLES, append, check_tables, newest_version, rows_of
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended
from tests.support.restores import begin, execute, plan

_KEEP = ("--sinks", "keep")


@pytest.fixture
def lost(box: AccountsJob) -> AccountsJob:
    """A start has gone back by itself because output was deleted, and was killed after its intent."""
    box.deliver(40)
    box.finish()
    box.deliver(100)
    assert box.run("commit.after:3").code == -9
    newest = root_files.head(box.root)
    (box.table("movements") / "data" / newest.pending["movements"][0]).unlink()
    box.marker.unlink()
    assert box.run("log.created:2").code == -9
    box.marker.unlink()
    return box


@pytest.fixture
def approved(early: AccountsJob) -> AccountsJob:
    """A restore to the 50th event was approved, and killed after its intent."""
    plan(early, "early")
    assert execute(early, failpoint="restore.intent").code == -9
    early.marker.unlink()
    return early


def _check_refused(box: AccountsJob, ended: Ended, table: str, versions: list[int]) -> None:
    error = ended.error
    assert (ended.code, error.code) == (4, "foreign-rows"), str(ended)
    assert (error.facts["sink"], error.facts["table"]) == (table, str(box.table(table)))
    assert f"versions={versions}" in ended.err and f"other-{versions[0]}.json" in ended.err, ended.err


@pytest.mark.parametrize("table", TABLES)
def test_a_start_does_not_undo_them(lost: AccountsJob, table: str) -> None:
    theirs = append(lost, table, number=3)
    before = rows_of(lost, table)
    for _ in range(2):
        _check_refused(lost, lost.run(), table, [newest_version(lost, table)])
        assert rows_of(lost, table) == before
    # A plan shows that none of it has to be undone: it is not the job's, and the job has published nothing since.
    shown = plan(lost, "latest")
    assert {s["uid"]: s["then"] for s in shown["sinks"]} == {"movements": None, "totals": None}
    assert all(s["rows_removed"] == 0 for s in shown["sinks"])
    ended = execute(lost)
    assert ended.code == 0, str(ended)
    lost.finish()
    check_tables(lost, {table: theirs})


def test_a_start_keeps_what_comes_while_it_goes_back(box: AccountsJob) -> None:
    """Nobody has to decide anything: it has just looked, and has nothing of its own to take back."""
    box.deliver(40)
    box.finish()
    box.deliver(100)
    assert box.run("commit.after:3").code == -9
    newest = root_files.head(box.root)
    (box.table("movements") / "data" / newest.pending["movements"][0]).unlink()
    box.marker.unlink()
    other = box.start("rewind.table:1:stop")
    other.wait_stopped()
    theirs = {table: append(box, table) for table in TABLES}
    other.resume()
    assert (ended := other.wait()).code == 0, str(ended)
    check_tables(box, theirs)


@pytest.mark.parametrize("table", TABLES)
def test_an_approved_restore_does_not_undo_what_it_did_not_show(approved: AccountsJob, table: str) -> None:
    append(approved, table)
    before = rows_of(approved, table)
    for ended in (execute(approved), approved.run(), execute(approved)):
        _check_refused(approved, ended, table, [newest_version(approved, table)])
        assert rows_of(approved, table) == before


def test_what_an_approved_restore_showed_is_undone(early: AccountsJob) -> None:
    append(early, "movements", number=2)
    shown = plan(early, "early")
    (movements,) = [s for s in shown["sinks"] if s["uid"] == "movements"]
    assert len(movements["others"]) == 1
    assert execute(early, failpoint="restore.intent").code == -9
    early.marker.unlink()
    early.replace_events(since=50)
    early.finish()
    check_tables(early, {})


def test_a_new_plan_that_shows_them_replaces_the_old_one(approved: AccountsJob) -> None:
    append(approved, "movements")
    assert approved.run().code == 4
    shown = plan(approved, "latest")
    changes = {s["uid"]: s for s in shown["sinks"]}
    assert changes["movements"]["then"] == 5 and len(changes["movements"]["others"]) == 1
    append(approved, "movements")
    outdated = execute(approved)
    assert (outdated.code, outdated.error.code) == (4, "plan-outdated"), str(outdated)
    shown = plan(approved, "latest")
    ended = execute(approved)
    assert ended.code == 0, str(ended)
    approved.replace_events(since=50)
    approved.finish()
    check_tables(approved, {})
    approved.check_clean()
    replaced = [r for r in root_files.history(approved.root) if r.get("facts", {}).get("replaced_by")]
    assert len(replaced) == 1


@pytest.mark.parametrize("failpoint", ["restore.claimed", "restore.intent", "rewind.table:1", "rewind.table:2"])
def test_a_new_plan_is_killed_too(approved: AccountsJob, failpoint: str) -> None:
    append(approved, "totals")
    plan(approved, "early")
    assert execute(approved, failpoint=failpoint).code == -9
    approved.marker.unlink()
    assert execute(approved).code == 0
    approved.replace_events(since=50)
    approved.finish()
    check_tables(approved, {})
    approved.check_clean()


def test_a_new_plan_keeps_the_tables(approved: AccountsJob) -> None:
    theirs = append(approved, "movements")
    before = {table: multiset(rows_of(approved, table)) for table in TABLES}
    # The first table may be back: what is kept is what is there when the plan is carried out.
    assert approved.run().code == 4
    after = {table: multiset(rows_of(approved, table)) for table in TABLES}
    assert after["movements"] == before["movements"]
    plan(approved, "latest", *_KEEP)
    ended = execute(approved)
    assert ended.code == 0, str(ended)
    assert {table: multiset(rows_of(approved, table)) for table in TABLES} == after
    approved.finish()
    whole = expected(approved.delivered)
    assert multiset(rows_of(approved, "movements")) == multiset([*whole.movements, *whole.movements[50:], *theirs])


def test_they_come_between_the_last_look_and_the_intent(early: AccountsJob) -> None:
    plan(early, "early")
    restore = begin(early, failpoint="restore.imported:1:stop")
    restore.wait_stopped()
    theirs = append(early, "movements")
    restore.resume()
    ended = restore.wait()
    _check_refused(early, ended, "movements", [newest_version(early, "movements")])
    assert theirs[0] in rows_of(early, "movements")


def test_an_intent_without_the_version_that_was_seen(approved: AccountsJob, tmp_path: Path) -> None:
    """Of an older version: everything after the version to go back to counts as not shown."""
    append(approved, "movements")
    newest = root_files.head(approved.root)
    document = {**newest.doc}
    for intent in document["rewind"]["sinks"].values():
        del intent["seen_version"]
    root_files.entry_path(approved.root, newest.seq).write_bytes(root_files.sealed(document))
    _check_refused(approved, approved.run(), "movements", [newest_version(approved, "movements")])
