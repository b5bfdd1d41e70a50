"""Time windows: half-open intervals of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, order=True, slots=True)
class TimeWindow:
    """An interval of time.

    Attributes:
        start: the first instant that belongs to the window, in milliseconds since 1970.
        end: the first instant after the window.
    """

    start: int
    end: int

    def __str__(self) -> str:
        """Returns an interval of ISO 8601, such as ``2024-05-01T00:00:00Z/2024-05-02T00:00:00Z``.

        An instant outside of the years 1 to 9999 is a number of milliseconds since 1970.
        """
        return f"{_text(self.start)}/{_text(self.end)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the window of a text that `str` returned. Raises ValueError for another text."""
        start, end = text.split("/")
        return cls(_instant(start), _instant(end))

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


def _text(milliseconds: int) -> str:
    try:
        instant = _EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        return str(milliseconds)
    precision = "milliseconds" if milliseconds % 1000 else "seconds"
    return instant.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _instant(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND if text.endswith("Z") else int(text)
