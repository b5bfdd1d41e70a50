"""The pin of a reader has an end: a killed reader leaves none for long, and a living one loses no file meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from stateflow import operations
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Pin
from stateflow.checkpoint.log.job_root import LEASE, JobRoot, hold_lease
from stateflow.clock import ManualClock, SystemClock
from stateflow.errors import MissingFile
from stateflow.query import open_snapshot
from tests.checkpoint.log.memory_job import MemoryJob
from tests.query.summed_job import SummedJob, totals, totals_in
from tests.support.errors import raises
from tests.support.processes import Launch, Running, fork

_KILLED = -9
_SHORT = timedelta(milliseconds=1)


@pytest.fixture
def memory() -> MemoryJob:
    """A job with one checkpoint, and a clock that only the test advances."""
    job = MemoryJob()
    job.commit(RetentionLimits(1))
    return job


def _pin(job: MemoryJob, lease: timedelta | None = LEASE) -> Pin:
    checkpoint = job.root.head().checkpoint
    assert checkpoint is not None
    return job.root.admin.pin(checkpoint, "anna", "reads", lease=lease)


def _pins(job: MemoryJob) -> list[str]:
    return [pin.id for pin in job.root.head().entry.pinned]


def _commit(job: MemoryJob) -> None:
    job.commit(RetentionLimits(1))


_ENTRIES: dict[str, Callable[[MemoryJob], object]] = {
    "a commit": _commit,
    "a claim": lambda job: job.root.claim(),
    "another pin": lambda job: job.root.admin.unpin(_pin(job).id),
    "the removal of another pin": lambda job: job.root.admin.unpin(job.root.head().entry.pinned[0].id),
    "the command before a collection": lambda job: job.root.admin.end_leases(),
}


@pytest.mark.parametrize("entry", _ENTRIES)
def test_the_first_entry_after_the_end_of_a_lease_drops_the_pin(memory: MemoryJob, entry: str) -> None:
    endless, leased = _pin(memory, None), _pin(memory)
    memory.root.clock.sleep(LEASE - timedelta(seconds=1))
    before = memory.root.head()
    memory.root.admin.end_leases()
    assert memory.root.head() == before, "an entry was added although no lease is over"
    _commit(memory)
    assert _pins(memory) == [endless.id, leased.id]
    memory.root.clock.sleep(timedelta(seconds=1))
    _ENTRIES[entry](memory)
    assert _pins(memory) == ([] if "removal" in entry else [endless.id])


def test_a_renewed_pin_ends_later_and_a_dropped_one_cannot_be_renewed(memory: MemoryJob) -> None:
    pin, admin = _pin(memory), memory.root.admin
    memory.root.clock.sleep(LEASE * 0.9)
    assert admin.renew(pin.id, LEASE)
    memory.root.clock.sleep(LEASE * 0.9)
    _commit(memory)
    assert _pins(memory) == [pin.id]
    # The lease is over, but the log still has the pin: nothing that it keeps can have been deleted.
    memory.root.clock.sleep(LEASE)
    assert admin.renew(pin.id, LEASE) and _pins(memory) == [pin.id]
    memory.root.clock.sleep(LEASE)
    _commit(memory)
    before = memory.root.head()
    assert not admin.renew(pin.id, LEASE)
    assert memory.root.head() == before and _pins(memory) == []


def test_a_pin_is_renewed_while_the_reader_reads(memory: MemoryJob) -> None:
    pin = _pin(memory, _SHORT)
    with hold_lease(memory.root, pin, _SHORT):
        while memory.root.head().entry.pinned[0].until == pin.until:
            memory.root.clock.sleep(timedelta(microseconds=1))
    assert _pins(memory) == []


# -- readers that are killed or suspended ------------------------------------------------------------------------------


def _verify(job: SummedJob, checkpoint: int, failpoint: str) -> Running:
    arguments = ["verify", "--job-root", job.uri, "--checkpoint", str(checkpoint)]
    return fork(Launch(arguments, job.folder / "output", {"STATEFLOW_FAILPOINT": failpoint}))


def _later(job: SummedJob) -> JobRoot:
    """The job root as a process sees it when the leases of now are over."""
    return JobRoot.open(job.storage, ManualClock(start=SystemClock().now() + LEASE), "later")


@pytest.mark.parametrize("point", ["read.pinned", "read.finished", "read.unpinned"])
def test_a_killed_reader_leaves_no_pin_after_its_lease(job: SummedJob, point: str) -> None:
    job.run(4)
    (read,) = job.kept
    assert _verify(job, read, point).wait().code == _KILLED
    job.run(24)
    assert [pin.checkpoint.id for pin in job.root.head().entry.pinned] == ([] if "unpinned" in point else [read])
    assert operations.collect_garbage(job.uri).retained == tuple(job.kept)
    root = _later(job)
    preview = Collector(root).preview()
    assert read not in preview.retained
    root.admin.end_leases()
    assert root.head().entry.pinned == []
    assert Collector(root).collect().files == preview.files
    assert Collector(root).preview().files == 0


def test_a_reader_whose_clock_is_wrong_gets_an_error_or_the_right_data(job: SummedJob) -> None:
    # Later checkpoints share no file with earlier ones.
    job.settings["state__incremental"] = False
    job.run(4)
    slow = ManualClock(start=SystemClock().now() - timedelta(hours=1))
    with open_snapshot(job.uri, clock=slow) as snapshot:
        job.run(8)
        assert job.root.head().entry.pinned == []
        # The pin is gone, but the checkpoint is still retained.
        assert totals_in(snapshot.operator("sum"), snapshot.storage) == totals(4)
    with raises(MissingFile) as caught, open_snapshot(job.uri, clock=slow) as snapshot:
        job.run(32)
        Collector(job.root).collect()
        totals_in(snapshot.operator("sum"), snapshot.storage)
    assert caught.value.facts["checkpoint"] == snapshot.checkpoint_id
    assert "clocks" in caught.value.hint
