"""A job's history: records of checkpoints and their objects."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from msgspec.structs import replace

from stateflow.checkpoint import history
from stateflow.checkpoint.history import read_history, read_records, trim_history, write_records
from stateflow.checkpoint.log.documents import ABORTED, CheckpointRecord, seq_of
from stateflow.storage import MemoryStorage, paths
from tests.checkpoint.records import record


def _ids(records: Iterable[CheckpointRecord]) -> list[int]:
    return [each.checkpoint_id for each in records]


def test_a_damaged_record_is_left_out() -> None:
    storage = MemoryStorage()
    write_records(storage, [record(1)], "01" * 16)
    write_records(storage, [record(2), record(3)], "ab" * 16)
    write_records(storage, [record(4)], "cd" * 16)
    write_records(storage, [], "ef" * 16)
    for number, data in ((5, b"{}"), (6, b'{"committed_at": "\xff"}'), (7, b"x" * (17 << 20))):
        storage.put_new(paths.history_key(number, "checkpoint"), data)
        storage.put_new(paths.history_key(number, "checkpoints-2-01234567"), data)
    assert _ids(read_records(storage)) == [1, 2, 3, 4]
    assert _ids(read_records(storage, newest=2)) == [3, 4]


def test_trimming_keeps_at_least_the_given_number_of_records() -> None:
    storage = MemoryStorage()
    for first in range(1, 31, 3):
        write_records(storage, [record(n) for n in range(first, first + 3)], "ab" * 16)
    trim_history(storage, keep=30)
    assert _ids(read_records(storage)) == list(range(1, 31))
    trim_history(storage, keep=7)
    assert _ids(read_records(storage)) == list(range(22, 31))


def test_records_too_many_for_one_object_are_divided_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted ones, which all have the id of the checkpoint before them."""
    storage = MemoryStorage()
    records = [replace(record(7), ordinal=n, status=ABORTED) for n in range(9)]
    too_large = replace(record(8), by="x" * 2000)
    monkeypatch.setattr(history, "LIMIT", 2 * len(msgspec.json.encode(records[0])) + 10)
    write_records(storage, [*records, too_large], "ab" * 16)
    assert sorted(r.ordinal for r in read_records(storage)) == list(range(9))


def test_of_a_stored_and_a_pending_record_of_one_checkpoint_the_stored_one_counts() -> None:
    storage = MemoryStorage()
    write_records(storage, [record(1), record(2)], "ab" * 16)
    write_records(storage, [record(2), record(3)], "cd" * 16)
    pending = [replace(record(n), duration_ms=9) for n in (3, 4)]
    found = [(r.checkpoint_id, r.duration_ms == 9) for r in read_records(storage, pending=pending)]
    assert found == [(1, False), (2, False), (3, False), (4, True)]
    assert _ids(read_records(storage, newest=3, pending=pending)) == [2, 3, 4]
    aborted = replace(record(5), status=ABORTED)
    assert _ids(read_records(storage, pending=[aborted])) == [1, 2, 3, 5]
    assert [seq_of(r) for r in read_history(storage, [aborted, *pending])] == [1, 2, 3, 4]
