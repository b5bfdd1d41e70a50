"""A job's history as lines of text: one per record, with a branch for what a restore undid. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.checkpoint.history import ActionRecord, CheckpointRecord

Record = CheckpointRecord | ActionRecord


def draw_timeline(records: Sequence[Record]) -> list[str]:
    """One line per record, oldest first. Checkpoints that a later restore went back behind stand on a side branch."""
    undone = _undone(records)
    return [_line(r, undone) for r in records] or ["nothing happened yet"]


def _undone(records: Sequence[Record]) -> set[int]:
    gone: set[int] = set()
    live: list[int] = []
    for record in records:
        if isinstance(record, CheckpointRecord):
            live.append(record.checkpoint_id)
        elif record.kind == "restore":
            base = int(record.facts.get("base", "0"))
            gone |= {i for i in live if i > base}
            live = [i for i in live if i <= base]
    return gone


def _line(record: Record, undone: set[int]) -> str:
    if isinstance(record, CheckpointRecord):
        branch = "│ ○" if record.checkpoint_id in undone else "●  "
        when = record.committed_at[:19].replace("T", " ")
        note = "  undone" if record.checkpoint_id in undone else ""
        return (f"{branch:<4} {when}  checkpoint {record.checkpoint_id}, run {record.generation}: "
                f"{record.rows_in:,} rows, {record.duration_ms:.0f} ms{note}")  # fmt: skip
    mark = {"savepoint": "◆", "restore": "↶", "fork": "⑂", "dispose": "✕", "stop": "■"}.get(record.kind, "·")
    facts = ", ".join(
        f"{k} {v}" for k, v in record.facts.items() if v and k not in ("base", "id", "path", "request")
    )
    why = f" ({record.reason})" if record.reason else ""
    return f"{mark:<4} {record.at[:19].replace('T', ' ')}  {record.kind} by {record.by}{why}: {facts}"
