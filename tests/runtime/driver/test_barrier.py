"""Metrics and operator state of a barrier, from the reports of its tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.barrier.pending_barrier import Participant, PendingBarrier
from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.errors import StateError
from stateflow.runtime.driver.barrier import barrier_metrics, operator_states_after
from stateflow.state.handles import OperatorPart
from stateflow.types.bounded_json import MEMORY_LIMIT
from tests.support.errors import raises

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


def test_operator_state_that_tasks_could_not_read_is_not_stored() -> None:
    pending = PendingBarrier(1, 1, [Participant("u", n) for n in range(2)])
    for subtask in range(2):
        part = OperatorPart(subtask=subtask, content=b"x", memory=MEMORY_LIMIT // 2 + subtask)
        pending.acknowledge(replace(_report(subtask, None, 0.0), key_types=["string"], part=part))
    with raises(StateError, operator="u", memory=MEMORY_LIMIT + 1, limit=MEMORY_LIMIT):
        operator_states_after(pending, {}, {}, 1)
