"""Aggregates of some values, in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Number: TypeAlias = int | float
Value: TypeAlias = int | float | None


def _mean(values: Sequence[Number]) -> float:
    return sum(values) / len(values)


AGGREGATES: dict[str, Callable[[Sequence[Number]], Value]] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "mean": _mean,
}
"""Aggregates of values that are not null, by name; null without values, but for the count."""


class Running:
    """The aggregates of all values so far: count, sum, minimum and maximum, as a list that is stored."""

    def __init__(self, stored: Sequence[Value] | None) -> None:
        self.count, self.sum, self.least, self.largest = stored or (0, 0, None, None)

    @property
    def stored(self) -> list[Value]:
        """What the state has."""
        return [self.count, self.sum, self.least, self.largest]

    def add(self, value: Value) -> None:
        """Adds a value; None is ignored."""
        if value is None:
            return
        self.count = (self.count or 0) + 1
        self.sum = (self.sum or 0) + value
        self.least = value if self.least is None else min(self.least, value)
        self.largest = value if self.largest is None else max(self.largest, value)

    def result(self, kind: str) -> Value:
        """Returns an aggregate by its name."""
        if kind == "count" or not self.count:
            return self.count if kind == "count" else None
        if kind == "mean":
            return (self.sum or 0) / self.count
        return {"sum": self.sum, "min": self.least, "max": self.largest}[kind]


def aggregated(kind: str, values: Sequence[Value]) -> Value:
    """Returns an aggregate of some values; None values are ignored."""
    present = [value for value in values if value is not None]
    return AGGREGATES[kind](present) if present or kind == "count" else None
