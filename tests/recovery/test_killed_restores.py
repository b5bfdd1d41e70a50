"""Restores of every sort, killed at each step one after the other: the execution until its intent is written, then the
starts that complete it, also between two tables. `test_restore.py` kills the plain one at each step alone."""

from __future__ import annotations

from pathlib import Path

from stateflow.failpoints import NAMES
from tests.recovery import disk
from tests.recovery.harness import AccountsBox, Row, expected, multiset
from tests.recovery.restores import check_after, execute, plan

_BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "restore.imported", "restore.intent")
_COMPLETING = ("rewind.table:1", "rewind.table:2", "rewind.tables", "rewind.recorded", "rewind.done")


def _kill_at_each_step(box: AccountsBox, tables: int = 2) -> None:
    """Until nothing is left to do; the same request says then that it was carried out, once."""
    for name in _BEFORE_THE_INTENT:
        ended = execute(box, failpoint=name)
        assert ended.code == -9, f"{name}: {ended}"
        box.marker.unlink()
    for name in _COMPLETING[:tables] + _COMPLETING[2:]:
        # A table that is back stays so: what is left to do gets less.
        ended = box.run(name)
        assert ended.code == -9, f"{name}: {ended}"
        box.marker.unlink()
    assert disk.head(box.root).doc["rewind"] is None
    again = execute(box)
    assert again.code == 0 and "was carried out before" in again.out, str(again)
    assert len([r for r in disk.history(box.root) if r.get("kind") == "restore"]) == 1


def _rows(box: AccountsBox, table: str) -> list[Row]:
    return disk.folder_rows(box.table(table))


def test_every_step_has_a_kill() -> None:
    steps = {name.partition(":")[0] for name in (*_BEFORE_THE_INTENT, *_COMPLETING)}
    assert steps == {name for name in NAMES if name.startswith(("restore.", "rewind."))}


def test_tables_go_back(early: AccountsBox) -> None:
    plan(early, "early")
    early.replace_events(since=50)
    _kill_at_each_step(early)
    check_after(early)


def test_tables_are_kept(early: AccountsBox) -> None:
    plan(early, "early", "--sinks", "keep")
    before = {table: multiset(_rows(early, table)) for table in ("movements", "totals")}
    _kill_at_each_step(early)
    assert {table: multiset(_rows(early, table)) for table in before} == before
    early.finish()
    # What comes of the events behind the 50th is there a second time.
    whole, part = expected(early.delivered), expected(early.delivered[:50])
    assert multiset(_rows(early, "movements")) == before["movements"] + multiset(whole.movements[50:])
    again = multiset(whole.totals) - multiset(part.totals)
    assert multiset(_rows(early, "totals")) == before["totals"] + again
    assert disk.read_state(early.root, "turnovers") == whole.turnovers
    early.check_clean()


def test_state_is_dropped(early: AccountsBox) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    plan(early, "early", "--drop", "turnovers", "--leave", "totals")
    left = multiset(_rows(early, "totals"))
    early.replace_events(since=50)
    _kill_at_each_step(early, tables=1)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(_rows(early, "movements")) == multiset(wanted.movements)
    assert multiset(_rows(early, "totals")) == left
    assert disk.read_state(early.root, "balances") == wanted.balances
    newest = disk.read_manifest(early.root, disk.head(early.root).doc["manifest"])
    assert [o["uid"] for o in newest["operators"]] == ["balances"]
    early.check_clean()


def test_another_job_s_savepoint(early: AccountsBox, tmp_path: Path) -> None:
    other = AccountsBox(tmp_path / "other", early.settings)
    other.deliver(30)
    other.finish()
    (folder,) = (early.root / "savepoints").iterdir()
    before = disk.digests(folder)
    other.deliver(120)
    plan(other, str(folder), "--foreign")
    _kill_at_each_step(other)
    assert disk.digests(folder) == before
    other.finish()
    wanted = expected(other.delivered)
    # The table has its own first rows, and those behind the 50th.
    assert multiset(_rows(other, "movements")) == multiset(wanted.movements[:30] + wanted.movements[50:])
    assert disk.read_state(other.root, "balances") == wanted.balances
    other.check_clean()
    other.end_all()


def test_another_parallelism(early: AccountsBox) -> None:
    early.settings = {**early.settings, "parallelism": 5}
    plan(early, "early")
    early.replace_events(since=50)
    _kill_at_each_step(early)
    check_after(early)
    newest = disk.read_manifest(early.root, disk.head(early.root).doc["manifest"])
    assert {o["parallelism"] for o in newest["operators"]} == {5}
