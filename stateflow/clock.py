"""Clocks: the only source of time, random numbers and new ids.

All other modules receive a `Clock`, so that tests and the simulator control the time and the ids.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from time import perf_counter
from typing import TypeVar

R = TypeVar("R")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_milliseconds(timestamp: datetime) -> int:
    """Returns a timestamp in milliseconds since 1970; one without a time zone is in UTC."""
    zoned = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


def parse_timestamp(text: str) -> datetime:
    """Returns the time in a text in ISO 8601, in UTC if it has no zone. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def is_timestamp(text: str) -> bool:
    """Returns whether a stored text is a time with a zone, as `Clock.now` returns it; others cannot be compared."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


class Clock(ABC):
    """Source of time, random numbers and ids. Correctness never depends on a clock, only waiting and reports do."""

    @abstractmethod
    def now(self) -> datetime:
        """Returns the current time as an aware datetime in UTC."""

    @abstractmethod
    def monotonic(self) -> float:
        """Returns seconds since an arbitrary start; the value never decreases."""

    @abstractmethod
    def new_id(self) -> str:
        """Returns a unique id of 32 hexadecimal digits."""

    def random(self) -> float:
        """Returns a random number in [0, 1)."""
        return int(self.new_id()[:13], 16) / 16**13

    @abstractmethod
    def sleep(self, duration: timedelta) -> None:
        """Blocks for `duration`."""


def to_milliseconds(seconds: float) -> float:
    """Returns a duration in milliseconds, with microseconds as decimals."""
    return round(seconds * 1000, 3)


def cpu_seconds() -> float:
    """Returns the CPU time that this process has used so far, in all of its threads."""
    return time.process_time()


class Section(IntEnum):
    """Where a task spends its time."""

    OTHER = 0
    FUNCTION = 1
    """In functions of the job."""
    STATE = 2
    """Encoding keys, and reading and writing state in memory."""
    STORE = 3
    """In the store of a state backend."""


class Stopwatch:
    """Measures how long a thread spends in each section; time in an inner section does not count for the outer one.

    A call costs a tenth of a microsecond, so it is called per Arrow batch or for many rows, not per row.

    Attributes:
        seconds: by number of the section.
    """

    def __init__(self) -> None:
        self.seconds = [0.0] * len(Section)
        self._current: int = Section.OTHER
        self._since = perf_counter()

    def switch(self, section: int) -> int:
        """Ends the current section and begins another one; returns the one that ended."""
        now, before = perf_counter(), self._current
        self.seconds[before] += now - self._since
        self._current, self._since = section, now
        return before

    def read(self) -> list[float]:
        """Returns the seconds of each section up to now."""
        self.switch(self._current)
        return list(self.seconds)

    def estimate(self, section: int, call: Callable[[], R], times: int) -> R:
        """Returns what `call` returns, and counts its time so often in a section: one of so many calls is measured."""
        began = perf_counter()
        result = call()
        took = (perf_counter() - began) * times
        self.seconds[section] += took
        self.seconds[self._current] -= took
        return result


class SystemClock(Clock):
    """The clock and random numbers of the operating system."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def sleep(self, duration: timedelta) -> None:
        time.sleep(duration.total_seconds())


class ManualClock(Clock):
    """Clock for tests and the simulator, which only `sleep` advances.

    Args:
        seed: determines the ids and random numbers.
        start: the initial time.
    """

    def __init__(self, seed: int = 0, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._random = random.Random(seed)
        self._now = start
        self._elapsed = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def new_id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def sleep(self, duration: timedelta) -> None:
        self._now += duration
        self._elapsed += duration.total_seconds()
