"""Time windows: half-open intervals of time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class TimeWindow:
    """An interval of time.

    Attributes:
        start: the first instant that belongs to the window, in milliseconds since 1970.
        end: the first instant after the window.
    """

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last instant that belongs to the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Returns whether the windows overlap, or one begins where the other one ends."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Returns the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))
