"""When a run that failed starts again by itself, by Flink's rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import ManualClock
from stateflow.config.settings import ExponentialDelay, FailureRate, FixedDelay, RestartSettings
from stateflow.config.sources import resolve
from stateflow.errors import BatchFailed, ConfigError, Fenced, Interrupted, StateflowError, StorageError
from stateflow.runtime.restart_strategy import restart_strategy, with_restarts
from tests.support.errors import raises

SECOND = timedelta(seconds=1)


def delays(settings: RestartSettings, failures: Sequence[float], random: float = 0.5) -> list[float | None]:
    """What a strategy says to failures at these times."""
    strategy = restart_strategy(settings, lambda: random)
    found = [strategy.delay_after(at) for at in failures]
    return [None if delay is None else round(delay.total_seconds(), 6) for delay in found]


def test_without_a_strategy_a_run_is_not_started_again() -> None:
    assert delays(resolve().restart, [0.0]) == [None]


def test_a_fixed_delay_comes_as_often_as_it_is_allowed() -> None:
    settings = RestartSettings("fixed-delay", fixed_delay=FixedDelay(attempts=2, delay=3 * SECOND))
    assert delays(settings, [0, 1000, 100_000, 100_001]) == [3, 3, None, None]


def test_an_exponential_delay_grows_up_to_its_longest() -> None:
    slow = ExponentialDelay(SECOND, 10 * SECOND, 2.0)
    assert delays(RestartSettings("exponential-delay", exponential_delay=slow), [0, 2, 5, 10, 20, 40]) == [
        1,
        2,
        4,
        8,
        10,
        10,
    ]


def test_a_run_that_has_worked_for_long_begins_with_the_shortest_delay_again() -> None:
    slow = ExponentialDelay(SECOND, 60 * SECOND, 2.0, reset_after=100 * SECOND)
    settings = RestartSettings("exponential-delay", exponential_delay=slow)
    # It starts again at 1, then at 4: 99.9 s are not enough, 100 are.
    assert delays(settings, [0, 2, 103.9]) == [1, 2, 4]
    assert delays(settings, [0, 2, 104]) == [1, 2, 1]


def test_an_exponential_delay_can_be_bounded_in_number_too() -> None:
    slow = ExponentialDelay(SECOND, 60 * SECOND, 2.0, reset_after=100 * SECOND, attempts=2)
    settings = RestartSettings("exponential-delay", exponential_delay=slow)
    assert delays(settings, [0, 2, 5]) == [1, 2, None]
    assert delays(settings, [0, 2, 200, 202, 205]) == [1, 2, 1, 2, None]


@given(
    random=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 0.99),
    gaps=st.lists(st.floats(0, 50), min_size=1, max_size=40),
)
def test_chance_moves_a_delay_by_its_part_and_never_beyond_the_longest(
    random: float, jitter: float, gaps: list[float]
) -> None:
    slow = ExponentialDelay(SECOND, 30 * SECOND, 1.5, jitter=jitter)
    settings = RestartSettings("exponential-delay", exponential_delay=slow)
    at, times = 0.0, []
    for gap in gaps:
        at += 60 + gap
        times.append(at)
    for number, delay in enumerate(delays(settings, times, random)):
        plain = min(30.0, 1.5**number)
        assert delay is not None
        assert plain * (1 - jitter) - 1e-5 <= delay <= min(30.0, plain * (1 + jitter)) + 1e-5


def test_failures_are_counted_within_an_interval() -> None:
    settings = RestartSettings("failure-rate", failure_rate=FailureRate(2, 60 * SECOND, 3 * SECOND))
    assert delays(settings, [0, 30, 60.5, 91, 121]) == [3, 3, 3, 3, 3]
    assert delays(settings, [0, 30, 59]) == [3, 3, None]
    # Flink restarts only when the oldest failure is more than an interval ago.
    assert delays(settings, [0, 30, 60]) == [3, 3, None]


@given(times=st.lists(st.floats(0, 500), max_size=30), most=st.integers(1, 4))
def test_the_failure_rate_is_that_of_a_count_over_all_failures(times: list[float], most: int) -> None:
    times.sort()
    settings = RestartSettings("failure-rate", failure_rate=FailureRate(most, 60 * SECOND, SECOND))
    for number, delay in enumerate(delays(settings, times)):
        recent = [at for at in times[: number + 1] if at >= times[number] - 60]
        assert (delay is None) == (len(recent) > most)


@pytest.mark.parametrize(
    "given",
    [
        {"restart.strategy": "sometimes"},
        {"restart.exponential_delay.multiplier": "0.5"},
        {"restart.exponential_delay.multiplier": "nan"},
        {"restart.exponential_delay.jitter": "1"},
        {"restart.exponential_delay.jitter": "-0.1"},
        {"restart.fixed_delay.delay": "soon"},
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, str]) -> None:
    with raises(ConfigError, name=next(iter(given))):
        resolve(given)


# -- attempts ---------------------------------------------------------------------------------------------------------


class _Attempts:
    def __init__(self, *errors: StateflowError) -> None:
        self.errors = list(errors)
        self.numbers: list[int] = []

    def __call__(self, number: int) -> str:
        self.numbers.append(number)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


_TWICE = RestartSettings("fixed-delay", fixed_delay=FixedDelay(attempts=2, delay=5 * SECOND))


def test_it_waits_and_tries_again_until_it_works() -> None:
    attempts, clock = _Attempts(StorageError("full"), BatchFailed("lost")), ManualClock()
    assert with_restarts(attempts, restart_strategy(_TWICE, clock.random), clock) == "done"
    assert (attempts.numbers, clock.monotonic()) == ([0, 1, 2], 10.0)


def test_the_last_error_is_told_when_the_strategy_gives_up() -> None:
    attempts, clock = _Attempts(*[StorageError("no answer", attempt=n) for n in range(3)]), ManualClock()
    with raises(StorageError, attempt=2):
        with_restarts(attempts, restart_strategy(_TWICE, clock.random), clock)
    assert attempts.numbers == [0, 1, 2]


@pytest.mark.parametrize("error", [Fenced("newer"), ConfigError("wrong"), Interrupted("stop")], ids=repr)
def test_what_no_start_again_can_mend_fails_at_once(error: StateflowError) -> None:
    attempts, clock = _Attempts(error), ManualClock()
    with pytest.raises(type(error)):
        with_restarts(attempts, restart_strategy(_TWICE, clock.random), clock)
    assert (attempts.numbers, clock.monotonic()) == ([0], 0.0)


def test_chance_is_between_none_and_one_and_differs() -> None:
    clock = ManualClock(seed=3)
    drawn = [clock.random() for _ in range(200)]
    assert min(drawn) >= 0 and max(drawn) < 1 and len(set(drawn)) == 200 and 0.4 < sum(drawn) / 200 < 0.6
