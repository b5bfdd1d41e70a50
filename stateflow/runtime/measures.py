"""How long the parts of a batch took, up to its barrier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from stateflow.checkpoint.history import Spread
from stateflow.checkpoint.reports import TaskReport

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Measures:
    """Of one batch; see `CheckpointRecord`."""

    triggered_at: str = ""
    trigger_ms: float = 0.0
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    subtasks: Mapping[str, Spread] = field(default_factory=dict)


def measured(began: datetime, trigger_ms: float, reports: Iterable[TaskReport]) -> Measures:
    """What the reports of a barrier say.

    Args:
        began: when the batch did, by the driver's clock; that of a task may be another one, so delays are never
            negative, and exact on one host only.
        trigger_ms: how long capturing the positions took.
    """
    told = list(reports)
    reached = [report.barrier_at for report in told if report.barrier_at is not None]
    first, last = min(reached, default=began), max(reached, default=began)
    stateful = [report for report in told if report.state is not None]
    return Measures(
        began.isoformat(timespec="milliseconds"), trigger_ms, round(max(0.0, (first - began) / _MS), 1),
        round((last - first) / _MS, 1), max((report.sync_ms for report in told), default=0.0), _spreads(stateful),
    )  # fmt: skip


def _spreads(reports: list[TaskReport]) -> dict[str, Spread]:
    if not reports:
        return {}
    return {
        "sync_ms": Spread.of([report.sync_ms for report in reports]),
        "increment_bytes": Spread.of([report.increment_bytes for report in reports]),
        "full_bytes": Spread.of([_full_bytes(report) for report in reports]),
    }


def _full_bytes(report: TaskReport) -> int:
    state = report.state
    return sum(file.size for file in state.files) + len(state.inline or b"") if state else 0
