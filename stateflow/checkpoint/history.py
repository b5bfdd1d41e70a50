"""Records about checkpoints and runs, for people and statistics: outside collection, never needed for safety."""

from __future__ import annotations

import hashlib
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import takewhile

import msgspec

from stateflow.errors import DataError, StateflowError, TooLarge
from stateflow.state.handles import Document
from stateflow.storage import Storage
from stateflow.storage.paths import HISTORY, history

log = logging.getLogger(__name__)

_CHECKPOINTS = re.compile(r"history/[0-9]{20}-checkpoints?(?:-([0-9]+)-[0-9a-f]{8})?\.json")
LIMIT = 16 << 20
"""Largest object of the history that is written, and that is read, in bytes."""
COMPLETED, ABORTED = "completed", "aborted"
BACKGROUND = "background"
"""The kind of the records of background work that failed."""
FAILURE = "failure"
"""The kind of the records of runs that ended with an error."""
_ONLY = "run"
"""The record of a run's failure has this in its name: there is one of a generation."""
MADE = "made"
"""The record of how a fork began has this in its name; part of the stored format."""


class Spread(Document, frozen=True, kw_only=True):
    """How a figure of the subtasks is spread."""

    min: float
    avg: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(min=min(values), avg=round(sum(values) / len(values), 3), max=max(values))


class CheckpointRecord(Document, frozen=True, kw_only=True):
    """What one checkpoint was like, completed or aborted."""

    checkpoint_id: int
    """Of an aborted one that of the checkpoint before it, 0 when there was none; 0 in the record that a manifest has of
    its own checkpoint, which is known to its log entry only."""
    generation: int
    ordinal: int
    run: int = 0
    """Number of its run, counted from the job's first; 0 in records of older versions."""
    committed_at: str
    """When it ended; of one that is known from its manifest only, when that was written."""
    duration_ms: float
    """Of its batches, and from its barrier to its end."""
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
    status: str = COMPLETED
    failure: str = ""
    """Why it was aborted."""
    triggered_at: str = ""
    """When its last batch began."""
    trigger_ms: float = 0
    """From there until the positions were captured."""
    start_delay_ms: float = 0
    """From the beginning of its last batch until the first subtask was at the barrier."""
    alignment_ms: float = 0
    """From there until the last subtask was."""
    sync_ms: float = 0
    """The longest that a subtask worked on nothing but its snapshot."""
    async_ms: float = 0
    """From the last report until all files were stored; 0 when they are stored before a task reports."""
    commit_ms: float = 0
    """Of writing the manifest and the COMMIT."""
    publish_ms: float = 0
    new_files: int = 0
    """Of state, among `files`: stored for this checkpoint."""
    manifest_bytes: int = 0
    subtasks: dict[str, Spread] = {}
    """Over the subtasks that have state: ``sync_ms``, ``increment_bytes``, ``full_bytes``."""


class ActionRecord(Document, frozen=True, kw_only=True):
    """Something that was done to the job, by a person or on a schedule."""

    seq: int
    """Of the log entry that was the newest then; of a savepoint's and a stop's checkpoint; of the CLAIM that goes
    back; of a rejection, that of its plan."""
    kind: str
    """``savepoint``, ``dispose``, ``restore``, ``rejection`` (of a restore's plan), ``rewind``, ``fork``, ``relocate``,
    ``stop``, ``background``, ``failure`` (of a run)."""
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
    """Adds a record of an action. An error is logged, and fails nothing: history is never needed for safety.

    Args:
        unique: tells it from another action at the same entry.
    """
    try:
        key = history(record.seq, f"{record.kind}-{unique[:12]}")
        storage.put_new(key, _encoded(record))
    except Exception as e:
        known = isinstance(e, StateflowError | OSError)
        log.warning(
            "the history record of a %s was not written: %s", record.kind, e, exc_info=None if known else e
        )


def write_records(storage: Storage, records: Sequence[CheckpointRecord], unique: str) -> None:
    """Stores records as one object, named after the newest. Raises StorageError or ConfigError.

    Args:
        unique: hexadecimal, tells the object from others.
    """
    if not records:
        return
    newest = max(record.checkpoint_id for record in records)
    try:
        data = _encoded(records)
    except TooLarge as e:
        if len(records) == 1:
            log.warning("the history of checkpoint %d is left out: %s", newest, e)
            return
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            # Of their own, because aborted checkpoints have the id of the one before them.
            write_records(storage, part, hashlib.sha256(f"{unique}-{number}".encode()).hexdigest())
        return
    storage.put_new(history(newest, f"checkpoints-{len(records)}-{unique[:8]}"), data)


