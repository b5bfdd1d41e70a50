"""Restores of every sort, killed at each step one after the other: the execution until its intent is written, then the
starts that complete it, also between two tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow.failpoints import NAMES
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob, expected, multiset
from tests.support.restores import ask, check_after, execute, plan

TABLES = ("movements", "totals")
_BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "restore.imported", "restore.intent")
_COMPLETING = ("rewind.table:1", "rewind.table:2", "rewind.tables", "rewind.recorded", "rewind.done")


def _kill_at_each_step(box: AccountsJob, planned: dict[str, Any], tables: int = 2) -> None:
    """Until nothing is left to do; the same request does nothing then."""
    for name in _BEFORE_THE_INTENT:
        # The request's own CLAIM of the try before does not outdate its plan.
        ended = execute(box, failpoint=name)
        assert ended.code == KILLED, f"{name}: {ended}"
        assert bool(box.head.doc["requests"]) == (name == "restore.intent")
    for name in _COMPLETING[:tables] + _COMPLETING[2:]:
        # A table that is back stays so: what is left to do gets less.
        box.reach(name)
    assert box.head.doc["rewind"] is None
    assert execute(box, "--json").check().document["repeated"]
    (record,) = box.records("restore")
    base = 0 if planned["foreign"] else planned["target_checkpoint"]
    assert record["facts"]["base"] == str(base), "by whoever completed it"


def test_every_step_has_a_kill() -> None:
    steps = {name.partition(":")[0] for name in (*_BEFORE_THE_INTENT, *_COMPLETING)}
    assert steps == {name for name in NAMES if name.startswith(("restore.", "rewind."))}


@pytest.mark.parametrize("target", ["early", "checkpoint"])
def test_tables_go_back_at_another_parallelism(early: AccountsJob, target: str) -> None:
    early.settings = {**early.settings, "parallelism": 5}
    planned = plan(early, "early" if target == "early" else str(early.commit_at(50).seq))
    early.replace_events(since=50)
    _kill_at_each_step(early, planned)
    check_after(early)
    assert {o["parallelism"] for o in early.manifest["operators"]} == {5}


def test_tables_are_kept(early: AccountsJob) -> None:
    planned = plan(early, "early", "--sinks", "keep")
    assert [(s["mode"], s["then"]) for s in planned["sinks"]] == [("keep", None)] * 2
    before = {table: multiset(early.rows(table)) for table in TABLES}
    _kill_at_each_step(early, planned)
    assert {table: multiset(early.rows(table)) for table in TABLES} == before
    early.finish()
    # What comes of the events after the 50th is there a second time.
    whole, part = expected(early.delivered), expected(early.delivered[:50])
    assert multiset(early.rows("movements")) == before["movements"] + multiset(whole.movements[50:])
    again = multiset(whole.totals) - multiset(part.totals)
    assert multiset(early.rows("totals")) == before["totals"] + again
    assert root_files.read_state(early.root, "turnovers") == whole.turnovers
    early.check_clean()


def test_state_is_dropped(early: AccountsJob) -> None:
    early.settings = {**early.settings, "job__parts": "movements"}
    planned = plan(early, "early", "--drop", "turnovers", "--keep-table", "totals")
    left = multiset(early.rows("totals"))
    early.replace_events(since=50)
    _kill_at_each_step(early, planned, tables=1)
    early.finish()
    wanted = expected(early.delivered)
    assert multiset(early.rows("movements")) == multiset(wanted.movements)
    assert multiset(early.rows("totals")) == left
    assert root_files.read_state(early.root, "balances") == wanted.balances
    assert [o["uid"] for o in early.manifest["operators"]] == ["balances"]
    early.check_clean()


def test_another_job_s_savepoint_which_must_be_asked_for(early: AccountsJob, tmp_path: Path) -> None:
    other = AccountsJob(tmp_path / "other", early.settings)
    other.run_to(30)
    (folder,) = (early.root / "savepoints").iterdir()
    refused = ask(other, str(folder))
    facts = refused.check_error(2, "config").facts
    assert facts.keys() == {"savepoint", "job_uuid", "this_job"} and "--from-other-job" in refused.err
    before = root_files.digests(folder)
    other.deliver(120)
    planned = plan(other, str(folder), "--from-other-job")
    assert [s["mode"] for s in planned["sinks"]] == ["keep", "keep"]
    own = other.head.checkpoint
    _kill_at_each_step(other, planned)
    assert root_files.digests(folder) == before
    # What the job had itself can still be gone back to.
    assert own in {ref["id"] for ref in other.head.doc["retained"]}
    other.finish()
    wanted = expected(other.delivered)
    # The table has its own first rows, and those after the 50th.
    assert multiset(other.rows("movements")) == multiset(wanted.movements[:30] + wanted.movements[50:])
    assert root_files.read_state(other.root, "balances") == wanted.balances
    other.check_clean()
    other.end_all()
