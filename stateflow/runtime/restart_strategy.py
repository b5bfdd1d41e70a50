"""Restart strategies: whether and when a failed run restarts within its process.

The strategies and their defaults are as in Flink. A restart claims the job again and continues from the head of the
log, as any start does. When a strategy gives up, the run ends with the error, and its launcher, such as Airflow,
decides about a retry. All but `with_restarts` is pure.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from stateflow.clock import Clock
from stateflow.config.settings import ExponentialDelay, FailureRate, FixedDelay, RestartSettings
from stateflow.errors import Interrupted, SparkGone, StateflowError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MULTIPLIER, _JITTER, _RESET_AFTER = 1.5, 0.1, timedelta(hours=1)
"""Of exponential delays: the factor from one delay to the next, the random part of a delay, and the time without
failure after which the first delay comes again and the attempts are counted from zero."""


class RestartStrategy(ABC):
    """Decides after each failure of a run how long to wait before the restart."""

    @abstractmethod
    def delay_after(self, failed_at: float) -> timedelta | None:
        """Returns the delay of the restart after a failure; None to give up.

        Args:
            failed_at: time of the failure in seconds of the monotonic clock, not smaller than that of the one before.
        """


class NoRestart(RestartStrategy):
    """Never restarts."""

    def delay_after(self, failed_at: float) -> timedelta | None:
        return None


class FixedDelayRestart(RestartStrategy):
    """Restarts a fixed number of times, each time after the same delay."""

    def __init__(self, settings: FixedDelay) -> None:
        self._settings = settings
        self._left = settings.attempts

    def delay_after(self, failed_at: float) -> timedelta | None:
        if not self._left:
            return None
        self._left -= 1
        return self._settings.delay


class ExponentialDelayRestart(RestartStrategy):
    """Restarts after delays that grow; the delay is reset once a run has worked for an hour.

    Args:
        settings: limits of the delay.
        random: returns numbers in [0, 1) for the jitter, so that the jobs that one outage stops do not all restart at
            the same time.
    """

    def __init__(self, settings: ExponentialDelay, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._attempts = 0
        self._started_at: float | None = None

    def delay_after(self, failed_at: float) -> timedelta | None:
        settings = self._settings
        if self._started_at is not None and failed_at - self._started_at >= _RESET_AFTER.total_seconds():
            self._attempts = 0
        if settings.attempts is not None and self._attempts >= settings.attempts:
            return None
        longest = settings.max_backoff.total_seconds()
        # A larger exponent could exceed the range of a float; the delay is at its maximum long before.
        exponent = min(self._attempts, 1000)
        backoff = min(longest, settings.initial_backoff.total_seconds() * _MULTIPLIER**exponent)
        jitter = _JITTER * (2 * self._random() - 1)
        delay = min(longest, backoff * (1 + jitter))
        self._attempts += 1
        self._started_at = failed_at + delay
        return timedelta(seconds=delay)


class FailureRateRestart(RestartStrategy):
    """Restarts until more than `max_failures` failures occur within an interval, its ends included, as in Flink."""

    def __init__(self, settings: FailureRate) -> None:
        self._settings = settings
        self._failures: list[float] = []

    def delay_after(self, failed_at: float) -> timedelta | None:
        since = failed_at - self._settings.interval.total_seconds()
        self._failures = [at for at in self._failures if at >= since] + [failed_at]
        return self._settings.delay if len(self._failures) <= self._settings.max_failures else None


def restart_strategy(settings: RestartSettings, random: Callable[[], float]) -> RestartStrategy:
    """Returns the strategy that the settings name.

    Args:
        settings: the ``restart`` settings.
        random: as for `ExponentialDelayRestart`.
    """
    match settings.strategy:
        case "fixed-delay":
            return FixedDelayRestart(settings.fixed_delay)
        case "exponential-delay":
            return ExponentialDelayRestart(settings.exponential_delay, random)
        case "failure-rate":
            return FailureRateRestart(settings.failure_rate)
        case _:
            return NoRestart()


def with_restarts(attempt: Callable[[int], T], strategy: RestartStrategy, clock: Clock) -> T:
    """Calls `attempt` until it succeeds, fails with an error that no restart can fix, or the strategy gives up.

    Args:
        attempt: takes the number of restarts so far, and returns the result.
        strategy: decides about each restart.
        clock: times the failures, and waits.

    Raises the error of the last attempt.
    """
    number = 0
    while True:
        try:
            return attempt(number)
        except StateflowError as e:
            if not is_restartable(e) or (delay := strategy.delay_after(clock.monotonic())) is None:
                raise
            number += 1
            log.warning("the run failed and restarts in %.1f s (restart %d): %s", delay.total_seconds(), number, e)
        clock.sleep(delay)


def is_restartable(error: StateflowError) -> bool:
    """Returns whether a restart may help.

    It does not against bad input, wrong settings or a newer run, nor after a signal to end, nor when Spark has stopped:
    a process can have only one Spark driver, so that is left to the launcher.
    """
    return error.retryable and not isinstance(error, (Interrupted, SparkGone))
