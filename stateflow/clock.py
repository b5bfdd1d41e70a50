"""Time, randomness and fresh ids: the one module that may ask the operating system for them.

Everything else receives a `Clock`, so that tests and the simulator decide what time it is and which ids come next.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta


class Clock(ABC):
    """Where time and ids come from. Clocks affect waiting and reports, never safety."""

    @abstractmethod
    def now(self) -> datetime:
        """The present time, aware, in UTC."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""

    @abstractmethod
    def new_id(self) -> str:
        """32 hexadecimal digits that nobody else has."""

    def random(self) -> float:
        """A number from 0 up to 1."""
        return int(self.new_id()[:13], 16) / 16**13

    @abstractmethod
    def sleep(self, duration: timedelta) -> None:
        """Waits for `duration`."""


class SystemClock(Clock):
    """The operating system's clock and randomness."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return uuid.uuid4().hex

    def sleep(self, duration: timedelta) -> None:
        time.sleep(duration.total_seconds())


class ManualClock(Clock):
    """A clock that moves only when it is told to, with ids from a seed; for tests and the simulator."""

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
