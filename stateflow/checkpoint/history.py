"""Records about checkpoints and runs, for people and statistics: outside collection, never needed for safety."""

from __future__ import annotations

import msgspec

from stateflow.errors import MissingFile
from stateflow.state.handles import Document
from stateflow.storage import Storage
from stateflow.storage.paths import HISTORY, history

KEEP = 10_000
"""How many records are kept by default."""
_SWEEP_EVERY = 500


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


def write_record(storage: Storage, record: CheckpointRecord) -> None:
    """Adds a record. What exists under its name already is the same record, from before a lost answer."""
    storage.put_new(history(record.checkpoint_id, "checkpoint"), msgspec.json.encode(record))
    if record.ordinal % _SWEEP_EVERY == 0:
        storage.delete(blob.key for blob in storage.list(HISTORY)[:-KEEP])


def read_records(storage: Storage, newest: int = KEEP) -> list[CheckpointRecord]:
    """The newest records, oldest first. One that does not decode is left out: history is never needed for safety."""
    records = []
    for blob in storage.list(HISTORY)[-newest:]:
        try:
            records.append(msgspec.json.decode(storage.get(blob.key, 1 << 20), type=CheckpointRecord))
        except (msgspec.DecodeError, MissingFile):
            continue
    return records
