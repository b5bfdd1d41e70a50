"""Window joins and co-groups, by row and by Arrow batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar, cast

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.api.column_origins import Origins
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import check_returned_rows
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.joins.pairs import PairedColumns, PairLimits, Side, joinable, pairs_of
from stateflow.api.joins.regular_join import Selected
from stateflow.api.joins.times import TimedColumnJoin, check_times
from stateflow.api.schema import RowSchema
from stateflow.api.windows.column_windows import BOUNDS, BoundColumns, Slicing, Windows, starts_of_groups
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.api.windows.window_operator import (
    CONTENTS_STATE_NAME,
    BufferedContents,
    EvictedContents,
    WindowContents,
    WindowOperator,
    WindowSettings,
)
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import ListStateDescriptor
from stateflow.types.time_window import TimeWindow

Left = TypeVar("Left")
Right = TypeVar("Right")
Out = TypeVar("Out")
T = TypeVar("T")
TimeOf = Callable[[object], int | None] | None
Join = Callable[[Untyped, Untyped], Out]
"""A function of a left and a right row that returns one row."""
CoGroup = Callable[[Untyped, TimeWindow, list[Untyped], list[Untyped]], Iterable[Out] | None]
"""A function of key, window, left rows and right rows."""


class TaggedRow(Generic[Left, Right]):
    """A row of one of two streams: the element that assigners, triggers and evictors of joins are called with.

    Attributes:
        left: a row of the first stream; else None.
        right: a row of the second stream; else None.
    """

    left: Left | None
    right: Right | None

    def __init__(self, left: Left | None = None, right: Right | None = None) -> None:
        self.left = left
        self.right = right


def tagged_class(left: type[Left], right: type[Right]) -> type[TaggedRow[Left, Right]]:
    """Returns the class of the tagged rows of two streams, which is part of the stored format."""
    fields = [(name, cast("type[object]", side | None), None) for name, side in (("left", left), ("right", right))]
    return cast("type[TaggedRow[Left, Right]]", msgspec.defstruct("TaggedRow", fields, frozen=True))


class JoinRows(ProcessWindowFunction[TaggedRow[Left, Right], Out]):
    """Calls a function with each pair of rows of a window."""

    def __init__(self, function: Join[Out]) -> None:
        self.function = function

    def process(self, key: object, ctx: WindowContext, elements: Iterable[TaggedRow[Left, Right]]) -> Iterator[Out]:
        left, right = _sides(elements)
        join = self.function
        return (join(first, second) for first in left for second in right)


class CoGroupRows(ProcessWindowFunction[TaggedRow[Left, Right], Out], Generic[Left, Right, Out]):
    """Calls a function with all rows of a window."""

    def __init__(self, function: CoGroup[Out]) -> None:
        self.function = function

    def process(self, key: object, ctx: WindowContext, elements: Iterable[TaggedRow[Left, Right]]) -> Iterable[Out]:
        return check_returned_rows(self.function(key, ctx.window, *_sides(elements)), self.function)


class WindowJoin(KeyedCoProcessFunction[Left, Right, object], Generic[Left, Right]):
    """Evaluates the windows of two keyed streams.

    Args:
        function: called with the tagged rows of a window when its trigger fires.
        row_classes: the classes of the rows of both streams.
        times: functions that read the event time of a row; None for a stream without event time.
        evictor: removes tagged rows; None to keep all.
    """

    _operator: WindowOperator[TaggedRow[Left, Right], TaggedRow[Left, Right]]
    _tagged: type[TaggedRow[Left, Right]]

    def __init__(
        self,
        settings: WindowSettings[TaggedRow[Left, Right]],
        function: ProcessWindowFunction[TaggedRow[Left, Right], object],
        *,
        row_classes: tuple[type[Left], type[Right]],
        times: tuple[TimeOf, TimeOf],
        evictor: Evictor[TaggedRow[Left, Right]] | None,
    ) -> None:
        self.function = function
        self._row_classes = row_classes
        self._times = times
        self.windows_text = settings.text
        self._settings = settings
        self._evictor = evictor

    def open(self, ctx: RuntimeContext) -> None:
        # Here, because a class that is made at run time cannot be sent to tasks.
        self._tagged = tagged_class(*self._row_classes)
        self._operator = WindowOperator(self._settings, self._contents(), self.function)
        self._operator.open(ctx)

    def close(self) -> None:
        self._operator.close()
        self.late_rows_dropped = self._operator.late_rows_dropped

    def process_element1(self, row: Left, ctx: Context) -> Iterator[object]:
        return self._add(self._tagged(left=row), ctx)

    def process_element2(self, row: Right, ctx: Context) -> Iterator[object]:
        return self._add(self._tagged(right=row), ctx)

    def _add(self, row: TaggedRow[Left, Right], ctx: Context) -> Iterator[object]:
        if isinstance(self.function, JoinRows) and has_null(ctx.get_current_key()):
            self._operator.leave_out(row, ctx)
            return iter(())
        return self._operator.process_element(row, ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        return self._operator.on_timer(timestamp, ctx)

    def _contents(self) -> WindowContents[TaggedRow[Left, Right], TaggedRow[Left, Right]]:
        if self._evictor is None:
            return BufferedContents(self._tagged)
        return EvictedContents(self._tagged, self._evictor, self._time_of, _all)

    def _time_of(self, element: object) -> int | None:
        assert isinstance(element, self._tagged)
        is_left = element.left is not None
        time_of = self._times[0 if is_left else 1]
        return None if time_of is None else time_of(element.left if is_left else element.right)


def _sides(elements: Iterable[TaggedRow[Left, Right]]) -> tuple[list[Left], list[Right]]:
    left: list[Left] = []
    right: list[Right] = []
    for element in elements:
        if element.left is not None:
            left.append(element.left)
        if element.right is not None:
            right.append(element.right)
    return left, right


def _all(rows: Sequence[T]) -> Iterable[T]:
    return rows


_Rows = tuple[Array, pa.StructArray]


class WindowColumnJoin(TimedColumnJoin):
    """Joins the rows of each window of a key.

    Args:
        schemas: the columns of both sides.
        selected: the columns of both rows that are emitted, and the condition.
        bounds: the columns with bounds of the window.
        slicing: the windows.
        kind: the kind of the windows; part of the stored format.
        text: the windows and their trigger, for plans.
    """

    limits = PairLimits()
    """How much is joined at once, whatever the number of rows of a window."""

    _contents: ListState[Untyped]

    def __init__(
        self,
        schemas: tuple[RowSchema, RowSchema],
        selected: Selected,
        bounds: BoundColumns,
        slicing: Slicing,
        *,
        kind: str,
        text: str,
    ) -> None:
        self.windows_text = text
        self._schemas = schemas
        self._selected = selected
        self._bounds = bounds
        self._slicing = slicing
        self._kind = kind

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        bounds = dict.fromkeys(self._bounds.declared, ())
        return Origins({**self._selected.column_origins().columns, **bounds})

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._schemas
        # Here, because a class that is made at run time cannot be sent to tasks.
        tagged = tagged_class(left.row_class, right.row_class)
        self._contents = ctx.get_list_state(ListStateDescriptor(CONTENTS_STATE_NAME, tagged))
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
        columns = self._bounds.columns(windows.starts, windows.ends)
        bounds = pa.StructArray.from_arrays(list(columns.values()), names=list(columns)) if columns else None
        sizes = self._selected.sizes(left.rows, right.rows)
        numbers = self._selected.numbers(left, right)
        for left_at, right_at in pairs_of(*numbers, sizes, self.limits):
            pairs = PairedColumns(left.rows, left_at), PairedColumns(right.rows, right_at)
            of_windows = PairedColumns(left.rows if bounds is None else bounds, left.of[left_at])
            yield self._selected_rows(*pairs, of_windows)

    def _selected_rows(self, left: PairedColumns, right: PairedColumns, windows: PairedColumns) -> pa.RecordBatch:
        """Returns the rows of the pairs for which the condition is true; `windows` has the bounds of each pair."""
        where = self._selected.where
        if where is not None:
            is_joined = where(left, right)
            left, right, windows = (each.filter(is_joined) for each in (left, right, windows))
        found: Mapping[str, pa.Array] = {
            **self._selected.arrays(left, right),
            **{name: windows[name] for name in self._bounds.bounds},
        }
        names = list(self._selected.output.names)
        return pa.RecordBatch.from_arrays([found[name] for name in names], names=names)


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
