"""Recording of figures: a small protocol, a recorder that keeps them in memory, and one that drops them."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol


class Recorder(Protocol):
    """Receives figures; exporters implement it at the edge."""

    def count(self, name: str, amount: int = 1) -> None:
        """Adds `amount` to the counter `name`."""

    def gauge(self, name: str, value: float) -> None:
        """Sets the figure `name` to `value`."""


class NullRecorder:
    """Drops everything."""

    def count(self, name: str, amount: int = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None: ...


class MemoryRecorder:
    """Keeps everything in two dictionaries."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.gauges: dict[str, float] = {}

    def count(self, name: str, amount: int = 1) -> None:
        self.counters[name] += amount

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value
