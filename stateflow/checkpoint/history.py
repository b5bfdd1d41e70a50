"""Records about checkpoints and runs, for people and statistics: outside collection, never needed for safety."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import takewhile

import msgspec

from stateflow.errors import DataError, StorageError
from stateflow.state.handles import Document
from stateflow.storage import Storage
from stateflow.storage.paths import HISTORY, history

log = logging.getLogger(__name__)

_CHECKPOINT = "-checkpoint.json"


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
    by: str = ""
    """Host and process id of the run's driver; empty in records of older versions."""
    reason: str = ""
    """Who or what asked for the run."""


class ActionRecord(Document, frozen=True, kw_only=True):
    """Something that was done to the job, by a person or on a schedule."""

    seq: int
    """Of the log entry that was the newest then; of a savepoint's and a stop's checkpoint; of the CLAIM that goes
    back."""
    kind: str
    """``savepoint``, ``dispose``, ``restore``, ``rewind``, ``fork``, ``stop``."""
    at: str
    by: str
    reason: str = ""
    took_ms: float = 0
    bytes: int = 0
    facts: dict[str, str] = {}


Record = CheckpointRecord | ActionRecord


def seq_of(record: Record) -> int:
    """The log entry that a record is about."""
    return record.checkpoint_id if isinstance(record, CheckpointRecord) else record.seq


def is_point(record: Record) -> bool:
    """Whether the job stood at what the record is about: a checkpoint, what was gone back to, what a fork began
    with."""
    if isinstance(record, CheckpointRecord) or record.kind in ("restore", "rewind"):
        return True
    return record.kind == "fork" and "of" in record.facts


def in_order(records: Iterable[Record]) -> list[Record]:
    """What came first stands first: points by log entry, and what was done with them by time in between.

    Hosts' clocks may differ: whatever they say, nothing is done with a point before it is there, or with a savepoint
    after it was disposed of.
    """
    known = sorted(records, key=seq_of)
    points = [r for r in known if is_point(r)]
    made = {
        r.facts.get("id"): _time(r.at) for r in known if isinstance(r, ActionRecord) and r.kind == "savepoint"
    }
    return sorted(known, key=lambda r: _rank(r, points, made))


def _rank(
    record: Record, points: list[Record], made: dict[str | None, datetime]
) -> tuple[int, bool, datetime, bool, str]:
    at, seq = _time_of(record), seq_of(record)
    if isinstance(record, CheckpointRecord) or is_point(record):
        return seq, False, at, False, ""
    disposes = record.kind == "dispose"
    if disposes:
        at = max(at, made.get(record.facts.get("id"), at))
    later = bisect_right(points, seq, key=seq_of)
    # Others went on meanwhile; up to the first point that is younger, whatever the clocks behind it say.
    behind = later + sum(1 for _ in takewhile(lambda p: _time_of(p) <= at, points[later:]))
    told = f"{record.kind} {sorted(record.facts.items())}"
    return seq_of(points[behind - 1]) if behind else seq, True, at, disposes, told


def _time_of(record: Record) -> datetime:
    return _time(record.committed_at if isinstance(record, CheckpointRecord) else record.at)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


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


def trim_history(storage: Storage, keep: int) -> None:
    """Removes all but the newest records. A storage that fails is told in the log of this process."""
    try:
        storage.delete(blob.key for blob in storage.list(HISTORY)[:-keep])
    except StorageError as e:
        log.warning("old history records were not removed: %s", e)


def read_records(storage: Storage, newest: int | None = None) -> list[CheckpointRecord]:
    """The newest records of checkpoints, oldest first; all of them without a number."""
    keys = [blob.key for blob in storage.list(HISTORY) if blob.key.endswith(_CHECKPOINT)]
    found = [_read(storage, key) for key in (keys[-newest:] if newest else keys)]
    return [r for r in found if isinstance(r, CheckpointRecord)]


def read_history(storage: Storage) -> list[Record]:
    """All records, in order, which their names alone do not tell."""
    found = [_read(storage, blob.key) for blob in storage.list(HISTORY)]
    return in_order(r for r in found if r is not None)


def _read(storage: Storage, key: str) -> Record | None:
    """None for one that does not decode, or was just trimmed: history is never needed for safety."""
    kind: type[Record] = CheckpointRecord if key.endswith(_CHECKPOINT) else ActionRecord
    try:
        return msgspec.json.decode(storage.get(key, 1 << 20), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, DataError):
        return None
