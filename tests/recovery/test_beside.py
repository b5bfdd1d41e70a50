"""Others at work beside a run: readers of its state, and collections; whatever they do, the run does not notice."""

from __future__ import annotations

import pytest

from stateflow.query import read_state
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected


def test_state_is_read_beside_a_run(box: AccountsJob) -> None:
    """The run is stopped between COMMIT and publishing: whoever reads sees the new checkpoint, and the run goes on
    behind the entries that the reader has added to its log."""
    box.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    box.deliver(60)
    chain = root_files.Chain(box.root)
    running = box.start("commit.after:3:stop")
    running.wait_stopped(chain.look)
    wanted = expected(box.delivered[:30])
    for uid, values in (("balances", wanted.balances), ("turnovers", wanted.turnovers)):
        found = {(e.state, e.key, e.map_key): e.value for e in read_state(str(box.root), uid)}
        assert found == values == root_files.read_state(box.root, uid)
    chain.look()
    assert root_files.head(box.root).doc["kind"] == "admin"
    running.resume()
    ended = running.wait(chain.look)
    assert ended.code == 0, str(ended)
    chain.check()
    box.check_results()
    box.check_clean()


def test_what_a_reader_holds_is_not_collected(box: AccountsJob) -> None:
    """A reader that died has left a pin; its checkpoint goes when somebody drops the pin, and not before."""
    box.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    box.deliver(20)
    box.finish()
    entries = read_state(str(box.root), "balances")
    next(entries)
    pinned = root_files.head(box.root).checkpoint
    box.deliver(50)
    box.finish()
    box.collect()
    root_files.check_no_orphans(box.root)
    assert pinned in {entry.seq for entry in root_files.kept_entries(box.root)}
    (pin,) = root_files.head(box.root).doc["pinned"]
    entries.close()
    assert box.command("pins", "--drop", pin["id"]).code in (0, 2)
    box.check_results()
    box.check_clean()
    assert pinned not in {entry.seq for entry in root_files.kept_entries(box.root)}


@pytest.mark.parametrize("failpoint", ["task.uploaded:6", "batch.reported:3", "commit.manifest:2", "publish.before:3"])
def test_a_collection_beside_a_run_that_is_stopped(box: AccountsJob, failpoint: str) -> None:
    """What the run has written and not committed is no garbage yet."""
    box.settings = {"checkpoints__retained": 2}
    box.deliver(50)
    running = box.start(f"{failpoint}:stop")
    running.wait_stopped()
    assert box.command("gc").code == 0
    running.resume()
    ended = running.wait()
    assert ended.code == 0, str(ended)
    box.check_results()
    box.check_clean()
