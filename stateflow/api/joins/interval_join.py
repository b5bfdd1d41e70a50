"""Interval joins, by row and by Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import GenericAlias
from typing import Generic, Never, TypeVar, cast

import numpy as np
import pyarrow as pa

from stateflow.api.column_origins import Origins, origins_of
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import check_returned_rows
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import WindowVectorState
from stateflow.api.joins.functions import JoinContext, ProcessJoinFunction, Untyped, has_null
from stateflow.api.joins.pairs import PairedColumns, PairLimits, Side, Timed, joinable, pairs_within, partners_of
from stateflow.api.joins.regular_join import Selected
from stateflow.api.joins.times import TimedColumnJoin, check_times, time_of_row
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import MapStateDescriptor

Left = TypeVar("Left")
Right = TypeVar("Right")
Row = TypeVar("Row")


LEFT_BUFFER, RIGHT_BUFFER = "left-buffer", "right-buffer"
"""Names of the states with the rows of each side; part of the stored format. As in Flink."""


@dataclass(frozen=True)
class IntervalSettings:
    """Which rows an interval join pairs, and what happens to late rows.

    Attributes:
        lower, upper: inclusive bounds of the right row's event time less that of the left row, in milliseconds.
        late_left, late_right: side outputs of the late rows of each side; None to drop them.
    """

    lower: int
    upper: int
    late_left: OutputTag[object] | None = None
    late_right: OutputTag[object] | None = None

    @property
    def left_lifetime(self) -> int:
        """Milliseconds of event time for which a left row is kept after its own time."""
        return max(self.upper, 0)

    @property
    def right_lifetime(self) -> int:
        """Milliseconds of event time for which a right row is kept after its own time."""
        return max(-self.lower, 0)


def buffer_descriptor(name: str, row_class: type[Row]) -> MapStateDescriptor[int, list[Row]]:
    """Returns the state with the rows of one side: a list for each event time, in milliseconds since 1970."""
    return MapStateDescriptor(name, int, cast("type[list[Row]]", GenericAlias(list, (row_class,))))


class IntervalJoin(KeyedCoProcessFunction[Left, Right, object], Generic[Left, Right]):
    """Joins the rows of two streams.

    Args:
        function: called with each pair.
        row_classes: the classes of the rows of both sides.
    """

    _left: MapState[int, list[Left]]
    _right: MapState[int, list[Right]]

    def __init__(
        self,
        settings: IntervalSettings,
        function: ProcessJoinFunction[Left, Right, object],
        row_classes: tuple[type[Left], type[Right]],
    ) -> None:
        self.function = function
        self._settings = settings
        left, right = row_classes
        self._descriptors = buffer_descriptor(LEFT_BUFFER, left), buffer_descriptor(RIGHT_BUFFER, right)

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return origins_of(self.function)

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._descriptors
        self._left, self._right = ctx.get_map_state(left), ctx.get_map_state(right)
        self.function.open(ctx)

    def close(self) -> None:
        self.function.close()

    def process_element1(self, row: Left, ctx: Context) -> Iterator[object]:
        time, settings = time_of_row(ctx), self._settings
        if _is_late(time, ctx, settings.late_left):
            self.late_rows_dropped += settings.late_left is None
            return
        if has_null(ctx.get_current_key()):
            return
        _add(self._left, time, row)
        for other_time, others in _between(self._right, time + settings.lower, time + settings.upper):
            context = JoinContext(ctx, time, other_time)
            for other in others:
                yield from self._call(row, other, context)
        ctx.timer_service().register_event_time_timer(time + settings.left_lifetime)

    def process_element2(self, row: Right, ctx: Context) -> Iterator[object]:
        time, settings = time_of_row(ctx), self._settings
        if _is_late(time, ctx, settings.late_right):
            self.late_rows_dropped += settings.late_right is None
            return
        if has_null(ctx.get_current_key()):
            return
        _add(self._right, time, row)
        for other_time, others in _between(self._left, time - settings.upper, time - settings.lower):
            context = JoinContext(ctx, other_time, time)
            for other in others:
                yield from self._call(other, row, context)
        ctx.timer_service().register_event_time_timer(time + settings.right_lifetime)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        # The time of a removal determines the time of the removed rows, so both sides share a timer.
        self._left.remove(timestamp - self._settings.left_lifetime)
        self._right.remove(timestamp - self._settings.right_lifetime)

    def _call(self, left: Left, right: Right, context: JoinContext) -> Iterable[object]:
        process = self.function.process_element
        return check_returned_rows(process(left, right, context), process)


def _is_late(time: int, ctx: Context, late_rows: OutputTag[object] | None) -> bool:
    watermark = ctx.timer_service().current_watermark()
    if watermark == NO_WATERMARK or time >= watermark:
        return False
    if late_rows is not None:
        ctx.output(late_rows, ctx.row)
    return True


def _add(buffer: MapState[int, list[Row]], time: int, row: Row) -> None:
    buffer.put(time, [*(buffer.get(time) or ()), row])


def _between(buffer: MapState[int, list[Row]], first: int, last: int) -> Iterator[tuple[int, list[Row]]]:
    """Yields the rows with event times from `first` to `last`, in order of time."""
    for time, rows in buffer.items():
        if time > last:
            return
        if time >= first:
            yield time, rows


_Buffer = MapState[int, list[Untyped]]


@dataclass(frozen=True)
class _Rows:
    """Rows of one side with their event times."""

    timed: Timed
    rows: pa.StructArray

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, chosen: Array) -> _Rows:
        """Returns the rows for which a mask is true."""
        if chosen.all():
            return self
        timed = Timed(self.timed.of[chosen], self.timed.times[chosen])
        return _Rows(timed, self.rows.filter(pa.array(chosen)))


class IntervalColumnJoin(TimedColumnJoin):
    """Joins the columns of many keys at once.

    Args:
        schemas: the columns of both sides.
    """

    has_windows = False
    limits = PairLimits()
    """How much is joined at once, whatever the number of rows of a key."""

    _buffers: tuple[_Buffer, _Buffer]

    def __init__(self, settings: IntervalSettings, schemas: tuple[RowSchema, RowSchema], selected: Selected) -> None:
        self._settings = settings
        self._schemas = schemas
        self._selected = selected
        self._lifetimes = settings.left_lifetime, settings.right_lifetime

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return self._selected.column_origins()

    @property
    def late_tags(self) -> tuple[OutputTag[object] | None, OutputTag[object] | None]:
        return self._settings.late_left, self._settings.late_right

    def open(self, ctx: RuntimeContext) -> None:
        left, right = (
            buffer_descriptor(name, schema.row_class)
            for name, schema in zip((LEFT_BUFFER, RIGHT_BUFFER), self._schemas, strict=True)
        )
        self._buffers = ctx.get_map_state(left), ctx.get_map_state(right)

    def join(self, left: Side, right: Side, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        new_left, new_right = (
            self._on_time(side, tag, state) for side, tag in zip((left, right), self.late_tags, strict=True)
        )
        old_left = _stored(self._buffers[0], state.states, new_right)
        old_right = _stored(self._buffers[1], state.states, new_left)
        for first, second in ((new_left, old_right), (new_left, new_right), (old_left, new_right)):
            yield from self._pairs(first, second)
        for buffer, rows, lifetime in zip(self._buffers, (new_left, new_right), self._lifetimes, strict=True):
            # A row that no later row can match is not stored.
            kept = rows.at(rows.timed.times + lifetime > state.times.reached[rows.timed.of])
            if len(kept):
                _store(buffer, state.states, kept)
                states = state.states.at(kept.timed.of)
                state.register(TimeDomain.EVENT_TIME, states, kept.timed.times + lifetime)
        self._remove(state.due, state.states)

    def end_windows(self, due: DueTimers, state: WindowVectorState) -> Iterator[pa.RecordBatch]:
        self._remove(due, state.states)
        yield from ()

    def _on_time(self, side: Side, late_tag: OutputTag[object] | None, state: WindowVectorState) -> _Rows:
        """Returns rows that are not late and may have partners; late ones go to the side output."""
        assert side.times is not None
        check_times(side.times, max(abs(self._settings.lower), abs(self._settings.upper)))
        is_late = side.times < state.times.watermark
        if late_tag is None:
            self.late_rows_dropped += int(np.count_nonzero(is_late))
        elif is_late.any():
            late = side.rows.filter(pa.array(is_late))
            columns = pa.RecordBatch.from_arrays(late.flatten(), names=[field.name for field in late.type])
            state.output(cast("OutputTag[Never]", late_tag), columns)
        return _Rows(Timed(side.of, side.times), side.rows).at(~is_late & joinable(state.keys)[side.of])

    def _pairs(self, left: _Rows, right: _Rows) -> Iterator[pa.RecordBatch]:
        if not len(left) or not len(right):
            return
        numbers = self._selected.numbers(Side(left.timed.of, left.rows), Side(right.timed.of, right.rows))
        timed = [replace(side.timed, of=of) for side, of in zip((left, right), numbers, strict=True)]
        partners = pairs_within(timed[0], timed[1], (self._settings.lower, self._settings.upper))
        sizes = self._selected.sizes(left.rows, right.rows)
        for left_at, right_at in partners_of(partners, sizes, self.limits):
            yield self._selected.rows(PairedColumns(left.rows, left_at), PairedColumns(right.rows, right_at))

    def _remove(self, due: DueTimers, states: KeyedStateBatch) -> None:
        """Removes rows whose time is over: the time of a timer determines that of the rows of both sides."""
        for buffer, lifetime in zip(self._buffers, self._lifetimes, strict=True):
            if len(due.of):
                nothing = pa.nulls(len(due.of), buffer.columns.type)
                states.write_entries(buffer, due.of, pa.array(due.times - lifetime), nothing)


def _stored(buffer: _Buffer, states: KeyedStateBatch, others: _Rows) -> _Rows:
    """Returns the stored rows of one side, of the keys that have new rows of the other one."""
    keys = np.unique(others.timed.of)
    of, times, lists = states.at(keys).all_entries(buffer)
    counts = np.asarray(lists.value_lengths())
    return _Rows(Timed(np.repeat(keys[of], counts), np.repeat(np.asarray(times), counts)), lists.flatten())


def _store(buffer: _Buffer, states: KeyedStateBatch, new: _Rows) -> None:
    """Adds rows to the lists of their times."""
    order = np.lexsort((new.timed.times, new.timed.of))
    of, times = new.timed.of[order], new.timed.times[order]
    starts = np.flatnonzero(np.append(True, (of[1:] != of[:-1]) | (times[1:] != times[:-1])))
    counts, rows = np.diff(starts, append=len(of)), new.rows.take(pa.array(order))
    before = states.read_entries(buffer, of[starts], pa.array(times[starts]))
    known = np.asarray(before.value_lengths().fill_null(0))
    if known.any():
        # The stored rows of a time come before the new ones.
        group = np.concatenate([np.repeat(np.arange(len(starts)), known), np.repeat(np.arange(len(starts)), counts)])
        at = np.argsort(group, kind="stable")
        rows = pa.concat_arrays([before.flatten(), rows.cast(before.type.value_type)]).take(pa.array(at))
        counts = counts + known
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    kind = buffer.columns.type
    lists = pa.ListArray.from_arrays(pa.array(offsets), rows.cast(kind.value_type), type=kind)
    states.write_entries(buffer, of[starts], pa.array(times[starts]), lists)
