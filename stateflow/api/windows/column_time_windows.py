"""Column aggregates over tumbling, sliding and cumulative windows, which share slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.aggregates.partial import PartialAggregation, TimeSlices
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.schema import RowSchema
from stateflow.api.windows.column_windows import (
    Aggregation,
    ColumnWindowSettings,
    Segments,
    Slicing,
    WindowAggregates,
    Windows,
    accumulate_parts,
    concat_accumulators,
    is_sorted,
    starts_of_groups,
    take_accumulators,
)
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TimeDomain

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
        added = slicing.count_new_windows(slices, is_first)
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


def merge_nodes(slices: Accumulators, of: Array, nodes: Array, merge: Merge) -> tuple[Accumulators, Array]:
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
        pairs = take_accumulators(merged[-1], np.stack([first_halves, first_halves + 1], axis=1).ravel())
        merged.append(merge(pairs, np.arange(0, 2 * len(needed), 2), of[needed << level]))
    return concat_accumulators(merged), (np.cumsum(is_needed) - 1)[nodes]


_FEW = 16
"""Windows of a row up to which each slice is added to each of its windows."""
_PARTS = 16
"""About how many parts a window of many slices has."""


@dataclass(frozen=True)
class _WindowAssignments:
    """Accumulators of groups of rows, and the windows that they are added to.

    Attributes:
        of, starts: for each assignment of an accumulator to a window, the number of the key and the window's start.
        part: for each assignment, the number of the accumulator.
        rows: for each assignment, the number of the first row of the accumulator.
        accumulators: the accumulators.
    """

    of: Array
    starts: Array
    part: Array
    rows: Array
    accumulators: Accumulators

    def at(self, positions: Array) -> _WindowAssignments:
        """Returns some of the assignments."""
        return _WindowAssignments(
            self.of[positions], self.starts[positions], self.part[positions], self.rows[positions], self.accumulators
        )

    def followed_by(self, other: _WindowAssignments) -> _WindowAssignments:
        """Returns these assignments, then those of `other`."""
        first = len(next(iter(self.accumulators.values())))
        return _WindowAssignments(
            np.concatenate([self.of, other.of]),
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.part, other.part + first]),
            np.concatenate([self.rows, other.rows]),
            concat_accumulators([self.accumulators, other.accumulators]),
        )


class TimeWindowAggregates(WindowAggregates):
    """Tumbling or sliding windows."""

    def __init__(self, settings: ColumnWindowSettings, aggregation: Aggregation, slicing: Slicing) -> None:
        super().__init__(settings, aggregation)
        self._slicing = slicing
        self.windows_of_row = -(-slicing.size // slicing.slide)

    def split(self, given: RowSchema) -> PartialAggregation | None:
        settings, slicing = self._settings, self._slicing
        # A late row that is added to a window fires it, one for a side output is needed with all its columns, and one
        # between windows is late by its own time.
        if settings.lateness or settings.late_rows is not None or slicing.has_gaps:
            return None
        slices = None
        if settings.time_column:
            slices = TimeSlices(given.column(settings.time_column), slicing.length, slicing.offset)
        return self._columns.split([given.column(key) for key in self._aggregation.keys], slices)

    def _process(self, batch: pa.RecordBatch, state: WindowVectorState, times: Array) -> pa.RecordBatch | None:
        assigned = self._assigned(batch, state, times)
        windows, of_part = self._windows(assigned, state.due)
        if not len(windows):
            return None
        states = windows.states(state)
        stored, exists = self._read(states)
        present = np.flatnonzero(exists)
        window = np.concatenate([present, of_part])
        order = np.argsort(window, kind="stable")
        is_late = windows.ends[window] - 1 <= self._watermark(state)
        is_late[: len(present)] = False
        added = take_accumulators(assigned.accumulators, assigned.part)
        contents = concat_accumulators([added, take_accumulators(stored, present)]) if len(present) else added
        shifted = np.concatenate([len(of_part) + np.arange(len(present)), np.arange(len(of_part))])
        segments = accumulate_parts(
            take_accumulators(contents, shifted[order]),
            window[order],
            is_late[order],
            lambda some, starts, number: self._columns.merge_accumulators(
                some, self._groups(state, starts, windows.of[number], len(next(iter(some.values()))))
            ),
        )
        rows = np.concatenate([np.full(len(present), -1), assigned.rows])[order][segments.last]
        self._store(state, windows, segments, exists)
        return self._evaluate(state, windows, segments, np.where(is_late[order][segments.last], rows, -1))

    def on_timers(self, domain: TimeDomain, due: DueTimers, state: WindowVectorState) -> pa.RecordBatch | None:
        windows = Windows(due.of, due.starts, due.ends)
        fires = np.flatnonzero(due.times == due.ends - 1)
        emitted = None
        if len(fires):
            fired = windows.at(fires)
            contents, exists = self._read(fired.states(state))
            at = np.flatnonzero(exists)
            emitted = self._aggregation.build_output(state, fired.at(at), take_accumulators(contents, at))
            self._end(state, fired.at(at))
        # A window has a timer by the lateness that the job had when it was stored, which may have been another one.
        self._clear(state, windows.at(np.flatnonzero(due.times >= self._removal(due.ends))))
        early = np.flatnonzero((due.times >= due.ends) & (due.times < self._removal(due.ends)))
        self._register_removal(state, windows.at(early), np.full(len(early), self._watermark(state)))
        return emitted

    def _end(self, state: WindowVectorState, fired: Windows) -> None:
        """Removes windows for which no more rows are accepted, although they may have no timer that removes them."""
        if self._settings.lateness:
            watermark = self._watermark(state)
            self._register_removal(state, fired, np.full(len(fired), watermark))
            self._clear(state, fired.at(np.flatnonzero(self._removal(fired.ends) <= watermark)))

    def _clear(self, state: WindowVectorState, windows: Windows) -> None:
        """Removes contents."""
        if len(windows):
            windows.states(state).write(self._contents, pa.nulls(len(windows), self._contents.columns.type))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _assigned(self, batch: pa.RecordBatch, state: WindowVectorState, times: Array) -> _WindowAssignments:
        """Aggregates rows by slice, and returns the windows of each slice that are not removed yet."""
        slicing, watermark = self._slicing, self._watermark(state)
        of_row, slices = state.key_of_row, slicing.slices(times)
        if not is_sorted(of_row, slices):
            order = np.lexsort((slices, of_row))
            batch, times = batch.take(pa.array(order)), times[order]
            of_row, slices = of_row[order], slices[order]
        is_alone = self._is_alone(slices, watermark)
        starts = starts_of_groups(of_row, slices, np.where(is_alone, np.arange(1, len(times) + 1), 0))
        of, slices, is_alone = of_row[starts], slices[starts], is_alone[starts]
        is_kept = self._removal(slicing.latest(slices) + slicing.size) > watermark
        if slicing.has_gaps:
            is_kept &= slicing.counts(slices) > 0
        if not is_kept.all():
            # Before aggregation: the sum of rows that are dropped may be too large.
            counts = np.diff(starts, append=len(times))
            is_left = ~np.repeat(is_kept, counts)
            self._output_late(batch, state, is_left & (times + self._settings.lateness <= watermark))
            batch, counts = batch.filter(pa.array(~is_left)), counts[is_kept]
            starts, of, slices = np.cumsum(counts) - counts, of[is_kept], slices[is_kept]
            is_alone = is_alone[is_kept]
        if not len(of):
            return _WindowAssignments(of, slices, of, of, self._columns.nothing(0))
        accumulators = self._columns.of_rows(batch, self._groups(state, starts, of, len(batch)))
        if self.windows_of_row <= _FEW:
            part, first = slicing.windows(slices)
            return self._without_removed(
                _WindowAssignments(of[part], first, part, starts[part], accumulators), watermark
            )
        late, shared = np.flatnonzero(is_alone), np.flatnonzero(~is_alone)
        part, first = slicing.windows(slices[late])
        each = _WindowAssignments(of[late][part], first, late[part], starts[late][part], accumulators)
        by_tree = self._assigned_by_tree(state, of[shared], slices[shared], take_accumulators(accumulators, shared))
        return self._without_removed(each.followed_by(by_tree), watermark)

    def _assigned_by_tree(
        self, state: WindowVectorState, of: Array, slices: Array, accumulators: Accumulators
    ) -> _WindowAssignments:
        """Returns the windows of slices that are not late, with few parts for each window."""
        if not len(of):
            return _WindowAssignments(of, slices, of, of, accumulators)
        ranges = SliceRanges.of_slices(self._slicing, of, slices)
        ranges = ranges.at(np.flatnonzero(self._removal(ranges.starts + self._slicing.size) > self._watermark(state)))
        number, tree_nodes = ranges.nodes(len(of))
        merged, positions = merge_nodes(
            accumulators,
            of,
            tree_nodes,
            lambda some, starts, keys: self._columns.merge_accumulators(
                some, self._groups(state, starts, keys, len(next(iter(some.values()))))
            ),
        )
        return _WindowAssignments(
            ranges.of[number], ranges.starts[number], positions, np.zeros(len(positions), np.int64), merged
        )

    def _without_removed(self, assigned: _WindowAssignments, watermark: int) -> _WindowAssignments:
        kept = np.flatnonzero(self._removal(assigned.starts + self._slicing.size) > watermark)
        return assigned if len(kept) == len(assigned.of) else assigned.at(kept)

    def additions(self, times: Array, is_first: Array, watermark: int) -> Array:
        """Returns for each row about how many accumulators its windows need in addition to those of the row before."""
        slices = self._slicing.slices(times)
        is_alone = self._is_alone(slices, watermark)
        # Late rows share no accumulators with the rows that follow them.
        is_first = is_first | np.append(True, is_alone[1:] != is_alone[:-1])[: len(slices)]
        if self.windows_of_row > _FEW:
            shared = self._slicing.count_new_windows(slices, is_first) * _PARTS
        else:
            is_new = is_first | np.append(True, slices[1:] != slices[:-1])[: len(slices)]
            shared = np.where(is_new, self._slicing.counts(slices), 0)
        return np.where(is_alone, self._slicing.counts(slices), shared)

    def _is_alone(self, slices: Array, watermark: int) -> Array:
        """Returns which rows are late and may be added to windows, by their slices.

        Such a row fires its windows, so it is not aggregated with other rows before.
        """
        if not self._settings.lateness:
            return np.zeros(len(slices), bool)
        slicing = self._slicing
        is_late = slicing.earliest_end(slices) - 1 <= watermark
        found: Array = is_late & (self._removal(slicing.latest(slices) + slicing.size) > watermark)
        return found

    def _windows(self, assigned: _WindowAssignments, due: DueTimers) -> tuple[Windows, Array]:
        """Returns the windows that have assignments or are due, and for each assignment the number of its window.

        Windows are ordered by key, end and start, as timers are. Assignments keep their order within a window.
        """
        # Windows that are due may be of another size: the job may have changed it since they were stored.
        every = Windows(
            np.concatenate([assigned.of, due.of]),
            np.concatenate([assigned.starts, due.starts]),
            np.concatenate([assigned.starts + self._slicing.size, due.ends]),
        )
        count = len(every)
        in_order = not len(due.of) and is_sorted(every.of, every.ends)
        order = np.arange(count) if in_order else np.lexsort((every.starts, every.ends, every.of))
        ordered = every.at(order)
        firsts = starts_of_groups(ordered.of, ordered.ends, ordered.starts)
        number = np.empty(count, np.int64)
        number[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=count))
        return ordered.at(firsts), number[: len(assigned.of)]

    # -- windows ------------------------------------------------------------------------------------------------------

    def _store(self, state: WindowVectorState, windows: Windows, segments: Segments, exists: Array) -> None:
        """Stores contents that are still needed after the batch, and removes others."""
        number = segments.window[segments.finals]
        windows, exists = windows.at(number), exists[number]
        reached = self._reached_watermarks(state, windows.of)
        keeps = self._removal(windows.ends) > reached
        changes = keeps | exists
        if changes.any():
            at = np.flatnonzero(changes)
            contents = take_accumulators(segments.accumulators, segments.finals[at])
            self._write(windows.at(at).states(state), contents, np.ones(len(at), bool), keeps[at])
        new = np.flatnonzero(~exists & keeps)
        if len(new):
            self._register(state, windows.at(new), reached[new])
        old = np.flatnonzero(exists & keeps)
        self._register_removal(state, windows.at(old), reached[old])

    def _evaluate(
        self, state: WindowVectorState, windows: Windows, segments: Segments, late_rows: Array
    ) -> pa.RecordBatch | None:
        """Returns the results of windows that fire: after a late row, and when the key passes their end.

        Args:
            late_rows: for each segment the number of the late row that it ends with; -1 for others.
        """
        fired = windows.at(segments.window)
        ends = fired.ends - 1
        is_due = np.zeros(len(fired), bool)
        is_due[segments.finals] = True
        is_due &= (ends > self._watermark(state)) & (ends <= self._reached_watermarks(state, fired.of))
        chosen = np.flatnonzero(is_due | (late_rows >= 0))
        if not len(chosen):
            return None
        late = late_rows[chosen]
        if (late >= 0).any():
            # As row by row: late rows of a key come first, and each fires the latest of its windows first.
            ends = np.where(late >= 0, -fired.ends[chosen], fired.ends[chosen])
            chosen = chosen[np.lexsort((ends, late, late < 0, fired.of[chosen]))]
        return self._aggregation.build_output(state, fired.at(chosen), take_accumulators(segments.accumulators, chosen))
