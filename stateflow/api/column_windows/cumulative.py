"""Cumulative accumulators: a window that fires several times in a batch has one for each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.column_windows.accumulators import joined, taken
from stateflow.api.column_windows.slices import ends_of_groups
from stateflow.api.functions.vectorized import Array

Merge = Callable[[Accumulators, Array, Array], Accumulators]
"""Merges groups of adjacent accumulators, of which the start and the number of the key are given."""


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
    found = parts if len(starts) == len(window) else merge(parts, starts, of)
    place = np.arange(len(of)) - np.searchsorted(of, of)
    step, last_place = 1, int(place.max(initial=0))
    while step <= last_place:
        # A prefix sum by doubling: a segment has the contents of the `step` segments up to it, then of twice as many.
        now = np.flatnonzero(place >= step)
        pairs = np.stack([now - step, now], axis=1).ravel()
        more = merge(taken(found, pairs), np.arange(0, 2 * len(now), 2), of[now])
        at = np.arange(len(of))
        at[now] = len(of) + np.arange(len(now))
        found = taken(joined([found, more]), at)
        step *= 2
    return Segments(last, of, found)
