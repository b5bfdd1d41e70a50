"""Restores of every sort, killed at each step one after the other: the execution until its intent is written, then the
starts that complete it, also between two tables. `test_restore.py` kills the plain one at each step alone."""

from __future__ import annotations

import json
from pathlib import Path

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, Row, expected, multiset
from tests.support.restores import check_after, execute, plan

_BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "restore.imported", "restore.intent")
_COMPLETING = ("rewind.table:1", "rewind.table:2", "rewind.tables", "rewind.recorded", "rewind.done")


def _kill_at_each_step(box: AccountsJob, tables: int = 2) -> None:
    """Until nothing is left to do; the same request does nothing then."""
    for name in _BEFORE_THE_INTENT:
        ended = execute(box, failpoint=name)
        assert ended.code == -9, f"{name}: {ended}"
        box.marker.unlink()
    for name in _COMPLETING[:tables] + _COMPLETING[2:]:
        # A table that is back stays so: what is left to do gets less.
        ended = box.run(name)
        assert ended.code == -9, f"{name}: {ended}"
        box.marker.unlink()
    assert root_files.head(box.root).doc["rewind"] is None
    again = execute(box, "--json")
    assert again.code == 0 and json.loads(again.out)["repeated"], str(again)
    assert len([r for r in root_files.history(box.root) if r.get("kind") == "restore"]) == 1


def _rows(box: AccountsJob, table: str) -> list[Row]:
    return root_files.folder_rows(box.table(table))


def test_every_step_has_a_kill() -> None:
    steps = {name.partition(":")[0] for name in (*_BEFORE_THE_INTENT, *_COMPLETING)}
    assert steps == {name for name in NAMES if name.startswith(("restore.", "rewind."))}


def test_tables_go_back(early: AccountsJob) -> None:
    plan(early, "early")
    early.replace_events(since=50)
    _kill_at_each_step(early)
    check_after(early)


def test_tables_are_kept(early: AccountsJob) -> None:
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
    assert root_files.read_state(early.root, "turnovers") == whole.turnovers
    early.check_clean()


def test_state_is_dropped(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    left = multiset(_rows(early, "totals"))
    early.replace_events(since=50)
    _kill_at_each_step(early, tables=1)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(_rows(early, "movements")) == multiset(wanted.movements)
    assert multiset(_rows(early, "totals")) == left
    assert root_files.read_state(early.root, "balances") == wanted.balances
    newest = root_files.read_manifest(early.root, root_files.head(early.root).doc["manifest"])
    assert [o["uid"] for o in newest["operators"]] == ["balances"]
    early.check_clean()


def test_another_job_s_savepoint(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", early.settings)
    other.deliver(30)
    other.finish()
    (folder,) = (early.root / "savepoints").iterdir()
    before = root_files.digests(folder)
    other.deliver(120)
    plan(other, str(folder), "--from-other-job")
    _kill_at_each_step(other)
    assert root_files.digests(folder) == before
    other.finish()
    wanted = expected(other.delivered)
    # The table has its own first rows, and those behind the 50th.
    assert multiset(_rows(other, "movements")) == multiset(wanted.movements[:30] + wanted.movements[50:])
    assert root_files.read_state(other.root, "balances") == wanted.balances
    other.check_clean()
    other.end_all()


def test_another_parallelism(early: AccountsJob) -> None:
    early.settings = {**early.settings, "parallelism": 5}
    plan(early, "early")
    early.replace_events(since=50)
    _kill_at_each_step(early)
    check_after(early)
    newest = root_files.read_manifest(early.root, root_files.head(early.root).doc["manifest"])
    assert {o["parallelism"] for o in newest["operators"]} == {5}
