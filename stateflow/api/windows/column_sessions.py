"""Column aggregates over session windows: where sessions merge, and where they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.windows.column_windows import (
    Aggregation,
    ColumnWindowSettings,
    Segments,
    WindowAggregates,
    Windows,
    accumulate_parts,
    concat_accumulators,
    is_sorted,
    take_accumulators,
)
from stateflow.api.windows.window_operator import SESSIONS_STATE_NAME, Session
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import ValueStateDescriptor

LOWEST = -(1 << 63)


@dataclass(frozen=True)
class Sessions:
    """Open sessions, ordered by key and start. Times are milliseconds since 1970.

    Attributes:
        of: number of the key.
        starts, ends: the windows.
        state_starts, state_ends: the windows whose namespaces have the contents.
    """

    of: Array
    starts: Array
    ends: Array
    state_starts: Array
    state_ends: Array

    def __len__(self) -> int:
        return len(self.of)

    def at(self, positions: Array) -> Sessions:
        """Returns some of the sessions."""
        return Sessions(
            self.of[positions],
            self.starts[positions],
            self.ends[positions],
            self.state_starts[positions],
            self.state_ends[positions],
        )


@dataclass(frozen=True)
class TimedRows:
    """Rows of many keys, ordered by key and time.

    Attributes:
        of: number of the key.
        times: event times or processing times.
        before: the watermark before each row.
    """

    of: Array
    times: Array
    before: Array

    def at(self, positions: Array) -> TimedRows:
        """Returns some of the rows."""
        return TimedRows(self.of[positions], self.times[positions], self.before[positions])


@dataclass(frozen=True)
class SessionRules:
    """When sessions merge, and when they are removed.

    Attributes:
        gap: milliseconds.
        lateness: milliseconds after the end of a session until it is removed.
        watermark: the watermark before the batch.
    """

    gap: int
    lateness: int
    watermark: int

    def keep(self, rows: TimedRows, opened: Sessions) -> Array:
        """Returns which rows are added to a session; the others are too late."""
        is_late = rows.times + self.gap - 1 + self.lateness <= self.watermark
        if not is_late.any():
            return ~is_late
        ends = rows.times + self.gap
        last = last_at_or_before(opened.of, opened.starts, rows.of, ends)
        touches = (last >= 0) & (rows.times <= np.append(opened.ends, LOWEST)[last])
        # A late row is added to the session of an earlier row that it touches.
        breaks = np.append(True, (rows.of[1:] != rows.of[:-1]) | (rows.times[1:] > ends[:-1]))
        number = np.arange(len(is_late))
        run = np.maximum.accumulate(np.where(breaks, number, 0))
        found: Array = np.maximum.accumulate(np.where(~is_late | touches, number, -1)) >= run
        return found

    def merge(self, rows: TimedRows, opened: Sessions) -> MergedSessions:
        """Returns the sessions that rows and open sessions of the same keys become; all rows are kept ones."""
        of = np.concatenate([opened.of, rows.of])
        starts = np.concatenate([opened.starts, rows.times])
        ends = np.concatenate([opened.ends, rows.times + self.gap])
        before = np.concatenate([np.full(len(opened), LOWEST), rows.before])
        is_row = np.arange(len(of)) >= len(opened)
        order = np.lexsort((is_row, starts, of)) if len(opened) else np.arange(len(of))
        session = self._session_of(_Items(of, starts, ends, before, is_row).at(order))
        if len(opened):
            # An open session is merged by the first row that touches it.
            number = np.empty(len(of), np.int64)
            number[order] = session
            order = np.lexsort((is_row, np.where(is_row, starts, starts - self.gap), number))
            session = number[order]
        items = _Items(of, starts, ends, before, is_row).at(order)
        return MergedSessions(items, order, session, opened, self)

    def _session_of(self, items: _Items) -> Array:
        """Returns the number of the session of each item; items are ordered by key and start."""
        count = len(items.of)
        first = np.append(True, items.of[1:] != items.of[:-1])[:count]
        key_start = np.maximum.accumulate(np.where(first, np.arange(count), 0)) if count else np.zeros(0, np.int64)
        reached = np.maximum(
            _end_before(items.ends, items.is_row, key_start), _end_before(items.ends, ~items.is_row, key_start)
        )
        begins = first | (items.starts > reached)
        if not self.lateness:
            # The session ends at this row, and was removed before it.
            begins |= (items.starts == reached) & items.is_row & (items.before >= reached - 1)
        found: Array = np.cumsum(begins) - 1
        return found


@dataclass(frozen=True)
class _Items:
    """Rows and open sessions."""

    of: Array
    starts: Array
    ends: Array
    before: Array
    is_row: Array

    def at(self, order: Array) -> _Items:
        return _Items(self.of[order], self.starts[order], self.ends[order], self.before[order], self.is_row[order])


@dataclass(frozen=True)
class MergedSessions:
    """Rows and open sessions in the order in which they are merged, session by session.

    Attributes:
        items: the rows and open sessions.
        number: for each item, the number of the open session, or the number of open sessions plus that of the row.
        session: for each item, the number of the session that it becomes a part of.
        opened: the sessions that were open before.
    """

    items: _Items
    number: Array
    session: Array
    opened: Sessions
    rules: SessionRules

    @cached_property
    def firsts(self) -> Array:
        """For each session, its first item."""
        return np.flatnonzero(np.append(True, self.session[1:] != self.session[:-1])[: len(self.session)])

    @cached_property
    def windows(self) -> Windows:
        """The sessions that the items become."""
        firsts = self.firsts
        starts, ends = np.minimum.reduceat(self.items.starts, firsts), np.maximum.reduceat(self.items.ends, firsts)
        return Windows(self.items.of[firsts], starts, ends)

    @cached_property
    def has_rows(self) -> Array:
        """Which of the sessions have rows of the batch."""
        found: Array = np.logical_or.reduceat(self.items.is_row, self.firsts)
        return found

    def bounds_so_far(self) -> tuple[Array, Array]:
        """Returns start and end of the session of each item after the item is merged."""
        return -_highest_so_far(-self.items.starts, self.session), _highest_so_far(self.items.ends, self.session)

    def fires_after(self, ends: Array) -> tuple[Array, Array]:
        """Returns after which items a session fires although more items follow, or because a late row was added.

        Args:
            ends: end of the session after each item.

        Returns:
            For each item, whether its session fires; and whether it fires because the item is a late row.
        """
        is_late = self.items.is_row & (ends - 1 <= self.rules.watermark)
        # A row at the end of a session extends it if it is not removed yet; it fires before.
        rows = np.flatnonzero(self.items.is_row)
        previous = rows - 1
        is_right = ~self.items.is_row[previous] & (self.items.starts[previous] > self.items.starts[rows])
        previous = previous - is_right
        is_same = (previous >= 0) & (self.session[previous] == self.session[rows])
        end = ends[previous]
        fires = is_same & (self.items.starts[rows] == end) & (end - 1 > self.rules.watermark)
        fires &= self.items.before[rows] >= end - 1
        found = is_late.copy()
        found[previous[fires]] = True
        return found, is_late


def last_at_or_before(of: Array, values: Array, wanted_of: Array, wanted: Array) -> Array:
    """Returns for each wanted value the position of the last value of the same key that is not larger; -1 for none.

    Args:
        of, values: keys and values in order.
    """
    count = len(of)
    keys, every = np.concatenate([of, wanted_of]), np.concatenate([values, wanted])
    order = np.lexsort((np.arange(len(keys)) >= count, every, keys))
    last = np.maximum.accumulate(np.where(order < count, order, -1)) if len(order) else order
    found = np.empty(len(keys), np.int64)
    found[order] = last
    found = found[count:]
    is_same = (found >= 0) & (np.append(of, -1)[found] == wanted_of)
    return np.where(is_same, found, -1)


def _end_before(ends: Array, chosen: Array, key_start: Array) -> Array:
    """Returns for each item the end of the last chosen item before it of the same key; the lowest integer for none."""
    last = np.append(-1, np.maximum.accumulate(np.where(chosen, np.arange(len(ends)), -1))[:-1])[: len(ends)]
    return np.where(last >= key_start, ends[last], LOWEST) if len(ends) else ends


def _highest_so_far(values: Array, group: Array) -> Array:
    """Returns for each value the highest one of its group up to it. Groups are numbered in order."""
    distinct, rank = np.unique(values, return_inverse=True)
    offset = group * len(distinct)
    found: Array = distinct[np.maximum.accumulate(offset + rank) - offset]
    return found


_FIELDS = ("start", "end", "state_start", "state_end")


class SessionSets:
    """The set of open sessions of each key."""

    def __init__(self, ctx: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor(SESSIONS_STATE_NAME, list[Session])
        self._state = ctx.keyed_state.value_state(descriptor, per_key=True)

    def read(self, state: WindowVectorState) -> Sessions:
        """Returns the open sessions of all keys, ordered by key and start."""
        column = state.read(self._state)
        counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        of = np.repeat(np.arange(len(column)), counts)
        every = column.flatten()
        found = Sessions(of, *(pc.struct_field(every, name).to_numpy(zero_copy_only=False) for name in _FIELDS))
        return found if is_sorted(of, found.starts) else found.at(np.lexsort((found.starts, of)))

    def write(self, state: WindowVectorState, sessions: Sessions, changed: Array) -> None:
        """Stores the open sessions of some keys.

        Args:
            sessions: all open sessions, ordered by key.
            changed: the numbers of the keys.
        """
        counts = np.bincount(sessions.of, minlength=len(state))
        where = np.zeros(len(state), bool)
        where[changed] = True
        columns = (sessions.starts, sessions.ends, sessions.state_starts, sessions.state_ends)
        structs = pa.StructArray.from_arrays([pa.array(c) for c in columns], names=list(_FIELDS))
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), structs)
        state.write(self._state, pc.if_else(pa.array(counts > 0), lists, pa.scalar(None, lists.type)), where)


@dataclass(frozen=True)
class _Changes:
    """The sessions of a batch, and which of them fire and are removed.

    Attributes:
        sessions: the sessions, with the namespaces of their contents.
        reached: the watermark that the key of each reaches.
        fires, is_removed: which of them fire at their end, and which are removed, in the batch.
        of_opened: for each session that was open before, the number of the one that it becomes.
    """

    sessions: Sessions
    reached: Array
    fires: Array
    is_removed: Array
    of_opened: Array


class SessionAggregates(WindowAggregates):
    """Sessions with a fixed gap."""

    _sets: SessionSets

    def __init__(self, settings: ColumnWindowSettings, aggregation: Aggregation, gap: int) -> None:
        super().__init__(settings, aggregation)
        self._gap = gap

    def open(self, ctx: RuntimeContext) -> None:
        super().open(ctx)
        self._sets = SessionSets(ctx)

    def _process(self, batch: pa.RecordBatch, state: WindowVectorState, times: Array) -> pa.RecordBatch | None:
        of = state.key_of_row
        if not is_sorted(of, times):
            order = np.lexsort((times, of))
            batch, times = batch.take(pa.array(order)), times[order]
        before = state.times.before_rows if self._settings.time_column else np.full(len(of), self._watermark(state))
        rows, opened = TimedRows(of, times, before), self._without_ended(state, self._sets.read(state))
        rules = SessionRules(self._gap, self._settings.lateness, self._watermark(state))
        kept = rules.keep(rows, opened)
        if not kept.all():
            self._output_late(batch, state, ~kept & (times + self._settings.lateness <= rules.watermark))
            batch, rows = batch.filter(pa.array(kept)), rows.at(np.flatnonzero(kept))
        merged = rules.merge(rows, opened)
        if not len(merged.session):
            return None
        changes = self._changes(state, merged)
        segments, bounds, is_late = self._contents_of(batch, state, merged, changes)
        self._store(state, merged, changes, segments)
        return self._evaluate(state, merged, changes, segments, bounds=bounds, is_late=is_late)

    def on_timers(self, domain: TimeDomain, due: DueTimers, state: WindowVectorState) -> pa.RecordBatch | None:
        opened = self._sets.read(state)
        at = last_at_or_before(opened.of, opened.starts, due.of, due.starts)
        # A session that has been merged into another one is not found.
        is_found = at >= 0
        is_found[is_found] = (opened.starts[at[is_found]] == due.starts[is_found]) & (
            opened.ends[at[is_found]] == due.ends[is_found]
        )
        fires = np.flatnonzero(is_found & (due.times == due.ends - 1))
        emitted = None
        if len(fires):
            fired = opened.at(at[fires])
            contents, exists = self._read(state.windows(fired.of, fired.state_starts, fired.state_ends))
            chosen = np.flatnonzero(exists)
            windows = Windows(fired.of, fired.starts, fired.ends).at(chosen)
            emitted = self._aggregation.build_output(state, windows, take_accumulators(contents, chosen))
            self._register_removal(state, windows, np.full(len(windows), self._watermark(state)))
        # Those that fire may have no timer that removes them.
        is_past = (due.times == due.ends - 1) & (self._removal(due.ends) <= self._watermark(state))
        # A timer is by the lateness that the job had when it was registered, which may have been another one.
        is_early = is_found & (due.times >= due.ends) & (due.times < self._removal(due.ends))
        early = Windows(due.of, due.starts, due.ends).at(np.flatnonzero(is_early))
        self._register_removal(state, early, np.full(len(early), self._watermark(state)))
        removed = np.unique(at[is_found & ((due.times >= self._removal(due.ends)) | is_past)])
        if len(removed):
            self._clear(state, opened.at(removed))
            rest = np.delete(np.arange(len(opened)), removed)
            self._sets.write(state, opened.at(rest), np.unique(opened.of[removed]))
        return emitted

    def _without_ended(self, state: WindowVectorState, opened: Sessions) -> Sessions:
        """Removes sessions that accept no more rows, although a timer is to remove them: the lateness was lowered."""
        is_ended = self._removal(opened.ends) <= self._watermark(state)
        if not is_ended.any():
            return opened
        self._clear(state, opened.at(np.flatnonzero(is_ended)))
        rest = opened.at(np.flatnonzero(~is_ended))
        self._sets.write(state, rest, np.unique(opened.of[is_ended]))
        return rest

    # -- merging ------------------------------------------------------------------------------------------------------

    def _changes(self, state: WindowVectorState, merged: MergedSessions) -> _Changes:
        windows, opened = merged.windows, merged.opened
        reached = self._reached_watermarks(state, windows.of)
        is_opened = ~merged.items.is_row
        of_opened = np.empty(len(opened), np.int64)
        of_opened[merged.number[is_opened]] = merged.session[is_opened]
        firsts = merged.firsts
        state_starts, state_ends = merged.items.starts[firsts].copy(), merged.items.ends[firsts].copy()
        # The content stays where that of the first open session is.
        backwards = np.arange(len(opened))[::-1]
        state_starts[of_opened[backwards]] = opened.state_starts[backwards]
        state_ends[of_opened[backwards]] = opened.state_ends[backwards]
        ends = windows.ends - 1
        fires = (ends > merged.rules.watermark) & (ends <= reached)
        is_removed = self._removal(windows.ends) <= reached
        sessions = Sessions(windows.of, windows.starts, windows.ends, state_starts, state_ends)
        return _Changes(sessions, reached, fires, is_removed, of_opened)

    def _contents_of(
        self, batch: pa.RecordBatch, state: WindowVectorState, merged: MergedSessions, changes: _Changes
    ) -> tuple[Segments, tuple[Array, Array], Array]:
        """Returns the contents of sessions, their bounds, and whether a late row made them.

        Sessions that neither change nor fire are left out.
        """
        items, session = merged.items, merged.session
        cuts = is_late = np.zeros(len(session), bool)
        if self._settings.lateness:
            starts, ends = merged.bounds_so_far()
            cuts, is_late = merged.fires_after(ends)
        else:
            starts, ends = merged.windows.starts[session], merged.windows.ends[session]
        # Adjacent rows of a session are one part, each open session is another one.
        adjacent = items.is_row[1:] & items.is_row[:-1] & (session[1:] == session[:-1]) & ~cuts[:-1]
        first_items = np.flatnonzero(np.append(True, ~adjacent))  # there is at least one item
        last_items = np.append(first_items[1:], len(session)) - 1
        needed = (merged.has_rows | changes.fires)[session[first_items]]
        first_items, last_items = first_items[needed], last_items[needed]
        parts = self._parts(batch, state, merged, first_items)
        found = accumulate_parts(
            parts,
            session[first_items],
            cuts[last_items],
            lambda some, at, number: self._columns.merge_accumulators(
                some, self._groups(state, at, merged.windows.of[number], len(next(iter(some.values()))))
            ),
        )
        last = last_items[found.last]
        return found, (starts[last], ends[last]), is_late[last]

    def _parts(
        self, batch: pa.RecordBatch, state: WindowVectorState, merged: MergedSessions, first_items: Array
    ) -> Accumulators:
        """Returns the accumulators of parts: of adjacent rows, and stored ones of open sessions."""
        opened = merged.opened
        number, is_rows = merged.number[first_items], merged.items.is_row[first_items]
        starts = number[is_rows] - len(opened)
        of = merged.items.of[first_items[is_rows]]
        made: list[Accumulators] = []
        order = np.empty(len(first_items), np.int64)
        if len(starts):
            by_row = np.argsort(starts)
            made.append(self._columns.of_rows(batch, self._groups(state, starts[by_row], of[by_row], len(batch))))
            position = np.empty(len(starts), np.int64)
            position[by_row] = np.arange(len(starts))
            order[is_rows] = position
        stored = opened.at(number[~is_rows])
        if len(stored):
            contents, _ = self._read(state.windows(stored.of, stored.state_starts, stored.state_ends))
            made.append(contents)
            order[~is_rows] = len(starts) + np.arange(len(stored))
        return take_accumulators(concat_accumulators(made), order) if made else self._columns.nothing(0)

    # -- state --------------------------------------------------------------------------------------------------------

    def _store(self, state: WindowVectorState, merged: MergedSessions, changes: _Changes, segments: Segments) -> None:
        sessions, opened, now = changes.sessions, merged.opened, changes.of_opened
        is_moved = (sessions.state_starts[now] != opened.state_starts) | (sessions.state_ends[now] != opened.state_ends)
        self._clear(state, opened.at(np.flatnonzero(is_moved | changes.is_removed[now])))
        finals = segments.finals
        number = segments.window[finals]
        written = merged.has_rows[number] & ~changes.is_removed[number]
        if written.any():
            chosen = sessions.at(number[written])
            windows = state.windows(chosen.of, chosen.state_starts, chosen.state_ends)
            contents = take_accumulators(segments.accumulators, finals[written])
            everything = np.ones(len(chosen), bool)
            self._write(windows, contents, everything, everything)
        is_other = (sessions.starts[now] != opened.starts) | (sessions.ends[now] != opened.ends)
        is_new = np.ones(len(sessions), bool)
        is_new[now[~is_other]] = False
        is_old = ~is_new & ~changes.is_removed & (merged.has_rows | changes.fires)
        is_new_timer, before = is_new & ~changes.is_removed, opened.at(np.flatnonzero(is_other))
        self._move_timers(state, merged, changes, before=before, is_new=is_new_timer, is_old=is_old)
        changed = np.unique(np.concatenate([sessions.of[is_new | changes.is_removed], opened.of[is_other]]))
        if len(changed):
            self._sets.write(state, sessions.at(np.flatnonzero(~changes.is_removed)), changed)

    def _move_timers(
        self,
        state: WindowVectorState,
        merged: MergedSessions,
        changes: _Changes,
        *,
        before: Sessions,
        is_new: Array,
        is_old: Array,
    ) -> None:
        """Deletes the timers of sessions that were merged, and registers those of others.

        Args:
            before: the sessions that were merged.
            is_new: which sessions are new.
            is_old: which sessions are not, but have rows or fire.
        """
        if len(before):
            windows = state.windows(before.of, before.starts, before.ends)
            for times in {0, self._settings.lateness}:
                state.delete(self._settings.domain, windows, before.ends - 1 + times)
        new = np.flatnonzero(is_new)
        if len(new):
            self._register(state, merged.windows.at(new), changes.reached[new])
        old = np.flatnonzero(is_old)
        self._register_removal(state, merged.windows.at(old), changes.reached[old])

    def _clear(self, state: WindowVectorState, sessions: Sessions) -> None:
        """Removes contents."""
        if len(sessions):
            windows = state.windows(sessions.of, sessions.state_starts, sessions.state_ends)
            windows.write(self._contents, pa.nulls(len(sessions), self._contents.columns.type))

    def _evaluate(
        self,
        state: WindowVectorState,
        merged: MergedSessions,
        changes: _Changes,
        segments: Segments,
        *,
        bounds: tuple[Array, Array],
        is_late: Array,
    ) -> pa.RecordBatch | None:
        """Returns the results of sessions that fire: after a late row, before a row that extends them, at their end."""
        starts, ends = bounds
        is_final = np.zeros(len(segments.window), bool)
        is_final[segments.finals] = True
        fires = np.where(is_final, changes.fires[segments.window] | is_late, True)
        chosen = np.flatnonzero(fires)
        if not len(chosen):
            return None
        of = merged.windows.of[segments.window]
        if self._settings.lateness:
            # As row by row: late rows of a key come first.
            last = np.where(is_late, segments.last, ends)[chosen]
            chosen = chosen[np.lexsort((last, ~is_late[chosen], of[chosen]))]
        windows = Windows(of[chosen], starts[chosen], ends[chosen])
        return self._aggregation.build_output(state, windows, take_accumulators(segments.accumulators, chosen))
