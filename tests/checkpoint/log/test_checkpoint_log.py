"""The log and the root of a job: size limits, storages that lose answers or files or never refuse a key, other runs."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot, NewJob, next_generation, probe_job_root, probe_storage
from stateflow.checkpoint.log.manifest_files import seal, write_bytes
from stateflow.clock import ManualClock
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    EnvironmentUnsupported,
    Fenced,
    StorageError,
    TooLarge,
    WrongJobRoot,
)
from stateflow.storage import BlobInfo, MemoryStorage, PosixStorage, PutResult
from stateflow.storage.paths import FORMAT, LOG, log_entry
from stateflow.testing.conformance.storage import at_once
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises
from tests.support.graphs import JOB, entry, ref


def _after(head: Head | None, note: str) -> LogEntry:
    seq, parent = (head.entry.seq + 1, head.sha256) if head else (1, "")
    return entry(seq, EntryKind.CLAIM, generation=seq, parent=parent, note=note)


EMPTY = len(seal(_after(None, ""))[0])


def _append(log: CheckpointLog, head: Head | None, new: LogEntry) -> Appended | Overtaken:
    return log.append(head, lambda _: new)


@given(st.lists(st.text(max_size=60), max_size=4), st.integers(-10, 200))
def test_an_acknowledged_entry_can_be_read_and_a_refused_one_changes_nothing(notes: list[str], room: int) -> None:
    log = CheckpointLog(MemoryStorage(), JOB, EMPTY + room)
    head: Head | None = None
    for note in notes:
        new = _after(head, note)
        size = len(seal(new)[0])
        try:
            outcome = _append(log, head, new)
        except TooLarge as refused:
            assert size > EMPTY + room and refused.facts["size_bytes"] == size
        else:
            assert isinstance(outcome, Appended) and size <= EMPTY + room
            head = outcome.head
        assert CheckpointLog(log.storage, JOB, EMPTY + room).read_head() == head


class _LyingStorage(MemoryStorage):
    """Lists log entries that it does not have."""

    lists = 0

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        self.lists += 1
        return [BlobInfo(log_entry(5), 10)] if prefix == LOG and start_after < log_entry(5) else []


def test_a_listed_entry_that_does_not_exist_ends_the_search() -> None:
    storage = _LyingStorage()
    with raises(StorageError, file=log_entry(5)):
        CheckpointLog(storage, JOB).read_head()
    assert storage.lists <= 100


class _BusyStorage(MemoryStorage):
    """Another run appends an entry, and collects the one before, before each of the first reads."""

    def __init__(self, appended: int) -> None:
        super().__init__()
        self.left = appended
        self.head = _appended(_log(self), None)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        if self.left and key == log_entry(self.head.entry.seq):
            self.left -= 1
            before, self.head = self.head, _appended(_log(self), self.head)
            self.delete([log_entry(before.entry.seq)])
        return super().get(key, limit)


def _log(storage: MemoryStorage) -> CheckpointLog:
    return CheckpointLog(storage, JOB)


def _appended(log: CheckpointLog, head: Head | None) -> Head:
    outcome = _append(log, head, _after(head, ""))
    assert isinstance(outcome, Appended)
    return outcome.head


def test_a_reader_catches_up_with_a_run_that_appends_and_collects() -> None:
    storage = _BusyStorage(20)
    assert _log(storage).read_head() == storage.head
    assert storage.left == 0 and storage.head.entry.seq == 21


BAD_TIMES = ["2026-01-01T00:00:00", "9" * 5000]


@pytest.mark.parametrize("at", BAD_TIMES, ids=["no-zone", "digits"])
@pytest.mark.parametrize("field", ["at", "checkpoint", "retained"])
def test_an_entry_with_a_time_that_cannot_be_compared_is_corrupt(field: str, at: str) -> None:
    """Retention, the doctor and the rewinding of tables compare these times."""
    wrong = replace(ref(1), at=at)
    value: object = {"at": at, "checkpoint": wrong, "retained": [wrong]}[field]
    storage = MemoryStorage()
    storage.put_new(log_entry(1), seal(replace(_after(None, ""), **{field: value}))[0])
    with raises(CorruptFile, file=log_entry(1), time=at[:100]):
        _log(storage).read_head()


class UnreliableStorage(MemoryStorage):
    """Loses the first requests to write, and every answer."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def put_new(self, key: str, data: bytes) -> PutResult:
        if self.lost > 0:
            self.lost -= 1
        else:
            super().put_new(key, data)
        return PutResult.UNKNOWN


def _make(storage: MemoryStorage, max_parallelism: int | None = 128, job: str = "flights") -> JobRoot:
    return JobRoot.create_or_open(storage, ManualClock(), NewJob(job, max_parallelism, {"mean": ["bigint"]}), "a test")


