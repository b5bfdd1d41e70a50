"""History records of checkpoints and actions, and their order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import takewhile

from stateflow.state.handles import Document

COMPLETED, ABORTED = "completed", "aborted"
SAVEPOINT_RECORD = "savepoint"
"""Kind of the records of created savepoints."""


class Spread(Document, frozen=True, kw_only=True):
    """Minimum, average and maximum of a metric over subtasks."""

    min: float
    avg: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value."""
        return cls(min=min(values), avg=round(sum(values) / len(values), 3), max=max(values))


class CheckpointRecord(Document, frozen=True, kw_only=True):
    """Statistics of one checkpoint, completed or aborted."""

    checkpoint_id: int
    """For an aborted checkpoint, the id of the checkpoint before it, or 0. Also 0 in a manifest's record of its own
    checkpoint, whose id only the log entry has."""
    generation: int
    ordinal: int
    run: int = 0
    """Number of its run, counted from the job's first; 0 in records of older versions."""
    committed_at: str
    """When it completed or failed; in a manifest's own record, when the manifest was written."""
    duration_ms: float
    """Duration of its batches, plus the time from its barrier to its end."""
    increment_bytes: int
    full_bytes: int
    files: int
    rows_in: int
    rows_out: dict[str, int]
    compaction_bytes: int = 0
    by: str = ""
    """Host and process id of the run's driver; empty in records of older versions."""
    reason: str = ""
    """Who or what requested the run."""
    status: str = COMPLETED
    failure: str = ""
    """Why it was aborted."""
    triggered_at: str = ""
    """When its last batch started."""
    trigger_ms: float = 0
    """From `triggered_at` until the source positions were captured."""
    start_delay_ms: float = 0
    """From the start of its last batch until the first subtask reached the barrier."""
    alignment_ms: float = 0
    """From the first until the last subtask reached the barrier."""
    sync_ms: float = 0
    """Longest synchronous part of a subtask's snapshot."""
    async_ms: float = 0
    """From the last report until all files were stored; 0 when tasks store their files before they report."""
    commit_ms: float = 0
    """Duration of writing the manifest and the COMMIT."""
    publish_ms: float = 0
    new_files: int = 0
    """How many of `files` are state files that were stored for this checkpoint."""
    manifest_bytes: int = 0
    subtasks: dict[str, Spread] = {}
    """Over the subtasks that have state: ``sync_ms``, ``increment_bytes``, ``full_bytes``."""
    code: str = ""
    """Hash of the job's code, as in the manifest."""


class ActionRecord(Document, frozen=True, kw_only=True):
    """An action on the job, by a user, a schedule or a run."""

    seq: int
    """Number of the newest log entry at the time; for a savepoint or stop, of its checkpoint; for a restore, of its
    CLAIM; for a rejection, that of its plan."""
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
    """Returns the number of the log entry that a record refers to."""
    return record.checkpoint_id if isinstance(record, CheckpointRecord) else record.seq


def is_position(record: Record) -> bool:
    """Returns whether the record is of a position of the job: a checkpoint, a restore, or the start of a fork."""
    if isinstance(record, CheckpointRecord) or record.kind in ("restore", "rewind"):
        return True
    return record.kind == "fork" and "of" in record.facts


def in_order(records: Iterable[Record]) -> list[Record]:
    """Returns the records in order: positions by log entry, and actions on them in between by timestamp.

    Clocks of hosts may differ: whatever the timestamps, an action follows its position, and the disposal of a savepoint
    follows its creation.
    """
    known = sorted(records, key=seq_of)
    positions = [r for r in known if is_position(r)]
    made = {r.facts.get("id"): _time(r.at) for r in known if isinstance(r, ActionRecord) and r.kind == SAVEPOINT_RECORD}
    return sorted(known, key=lambda r: _rank(r, positions, made))


def _rank(
    record: Record, positions: list[Record], made: dict[str | None, datetime]
) -> tuple[int, bool, datetime, bool, str]:
    at, seq = _time_of(record), seq_of(record)
    if isinstance(record, CheckpointRecord) or is_position(record):
        return seq, False, at, False, ""
    disposes = record.kind == "dispose"
    if disposes:
        at = max(at, made.get(record.facts.get("id"), at))
    later = bisect_right(positions, seq, key=seq_of)
    # Other positions may precede the action by timestamp, up to the first newer one, whatever later clocks show.
    before = later + sum(1 for _ in takewhile(lambda p: _time_of(p) <= at, positions[later:]))
    description = f"{record.kind} {sorted(record.facts.items())}"
    return seq_of(positions[before - 1]) if before else seq, True, at, disposes, description


def _time_of(record: Record) -> datetime:
    return _time(record.committed_at if isinstance(record, CheckpointRecord) else record.at)


def _time(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
