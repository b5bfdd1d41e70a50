"""The operator of window joins by columns: all pairs of a key's rows that are in the same window.

The state is that of the operator that calls a function for each pair. A window whose end a key passes within the batch
is joined at once, and its new rows are never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stateflow.api.column_windows.bounds import BOUNDS, BoundColumns
from stateflow.api.column_windows.slices import Slicing, starts_of_groups
from stateflow.api.column_windows.window_aggregates import Windows
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.joins.functions import Untyped
from stateflow.api.joins.pairs import PairedColumns, PairLimits, Side, joinable, pairs_of
from stateflow.api.joins.regular_join import Selected
from stateflow.api.joins.timed_columns import TimedColumnJoin
from stateflow.api.joins.times import check_times
from stateflow.api.joins.window_join import tagged_class
from stateflow.api.schema import RowSchema
from stateflow.api.windows.contents import STATE_NAME
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.types.descriptors import ListStateDescriptor

_Rows = tuple[Array, pa.StructArray]


@dataclass(frozen=True)
class SelectedOfWindows:
    """The columns that a window join emits.

    Attributes:
        selected: the columns of both rows, and the condition.
        bounds: the columns with bounds of the window.
    """

    selected: Selected
    bounds: BoundColumns

    def rows(self, left: PairedColumns, right: PairedColumns, windows: PairedColumns) -> pa.RecordBatch:
        """Returns the rows of the pairs for which the condition is true; `windows` has the bounds of each pair."""
        where = self.selected.where
        if where is not None:
            is_joined = where(left, right)
            left, right, windows = (each.filter(is_joined) for each in (left, right, windows))
        found: Mapping[str, pa.Array] = {
            **self.selected.arrays(left, right),
            **{name: windows[name] for name in self.bounds.bounds},
        }
        names = list(self.selected.output.names)
        return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)


@dataclass(frozen=True)
class JoinedWindows:
    """The windows of a join.

    Attributes:
        kind: the kind of the windows; part of the stored format.
        text: the windows and their trigger, for plans.
    """

    slicing: Slicing
    kind: str
    text: str


class WindowColumnJoin(TimedColumnJoin):
    """Joins the rows of each window of a key.

    Args:
        schemas: the columns of both sides.
    """

    limits = PairLimits()
    """How much is joined at once, whatever the number of rows of a window."""

    _contents: ListState[Untyped]

    def __init__(
        self, schemas: tuple[RowSchema, RowSchema], joined: JoinedWindows, selected: SelectedOfWindows
    ) -> None:
        self.windows_text = joined.text
        self._schemas = schemas
        self._kind = joined.kind
        self._slicing = joined.slicing
        self._selected = selected

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._schemas
        # Here, because a class that is made at run time cannot be sent to tasks.
        tagged = tagged_class(left.row_class, right.row_class)
        self._contents = ctx.get_list_state(ListStateDescriptor(STATE_NAME, tagged))
        ctx.keyed_state.registry.set_windows(self._contents, self._kind)

    def join(self, left: Side, right: Side, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        has_partners = joinable(state.keys)
        added = [self._in_windows(side, state.times.watermark, has_partners) for side in (left, right)]
        windows, numbers, due = _distinct([where for _, where in added], state.due)
        sides = [replace(side, of=number) for (side, _), number in zip(added, numbers, strict=True)]
        ends_now = windows.ends - 1 <= state.times.reached[windows.of] if len(windows) else np.zeros(0, bool)
        left, right = (_taken(side, ends_now[side.of]) for side in sides)
        states = windows.states(state)
        # A timer at another time removes a window that has fired before.
        fires = np.unique(due[state.due.times == state.due.ends - 1])
        yield from self._stored_pairs(states, windows, fires, (left, right))
        states.remove_lists(self._contents, np.unique(due))
        yield from self._pairs(left, right, windows)
        self._store(states, windows, [_taken(side, ~ends_now[side.of]) for side in sides], state)

    def end_windows(self, due: DueTimers, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        windows = Windows(due.of, due.starts, due.ends)
        states = windows.states(state)
        yield from self._stored_pairs(states, windows, np.flatnonzero(due.times == due.ends - 1), None)
        states.remove_lists(self._contents, np.arange(len(windows)))

    def _in_windows(self, side: Side, watermark: int, has_partners: Array) -> tuple[Side, Windows]:
        """Returns rows that are not late, once for each of their windows, and these windows.

        Args:
            has_partners: for each key, whether its rows may have partners; others are left out.
        """
        assert side.times is not None
        check_times(side.times, self._slicing.size)
        row, starts = self._slicing.windows(side.times)
        kept = starts + self._slicing.size - 1 > watermark
        row, starts = row[kept], starts[kept]
        has_window = np.zeros(len(side.of), bool)
        has_window[row] = True
        self.late_rows_dropped += int(np.count_nonzero(~has_window & (side.times <= watermark)))
        kept = has_partners[side.of[row]]
        row, starts = row[kept], starts[kept]
        rows = side.rows if len(row) == len(side.of) and self._slicing.is_tumbling else side.rows.take(pa.array(row))
        return Side(side.of[row], rows), Windows(side.of[row], starts, starts + self._slicing.size)

    def _store(self, states: KeyedStateBatch, windows: Windows, sides: list[Side], state: WindowVectorState) -> None:
        """Stores rows of windows that have not ended, and registers the timers that end them."""
        kind = self._contents.columns.type
        for number, side in enumerate(sides):
            parts = [pa.nulls(len(side.of), field.type) for field in kind]
            parts[number] = side.rows
            states.append(self._contents, side.of, pa.StructArray.from_arrays(parts, fields=list(kind)))
        opened = windows.at(np.unique(np.concatenate([side.of for side in sides])))
        if len(opened):
            state.register(TimeDomain.EVENT_TIME, opened.states(state), opened.ends - 1)

    def _stored_pairs(
        self, states: KeyedStateBatch, windows: Windows, fires: Array, new: tuple[Side, Side] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the pairs of stored rows of some windows, with each other and with new rows."""
        for numbers, rows in _whole_windows(states.lists(self._contents, fires, None, self.limits.bytes)):
            left, right = (_present(numbers, rows.field(name)) for name in ("left", "right"))
            yield from self._pairs(left, right, windows)
            if new is not None:
                yield from self._pairs(left, new[1], windows)
                yield from self._pairs(new[0], right, windows)

    def _pairs(self, left: Side, right: Side, windows: Windows) -> Iterator[pa.RecordBatch]:
        if not len(left.of) or not len(right.of):
            return
        columns = self._selected.bounds.columns(windows.starts, windows.ends)
        bounds = pa.StructArray.from_arrays(list(columns.values()), names=list(columns)) if columns else None
        sizes = self._selected.selected.sizes(left.rows, right.rows)
        numbers = self._selected.selected.numbers(left, right)
        for left_at, right_at in pairs_of(*numbers, sizes, self.limits):
            pairs = PairedColumns(left.rows, left_at), PairedColumns(right.rows, right_at)
            of_windows = PairedColumns(left.rows if bounds is None else bounds, left.of[left_at])
            yield self._selected.rows(*pairs, of_windows)