@pytest.mark.parametrize("lost", [0, 3])
def test_the_creation_of_a_job_root_repeats_lost_requests(lost: int) -> None:
    storage = UnreliableStorage(lost)
    made = _make(storage)
    assert _make(storage).job == made.job
    assert [blob.key for blob in storage.list("")] == [FORMAT]


def test_a_storage_that_loses_every_request_may_be_tried_again() -> None:
    with raises(StorageError, key=FORMAT) as refused:
        _make(UnreliableStorage(100))
    assert refused.value.retryable


def test_the_root_of_another_job_is_refused_and_unchanged() -> None:
    storage = MemoryStorage()
    made = _make(storage)
    with raises(WrongJobRoot, found="flights", wanted="trains"):
        _make(storage, job="trains")
    with raises(WrongJobRoot, found=128, wanted=64):
        _make(storage, 64)
    assert _make(storage).job == made.job


def test_opening_a_missing_job_root_creates_nothing() -> None:
    storage = MemoryStorage()
    with raises(ConfigError, storage=storage.uri):
        JobRoot.open(storage, ManualClock())
    assert storage.list("") == []


class UnsyncedStorage(MemoryStorage):
    """While it fails, it creates files and cannot sync their folder, as a failing disk: a file may vanish again."""

    fails = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        return PutResult.UNKNOWN if self.fails else result

    def durable_size(self, key: str) -> int | None:
        if self.fails:
            raise StorageError("the file system failed", path=key)
        return super().durable_size(key)


def test_a_file_that_may_vanish_is_not_acknowledged() -> None:
    storage = UnsyncedStorage()
    root = _make(storage)
    storage.fails = True
    with raises(StorageError, path=log_entry(1)):
        root.claim()
    with raises(StorageError, path="data/a"):
        write_bytes(storage, "data/a", b"x")
    storage.fails = False
    # The entry has stayed: the next run finds that out by reading.
    assert root.claim().entry.seq == 2


def test_a_run_that_claims_the_job_again_is_fenced_by_others_only() -> None:
    """A run that goes back to an older checkpoint claims the job a second time."""
    job = MemoryJob()
    guard = FenceGuard(job.root.log, job.head.entry.generation)
    guard.follow(job.root.claim())
    guard.check()
    newer = job.root.claim()
    with raises(Fenced, generation=newer.entry.generation - 1, newer=newer.entry.generation):
        guard.check()


RACERS = 8


class CheckThenWrite(MemoryStorage):
    """Checks whether the key is free, then writes; all racers have checked before the first writes."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.together = threading.Barrier(RACERS)

    def put_new(self, key: str, data: bytes) -> PutResult:
        free = self.size(key) is None
        self.together.wait(10)
        if not free:
            return PutResult.EXISTS
        self.delete([key])
        return super().put_new(key, data)


class LastWins(MemoryStorage):
    """Reports to one caller that it created the object, and keeps that of another one."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        if result is PutResult.EXISTS:
            self.delete([key])
            super().put_new(key, data)
        return result


class NoWriterWins(MemoryStorage):
    """Writes, and reports that another writer did."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        super().put_new(key, data)
        return PutResult.EXISTS


@pytest.mark.parametrize("kind", [CheckThenWrite, LastWins, NoWriterWins])
def test_a_storage_without_put_if_absent_is_refused(kind: type[MemoryStorage]) -> None:
    storage = kind("memory://bad")
    with raises(EnvironmentUnsupported, storage=storage.uri) as refused:
        probe_job_root(storage, ManualClock())
    assert refused.value.hint
    assert storage.list("") == []


class Unsure(MemoryStorage):
    """Gets no response."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        return PutResult.UNKNOWN if result is PutResult.CREATED else result


def test_a_storage_without_responses_is_a_retryable_error() -> None:
    storage = Unsure()
    with raises(StorageError) as failed:
        probe_storage(storage, ManualClock(), 1)
    assert failed.value.retryable and storage.list("") == []


def test_a_good_storage_passes_and_keeps_nothing_also_when_several_drivers_probe(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), PosixStorage(tmp_path / "root")):
        storage.put_new("log/1", b"x")
        at_once([partial(probe_storage, storage, ManualClock(n), 1) for n in range(3)])
        assert [blob.key for blob in storage.list("")] == ["log/1"]
        assert storage.get("log/1") == b"x"


class Collected(MemoryStorage):
    """A job root on which another run claims the next generation during the probe, whose key a collector deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = JobRoot.create_or_open(self, ManualClock(), NewJob("job", 4, {}), "another")
        self.rounds = 0

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        if key.startswith("probe/") and not self.rounds:
            self.rounds += 1
            self.root.claim()
            self.delete([key])
        return super().get(key, limit)


def test_a_collector_that_deletes_the_key_of_the_race_does_not_fail_the_probe() -> None:
    storage = Collected()
    probe_job_root(storage, ManualClock())
    assert storage.rounds == 1 and next_generation(storage, ManualClock()) == 2
