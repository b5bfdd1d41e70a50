"""Which barriers become checkpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.barrier.coordinator import CheckpointCoordinator, Due, NotDue, Outcome
from stateflow.config.settings import CheckpointSettings
from stateflow.config.sources import resolve
from stateflow.errors import ConfigError
from tests.support.errors import raises

SECOND = timedelta(seconds=1)


def verdicts(settings: CheckpointSettings, barriers: list[float]) -> list[Due | NotDue]:
    """What becomes of barriers at these times, each checkpoint completed at once."""
    coordinator = CheckpointCoordinator(settings, 0.0)
    found = []
    for ordinal, now in enumerate(barriers, 1):
        verdict = coordinator.at_barrier(ordinal, now)
        if isinstance(verdict, Due):
            assert coordinator.completed(ordinal, now) is Outcome.ACCEPTED
        found.append(verdict)
    return found


def places(settings: CheckpointSettings, barriers: list[float]) -> list[int]:
    """Which of them become checkpoints."""
    return [n for n, verdict in enumerate(verdicts(settings, barriers), 1) if verdict is Due.INTERVAL]


def test_without_an_interval_each_barrier_becomes_a_checkpoint() -> None:
    assert places(resolve().checkpoints, [1, 1, 1]) == [1, 2, 3]


def test_an_interval_in_batches_counts_them() -> None:
    assert places(CheckpointSettings(interval_batches=3), [1] * 10) == [3, 6, 9]


def test_an_interval_in_time_counts_from_the_last_checkpoint() -> None:
    settings = CheckpointSettings(interval=10 * SECOND)
    assert places(settings, [4, 9, 11, 15, 20.9, 21, 40, 49]) == [3, 6, 7]


def test_of_two_intervals_the_first_that_is_over_counts() -> None:
    settings = CheckpointSettings(interval=10 * SECOND, interval_batches=3)
    assert places(settings, [1, 2, 3, 13, 14, 15, 16, 30]) == [3, 4, 7, 8]


def test_a_pause_is_kept_between_two_checkpoints() -> None:
    settings = CheckpointSettings(interval_batches=2, min_pause=10 * SECOND)
    assert verdicts(settings, [1, 2, 3, 4, 11.9, 12]) == [
        NotDue.INTERVAL,
        Due.INTERVAL,
        NotDue.INTERVAL,
        NotDue.MINIMUM_PAUSE,
        NotDue.MINIMUM_PAUSE,
        Due.INTERVAL,
    ]


def test_what_is_asked_for_waits_for_neither() -> None:
    settings = CheckpointSettings(interval=100 * SECOND, min_pause=100 * SECOND)
    coordinator = CheckpointCoordinator(settings, 0.0)
    assert coordinator.at_barrier(1, 1, requested=True) is Due.REQUESTED
    coordinator.completed(1, 1)
    assert coordinator.at_barrier(2, 2) is NotDue.INTERVAL
    assert coordinator.at_barrier(3, 3, requested=True) is Due.REQUESTED


def test_as_many_are_pending_as_may_be_and_what_is_asked_for_besides() -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(max_in_flight=2), 0.0)
    assert [coordinator.at_barrier(n, n) for n in (1, 2, 3)] == [Due.INTERVAL, Due.INTERVAL, NotDue.TOO_MANY_PENDING]
    assert coordinator.at_barrier(4, 4, requested=True) is Due.REQUESTED
    assert coordinator.pending == [1, 2, 4]
    coordinator.completed(1, 5)
    coordinator.completed(2, 5)
    assert coordinator.at_barrier(5, 5) is Due.INTERVAL


def test_a_pause_begins_when_a_checkpoint_is_completed() -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(min_pause=10 * SECOND, max_in_flight=2), 0.0)
    assert coordinator.at_barrier(1, 1) is Due.INTERVAL
    assert coordinator.at_barrier(2, 100) is NotDue.MINIMUM_PAUSE
    coordinator.completed(1, 101)
    assert coordinator.at_barrier(3, 110) is NotDue.MINIMUM_PAUSE
    assert coordinator.at_barrier(4, 111) is Due.INTERVAL


def test_the_end_of_a_checkpoint_is_taken_in_once() -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(), 0.0)
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


def test_a_checkpoint_is_overdue_when_its_time_is_over_and_it_has_not_ended() -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(timeout=60 * SECOND), 0.0)
    coordinator.at_barrier(1, 10)
    assert [coordinator.is_overdue(1, now) for now in (10, 69.9, 70)] == [False, False, True]
    coordinator.aborted(1)
    assert not coordinator.is_overdue(1, 100)


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_failures_one_after_the_other_are_too_many_behind_those_that_are_borne(tolerable: int) -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(tolerable_failures=tolerable), 0.0)
    for ordinal in range(1, 20):
        if ordinal == 10:
            coordinator.at_barrier(ordinal, ordinal)
            coordinator.completed(ordinal, ordinal)
            assert not coordinator.has_failed_too_often
            continue
        coordinator.at_barrier(ordinal, ordinal)
        coordinator.aborted(ordinal)
        assert coordinator.has_failed_too_often == ((ordinal if ordinal < 10 else ordinal - 10) > tolerable)


def test_a_run_that_is_shut_down_takes_no_checkpoints() -> None:
    coordinator = CheckpointCoordinator(CheckpointSettings(), 0.0)
    coordinator.shut_down()
    assert coordinator.at_barrier(1, 1, requested=True) is NotDue.SHUT_DOWN


@given(
    gaps=st.lists(st.floats(0, 20), max_size=40),
    batches=st.none() | st.integers(1, 5),
    interval=st.none() | st.integers(1, 30),
    pause=st.none() | st.integers(1, 30),
)
def test_no_interval_is_overrun_but_for_the_pause_and_no_pause_is_cut_short(
    gaps: list[float], batches: int | None, interval: int | None, pause: int | None
) -> None:
    settings = CheckpointSettings(
        interval_batches=batches, interval=interval and interval * SECOND, min_pause=pause and pause * SECOND
    )
    times = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    last, since, paused = 0.0, 0, None
    for now, verdict in zip(times, verdicts(settings, times), strict=True):
        since += 1
        over = (batches is None and interval is None) or (batches is not None and since >= batches)
        over = over or (interval is not None and now - last >= interval)
        free = pause is None or paused is None or now - paused >= pause
        assert (verdict is Due.INTERVAL) == (over and free)
        if verdict is Due.INTERVAL:
            last, since, paused = now, 0, now


@pytest.mark.parametrize("name", ["interval_batches", "interval", "min_pause", "timeout", "max_in_flight"])
def test_an_interval_of_nothing_is_refused(name: str) -> None:
    with raises(ConfigError, name=f"checkpoints.{name}", value="0"):
        resolve({f"checkpoints.{name}": "0"})


def test_no_failure_at_all_may_be_borne_and_less_than_that_is_refused() -> None:
    assert resolve({"checkpoints.tolerable_failures": "0"}).checkpoints.tolerable_failures == 0
    with raises(ConfigError, name="checkpoints.tolerable_failures", value="-1"):
        resolve({"checkpoints.tolerable_failures": "-1"})
