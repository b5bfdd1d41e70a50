"""Aggregates of some values, in plain Python, which can be combined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from stateflow.errors import StateError

Number: TypeAlias = int | float
Value: TypeAlias = int | float | None

AGGREGATES = ("count", "sum", "min", "max", "mean")
"""Aggregates of values that are not null, by name; null without values, but for the count."""
_BITS = 64
_LIMIT = 1 << _BITS - 1


@dataclass(frozen=True, slots=True)
class Summary:
    """Count, sum, minimum and maximum of values; nulls are ignored.

    NaN is larger than all other floats, as for aggregates by columns: the maximum is NaN if a value is, and the
    minimum if all values are.

    Attributes:
        sum: the sum of floats, or the lowest 64 bits of the sum of integers.
        high: the bits of the sum of integers above those. So a minimum, a maximum or a count has no limit, nor a mean.
    """

    count: int = 0
    sum: Number = 0
    least: Value = None
    largest: Value = None
    high: int = 0

    @classmethod
    def of(cls, value: Value) -> Summary:
        """Returns the summary of one value."""
        return cls() if value is None else cls(1, value, value, value)

    def __add__(self, later: Summary) -> Summary:
        """Returns the summary of the values of both, of which those of `later` come last."""
        if not self.count or not later.count:
            return later if not self.count else self
        total, high = self.sum + later.sum, self.high + later.high
        if isinstance(total, int) and not -_LIMIT <= total < _LIMIT:
            carry = (total + _LIMIT) >> _BITS
            total, high = total - (carry << _BITS), high + carry
        least, largest = _least(self.least, later.least), _largest(self.largest, later.largest)
        return Summary(self.count + later.count, total, least, largest, high)

    def result(self, kind: str) -> Value:
        """Returns an aggregate by its name.

        Raises:
            StateError: the sum of integers exceeds 64 bits.
        """
        if kind == "count":
            return self.count
        if not self.count:
            return None
        if kind == "mean":
            return self._total / self.count
        if kind == "sum" and self.high:
            hint = "convert the column to float before the operator"
            raise StateError("a sum exceeds 64 bits", hint=hint, sum=self._total)
        return {"sum": self.sum, "min": self.least, "max": self.largest}[kind]

    @property
    def _total(self) -> Number:
        return self.sum + (self.high << _BITS) if self.high else self.sum


def _least(first: Value, second: Value) -> Value:
    assert first is not None and second is not None
    # NaN is not equal to itself.
    return second if first != first or second < first else first


def _largest(first: Value, second: Value) -> Value:
    assert first is not None and second is not None
    return second if second != second or second > first else first
