"""The rows of a frame as they enter and leave it, with the aggregates of all of them.

The frame is a queue in two parts. Each row of the first part has the summary of itself and all later rows of that
part; the second part has one summary of all its rows. So the aggregates of the frame are those of the first row and of
the second part, whatever has left. When the first part is empty, the second one becomes the first. Each row is stored
twice and removed once, whatever the size of the frame, and nothing is ever subtracted: an infinity leaves no NaN.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import msgspec

from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.maps.map_state import MapState

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
        """Returns the summary of the values of both, of which the values of `later` come last."""
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


Values = list[Value]
Summaries = list[Summary]
_MILLISECOND = timedelta(milliseconds=1)


class Unbounded(enum.Enum):
    """A frame of all rows before a row, as Flink's ``UNBOUNDED_RANGE`` and ``UNBOUNDED_ROW``."""

    RANGE = "unbounded range"
    """All rows up to the time of the row. Rows of the same time are peers: all of them belong to it."""
    ROW = "unbounded row"
    """All rows up to the row; rows of the same time are in the order of their arrival."""


Preceding = int | timedelta | Unbounded


@dataclass(frozen=True)
class Frame:
    """The rows that are aggregated for a row, which is one of them.

    Attributes:
        is_range: whether rows of the same time are peers, all of which belong to it.
        bound: the number of rows before the row, or how much earlier they may be, in milliseconds; None for no bound.
    """

    is_range: bool
    bound: int | None = None

    @classmethod
    def of(cls, preceding: Preceding) -> Frame:
        """Returns the frame that an argument declares.

        Raises:
            JobDefinitionError: it is not a whole number of rows or milliseconds, or negative.
        """
        if isinstance(preceding, Unbounded):
            return cls(preceding is Unbounded.RANGE)
        is_range = isinstance(preceding, timedelta)
        if not is_range and (isinstance(preceding, bool) or not isinstance(preceding, int)):
            raise JobDefinitionError(
                "a frame must be a number of rows, a duration or unbounded",
                hint="pass an int, a timedelta, Unbounded.RANGE or Unbounded.ROW",
                given=repr(preceding),
            )
        if isinstance(preceding, timedelta) and preceding % _MILLISECOND:
            raise JobDefinitionError(
                "a frame must be a whole number of milliseconds", hint="round the duration", given=str(preceding)
            )
        bound = preceding // _MILLISECOND if isinstance(preceding, timedelta) else preceding
        if bound < 0:
            raise JobDefinitionError("a frame must not be negative", hint="pass 0 or more", given=str(preceding))
        return cls(is_range, bound)

    @property
    def text(self) -> str:
        """The frame in words of SQL."""
        bound = "unbounded" if self.bound is None else f"{self.bound} ms" if self.is_range else str(self.bound)
        return f"{'range' if self.is_range else 'rows'} {bound} preceding"


class Row(msgspec.Struct, array_like=True):
    """A stored row of a frame: its time and values, and of the first part the summaries of it and all later rows."""

    time: int
    values: list[int | float | None]
    summaries: list[Summary] | None = None


class Position(msgspec.Struct, array_like=True):
    """Which rows are in a frame, by number: the first part is from `first` to `middle`, the second one up to `end`.

    `later` has the summaries of the second part, `newest` is the time of the newest row, and `cleanup` that of the
    timer which removes rows of a key that gets no others; None without one.
    """

    first: int = 0
    middle: int = 0
    end: int = 0
    later: list[Summary] = []
    newest: int = 0
    cleanup: int | None = None


class SlidingFrame:
    """The frame of one key.

    Args:
        rows: its rows, by number.
        position: which of them are in the frame; changed by each call.
    """

    def __init__(self, rows: MapState[int, Row], position: Position) -> None:
        self._rows = rows
        self.position = position

    def push(self, time: int, values: Values) -> None:
        """Adds a row."""
        at = self.position
        self._rows.put(at.end, Row(time, values))
        at.end += 1
        at.newest = time
        at.later = _sums(at.later, [Summary.of(value) for value in values])

    def keep_newest(self, count: int) -> None:
        """Removes all rows but the newest ones."""
        while self.position.end - self.position.first > count:
            self._pop()

    def remove_before(self, time: int) -> None:
        """Removes rows that are earlier than a time."""
        at = self.position
        if at.newest < time:
            # All of them: the second part need not become the first one.
            for number in range(at.first, at.end):
                self._rows.remove(number)
            at.first, at.middle, at.later = at.end, at.end, []
        while at.first < at.end and self._row(at.first).time < time:
            self._pop()

    def summaries(self) -> Summaries:
        """Returns the summaries of all rows, of each column."""
        at = self.position
        if at.first == at.end:
            return []
        if at.first == at.middle:
            return at.later
        return _sums(self._row(at.first).summaries or [], at.later)

    def _pop(self) -> None:
        at = self.position
        if at.first == at.middle:
            self._turn()
        self._rows.remove(at.first)
        at.first += 1

    def _turn(self) -> None:
        """Makes the second part the first one."""
        at, later = self.position, Summaries()
        for number in range(at.end - 1, at.first - 1, -1):
            row = self._row(number)
            later = _sums([Summary.of(value) for value in row.values], later)
            self._rows.put(number, Row(row.time, row.values, later))
        at.middle, at.later = at.end, []

    def _row(self, number: int) -> Row:
        row = self._rows.get(number)
        assert row is not None
        return row


def _sums(earlier: Sequence[Summary], later: Sequence[Summary]) -> Summaries:
    if not earlier or not later:
        return list(earlier or later)
    return [first + second for first, second in zip(earlier, later, strict=True)]
