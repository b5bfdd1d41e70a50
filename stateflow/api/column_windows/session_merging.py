"""Merging of rows and open sessions of many keys into sessions. Pure.

A row's window is from its time to the end of the gap; windows of a key that touch are one session, as in Flink. Rows
are processed by event time: a session that is removed before a row is not extended by it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stateflow.api.functions.vectorized import Array

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

    def kept(self, rows: TimedRows, opened: Sessions) -> Array:
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

    def merged(self, rows: TimedRows, opened: Sessions) -> MergedSessions:
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
        return MergedSessions(items, order, session, len(opened), self)

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
        opened: number of open sessions.
    """

    items: _Items
    number: Array
    session: Array
    opened: int
    rules: SessionRules

    @property
    def firsts(self) -> Array:
        """For each session, its first item."""
        return np.flatnonzero(np.append(True, self.session[1:] != self.session[:-1])[: len(self.session)])

    def bounds(self) -> tuple[Array, Array]:
        """Returns start and end of each session."""
        firsts = self.firsts
        return np.minimum.reduceat(self.items.starts, firsts), np.maximum.reduceat(self.items.ends, firsts)

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