def bounds_of(columns: Mapping[str, str], output: RowSchema) -> BoundColumns:
    """Returns the columns with bounds of the window, which a job declares as ``{"start": "window_start"}``.

    Raises:
        JobDefinitionError: such a column is neither an int nor a datetime.
    """
    return BoundColumns.of({name: (given,) for name, given in columns.items() if given in BOUNDS}, output)


def _taken(side: Side, chosen: Array) -> Side:
    if chosen.all():
        return side
    return Side(side.of[chosen], side.rows.filter(pa.array(chosen)))


def _present(numbers: Array, rows: pa.StructArray) -> Side:
    is_present = rows.is_valid().to_numpy(zero_copy_only=False)
    return Side(numbers[is_present], rows.filter(pa.array(is_present)))


def _distinct(added: list[Windows], due: DueTimers) -> tuple[Windows, list[Array], Array]:
    """Returns the windows that rows are added to or that are due, and their numbers: of each row, and of each timer."""
    of, starts, ends = (
        np.concatenate([*(getattr(each, name) for each in added), getattr(due, name)])
        for name in ("of", "starts", "ends")
    )
    order = np.lexsort((starts, ends, of))
    firsts = starts_of_groups(of[order], ends[order], starts[order])
    number = np.empty(len(of), np.int64)
    number[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(of)))
    at = order[firsts]
    left, right, of_due = np.split(number, np.cumsum([len(each) for each in added]))
    return Windows(of[at], starts[at], ends[at]), [left, right], of_due


def _whole_windows(parts: Iterator[_Rows]) -> Iterator[_Rows]:
    """Yields rows so that those of a window, which may be in several parts, come together."""
    held: list[_Rows] = []
    for numbers, rows in parts:
        last = int(np.searchsorted(numbers, numbers[-1]))
        if held and held[0][0][0] == numbers[-1]:
            held.append((numbers, rows))
            continue
        yield _concatenated([*held, (numbers[:last], rows[:last])])
        held = [(numbers[last:], rows[last:])]
    if held:
        yield _concatenated(held)


def _concatenated(parts: list[_Rows]) -> _Rows:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([numbers for numbers, _ in parts]), pa.concat_arrays([rows for _, rows in parts])
