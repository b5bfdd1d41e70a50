"""Whether, and when, a run that has failed starts again by itself. Pure but for the waiting.

The strategies and their defaults are those of Flink. A start again is a start like any other: it claims the job anew,
and goes on from the head of the log. When a strategy gives up, the run ends with the error, and whoever launched it,
such as Airflow, decides about another try.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from stateflow.clock import Clock
from stateflow.errors import Interrupted, SparkGone, StateflowError
from stateflow.settings import ExponentialDelay, FailureRate, FixedDelay, RestartSettings

log = logging.getLogger(__name__)

T = TypeVar("T")


class RestartStrategy(ABC):
    """Is told of each failure of a run, and says how long to wait before it starts again."""

    @abstractmethod
    def delay_behind(self, failed_at: float) -> timedelta | None:
        """How long to wait behind a failure; None to give up.

        Args:
            failed_at: seconds of a clock that never goes back; not smaller than of the failure before.
        """


class NoRestart(RestartStrategy):
    """Gives up at once."""

    def delay_behind(self, failed_at: float) -> timedelta | None:
        return None


class FixedDelayRestart(RestartStrategy):
    """So many times, always behind the same delay."""

    def __init__(self, settings: FixedDelay) -> None:
        self._settings = settings
        self._left = settings.attempts

    def delay_behind(self, failed_at: float) -> timedelta | None:
        if not self._left:
            return None
        self._left -= 1
        return self._settings.delay


class ExponentialDelayRestart(RestartStrategy):
    """Behind delays that grow, until a run has worked for a while.

    Args:
        dice: gives numbers from 0 up to 1: so that many jobs that one outage stops do not all come back at once.
    """

    def __init__(self, settings: ExponentialDelay, dice: Callable[[], float]) -> None:
        self._settings = settings
        self._dice = dice
        self._attempts = 0
        self._started_at: float | None = None

    def delay_behind(self, failed_at: float) -> timedelta | None:
        settings = self._settings
        if (
            self._started_at is not None
            and failed_at - self._started_at >= settings.reset_after.total_seconds()
        ):
            self._attempts = 0
        if settings.attempts is not None and self._attempts >= settings.attempts:
            return None
        longest = settings.max_backoff.total_seconds()
        # Far beyond the longest, the power would be too large for a float.
        power = min(self._attempts, 1000)
        grown = min(longest, settings.initial_backoff.total_seconds() * settings.multiplier**power)
        jitter = settings.jitter * (2 * self._dice() - 1)
        delay = min(longest, grown * (1 + jitter))
        self._attempts += 1
        self._started_at = failed_at + delay
        return timedelta(seconds=delay)


class FailureRateRestart(RestartStrategy):
    """Restarts until more than `max_failures` failures fall into one interval, both ends included, as in Flink."""

    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._failures: list[float] = []

    def delay_behind(self, failed_at: float) -> timedelta | None:
        since = failed_at - self._settings.interval.total_seconds()
        self._failures = [at for at in self._failures if at >= since] + [failed_at]
        return self._settings.delay if len(self._failures) <= self._settings.max_failures else None


def restart_strategy(settings: RestartSettings, dice: Callable[[], float]) -> RestartStrategy:
    """The strategy that settings name.

    Args:
        dice: as for `ExponentialDelayRestart`.
    """
    match settings.strategy:
        case "fixed-delay":
            return FixedDelayRestart(settings.fixed_delay)
        case "exponential-delay":
            return ExponentialDelayRestart(settings.exponential_delay, dice)
        case "failure-rate":
            return FailureRateRestart(settings.failure_rate)
        case _:
            return NoRestart()


def with_restarts(attempt: Callable[[int], T], strategy: RestartStrategy, clock: Clock) -> T:
    """Makes attempts until one succeeds, fails with what no start again can mend, or the strategy gives up.

    Args:
        attempt: gets its number, from 0 on.

    Raises what the last attempt raised.
    """
    number = 0
    while True:
        try:
            return attempt(number)
        except StateflowError as e:
            if not can_mend(e) or (delay := strategy.delay_behind(clock.monotonic())) is None:
                raise
            number += 1
            log.warning(
                "the run failed, and starts again in %.1f s (restart %d): %s",
                delay.total_seconds(),
                number,
                e,
            )
        clock.sleep(delay)


def can_mend(error: StateflowError) -> bool:
    """Whether starting again may help: not against bad input, wrong settings or a newer run, not when somebody wants
    the run to end, and not without a Spark: a process has one, so that is for whoever launched it."""
    return error.retryable and not isinstance(error, (Interrupted, SparkGone))
