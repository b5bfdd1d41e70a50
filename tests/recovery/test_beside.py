"""Readers of state and collections during a run; whatever they do, the run does not notice."""

from __future__ import annotations

import pytest

from stateflow.query import read_state
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected

RARE = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}


def test_state_is_read_during_a_run(box: AccountsJob) -> None:
    """The run is stopped between COMMIT and publishing: a reader sees the new checkpoint, and the run goes on after the
    entries that the reader has added to its log."""
    box.settings = RARE
    box.deliver(60)
    chain = root_files.Chain(box.root)
    running = box.start("commit.after:3:stop").wait_stopped(chain.look)
    wanted = expected(box.delivered[:30])
    for uid, values in (("balances", wanted.balances), ("turnovers", wanted.turnovers)):
        found = {(e.state, e.key, e.map_key): e.value for e in read_state(str(box.root), uid)}
        assert found == values == root_files.read_state(box.root, uid)
    chain.look()
    assert box.head.doc["kind"] == "admin"
    running.resume().wait(chain.look).check()
    chain.check()
    box.check()


def test_what_a_reader_holds_is_not_collected(box: AccountsJob) -> None:
    """A reader that died has left a pin; its checkpoint goes when somebody drops the pin, and not before."""
    box.settings = RARE
    box.run_to(20)
    entries = read_state(str(box.root), "balances")
    next(entries)
    pinned = box.head.checkpoint
    box.run_to(50)
    box.collect()
    root_files.check_no_orphans(box.root)
    assert pinned in {entry.seq for entry in root_files.kept_entries(box.root)}
    (pin,) = box.head.doc["pinned"]
    entries.close()
    assert box.command("pins", "--drop", pin["id"]).code in (0, 2)
    box.check()
    assert pinned not in {entry.seq for entry in root_files.kept_entries(box.root)}


@pytest.mark.parametrize("failpoint", ["task.uploaded:6", "batch.reported:3", "commit.manifest:2", "publish.before:3"])
def test_a_collection_leaves_what_a_run_has_written_and_not_committed(box: AccountsJob, failpoint: str) -> None:
    box.settings = {"checkpoints__retained": 2}
    box.deliver(50)
    running = box.start(f"{failpoint}:stop").wait_stopped()
    box.command("gc").check()
    running.resume().wait().check()
    box.check()
