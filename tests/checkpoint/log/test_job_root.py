"""Making a job root: FORMAT is written once, whatever the storage answers."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, DataError, Fenced, StorageError, WrongJobRoot
from stateflow.storage import MemoryStorage, PutResult
from stateflow.storage.paths import FORMAT, log_entry
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises


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


@pytest.mark.parametrize("lost", [0, 1, 3])
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


def test_max_parallelism_defaults_to_that_of_the_root() -> None:
    storage = MemoryStorage()
    _make(storage)
    assert _make(storage, None).job.max_parallelism == 128
    assert _make(MemoryStorage(), None).job.max_parallelism == 4096


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


class LargeStorage(MemoryStorage):
    """A storage of another process, which has an object of many gigabytes for each key."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        return PutResult.EXISTS

    def get(self, key: str, limit: int = 1 << 40) -> bytes:
        assert limit <= 3
        raise DataError("too large", key=key)


def test_the_confirmation_of_a_write_reads_no_larger_object() -> None:
    with raises(StorageError, key="data/a"):
        write_bytes(LargeStorage("large"), "data/a", b"abc")


def test_a_run_that_claims_the_job_again_is_fenced_by_others_only() -> None:
    """A run that goes back to an older checkpoint claims the job a second time."""
    job = MemoryJob()
    guard = FenceGuard(job.root.log, job.head.entry.generation)
    guard.follow(job.root.claim())
    guard.check()
    newer = job.root.claim()
    with raises(Fenced, generation=newer.entry.generation - 1, newer=newer.entry.generation):
        guard.check()
