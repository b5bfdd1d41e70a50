"""Pins of readers have an end: a killed reader leaves none for long, and a living one loses no file meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import stateflow
from stateflow import operations
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Pin
from stateflow.checkpoint.log.job_root import LEASE, JobRoot, hold_lease
from stateflow.clock import Clock, ManualClock, SystemClock
from stateflow.errors import MissingFile
from stateflow.failpoints import NAMES
from stateflow.private_files import PREFIX, ScratchFolder
from stateflow.query import open_snapshot
from stateflow.query.data_source import QueryReader, ReadRequest, SessionPins, StateDataSource, open_root, pin_for_query
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


def _later(job: SummedJob) -> JobRoot:
    """The job root as a process sees it when the leases of now are over."""
    return JobRoot.open(job.storage, ManualClock(start=SystemClock().now() + LEASE), "later")


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
    assert caught.value.facts["checkpoint_id"] == snapshot.checkpoint_id
    assert "clocks" in caught.value.hint


# -- readers and comparisons that are killed or suspended at each of their steps --------------------------------------

_COPIED = "read.entries"
_READ = [*(point for point in NAMES if point.startswith("read.") and point != _COPIED), _COPIED]
"""The last one leaves a copy of files: each command deletes what the killed one before it has left."""
_DIFF = [point for point in NAMES if point.startswith("diff.")]


def _export(job: SummedJob, checkpoint: int) -> list[str]:
    return ["state", "export", job.uri, "--operator", "sum", "--state", "total", "--snapshot", str(checkpoint)]


def _diff(job: SummedJob, checkpoints: Sequence[int], *options: str) -> list[str]:
    return ["diff", "--job-root", job.uri, "--keys", "--json", *options, *map(str, checkpoints)]


def _start(job: SummedJob, command: Sequence[str], failpoint: str) -> Running:
    """Starts a command whose temporary files are in a folder of their own."""
    folder = _temporary(job)
    folder.mkdir(exist_ok=True)
    output = job.folder / f"output-{failpoint.replace(':', '-')}"
    return fork(Launch(command, output, {"STATEFLOW_FAILPOINT": failpoint, "TMPDIR": str(folder)}))


def _temporary(job: SummedJob) -> Path:
    return job.folder / "temporary"


def _left(job: SummedJob) -> list[str]:
    return [path.name for path in _temporary(job).iterdir()]


def _pinned(job: SummedJob) -> list[int]:
    return [pin.checkpoint.id for pin in job.root.head().entry.pinned]


def _check_nothing_stays(job: SummedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the leases are over, a collection deletes what killed readers kept; the next reader deletes their copies."""
    root = _later(job)
    root.admin.end_leases()
    Collector(root).collect()
    assert _pinned(job) == [] and Collector(root).preview().files == 0
    monkeypatch.setattr("tempfile.tempdir", str(_temporary(job)))
    with ScratchFolder():
        pass
    assert _left(job) == []


