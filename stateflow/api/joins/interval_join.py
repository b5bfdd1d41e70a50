"""The operator of interval joins: pairs of rows of a key whose event times are within bounds of each other.

The algorithm is that of Flink's `IntervalJoinOperator`. Each side keeps its rows by time, until the watermark shows
that no row of the other side can match them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import GenericAlias
from typing import Generic, TypeVar, cast

from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import checked_rows
from stateflow.api.joins.functions import JoinContext, ProcessJoinFunction, has_null
from stateflow.api.joins.times import time_of_row
from stateflow.api.side_outputs import OutputTag
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.timers import NO_WATERMARK
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
        return checked_rows(process(left, right, context), process)


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
