"""Evictors: which rows of a window are removed before or after it is evaluated. The rules and names are Flink's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, Self, TypeVar

from stateflow.api.windows.window import positive_ms
from stateflow.errors import JobDefinitionError
from stateflow.types.time_window import TimeWindow

Row = TypeVar("Row")


@dataclass(frozen=True)
class TimestampedRow(Generic[Row]):
    """A row of a window, with its event time in milliseconds since 1970; None without one."""

    row: Row
    timestamp: int | None


Rows = Sequence[TimestampedRow[Row]]


class EvictorContext(Protocol):
    """The current times, for an evictor. They are milliseconds since 1970."""

    def current_processing_time(self) -> int:
        """Returns the batch's processing time, which is constant during the batch."""

    def current_watermark(self) -> int:
        """Returns the current watermark; see `TimerService.current_watermark`."""


class Evictor(ABC, Generic[Row]):
    """Removes rows of a window. A window with an evictor stores all of its rows."""

    @abstractmethod
    def evict_before(self, rows: Rows[Row], window: TimeWindow, ctx: EvictorContext) -> Rows[Row]:
        """Returns the rows to keep, before the window is evaluated with them."""

    @abstractmethod
    def evict_after(self, rows: Rows[Row], window: TimeWindow, ctx: EvictorContext) -> Rows[Row]:
        """Returns the rows to keep, after the window was evaluated."""


class _OneSidedEvictor(Evictor[Row]):
    """Removes rows either before or after the evaluation."""

    _after: bool

    def evict_before(self, rows: Rows[Row], window: TimeWindow, ctx: EvictorContext) -> Rows[Row]:
        return rows if self._after else self._kept(rows)

    def evict_after(self, rows: Rows[Row], window: TimeWindow, ctx: EvictorContext) -> Rows[Row]:
        return self._kept(rows) if self._after else rows

    @abstractmethod
    def _kept(self, rows: Rows[Row]) -> Rows[Row]: ...


class CountEvictor(_OneSidedEvictor[object]):
    """Keeps the last rows of a window."""

    def __init__(self, max_count: int, after: bool) -> None:
        self._max_count = max_count
        self._after = after

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> Self:
        """Returns the evictor. Raises JobDefinitionError if `max_count` is not an int of 0 or more."""
        if isinstance(max_count, bool) or not isinstance(max_count, int) or max_count < 0:
            raise JobDefinitionError(
                "the count of an evictor must be an int of 0 or more",
                hint="CountEvictor.of(100)",
                given=repr(max_count)[:200],
            )
        return cls(max_count, do_evict_after)

    def _kept(self, rows: Rows[object]) -> Rows[object]:
        return rows[max(len(rows) - self._max_count, 0) :]


class TimeEvictor(_OneSidedEvictor[object]):
    """Keeps the rows whose event time is within a duration of the latest one of the window."""

    def __init__(self, duration: int, after: bool) -> None:
        self._duration = duration
        self._after = after

    @classmethod
    def of(cls, duration: timedelta, do_evict_after: bool = False) -> Self:
        """Returns the evictor. Raises JobDefinitionError if the duration is not positive."""
        return cls(positive_ms("the duration of an evictor", duration), do_evict_after)

    def _kept(self, rows: Rows[object]) -> Rows[object]:
        times = [row.timestamp for row in rows if row.timestamp is not None]
        if not times:
            return rows
        cutoff = max(times) - self._duration
        return [row for row in rows if row.timestamp is None or row.timestamp > cutoff]


class DeltaEvictor(_OneSidedEvictor[Row]):
    """Removes the rows that differ by a threshold or more from the last one of the window."""

    def __init__(self, threshold: float, delta: Callable[[Row, Row], float], after: bool) -> None:
        self._threshold = threshold
        self._delta = delta
        self._after = after

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Row, Row], float], do_evict_after: bool = False) -> Self:
        """Returns the evictor.

        Args:
            delta: takes a row and the last row of the window, and returns their distance. Must be deterministic.

        Raises:
            JobDefinitionError: `delta` is not callable.
        """
        if isinstance(delta, type) or not callable(delta):
            raise JobDefinitionError(
                "the delta function of an evictor must be a function",
                hint="pass a function that takes two rows and returns a number",
                given=repr(delta)[:200],
            )
        return cls(threshold, delta, do_evict_after)

    def _kept(self, rows: Rows[Row]) -> Rows[Row]:
        if not rows:
            return rows
        last = rows[-1].row
        # Not by the opposite comparison: a row whose difference is NaN is kept.
        return [row for row in rows if not self._delta(row.row, last) >= self._threshold]