@pytest.mark.long(reason="kills processes that read")
def test_killed_readers_keep_their_checkpoint_until_their_leases_end(
    job: SummedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(4)
    (read,) = job.kept
    for point in _READ:
        assert _start(job, _export(job, read), point).wait().code == _KILLED
    assert _pinned(job) == [read] * (len(_READ) - 1), "read.unpinned"
    assert [name.startswith(PREFIX) for name in _left(job)] == [True]
    with stateflow.read_state(job.uri, "sum", "total", read) as reader:
        job.run(24)
        operations.collect_garbage(job.uri)
        rows = reader.read_all().to_pylist()
    assert {row["key"]: row["value"] for row in rows} == totals(4)
    _check_nothing_stays(job, monkeypatch)
    assert read not in Collector(job.root).preview().retained


def test_killed_comparisons_keep_both_checkpoints_until_their_leases_end(
    job: SummedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(8)
    both = job.kept
    for point in (*_DIFF, "read.pinned", "read.pinned:2"):
        # A count of all keys merges all entries.
        options = ["--count-all"] if point == "diff.entries" else []
        assert _start(job, _diff(job, both, *options), point).wait().code == _KILLED
    pinned = _pinned(job)
    assert [pinned.count(each) for each in both] == [len(_DIFF) + 2, len(_DIFF) + 1]
    job.run(24)
    operations.collect_garbage(job.uri)
    wanted = {key: (totals(4).get(key), totals(8)[key]) for key in totals(8) if totals(4).get(key) != totals(8)[key]}
    found = stateflow.diff(f"{job.uri}@{both[0]}", f"{job.uri}@{both[1]}").changes
    assert found is not None
    rows = found.read_all().to_pylist()
    assert {json.loads(row["key"])[0]: (_number(row["old"]), _number(row["new"])) for row in rows} == wanted
    _check_nothing_stays(job, monkeypatch)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


@pytest.mark.parametrize("point", ["read.pinned:2", "diff.opened:1"])
def test_a_comparison_that_is_suspended_for_longer_than_its_lease_is_right_or_an_error(
    job: SummedJob, point: str
) -> None:
    # Later checkpoints share no file with earlier ones.
    job.settings["state__incremental"] = point == "diff.opened:1"
    job.run(8)
    both = job.kept
    suspended = _start(job, _diff(job, both), f"{point}:stop").wait_stopped()
    job.run(32)
    root = _later(job)
    root.admin.end_leases()
    Collector(root).collect()
    ended = suspended.resume().wait()
    if ended.code == 0:
        # All its files were open.
        assert ended.document["keys"] == 4
    else:
        error = ended.check_error(MissingFile.exit_code, MissingFile.code)
        assert "clocks" in ended.err and error.facts["checkpoint_id"] in both
    assert _pinned(job) == [] and _left(job) == []


def test_a_reader_that_is_suspended_returns_what_was_committed(job: SummedJob) -> None:
    job.run(4)
    (read,) = job.kept
    suspended = _start(job, _export(job, read), "read.entries:1:stop").wait_stopped()
    job.run(24)
    operations.collect_garbage(job.uri)
    assert _pinned(job) == [read]
    lines = suspended.resume().wait().check().out.splitlines()
    assert {row["key"]: row["value"] for row in map(json.loads, lines)} == totals(4)
    assert _pinned(job) == [] and _left(job) == []


# -- the pins of a Spark session --------------------------------------------------------------------------------------

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    # Entries have milliseconds.
    return ManualClock(start=SystemClock().now().replace(microsecond=0))


@pytest.fixture
def pins(clock: ManualClock) -> Iterator[SessionPins]:
    pins = SessionPins(clock)
    yield pins
    pins.end()


def _plan(job: SummedJob, pins: SessionPins, clock: Clock, needed: timedelta = HOUR) -> None:
    root = open_root(job.uri, clock)
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    pin_for_query(root, checkpoint, needed, str(pins.folder))


def _all_pins(job: SummedJob) -> list[Pin]:
    return job.root.head().entry.pinned


def _time_left(job: SummedJob, clock: Clock) -> timedelta:
    (pin,) = _all_pins(job)
    return datetime.fromisoformat(pin.until) - clock.now()


def test_queries_share_a_pin_which_the_driver_renews_for_their_time(
    job: SummedJob, pins: SessionPins, clock: ManualClock
) -> None:
    job.run(4)
    _plan(job, pins, clock)
    assert _time_left(job, clock) == LEASE
    clock.sleep(HOUR / 2)
    _plan(job, pins, clock)
    clock.sleep(HOUR * 0.9)
    pins.renew()
    assert _time_left(job, clock) == HOUR / 10
    clock.sleep(HOUR / 10)
    pins.renew()
    assert _all_pins(job) == []
    before = job.root.head()
    pins.renew()
    assert job.root.head() == before


def test_the_end_of_the_session_removes_its_pins(job: SummedJob, pins: SessionPins, clock: ManualClock) -> None:
    job.run(4)
    _plan(job, pins, clock)
    job.run(8)
    _plan(job, pins, clock, LEASE / 2)
    assert len(_all_pins(job)) == 2
    pins.end()
    assert _all_pins(job) == [] and not pins.folder.exists()


def test_a_dropped_pin_is_not_renewed_and_the_next_query_has_another(
    job: SummedJob, pins: SessionPins, clock: ManualClock
) -> None:
    job.run(4)
    _plan(job, pins, clock)
    (first,) = _all_pins(job)
    # The driver was suspended.
    clock.sleep(LEASE)
    open_root(job.uri, clock).admin.end_leases()
    _plan(job, pins, clock)
    (second,) = _all_pins(job)
    assert second.id != first.id
    clock.sleep(LEASE)
    open_root(job.uri, clock).admin.end_leases()
    pins.renew()
    assert _all_pins(job) == []


def test_a_query_without_a_folder_of_the_session_has_a_pin_for_all_of_the_time(
    job: SummedJob, clock: ManualClock
) -> None:
    job.run(4)
    root = open_root(job.uri, clock)
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    for folder in ("", str(job.folder / "of another host")):
        pin_for_query(root, checkpoint, HOUR, folder)
    assert [datetime.fromisoformat(pin.until) - clock.now() for pin in _all_pins(job)] == [HOUR, HOUR]


def test_a_task_after_the_end_of_its_pin_raises_an_error_that_names_the_lease(
    job: SummedJob, pins: SessionPins
) -> None:
    # Later checkpoints share no file with earlier ones.
    job.settings["state__incremental"] = False
    job.run(4)
    options = {"path": job.uri, "operator": "sum", "state": "total", "lease_seconds": "60"}
    reader = QueryReader(ReadRequest.of(options), StateDataSource(options).schema(), str(pins.folder))
    partition, *_ = reader.partitions()
    pins.end()
    job.run(32)
    Collector(job.root).collect()
    with raises(MissingFile) as caught:
        list(reader.read(partition))
    assert caught.value.facts["lease_ms"] == 60_000