def _encoded(record: ActionRecord | Sequence[CheckpointRecord]) -> bytes:
    data = msgspec.json.encode(record)
    if len(data) > LIMIT:
        raise TooLarge("a history record is too large to be read again", hint="use shorter names and reasons",
                       size=len(data), limit=LIMIT)  # fmt: skip
    return data


def trim_history(storage: Storage, keep: int) -> None:
    """Removes all but the newest objects, which have at least so many records. Raises StorageError or ConfigError."""
    storage.delete(_superfluous(storage, keep))


def background_failures(storage: Storage, generation: int) -> list[ActionRecord]:
    """What failed last of each kind of background work of a run, by the name of the work."""
    found: dict[str, ActionRecord] = {}
    prefix = history(generation, f"{BACKGROUND}-").removesuffix(".json")
    for blob in storage.list(prefix):
        for record in _read(storage, blob.key):
            if isinstance(record, ActionRecord):
                name = record.facts.get("work", "")
                found[name] = max(record, found.get(name, record), key=lambda r: int(r.facts["failures"]))
    return [found[name] for name in sorted(found)]


def run_failure(storage: Storage, generation: int) -> ActionRecord | None:
    """The error that a run ended with; None for one that works, was killed, or ended in good order."""
    found = _read(storage, history(generation, f"{FAILURE}-{_ONLY}"))
    return next((record for record in found if isinstance(record, ActionRecord)), None)


def record_run_failure(storage: Storage, record: ActionRecord) -> None:
    """Stores the record of a run's failure, which `run_failure` finds."""
    write_action(storage, record, _ONLY)


def savepoints_elsewhere(storage: Storage) -> list[ActionRecord]:
    """The records of savepoints that were made outside of the job root; some of them may be gone."""
    actions = [record for record in read_history(storage) if isinstance(record, ActionRecord)]
    root = f"{storage.uri.rstrip('/')}/"
    return [
        r for r in actions
        if r.kind == "savepoint" and not r.facts.get("path", root).startswith(root)
    ]  # fmt: skip


def beginning(storage: Storage) -> ActionRecord | None:
    """What a fork, or a job root that began with a savepoint, was made from; None for another job, and once trimmed."""
    found = _read(storage, history(1, f"fork-{MADE}"))
    return next((record for record in found if isinstance(record, ActionRecord)), None)


def _superfluous(storage: Storage, keep: int) -> list[str]:
    keys = []
    for blob in reversed(storage.list(HISTORY)):
        if keep <= 0:
            keys.append(blob.key)
        matched = _CHECKPOINTS.fullmatch(blob.key)
        keep -= int(matched[1] or 1) if matched else 1
    return keys


def read_records(
    storage: Storage, newest: int | None = None, told: Iterable[CheckpointRecord] = ()
) -> list[CheckpointRecord]:
    """The newest records of checkpoints, oldest first; all of them without a number.

    Args:
        told: what is known besides the objects, from the newest manifest.
    """
    found = {_identity(record): record for record in told}
    enough = None if newest is None else newest + len(found)
    for blob in reversed(storage.list(HISTORY)):
        if enough is not None and len(found) >= enough:
            break
        found |= {_identity(r): r for r in _read(storage, blob.key) if isinstance(r, CheckpointRecord)}
    ordered = sorted(found.values(), key=lambda r: (r.checkpoint_id, r.generation, r.ordinal, r.status))
    return ordered[-newest:] if newest is not None else ordered


def read_history(storage: Storage, told: Iterable[CheckpointRecord] = ()) -> list[Record]:
    """All records of completed checkpoints and of actions, in order, which their names alone do not tell.

    Args:
        told: as for `read_records`.
    """
    found: dict[object, Record] = {_identity(record): record for record in told}
    for blob in storage.list(HISTORY):
        for record in _read(storage, blob.key):
            key = _identity(record) if isinstance(record, CheckpointRecord) else blob.key
            found[key] = record
    return in_order(r for r in found.values() if isinstance(r, ActionRecord) or r.status == COMPLETED)


def _identity(record: CheckpointRecord) -> tuple[int, int, str]:
    return record.generation, record.ordinal, record.status


def _read(storage: Storage, key: str) -> Sequence[Record]:
    """Nothing for one that does not decode, or was just trimmed: history is never needed for safety."""
    matched = _CHECKPOINTS.fullmatch(key)
    try:
        data = storage.get(key, LIMIT)
        if matched is None:
            return [msgspec.json.decode(data, type=ActionRecord)]
        if matched[1] is None:
            return [msgspec.json.decode(data, type=CheckpointRecord)]
        return msgspec.json.decode(data, type=list[CheckpointRecord])
    except (msgspec.DecodeError, UnicodeDecodeError, DataError):
        return []
