"""Which barriers become checkpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.schedule import CheckpointSchedule, Due, NotDue
from stateflow.config import CheckpointSettings, resolve

SECOND = timedelta(seconds=1)


def verdicts(settings: CheckpointSettings, barriers: list[float]) -> list[Due | NotDue]:
    """What becomes of barriers at these times, each checkpoint completed at once."""
    schedule = CheckpointSchedule(settings, 0.0)
    found = []
    for now in barriers:
        verdict = schedule.at_barrier(now)
        if isinstance(verdict, Due):
            schedule.completed(now)
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
        NotDue.INTERVAL, Due.INTERVAL, NotDue.INTERVAL, NotDue.MINIMUM_PAUSE, NotDue.MINIMUM_PAUSE, Due.INTERVAL,
    ]  # fmt: skip


def test_what_is_asked_for_waits_for_neither() -> None:
    settings = CheckpointSettings(interval=100 * SECOND, min_pause=100 * SECOND)
    schedule = CheckpointSchedule(settings, 0.0)
    assert schedule.at_barrier(1, asked=True) is Due.ASKED
    schedule.completed(1)
    assert schedule.at_barrier(2) is NotDue.INTERVAL
    assert schedule.at_barrier(3, asked=True) is Due.ASKED


@given(
    gaps=st.lists(st.floats(0, 20), max_size=40),
    batches=st.none() | st.integers(1, 5),
    interval=st.none() | st.integers(1, 30),
    pause=st.none() | st.integers(1, 30),
)
def test_no_interval_is_overrun_but_for_the_pause_and_no_pause_is_cut_short(
    gaps: list[float], batches: int | None, interval: int | None, pause: int | None
) -> None:
    settings = CheckpointSettings(batches, interval and interval * SECOND, pause and pause * SECOND)
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


@pytest.mark.parametrize("name", ["interval_batches", "interval", "min_pause"])
def test_an_interval_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        resolve({f"checkpoints.{name}": "0"})
