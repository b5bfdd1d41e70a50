"""Sessions, aggregated by columns: rows and open sessions of all keys of a batch are merged at once.

The results and the stored content are those of `WindowOperator` with `OpenSessions`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.column_windows.accumulators import joined, taken
from stateflow.api.column_windows.cumulative import Segments, cumulated
from stateflow.api.column_windows.open_sessions import SessionSets
from stateflow.api.column_windows.session_merging import (
    MergedSessions,
    SessionRules,
    Sessions,
    TimedRows,
    last_at_or_before,
)
from stateflow.api.column_windows.slices import is_sorted
from stateflow.api.column_windows.window_aggregates import Aggregation, ColumnWindowSettings, WindowAggregates, Windows
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.window_timers import DueTimers


@dataclass(frozen=True)
class _Merge:
    """The sessions of a batch.

    Attributes:
        merged: rows and open sessions in the order in which they are merged.
        opened: the sessions that were open before.
        windows: the sessions that they become.
        reached: the watermark that the key of each reaches.
        has_rows: which of them have rows of the batch.
    """

    merged: MergedSessions
    opened: Sessions
    windows: Windows
    reached: Array
    has_rows: Array


@dataclass(frozen=True)
class _Changes:
    """What happens to the sessions of a batch.

    Attributes:
        sessions: the sessions, with the namespaces of their contents.
        fires, is_removed: which of them fire at their end, and which are removed, in the batch.
        of_opened: for each session that was open before, the number of the one that it becomes.
    """

    sessions: Sessions
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
        kept = rules.kept(rows, opened)
        if not kept.all():
            self._output_late(batch, state, ~kept & (times + self._settings.lateness <= rules.watermark))
            batch, rows = batch.filter(pa.array(kept)), rows.at(np.flatnonzero(kept))
        merge = self._merge(state, rules.merged(rows, opened), opened)
        if not len(merge.windows):
            return None
        changes = self._changes(merge)
        segments, ends, late = self._contents_of(batch, state, merge, changes)
        self._store(state, merge, changes, segments)
        return self._evaluate(state, merge, changes, (segments, ends, late))

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
            emitted = self._aggregation.emitted(state, windows, taken(contents, chosen))
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

    def _merge(self, state: WindowVectorState, merged: MergedSessions, opened: Sessions) -> _Merge:
        if not len(merged.session):
            none = np.zeros(0, np.int64)
            return _Merge(merged, opened, Windows(none, none, none), none, none.astype(bool))
        windows = Windows(merged.items.of[merged.firsts], *merged.bounds())
        has_rows = np.logical_or.reduceat(merged.items.is_row, merged.firsts)
        return _Merge(merged, opened, windows, self._reached(state, windows.of), has_rows)

    def _changes(self, merge: _Merge) -> _Changes:
        merged, windows, opened = merge.merged, merge.windows, merge.opened
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
        fires = (ends > merged.rules.watermark) & (ends <= merge.reached)
        is_removed = self._removal(windows.ends) <= merge.reached
        sessions = Sessions(windows.of, windows.starts, windows.ends, state_starts, state_ends)
        return _Changes(sessions, fires, is_removed, of_opened)

    def _contents_of(
        self, batch: pa.RecordBatch, state: WindowVectorState, merge: _Merge, changes: _Changes
    ) -> tuple[Segments, tuple[Array, Array], Array]:
        """Returns the contents of sessions, their bounds, and whether a late row made them.

        Sessions that neither change nor fire are left out.
        """
        merged = merge.merged
        items, session = merged.items, merged.session
        cuts = is_late = np.zeros(len(session), bool)
        if self._settings.lateness:
            starts, ends = merged.bounds_so_far()
            cuts, is_late = merged.fires_after(ends)
        else:
            starts, ends = merge.windows.starts[session], merge.windows.ends[session]
        # Adjacent rows of a session are one part, each open session is another one.
        adjacent = items.is_row[1:] & items.is_row[:-1] & (session[1:] == session[:-1]) & ~cuts[:-1]
        first_items = np.flatnonzero(np.append(True, ~adjacent))  # there is at least one item
        last_items = np.append(first_items[1:], len(session)) - 1
        needed = (merge.has_rows | changes.fires)[session[first_items]]
        first_items, last_items = first_items[needed], last_items[needed]
        parts = self._parts(batch, state, merge, first_items)
        found = cumulated(
            parts,
            session[first_items],
            cuts[last_items],
            lambda some, at, number: self._columns.merged(
                some, self._groups(state, at, merge.windows.of[number], len(next(iter(some.values()))))
            ),
        )
        last = last_items[found.last]
        return found, (starts[last], ends[last]), is_late[last]

    def _parts(
        self, batch: pa.RecordBatch, state: WindowVectorState, merge: _Merge, first_items: Array
    ) -> Accumulators:
        """Returns the accumulators of parts: of adjacent rows, and stored ones of open sessions."""
        merged, opened = merge.merged, merge.opened
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
        return taken(joined(made), order) if made else self._columns.nothing(0)

    # -- state --------------------------------------------------------------------------------------------------------

    def _store(self, state: WindowVectorState, merge: _Merge, changes: _Changes, segments: Segments) -> None:
        sessions, opened, now = changes.sessions, merge.opened, changes.of_opened
        is_moved = (sessions.state_starts[now] != opened.state_starts) | (sessions.state_ends[now] != opened.state_ends)
        self._clear(state, opened.at(np.flatnonzero(is_moved | changes.is_removed[now])))
        finals = segments.finals
        number = segments.window[finals]
        written = merge.has_rows[number] & ~changes.is_removed[number]
        if written.any():
            chosen = sessions.at(number[written])
            windows = state.windows(chosen.of, chosen.state_starts, chosen.state_ends)
            contents = taken(segments.accumulators, finals[written])
            everything = np.ones(len(chosen), bool)
            self._write(windows, contents, everything, everything)
        is_other = (sessions.starts[now] != opened.starts) | (sessions.ends[now] != opened.ends)
        is_new = np.ones(len(sessions), bool)
        is_new[now[~is_other]] = False
        is_old = ~is_new & ~changes.is_removed & (merge.has_rows | changes.fires)
        registered = (is_new & ~changes.is_removed, is_old)
        self._move_timers(state, opened.at(np.flatnonzero(is_other)), merge, registered)
        changed = np.unique(np.concatenate([sessions.of[is_new | changes.is_removed], opened.of[is_other]]))
        if len(changed):
            self._sets.write(state, sessions.at(np.flatnonzero(~changes.is_removed)), changed)

    def _move_timers(
        self, state: WindowVectorState, before: Sessions, merge: _Merge, registered: tuple[Array, Array]
    ) -> None:
        """Deletes the timers of sessions that were merged, and registers those of others.

        Args:
            before: the sessions that were merged.
            registered: which sessions are new; and which are not, but have rows or fire.
        """
        is_new, is_old = registered
        if len(before):
            windows = state.windows(before.of, before.starts, before.ends)
            for times in {0, self._settings.lateness}:
                state.delete(self._settings.domain, windows, before.ends - 1 + times)
        new = np.flatnonzero(is_new)
        if len(new):
            self._register(state, merge.windows.at(new), merge.reached[new])
        old = np.flatnonzero(is_old)
        self._register_removal(state, merge.windows.at(old), merge.reached[old])

    def _clear(self, state: WindowVectorState, sessions: Sessions) -> None:
        """Removes contents."""
        if len(sessions):
            windows = state.windows(sessions.of, sessions.state_starts, sessions.state_ends)
            windows.write(self._contents, pa.nulls(len(sessions), self._contents.columns.type))

    def _evaluate(
        self,
        state: WindowVectorState,
        merge: _Merge,
        changes: _Changes,
        contents: tuple[Segments, tuple[Array, Array], Array],
    ) -> pa.RecordBatch | None:
        """Returns the results of sessions that fire: after a late row, before a row that extends them, at their end."""
        segments, (starts, ends), is_late = contents
        is_final = np.zeros(len(segments.window), bool)
        is_final[segments.finals] = True
        fires = np.where(is_final, changes.fires[segments.window] | is_late, True)
        chosen = np.flatnonzero(fires)
        if not len(chosen):
            return None
        of = merge.windows.of[segments.window]
        if self._settings.lateness:
            # As row by row: late rows of a key come first.
            last = np.where(is_late, segments.last, ends)[chosen]
            chosen = chosen[np.lexsort((last, ~is_late[chosen], of[chosen]))]
        windows = Windows(of[chosen], starts[chosen], ends[chosen])
        return self._aggregation.emitted(state, windows, taken(segments.accumulators, chosen))
