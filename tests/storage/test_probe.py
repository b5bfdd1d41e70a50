"""The race probe accepts only a storage that creates a key once."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from stateflow.checkpoint.log.job_root import JobRoot, NewJob, next_generation, probe_job_root, probe_storage
from stateflow.clock import ManualClock
from stateflow.errors import EnvironmentUnsupported, StorageError
from stateflow.storage import MemoryStorage, PosixStorage, PutResult
from stateflow.testing.conformance.storage import at_once
from tests.support.errors import raises

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
