"""Completeness, metrics and operator state of a barrier, from the reports of its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.barriers import Acknowledgement, Participant, PendingBarrier, TaskReport
from stateflow.errors import BatchFailed, StateError
from stateflow.runtime.driver.batch_runner import barrier_metrics, operator_states_after, run_to_barrier
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, Executed, Executor, TaskEnvironment, TaskSettings
from stateflow.runtime.planning.physical_plan import JobPlan, Level, OperatorChain
from stateflow.state.handles import OperatorPart
from stateflow.types.decoders import MEMORY_LIMIT
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
        pending.acknowledge(replace(_report(subtask, None, 0.0), key_types=["string"], key_names=["key"], part=part))
    with raises(StateError, operator="u", memory_bytes=MEMORY_LIMIT + 1, limit_bytes=MEMORY_LIMIT):
        operator_states_after(pending, {}, {}, 1)


class _Reports(Executor):
    """Returns given reports in place of those of tasks."""

    def __init__(self, reports: Sequence[TaskReport]) -> None:
        self._reports = list(reports)

    def empty_rows(self, plan: JobPlan) -> Any:
        return None

    def keep_workers_alive(self, plan: JobPlan, info: BatchInfo) -> None:
        pass

    def execute(self, rows: Any, work: BatchWork) -> Executed:
        return Executed(self._reports, rows=3)


def _run(*reports: TaskReport) -> PendingBarrier:
    """Runs barrier 1 of generation 1, in which two subtasks take part."""
    plan = JobPlan((), (Level(1, (OperatorChain("u", 1, 0, (), None, ()),), 2),), 2)
    info = BatchInfo(BatchId("job", 1, 1, BEGAN), TaskSettings(8), TaskEnvironment("mem:", Path()))
    return run_to_barrier(_Reports(reports), None, BatchWork(plan, info, {}))


def test_a_batch_reaches_its_barrier_when_each_subtask_has_reported() -> None:
    first, second = (_report(n, None, 0.0) for n in range(2))
    reached = _run(second, first, first)
    assert (reached.reports, reached.rows_in) == ({("u", 0): first, ("u", 1): second}, 3)
    with raises(BatchFailed):
        _run(first)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ordinal": 0}, Acknowledgement.OTHER_BARRIER), ({"generation": 2}, Acknowledgement.OTHER_BARRIER),
        ({"subtask": 2}, Acknowledgement.UNKNOWN), ({"attempt": "b"}, Acknowledgement.ANOTHER_ATTEMPT),
    ],
)  # fmt: skip
def test_a_report_of_another_barrier_subtask_or_attempt_fails_the_batch(
    changed: dict[str, Any], why: Acknowledgement
) -> None:
    first, second = (_report(n, None, 0.0) for n in range(2))
    with raises(BatchFailed, why=why.value):
        _run(first, second, replace(first, **changed))
