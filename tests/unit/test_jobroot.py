"""Making a job root: FORMAT is written once, whatever the storage answers."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, StorageError, WrongJobRoot
from stateflow.storage import MemoryStorage, PutResult
from stateflow.storage.paths import FORMAT, log_entry
from tests.support.errors import raises

NEW = NewJob("flights", 128, {"mean": ["bigint"]})


class Deaf(MemoryStorage):
    """Loses the first requests, and every answer."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def put_new(self, key: str, data: bytes) -> PutResult:
        if self.lost > 0:
            self.lost -= 1
        else:
            super().put_new(key, data)
        return PutResult.UNKNOWN


def _make(storage: MemoryStorage, new: NewJob = NEW) -> JobRoot:
    return JobRoot.create_or_open(storage, ManualClock(), new, "a test")


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_lost_requests_are_repeated(lost: int) -> None:
    storage = Deaf(lost)
    made = _make(storage)
    assert _make(storage).job == made.job
    assert [blob.key for blob in storage.list("")] == [FORMAT]


def test_a_storage_that_loses_every_request_is_worth_another_try() -> None:
    with raises(StorageError, key=FORMAT) as refused:
        _make(Deaf(100))
    assert refused.value.retryable


def test_the_root_of_another_job_is_left_as_it_is() -> None:
    storage = MemoryStorage()
    made = _make(storage)
    with raises(WrongJobRoot, found="flights", wanted="trains"):
        _make(storage, NewJob("trains", 128, {}))
    with raises(WrongJobRoot, uid="mean", found=["bigint"], wanted=["string"]):
        _make(storage, NewJob("flights", 128, {"mean": ["string"]}))
    assert _make(storage).job == made.job


def test_a_max_parallelism_that_is_not_set_is_that_of_the_root() -> None:
    storage = MemoryStorage()
    unset = NewJob("flights", None, {})
    _make(storage)
    assert _make(storage, unset).job.max_parallelism == 128
    with raises(WrongJobRoot, found=128, wanted=64):
        _make(storage, NewJob("flights", 64, {}))
    assert _make(MemoryStorage(), unset).job.max_parallelism == 4096


def test_nothing_is_made_by_looking() -> None:
    storage = MemoryStorage()
    with raises(ConfigError, storage=storage.uri):
        JobRoot.open(storage, ManualClock())
    assert storage.list("") == []


class Unsynced(MemoryStorage):
    """Creates what it is told to and cannot sync the folder, as a failing disk does: what is there may go again."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        return PutResult.UNKNOWN if self.fails else result

    def durable_size(self, key: str) -> int | None:
        if self.fails:
            raise StorageError("the file system failed", path=key)
        return super().durable_size(key)


def test_an_entry_that_is_there_and_may_go_again_is_not_acknowledged() -> None:
    storage = Unsynced()
    root = _make(storage)
    storage.fails = True
    with raises(StorageError, path=log_entry(1)):
        root.claim()
    storage.fails = False
    # It may as well have stayed: the next run decides by looking.
    assert root.claim().entry.seq == 2


def test_a_file_that_is_there_and_may_go_again_is_not_confirmed() -> None:
    storage = Unsynced()
    storage.fails = True
    with raises(StorageError, path="data/a"):
        write_bytes(storage, "data/a", b"x")
