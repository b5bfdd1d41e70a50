"""Slices that many windows share, aggregated so that each window consists of few parts. Pure.

A window that slides by a small part of its size has thousands of slices, and each slice thousands of windows. Pairs of
adjacent slices are merged, then pairs of these, and so on. Any range of slices consists of a few of these nodes: two of
each level at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.column_windows.accumulators import joined, taken
from stateflow.api.column_windows.slices import Slicing, starts_of_groups
from stateflow.api.functions.vectorized import Array

Merge = Callable[[Accumulators, Array, Array], Accumulators]
"""Merges groups of adjacent accumulators, of which the start and the number of the key are given."""


@dataclass(frozen=True)
class SliceRanges:
    """Windows as ranges of slices.

    Attributes:
        of, starts: key and start of each window.
        first, until: its first slice, and the one after its last slice.
    """

    of: Array
    starts: Array
    first: Array
    until: Array

    @classmethod
    def of_slices(cls, slicing: Slicing, of: Array, slices: Array) -> SliceRanges:
        """Returns all windows of slices, which are ordered by key and start; windows are ordered likewise."""
        is_first = np.zeros(len(of), bool)
        is_first[starts_of_groups(of)] = True
        added = slicing.added(slices, is_first)
        number = np.repeat(np.arange(len(of)), added)
        before_last = np.repeat(np.cumsum(added), added) - 1 - np.arange(len(number))
        keys, starts = of[number], slicing.latest(slices)[number] - before_last * slicing.slide
        values = np.unique(slices)
        places = of * (len(values) + 1) + np.searchsorted(values, slices)
        first, until = (
            np.searchsorted(places, keys * (len(values) + 1) + np.searchsorted(values, bound))
            for bound in (starts, starts + slicing.size)
        )
        return cls(keys, starts, first, until)

    def at(self, positions: Array) -> SliceRanges:
        """Returns some of the windows."""
        return SliceRanges(self.of[positions], self.starts[positions], self.first[positions], self.until[positions])

    def nodes(self, count: int) -> tuple[Array, Array]:
        """Returns for each part of each window the number of the window, and the number of the node.

        Parts are ordered by window and time. Slices have the first numbers, then pairs of slices, and so on.

        Args:
            count: number of slices.
        """
        windows, nodes, places = [], [], []
        left, right, offset, level = self.first.copy(), self.until.copy(), 0, 0
        while (left < right).any():
            for is_right in (False, True):
                ends = right if is_right else left
                chosen = np.flatnonzero((left < right) & (ends % 2 == 1))
                ends[chosen] -= is_right
                windows.append(chosen)
                nodes.append(offset + ends[chosen])
                places.append(np.full(len(chosen), -level if is_right else level - 64))
                ends[chosen] += not is_right
            offset, count, level = offset + count, count // 2, level + 1
            left >>= 1
            right >>= 1
        if not windows:
            none = np.zeros(0, np.int64)
            return none, none
        every = np.concatenate(windows)
        order = np.lexsort((np.concatenate(places), every))
        return every[order], np.concatenate(nodes)[order]


def merged_nodes(slices: Accumulators, of: Array, nodes: Array, merge: Merge) -> tuple[Accumulators, Array]:
    """Merges slices into nodes; returns accumulators, and for each of `nodes` its position among them.

    Only these nodes and the parts of them are merged: a sum of slices that no window has together may be too large.

    Args:
        slices: the accumulators of slices, ordered by key and time.
        of: the number of the key of each slice.
        nodes: numbers of nodes, as `SliceRanges.nodes` returns them.
    """
    sizes = [len(of) >> level for level in range(len(of).bit_length())]
    offsets = np.cumsum([0, *sizes])
    is_needed = np.zeros(offsets[-1], bool)
    is_needed[: len(of)] = True
    is_needed[nodes] = True
    levels = np.split(is_needed, offsets[1:-1])
    for lower, upper in reversed(list(pairwise(levels))):
        halves = 2 * np.flatnonzero(upper)
        lower[halves] = lower[halves + 1] = True
    merged = [slices]
    for level, (lower, upper) in enumerate(pairwise(levels), 1):
        needed = np.flatnonzero(upper)
        if not len(needed):
            break
        first_halves = (np.cumsum(lower) - 1)[2 * needed]
        pairs = taken(merged[-1], np.stack([first_halves, first_halves + 1], axis=1).ravel())
        merged.append(merge(pairs, np.arange(0, 2 * len(needed), 2), of[needed << level]))
    return joined(merged), (np.cumsum(is_needed) - 1)[nodes]
