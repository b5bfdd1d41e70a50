"""Metrics of a barrier, from the reports of its tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.runtime.driver.barrier import barrier_metrics

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def _report(subtask: int, milliseconds: float | None, sync_ms: float) -> TaskReport:
    at = None if milliseconds is None else BEGAN + timedelta(milliseconds=milliseconds)
    return TaskReport(generation=1, ordinal=1, uid="u", subtask=subtask, attempt="a", barrier_at=at, sync_ms=sync_ms)


@pytest.mark.parametrize(
    ("reports", "delay", "alignment", "sync"),
    [
        ([(430.0, 3.0), (120.0, 9.0), (200.0, 5.0)], 120.0, 310.0, 9.0),
        ([(-50.0, 0.0), (20.0, 0.0)], 0.0, 70.0, 0.0),
        ([(None, 0.0)], 0.0, 0.0, 0.0),
    ],
    ids=["three-subtasks", "clock-behind-the-driver-s", "no-subtask-at-the-barrier"],
)
def test_alignment_is_from_the_first_subtask_at_the_barrier_to_the_last(
    reports: list[tuple[float | None, float]], delay: float, alignment: float, sync: float
) -> None:
    metrics = barrier_metrics(BEGAN, 7.5, [_report(n, at, sync_ms) for n, (at, sync_ms) in enumerate(reports)])
    assert (metrics.trigger_ms, metrics.triggered_at) == (7.5, "2026-01-01T00:00:00.000+00:00")
    assert (metrics.start_delay_ms, metrics.alignment_ms, metrics.sync_ms) == (delay, alignment, sync)
