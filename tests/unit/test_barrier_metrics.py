"""Metrics of a barrier, from the reports of its tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.runtime.driver.barrier import barrier_metrics

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def _report(subtask: int, milliseconds: float | None, sync_ms: float = 0) -> TaskReport:
    at = None if milliseconds is None else BEGAN + timedelta(milliseconds=milliseconds)
    return TaskReport(generation=1, ordinal=1, uid="u", subtask=subtask, attempt="a", barrier_at=at, sync_ms=sync_ms)


def test_alignment_is_from_the_first_subtask_at_the_barrier_to_the_last() -> None:
    metrics = barrier_metrics(BEGAN, 7.5, [_report(0, 430.0, 3), _report(1, 120.0, 9), _report(2, 200.0, 5)])
    assert (metrics.trigger_ms, metrics.start_delay_ms, metrics.alignment_ms) == (7.5, 120.0, 310.0)
    assert metrics.sync_ms == 9 and metrics.triggered_at == "2026-01-01T00:00:00.000+00:00"


def test_a_clock_that_is_behind_gives_no_negative_delay() -> None:
    metrics = barrier_metrics(BEGAN, 0, [_report(0, -50.0), _report(1, 20.0)])
    assert (metrics.start_delay_ms, metrics.alignment_ms) == (0.0, 70.0)


def test_without_any_report_nothing_took_any_time() -> None:
    metrics = barrier_metrics(BEGAN, 0, [_report(0, None)])
    assert (metrics.start_delay_ms, metrics.alignment_ms, metrics.sync_ms) == (0.0, 0.0, 0.0)
