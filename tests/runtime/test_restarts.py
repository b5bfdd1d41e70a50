"""When a run that failed restarts by itself, by Flink's rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import ManualClock
from stateflow.config.settings import ExponentialDelay, FailureRate, FixedDelay, RestartSettings
from stateflow.config.sources import resolve
from stateflow.errors import BatchFailed, ConfigError, Fenced, Interrupted, StateflowError, StorageError
from stateflow.runtime.restart_strategy import restart_strategy, with_restarts

SECOND = timedelta(seconds=1)


def delays(settings: RestartSettings, failures: Sequence[float], random: float = 0.5) -> list[float | None]:
    strategy = restart_strategy(settings, lambda: random)
    found = [strategy.delay_after(at) for at in failures]
    return [None if delay is None else round(delay.total_seconds(), 6) for delay in found]


_SLOW = ExponentialDelay(SECOND, 60 * SECOND)
_EXPONENTIAL = RestartSettings("exponential-delay", exponential_delay=_SLOW)
_BOUNDED = RestartSettings("exponential-delay", exponential_delay=replace(_SLOW, attempts=2))
_SHORT = RestartSettings("exponential-delay", exponential_delay=ExponentialDelay(SECOND, 4 * SECOND))
_RATE = RestartSettings("failure-rate", failure_rate=FailureRate(2, 60 * SECOND, 3 * SECOND))
_TWICE = RestartSettings("fixed-delay", fixed_delay=FixedDelay(attempts=2, delay=3 * SECOND))


@pytest.mark.parametrize(
    ("settings", "failures", "expected"),
    [
        (resolve().restart, [0], [None]),
        (_TWICE, [0, 1000, 100_000, 100_001], [3, 3, None, None]),
        (_SHORT, [0, 2, 5, 10, 20, 40], [1, 1.5, 2.25, 3.375, 4, 4]),
        # The run starts again at 3.5: after an hour of work its delay is the shortest again, not 0.1 s earlier.
        (_EXPONENTIAL, [0, 2, 3603.4], [1, 1.5, 2.25]),
        (_EXPONENTIAL, [0, 2, 3603.5], [1, 1.5, 1]),
        (_BOUNDED, [0, 2, 5], [1, 1.5, None]),
        (_BOUNDED, [0, 2, 4000, 4002, 4005], [1, 1.5, 1, 1.5, None]),
        (_RATE, [0, 30, 60.5, 91, 121], [3, 3, 3, 3, 3]),
        (_RATE, [0, 30, 59], [3, 3, None]),
        # Flink restarts only when the oldest failure is more than an interval ago.
        (_RATE, [0, 30, 60], [3, 3, None]),
    ],
)
def test_a_strategy_gives_the_delays_of_flink(
    settings: RestartSettings, failures: list[float], expected: list[float | None]
) -> None:
    assert delays(settings, failures) == expected


@given(random=st.floats(0, 1, exclude_max=True), gaps=st.lists(st.floats(0, 50), min_size=1, max_size=40))
def test_jitter_changes_a_delay_by_at_most_a_tenth_and_never_beyond_the_longest(
    random: float, gaps: list[float]
) -> None:
    slow = ExponentialDelay(SECOND, 30 * SECOND)
    settings = RestartSettings("exponential-delay", exponential_delay=slow)
    at, times = 0.0, []
    for gap in gaps:
        at += 60 + gap
        times.append(at)
    for number, delay in enumerate(delays(settings, times, random)):
        plain = min(30.0, 1.5**number)
        assert delay is not None
        assert plain * 0.9 - 1e-5 <= delay <= min(30.0, plain * 1.1) + 1e-5


@given(times=st.lists(st.floats(0, 500), max_size=30), most=st.integers(1, 4))
def test_the_failure_rate_counts_the_failures_of_the_interval(times: list[float], most: int) -> None:
    times.sort()
    settings = RestartSettings("failure-rate", failure_rate=FailureRate(most, 60 * SECOND, SECOND))
    for number, delay in enumerate(delays(settings, times)):
        recent = [at for at in times[: number + 1] if at >= times[number] - 60]
        assert (delay is None) == (len(recent) > most)


class _Attempts:
    def __init__(self, *errors: StateflowError) -> None:
        self.errors = list(errors)
        self.numbers: list[int] = []

    def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize(
    ("errors", "attempts", "waited"),
    [
        ([StorageError("full"), BatchFailed("lost")], 3, 6.0),
        ([StorageError("no answer", attempt=n) for n in range(3)], 3, 6.0),
        ([Fenced("newer")], 1, 0.0),
        ([ConfigError("wrong")], 1, 0.0),
        ([Interrupted("stop")], 1, 0.0),
    ],
    ids=["success", "too often", "fenced", "config", "interrupted"],
)
def test_a_run_is_retried_until_a_success_or_until_no_restart_is_left_or_can_help(
    errors: list[StateflowError], attempts: int, waited: float
) -> None:
    attempt, clock = _Attempts(*errors), ManualClock()
    if len(errors) < attempts:
        assert with_restarts(attempt, restart_strategy(_TWICE, clock.random), clock) == "done"
    else:
        with pytest.raises(StateflowError) as raised:
            with_restarts(attempt, restart_strategy(_TWICE, clock.random), clock)
        assert raised.value is errors[-1]
    assert (attempt.numbers, clock.monotonic()) == ([*range(attempts)], waited)
