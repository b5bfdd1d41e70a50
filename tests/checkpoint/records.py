"""Records of a job's history."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.log.documents import CheckpointRecord


def record(checkpoint: int, **more: Any) -> CheckpointRecord:
    """Returns the record of a checkpoint with plausible figures."""
    figures = {"duration_ms": 31.4, "increment_bytes": 3000, "full_bytes": 9000, "files": 2, "rows_in": 10}
    given = {"generation": 1, "run": 1, "ordinal": checkpoint, "ended_at": "now", "rows_out": {}, "driver": "host:1"}
    return CheckpointRecord(checkpoint_id=checkpoint, **{**given, **figures, **more})
