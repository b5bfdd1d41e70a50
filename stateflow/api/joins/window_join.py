"""The operator of window joins and co-groups: a window operator over the tagged rows of two streams, as in Flink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import msgspec

from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import checked_rows
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.windows.contents import BufferedContents, EvictedContents, WindowContents
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.api.windows.window_operator import WindowOperator, WindowSettings
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
        return checked_rows(self.function(key, ctx.window, *_sides(elements)), self.function)


@dataclass(frozen=True)
class JoinedSides(Generic[Left, Right]):
    """The two streams of a window join.

    Attributes:
        classes: the classes of their rows.
        times: functions that read the event time of a row; None for a stream without event time.
    """

    classes: tuple[type[Left], type[Right]]
    times: tuple[TimeOf, TimeOf]


class WindowJoin(KeyedCoProcessFunction[Left, Right, object], Generic[Left, Right]):
    """Evaluates the windows of two keyed streams.

    Args:
        evictor: removes tagged rows; None to keep all.
        function: called with the tagged rows of a window when its trigger fires.
    """

    _operator: WindowOperator[TaggedRow[Left, Right], TaggedRow[Left, Right]]
    _tagged: type[TaggedRow[Left, Right]]

    def __init__(
        self,
        sides: JoinedSides[Left, Right],
        settings: WindowSettings[TaggedRow[Left, Right]],
        evictor: Evictor[TaggedRow[Left, Right]] | None,
        function: ProcessWindowFunction[TaggedRow[Left, Right], object],
    ) -> None:
        self.function = function
        self._sides = sides
        self.windows_text = settings.text
        self._settings = settings
        self._evictor = evictor

    def open(self, ctx: RuntimeContext) -> None:
        # Here, because a class that is made at run time cannot be sent to tasks.
        self._tagged = tagged_class(*self._sides.classes)
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
        time_of = self._sides.times[0 if is_left else 1]
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
