"""Records about checkpoints and runs, for people and statistics: outside collection, never needed for safety."""

from __future__ import annotations

import logging

import msgspec

from stateflow.errors import DataError, StorageError
from stateflow.state.handles import Document
from stateflow.storage import Storage
from stateflow.storage.paths import HISTORY, history

log = logging.getLogger(__name__)

KEEP = 10_000
"""How many records are kept by default."""


class CheckpointRecord(Document, frozen=True, kw_only=True):
    """What one committed checkpoint was like."""

    checkpoint_id: int
    generation: int
    ordinal: int
    committed_at: str
    duration_ms: float
    increment_bytes: int
    full_bytes: int
    files: int
    rows_in: int
    rows_out: dict[str, int]
    compaction_bytes: int = 0


class ActionRecord(Document, frozen=True, kw_only=True):
    """Something that was done to the job, by a person or on a schedule."""

    seq: int
    """Of the log entry that was the newest then."""
    kind: str
    """``savepoint``, ``dispose``, ``restore``, ``fork``, ``stop``."""
    at: str
    by: str
    reason: str = ""
    took_ms: float = 0
    bytes: int = 0
    facts: dict[str, str] = {}


def write_action(storage: Storage, record: ActionRecord, unique: str) -> None:
    """Adds a record of an action; as `write_record`.

    Args:
        unique: tells it from another action at the same entry.
    """
    try:
        key = history(record.seq, f"{record.kind}-{unique[:12]}")
        storage.put_new(key, msgspec.json.encode(record))
    except StorageError as e:
        log.warning("the history record of a %s was not written: %s", record.kind, e)


def write_record(storage: Storage, record: CheckpointRecord) -> None:
    """Adds a record. One that cannot be written is told in the log of this process, and fails nothing."""
    try:
        storage.put_new(history(record.checkpoint_id, "checkpoint"), msgspec.json.encode(record))
    except StorageError as e:
        log.warning("the history record of checkpoint %d was not written: %s", record.checkpoint_id, e)


def trim_history(storage: Storage, keep: int = KEEP) -> None:
    """Removes all but the newest records."""
    storage.delete(blob.key for blob in storage.list(HISTORY)[:-keep])


def read_records(storage: Storage, newest: int = KEEP) -> list[CheckpointRecord]:
    """The newest records of checkpoints, oldest first."""
    return [r for r in read_history(storage, newest) if isinstance(r, CheckpointRecord)]


def read_history(storage: Storage, newest: int = KEEP) -> list[CheckpointRecord | ActionRecord]:
    """The newest records, oldest first. One that does not decode is left out: history is never needed for safety."""
    records: list[CheckpointRecord | ActionRecord] = []
    for blob in storage.list(HISTORY)[-newest:]:
        try:
            data = storage.get(blob.key, 1 << 20)
            if blob.key.endswith("-checkpoint.json"):
                records.append(msgspec.json.decode(data, type=CheckpointRecord))
            else:
                records.append(msgspec.json.decode(data, type=ActionRecord))
        except (msgspec.DecodeError, UnicodeDecodeError, DataError):
            continue
    return records
