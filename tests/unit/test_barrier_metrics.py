"""What the reports of a barrier say of a checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from stateflow.checkpoint.reports import TaskReport
from stateflow.runtime.measures import measured

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def _report(subtask: int, milliseconds: float | None, sync_ms: float = 0) -> TaskReport:
    at = None if milliseconds is None else BEGAN + timedelta(milliseconds=milliseconds)
    return TaskReport(
        generation=1, ordinal=1, uid="u", subtask=subtask, attempt="a", barrier_at=at, sync_ms=sync_ms
    )


def test_alignment_is_from_the_first_subtask_at_the_barrier_to_the_last() -> None:
    told = measured(BEGAN, 7.5, [_report(0, 430.0, 3), _report(1, 120.0, 9), _report(2, 200.0, 5)])
    assert (told.trigger_ms, told.start_delay_ms, told.alignment_ms) == (7.5, 120.0, 310.0)
    assert told.sync_ms == 9 and told.triggered_at == "2026-01-01T00:00:00.000+00:00"


def test_a_clock_that_is_behind_gives_no_negative_delay() -> None:
    told = measured(BEGAN, 0, [_report(0, -50.0), _report(1, 20.0)])
    assert (told.start_delay_ms, told.alignment_ms) == (0.0, 70.0)


def test_without_any_report_nothing_took_any_time() -> None:
    told = measured(BEGAN, 0, [_report(0, None)])
    assert (told.start_delay_ms, told.alignment_ms, told.sync_ms) == (0.0, 0.0, 0.0)
