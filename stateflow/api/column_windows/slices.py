"""Assignment of rows to tumbling and sliding windows, by slices that windows share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stateflow.api.functions.vectorized import Array


@dataclass(frozen=True)
class Slicing:
    """Windows of one length that begin at regular intervals; each consists of slices. Times are milliseconds.

    Attributes:
        size: length of a window.
        slide: time between the starts of two windows.
        offset: start of a window, since 1970.
    """

    size: int
    slide: int
    offset: int

    @property
    def is_tumbling(self) -> bool:
        """Whether each row belongs to one window."""
        return self.size == self.slide

    @property
    def has_gaps(self) -> bool:
        """Whether times exist that belong to no window."""
        return self.slide > self.size

    @property
    def length(self) -> int:
        """Length of a slice."""
        return math.gcd(self.size, self.slide)

    def counts(self, times: Array) -> Array:
        """Returns the number of windows of each time."""
        return self._count(times, self.latest(times))

    def slices(self, times: Array) -> Array:
        """Returns the start of the slice of each time. All times of a slice belong to the same windows."""
        found: Array = times - (times - self.offset) % self.length
        return found

    def latest(self, times: Array) -> Array:
        """Returns the start of the last window that begins at each time or before."""
        found: Array = times - (times - self.offset) % self.slide
        return found

    def earliest_end(self, times: Array) -> Array:
        """Returns the end of the first window that contains each time; arbitrary without one."""
        latest = self.latest(times)
        found: Array = latest - (self._count(times, latest) - 1) * self.slide + self.size
        return found

    def windows(self, times: Array) -> tuple[Array, Array]:
        """Returns for each window of each time the number of the time, and the start of the window."""
        latest = self.latest(times)
        if self.is_tumbling:
            return np.arange(len(times)), latest
        counts = self._count(times, latest)
        of = np.repeat(np.arange(len(times)), counts)
        step = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        return of, latest[of] - step * self.slide

    def added(self, times: Array, is_first: Array) -> Array:
        """Returns for each time the number of its windows that do not contain the time before.

        Args:
            times: times of several keys, in order within each key.
            is_first: which times are the first of a key.
        """
        latest = self.latest(times)
        counts = self._count(times, latest)
        more = np.append(0, np.diff(latest)) // self.slide
        return np.where(is_first, counts, np.clip(more, 0, counts))

    def _count(self, times: Array, latest: Array) -> Array:
        counts: Array = np.maximum((self.size - 1 - (times - latest)) // self.slide + 1, 0)
        return counts


def starts_of_groups(*columns: Array) -> Array:
    """Returns the positions at which the value of any column changes."""
    changes = np.zeros(max(len(columns[0]) - 1, 0), bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.flatnonzero(np.append(len(columns[0]) > 0, changes)[: len(columns[0])])


def ends_of_groups(column: Array) -> Array:
    """Returns the last position of each group of equal values."""
    return np.flatnonzero(np.append(column[1:] != column[:-1], len(column) > 0)[: len(column)])


def is_sorted(major: Array, minor: Array) -> bool:
    """Returns whether rows are ordered by two columns, the first of which is in order."""
    return bool(((minor[1:] >= minor[:-1]) | (major[1:] != major[:-1])).all())
