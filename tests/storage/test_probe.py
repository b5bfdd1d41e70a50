"""The race probe lets only a storage pass whose put-if-absent is one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.storage_probe import next_generation, probe_job_root, probe_storage
from stateflow.clock import ManualClock
from stateflow.errors import EnvironmentUnsupported, StorageError
from stateflow.storage import MemoryStorage, PosixStorage, PutResult, Storage
from tests.support.errors import raises

RACERS = 8


class CheckThenWrite(MemoryStorage):
    """Looks whether the name is free, then writes: everybody who looks in time creates.

    The barrier makes the race that a slow network makes now and then: all have looked before the first writes.
    """

    def __init__(self) -> None:
        super().__init__("memory://check-then-write")
        self.together = threading.Barrier(RACERS)

    def put_new(self, key: str, data: bytes) -> PutResult:
        free = self.size(key) is None
        self.together.wait(10)
        if not free:
            return PutResult.EXISTS
        self.delete([key])
        return super().put_new(key, data)


class LastWins(MemoryStorage):
    """Tells one caller that it created, and keeps what another one wrote."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        if result is PutResult.EXISTS:
            self.delete([key])
            super().put_new(key, data)
        return result


class NobodyWins(MemoryStorage):
    """Writes, and says that somebody else did."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        super().put_new(key, data)
        return PutResult.EXISTS


@pytest.mark.parametrize("storage", [CheckThenWrite(), LastWins(), NobodyWins()], ids=lambda s: type(s).__name__)
def test_a_storage_without_put_if_absent_is_refused(storage: Storage) -> None:
    with raises(EnvironmentUnsupported, storage=storage.uri) as refused:
        probe_storage(storage, ManualClock(), 1)
    assert refused.value.hint
    assert storage.list("") == []


class Unsure(MemoryStorage):
    """Does not hear back."""

    def put_new(self, key: str, data: bytes) -> PutResult:
        result = super().put_new(key, data)
        return PutResult.UNKNOWN if result is PutResult.CREATED else result


def test_a_storage_that_does_not_answer_is_not_refused_for_ever() -> None:
    storage = Unsure()
    with raises(StorageError) as told:
        probe_storage(storage, ManualClock(), 1)
    assert told.value.retryable and storage.list("") == []


def test_a_good_storage_passes_and_keeps_nothing(tmp_path: Path) -> None:
    for storage in (MemoryStorage(), PosixStorage(tmp_path / "root")):
        storage.put_new("log/1", b"x")
        probe_storage(storage, ManualClock(), 1)
        assert [blob.key for blob in storage.list("")] == ["log/1"]
        assert storage.get("log/1") == b"x"


class Collected(MemoryStorage):
    """A job root whose next generation another run claims while we probe; a collector takes what we raced for."""

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


def test_a_collector_that_takes_what_is_raced_for_does_not_make_a_storage_bad() -> None:
    storage = Collected()
    probe_job_root(storage, ManualClock())
    assert storage.rounds == 1 and next_generation(storage, ManualClock()) == 2


def test_a_bad_storage_is_refused_as_a_job_root() -> None:
    storage = CheckThenWrite()
    with raises(EnvironmentUnsupported, storage=storage.uri):
        probe_job_root(storage, ManualClock())


def test_two_drivers_may_probe_at_once(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path / "root")
    threads = [threading.Thread(target=probe_storage, args=(storage, ManualClock(n), 1)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.list("") == []
