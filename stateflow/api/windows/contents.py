"""The stored content of windows: their rows, or one value to which rows are added."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from stateflow.api.functions.process import RuntimeContext
from stateflow.api.windows.evictors import Evictor, EvictorContext, TimestampedRow
from stateflow.state.kinds.keyed_state import MergeableState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.single_value import AggregatingState, ReducingState
from stateflow.types.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
)
from stateflow.types.time_window import TimeWindow

Row = TypeVar("Row")
Acc = TypeVar("Acc")
Element = TypeVar("Element")

STATE_NAME = "window-contents"
"""Name of the state of a window's content; part of the stored format. As in Flink."""
Emit = Callable[[Iterable[Element]], Iterable[object]]
"""Calls the window function with elements; returns the rows to emit."""
TimeOf = Callable[[object], int | None]
Summary = Callable[[Sequence[Row]], Iterable[Element]]
"""Returns the elements that a window function is called with, for the rows of a window."""


class WindowContents(ABC, Generic[Row, Element]):
    """The content of the windows of one operator, for the current key and namespace.

    Attributes:
        state: the state that has the content; set by `open`.
    """

    state: MergeableState

    @abstractmethod
    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""

    def add(self, row: Row) -> None:
        """Adds a row."""
        self.state.add(row)

    @abstractmethod
    def evaluate(self, window: TimeWindow, emit: Emit[Element], ctx: EvictorContext) -> Iterator[object]:
        """Yields what `emit` returns for the content; nothing for a window without content."""

    def clear(self) -> None:
        """Removes the content."""
        self.state.clear()


class _OneValue(WindowContents[Row, Element]):
    """A single value."""

    def evaluate(self, window: TimeWindow, emit: Emit[Element], ctx: EvictorContext) -> Iterator[object]:
        value = self._value()
        if value is not None:
            yield from emit((value,))
            # What was emitted is encoded later: the next row must not change the same object.
            self.state.flush()

    @abstractmethod
    def _value(self) -> Element | None: ...


class ReducedContents(_OneValue[Row, Row]):
    """The row that a function reduced all rows to."""

    state: ReducingState[Row]

    def __init__(self, function: Callable[[Row, Row], Row], row_class: type[Row]) -> None:
        self._descriptor = ReducingStateDescriptor(STATE_NAME, function, row_class)

    def open(self, ctx: RuntimeContext) -> None:
        self.state = ctx.get_reducing_state(self._descriptor)

    def _value(self) -> Row | None:
        return self.state.get()


class AggregatedContents(_OneValue[Row, Element], Generic[Row, Acc, Element]):
    """The accumulator of an aggregate function."""

    state: AggregatingState[Row, Acc, Element]

    def __init__(self, function: AggregateFunction[Row, Acc, Element], accumulator: object) -> None:
        self._descriptor: AggregatingStateDescriptor[Row, Acc, Element] = AggregatingStateDescriptor(
            STATE_NAME, function, accumulator
        )

    def open(self, ctx: RuntimeContext) -> None:
        self.state = ctx.get_aggregating_state(self._descriptor)

    def _value(self) -> Element | None:
        return self.state.get()


class _StoredRows(WindowContents[Row, Element]):
    """All rows of a window."""

    state: ListState[Row]

    def __init__(self, row_class: type[Row]) -> None:
        self._descriptor = ListStateDescriptor(STATE_NAME, row_class)

    def open(self, ctx: RuntimeContext) -> None:
        self.state = ctx.get_list_state(self._descriptor)


class BufferedContents(_StoredRows[Row, Row]):
    """All rows of a window, which the window function is called with."""

    def evaluate(self, window: TimeWindow, emit: Emit[Row], ctx: EvictorContext) -> Iterator[object]:
        rows = list(self.state.get())
        if rows:
            yield from emit(rows)


class EvictedContents(_StoredRows[Row, Element]):
    """All rows of a window that an evictor has not removed.

    Args:
        time_of: returns the event time of a row; None if rows have none.
        summary: what the window function is called with.
    """

    def __init__(
        self, row_class: type[Row], evictor: Evictor[Row], time_of: TimeOf | None, summary: Summary[Row, Element]
    ) -> None:
        super().__init__(row_class)
        self._evictor = evictor
        self._time_of = time_of
        self._summary = summary

    def evaluate(self, window: TimeWindow, emit: Emit[Element], ctx: EvictorContext) -> Iterator[object]:
        time_of = self._time_of
        stored = [TimestampedRow(row, time_of(row) if time_of else None) for row in self.state.get()]
        if not stored:
            return
        kept = self._evictor.evict_before(stored, window, ctx)
        yield from emit(self._summary([each.row for each in kept]))
        kept = self._evictor.evict_after(kept, window, ctx)
        if len(kept) < len(stored):
            self.state.update([each.row for each in kept])
