"""Cumulative accumulators: a window that fires several times in a batch has one for each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.column_windows.accumulators import joined, taken
from stateflow.api.column_windows.slices import ends_of_groups, starts_of_groups
from stateflow.api.functions.vectorized import Array
from stateflow.errors import StateError

Merge = Callable[[Accumulators, Array, Array], Accumulators]
"""Merges groups of adjacent accumulators. Arguments: these, the start of each group, and the number of its key."""


@dataclass(frozen=True)
class Segments:
    """The contents of windows after some of their parts.

    Attributes:
        last: for each segment, the number of its last part.
        window: the number of its window.
        accumulators: what the window contains after the last part.
    """

    last: Array
    window: Array
    accumulators: Accumulators

    @property
    def finals(self) -> Array:
        """For each window, the number of its last segment."""
        return ends_of_groups(self.window)


def cumulated(parts: Accumulators, window: Array, cuts: Array, merge: Merge) -> Segments:
    """Returns the contents of windows at the end, and after each part that is followed by a cut.

    Args:
        parts: accumulators, ordered by window.
        window: the number of the window of each part.
        cuts: for each part, whether its window fires after it.
    """
    is_last = cuts.copy()
    is_last[ends_of_groups(window)] = True
    last = np.flatnonzero(is_last)
    starts = np.append(0, last[:-1] + 1)[: len(last)]
    of = window[last]
    place = np.arange(len(of)) - np.searchsorted(of, of)
    try:
        found = parts if len(starts) == len(window) else merge(parts, starts, of)
        found = _by_doubling(found, of, place, merge)
    except StateError:
        # Doubling also adds parts that no result has without those before: their sum may be too large, a result not.
        found = _one_by_one(parts, (starts, last), of, place, merge)
    return Segments(last, of, found)


def _by_doubling(found: Accumulators, of: Array, place: Array, merge: Merge) -> Accumulators:
    """Returns prefix sums of segments: one has the contents of the `step` segments up to it, then of twice as many.

    Args:
        found: the contents of each segment by itself.
        of: the number of the window of each.
        place: its place within the window.
    """
    step, last_place = 1, int(place.max(initial=0))
    while step <= last_place:
        now = np.flatnonzero(place >= step)
        pairs = np.stack([now - step, now], axis=1).ravel()
        more = merge(taken(found, pairs), np.arange(0, 2 * len(now), 2), of[now])
        at = np.arange(len(of))
        at[now] = len(of) + np.arange(len(now))
        found = taken(joined([found, more]), at)
        step *= 2
    return found


def _one_by_one(
    parts: Accumulators, bounds: tuple[Array, Array], of: Array, place: Array, merge: Merge
) -> Accumulators:
    """Returns prefix sums of segments from the first to the last segment of each window.

    Args:
        parts: the accumulators of the parts.
        bounds: the first and the last part of each segment.
        of: the number of the window of each segment.
        place: its place within the window.
    """
    starts, last = bounds
    by_place = np.argsort(place, kind="stable")
    first, *others = np.split(by_place, starts_of_groups(place[by_place])[1:])
    some, at = _parts_of(parts, starts[first], last[first])
    made, before = [merge(some, at, of[first])], first
    for now in others:
        # The contents of each window after the segment before, then the parts of this one.
        contents = taken(made[-1], np.searchsorted(before, now - 1))
        some, at = _parts_of(parts, starts[now], last[now])
        count = len(now)
        order = np.insert(count + np.arange(len(next(iter(some.values())))), at, np.arange(count))
        made.append(merge(taken(joined([contents, some]), order), at + np.arange(count), of[now]))
        before = now
    return taken(joined(made), np.argsort(by_place))


def _parts_of(parts: Accumulators, starts: Array, last: Array) -> tuple[Accumulators, Array]:
    """Returns the parts of segments, and where those of each segment begin."""
    counts = last - starts + 1
    at = np.cumsum(counts) - counts
    return taken(parts, np.arange(counts.sum()) + np.repeat(starts - at, counts)), at
