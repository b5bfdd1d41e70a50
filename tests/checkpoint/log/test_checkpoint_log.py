"""The log's size limit: an acknowledged entry can be read, and a refused one leaves the log as it was. And the newest
entry in a storage whose lists and objects do not fit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.errors import CorruptFile, StorageError, TooLarge
from stateflow.storage import BlobInfo, MemoryStorage
from stateflow.storage.paths import LOG, log_entry
from tests.support.errors import raises
from tests.support.graphs import JOB, entry, ref

INPUTS, INPUTS_OF_TEST_ALL = 300, 100_000


def _after(head: Head | None, note: str) -> LogEntry:
    seq, parent = (head.entry.seq + 1, head.sha256) if head else (1, "")
    return entry(seq, EntryKind.CLAIM, generation=seq, parent=parent, note=note)


EMPTY = len(seal(_after(None, ""))[0])


def _append(log: CheckpointLog, head: Head | None, new: LogEntry) -> Appended | Overtaken:
    return log.append(head, lambda _: new)


def check_limit(notes: list[str], limit: int) -> None:
    """Appends a CLAIM with each note; another reader finds exactly the acknowledged ones."""
    log = CheckpointLog(MemoryStorage(), JOB, limit)
    head: Head | None = None
    for note in notes:
        new = _after(head, note)
        size = len(seal(new)[0])
        try:
            outcome = _append(log, head, new)
        except TooLarge as refused:
            assert size > limit and refused.facts["size"] == size
        else:
            assert isinstance(outcome, Appended) and size <= limit
            head = outcome.head
        assert CheckpointLog(log.storage, JOB, limit).read_head() == head


@settings(max_examples=INPUTS)
@given(st.lists(st.text(max_size=60), max_size=4), st.integers(-10, 200))
def test_an_acknowledged_entry_can_be_read(notes: list[str], room: int) -> None:
    check_limit(notes, EMPTY + room)


@pytest.mark.slow
def test_an_acknowledged_entry_can_be_read_for_many_sizes_around_the_limit() -> None:
    for seed in range(INPUTS_OF_TEST_ALL):
        rng = random.Random(seed)
        room = rng.randint(60, 200)
        check_limit(["é" * ((room + rng.randint(-70, 4)) // 2) for _ in range(2)], EMPTY + room)


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


BAD_TIMES = ["x", "2026-01-01T00:00:00", "9" * 5000]


@pytest.mark.parametrize("at", BAD_TIMES, ids=["text", "no-zone", "digits"])
@pytest.mark.parametrize("field", ["at", "checkpoint", "retained"])
def test_an_entry_with_a_time_that_cannot_be_compared_is_corrupt(field: str, at: str) -> None:
    """Retention, the doctor and the rewinding of tables compare these times."""
    wrong = replace(ref(1), at=at)
    value: object = {"at": at, "checkpoint": wrong, "retained": [wrong]}[field]
    storage = MemoryStorage()
    storage.put_new(log_entry(1), seal(replace(_after(None, ""), **{field: value}))[0])
    with raises(CorruptFile, file=log_entry(1), time=at[:100]):
        _log(storage).read_head()
