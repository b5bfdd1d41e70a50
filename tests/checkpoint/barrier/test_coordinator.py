"""Which barriers become checkpoints."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.barriers import CheckpointCoordinator, Due, NotDue, Outcome
from stateflow.config.settings import CheckpointSettings

SECOND = timedelta(seconds=1)


def _coordinator(**settings: Any) -> CheckpointCoordinator:
    return CheckpointCoordinator(CheckpointSettings(**settings), 0.0)


def _verdicts(coordinator: CheckpointCoordinator, barriers: list[float]) -> list[Due | NotDue]:
    """Returns the verdicts on barriers at these times when each checkpoint is completed at once."""
    found = []
    for ordinal, now in enumerate(barriers, 1):
        verdict = coordinator.at_barrier(ordinal, now)
        if isinstance(verdict, Due):
            assert coordinator.completed(ordinal, now) is Outcome.ACCEPTED
        found.append(verdict)
    return found


def test_a_pause_begins_when_a_checkpoint_is_completed() -> None:
    coordinator = _coordinator(min_pause=10 * SECOND, max_in_flight=2)
    assert coordinator.at_barrier(1, 1) is Due.INTERVAL
    assert coordinator.at_barrier(2, 100) is NotDue.MINIMUM_PAUSE
    coordinator.completed(1, 101)
    assert coordinator.at_barrier(3, 110) is NotDue.MINIMUM_PAUSE
    assert coordinator.at_barrier(4, 111) is Due.INTERVAL


def test_a_requested_checkpoint_waits_for_neither_interval_nor_pause() -> None:
    coordinator = _coordinator(interval=100 * SECOND, min_pause=100 * SECOND)
    assert coordinator.at_barrier(1, 1, requested=True) is Due.REQUESTED
    coordinator.completed(1, 1)
    assert coordinator.at_barrier(2, 2) is NotDue.INTERVAL
    assert coordinator.at_barrier(3, 3, requested=True) is Due.REQUESTED


def test_at_most_max_in_flight_checkpoints_are_pending_in_addition_to_requested_ones() -> None:
    coordinator = _coordinator(max_in_flight=2)
    assert [coordinator.at_barrier(n, n) for n in (1, 2, 3)] == [Due.INTERVAL, Due.INTERVAL, NotDue.TOO_MANY_PENDING]
    assert coordinator.at_barrier(4, 4, requested=True) is Due.REQUESTED
    assert coordinator.pending == [1, 2, 4]
    coordinator.completed(1, 5)
    coordinator.completed(2, 5)
    assert coordinator.at_barrier(5, 5) is Due.INTERVAL


def test_the_end_of_a_checkpoint_is_accepted_once() -> None:
    coordinator = _coordinator()
    for ordinal in (1, 2):
        coordinator.triggered(ordinal, 1)
    assert coordinator.completed(1, 2) is Outcome.ACCEPTED
    assert coordinator.completed(1, 2) is Outcome.DUPLICATE
    assert coordinator.aborted(1) is Outcome.LATE
    assert coordinator.aborted(2) is Outcome.ACCEPTED
    assert coordinator.aborted(2) is Outcome.DUPLICATE
    assert coordinator.completed(2, 2) is Outcome.LATE
    assert coordinator.completed(3, 2) is Outcome.UNKNOWN
    assert coordinator.pending == []


def test_a_pending_checkpoint_is_overdue_after_its_timeout() -> None:
    coordinator = _coordinator(timeout=60 * SECOND)
    coordinator.at_barrier(1, 10)
    assert [coordinator.is_overdue(1, now) for now in (10, 69.9, 70)] == [False, False, True]
    coordinator.aborted(1)
    assert not coordinator.is_overdue(1, 100)


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_more_failures_in_a_row_than_are_tolerable_are_too_many(tolerable: int) -> None:
    coordinator = _coordinator(tolerable_failures=tolerable)
    for ordinal in range(1, 20):
        coordinator.at_barrier(ordinal, ordinal)
        if ordinal == 10:
            coordinator.completed(ordinal, ordinal)
        else:
            coordinator.aborted(ordinal)
        assert coordinator.has_failed_too_often == ((ordinal if ordinal < 10 else ordinal - 10) > tolerable)


def test_a_run_that_is_shut_down_takes_no_checkpoints() -> None:
    coordinator = _coordinator()
    coordinator.shut_down()
    assert coordinator.at_barrier(1, 1, requested=True) is NotDue.SHUT_DOWN


@given(
    gaps=st.lists(st.floats(0, 20) | st.sampled_from([0, 1, 5, 10]), max_size=40),
    batches=st.none() | st.integers(1, 5),
    interval=st.none() | st.integers(1, 30),
    pause=st.none() | st.integers(1, 30),
)
def test_a_checkpoint_is_due_exactly_when_interval_and_pause_are_over(
    gaps: list[float], batches: int | None, interval: int | None, pause: int | None
) -> None:
    times = list(accumulate(gaps))
    durations = {"interval": interval and interval * SECOND, "min_pause": pause and pause * SECOND}
    last, since, paused = 0.0, 0, None
    for now, verdict in zip(times, _verdicts(_coordinator(interval_batches=batches, **durations), times), strict=True):
        since += 1
        over = (batches is None and interval is None) or (batches is not None and since >= batches)
        over = over or (interval is not None and now - last >= interval)
        free = pause is None or paused is None or now - paused >= pause
        assert verdict is (NotDue.INTERVAL if not over else Due.INTERVAL if free else NotDue.MINIMUM_PAUSE)
        if verdict is Due.INTERVAL:
            last, since, paused = now, 0, now
