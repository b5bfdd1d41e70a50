"""The operator of windows: assigns rows, calls triggers, merges sessions and emits results.

The contents of windows and the sets of open sessions are stored under Flink's names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, Self, TypeVar

from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext, TimerService
from stateflow.api.functions.returned import check_returned_rows
from stateflow.api.side_outputs import OutputTag
from stateflow.api.windows.assigners import WindowAssigner, windows_kind
from stateflow.api.windows.evictors import Evictor, EvictorContext, TimestampedRow
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext, WindowOpenContext
from stateflow.api.windows.trigger import Trigger, TriggerResult
from stateflow.api.windows.window import duration_text, namespace_of, window_of
from stateflow.errors import StateError
from stateflow.state.kinds.keyed_state import KeyedState, MergeableState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.time_window import TimeWindow

SESSIONS_STATE_NAME = "merging-window-set"
"""Name of the state; part of the stored format. As in Flink."""


@dataclass(frozen=True)
class Session:
    """An open session: its window, and the window whose namespace has its state. Times are milliseconds since 1970."""

    start: int
    end: int
    state_start: int
    state_end: int

    @property
    def window(self) -> TimeWindow:
        """The window of the session."""
        return TimeWindow(self.start, self.end)

    @property
    def state_window(self) -> TimeWindow:
        """The namespace of its state."""
        return TimeWindow(self.state_start, self.state_end)


@dataclass(frozen=True)
class Merge:
    """The windows that are merged when a row's window is added.

    Attributes:
        window: the window that the row belongs to now.
        state_window: the namespace of its state.
        merged: windows that are replaced by `window`; empty if there is nothing to do for state and trigger.
        merged_states: namespaces whose state has to be moved to `state_window`.
    """

    window: TimeWindow
    state_window: TimeWindow
    merged: tuple[TimeWindow, ...] = ()
    merged_states: tuple[TimeWindow, ...] = ()


def add_window(sessions: Sequence[Session], added: TimeWindow) -> tuple[list[Session], Merge]:
    """Returns the sessions with a window added, and what has to be merged."""
    # Open sessions do not touch each other, so those that the row's window touches are all that become one.
    touched, others, start, end = list[Session](), list[Session](), added.start, added.end
    for each in sessions:
        # Without a TimeWindow for each session: this is done for each row.
        (touched if each.start <= end and start <= each.end else others).append(each)
    window = reduce(TimeWindow.cover, (each.window for each in touched), added)
    kept = touched[0].state_window if touched else added
    merged = tuple(each.window for each in touched)
    states = tuple(each.state_window for each in touched[1:])
    result = Session(window.start, window.end, kept.start, kept.end)
    if merged == (window,):
        # The row's window lies within an open session: nothing changes.
        return [*others, *touched], Merge(window, kept)
    return [*others, result], Merge(window, kept, merged, states)


class OpenSessions:
    """The sessions of the current key, as state."""

    _state: ValueState[list[Session]]

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""
        self._state = ctx.keyed_state.value_state(
            ValueStateDescriptor(SESSIONS_STATE_NAME, list[Session]), per_key=True
        )

    def add(self, added: TimeWindow) -> Merge:
        """Adds the window of a row; returns what has to be merged."""
        before = self._state.value() or []
        after, merge = add_window(before, added)
        if merge.merged or len(after) > len(before):
            self._state.update(after)
        return merge

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Returns the namespace of a session's state; None if the session no longer exists."""
        start, end = window.start, window.end
        found = (each for each in self._state.value() or () if each.start == start and each.end == end)
        return next((each.state_window for each in found), None)

    def remove(self, window: TimeWindow) -> None:
        """Removes a session."""
        rest = [each for each in self._state.value() or () if each.window != window]
        self._state.update(rest or None)


Row = TypeVar("Row")
Acc = TypeVar("Acc")
Element = TypeVar("Element")


CONTENTS_STATE_NAME = "window-contents"
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
        self._descriptor = ReducingStateDescriptor(CONTENTS_STATE_NAME, function, row_class)

    def open(self, ctx: RuntimeContext) -> None:
        self.state = ctx.get_reducing_state(self._descriptor)

    def _value(self) -> Row | None:
        return self.state.get()


class AggregatedContents(_OneValue[Row, Element], Generic[Row, Acc, Element]):
    """The accumulator of an aggregate function."""

    state: AggregatingState[Row, Acc, Element]

    def __init__(self, function: AggregateFunction[Row, Acc, Element], accumulator: object) -> None:
        self._descriptor: AggregatingStateDescriptor[Row, Acc, Element] = AggregatingStateDescriptor(
            CONTENTS_STATE_NAME, function, accumulator
        )

    def open(self, ctx: RuntimeContext) -> None:
        self.state = ctx.get_aggregating_state(self._descriptor)

    def _value(self) -> Element | None:
        return self.state.get()


class _StoredRows(WindowContents[Row, Element]):
    """All rows of a window."""

    state: ListState[Row]

    def __init__(self, row_class: type[Row]) -> None:
        self._descriptor = ListStateDescriptor(CONTENTS_STATE_NAME, row_class)

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


class WindowTriggerContext:
    """Times, timers and state of a trigger, in the namespace of one window at a time."""

    _timers: TimerService

    def __init__(self, state: KeyedState) -> None:
        self._state = state
        self._window: TimeWindow | None = None
        self._merged: Sequence[TimeWindow] = ()

    def begin(self, timers: TimerService) -> None:
        """Sets the timer service, before a row or a timer is processed."""
        self._timers = timers

    def enter(self, window: TimeWindow) -> Self:
        """Sets the window; the state of triggers is that of this window. Returns the object."""
        self._window = window
        self._state.set_namespace(namespace_of(window))
        return self

    def merging(self, window: TimeWindow, merged: Sequence[TimeWindow]) -> Self:
        """Sets the window and those that were merged into it. Returns the object."""
        self._merged = merged
        return self.enter(window)

    def current_watermark(self) -> int:
        """Returns the current watermark."""
        return self._timers.current_watermark()

    def current_processing_time(self) -> int:
        """Returns the batch's processing time."""
        return self._timers.current_processing_time()

    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a timer of the window."""
        self._timers.register_event_time_timer(timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a timer of the window."""
        self._timers.register_processing_time_timer(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes a timer of the window."""
        self._timers.delete_event_time_timer(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes a timer of the window."""
        self._timers.delete_processing_time_timer(timestamp)

    def merge_partitioned_state(self, state: MergeableState) -> None:
        """Merges a trigger's state of the windows that were merged into that of the merged window."""
        self._state.merge_namespaces(state, map(namespace_of, self._merged))


@dataclass(frozen=True)
class WindowSettings(Generic[Row]):
    """How the windows of an operator begin, fire and end.

    Attributes:
        allowed_lateness: milliseconds after the end of a window for which late rows are added to it.
        late_rows: side output of the rows that are too late; None to drop them.
    """

    assigner: WindowAssigner[Row]
    trigger: Trigger[Row]
    allowed_lateness: int = 0
    late_rows: OutputTag[Row] | None = None

    @property
    def text(self) -> str:
        """The windows and their trigger, for plans."""
        lateness = f", allowed lateness {duration_text(self.allowed_lateness)}" if self.allowed_lateness else ""
        return f"{self.assigner}, {self.trigger}{lateness}"


class WindowOperator(KeyedProcessFunction[Row, object], Generic[Row, Element]):
    """Evaluates the windows of a keyed stream.

    Args:
        function: called with the elements of a window when its trigger fires.
        contents: the stored content of the windows.
    """

    _state: KeyedState
    _triggers: WindowTriggerContext
    _opened: WindowOpenContext

    def __init__(
        self,
        settings: WindowSettings[Row],
        contents: WindowContents[Row, Element],
        function: ProcessWindowFunction[Element, object],
    ) -> None:
        self.function = function
        self.windows_text = settings.text
        self._assigner = settings.assigner
        self._trigger = settings.trigger
        self._lateness = settings.allowed_lateness
        self._late_rows = settings.late_rows
        self._contents = contents
        self._sessions = OpenSessions() if settings.assigner.merges else None

    def open(self, ctx: RuntimeContext) -> None:
        self._state = ctx.keyed_state
        self._triggers = WindowTriggerContext(ctx.keyed_state)
        self._opened = WindowOpenContext(ctx, merges=self._assigner.merges)
        self._contents.open(ctx)
        ctx.keyed_state.registry.set_windows(self._contents.state, windows_kind(self._assigner))
        self._trigger.open(ctx)
        if self._sessions is not None:
            self._sessions.open(ctx)
        self.function.open(self._opened)

    def close(self) -> None:
        self.function.close()

    def process_element(self, row: Row, ctx: Context) -> Iterator[object]:
        timestamp = self._time_of(row, ctx)
        self._triggers.begin(ctx.timer_service())
        # Triggers get the event time of the row, also in windows of processing time.
        event_time = ctx.timestamp()
        time = timestamp if event_time is None else event_time
        windows = self._assigner.assign_windows(row, timestamp)
        is_late = True
        for window in windows:
            merged = self._merge(window) if self._sessions is not None else None
            if merged is not None:
                window = merged.window
            if self._is_late(window):
                if merged is not None:
                    self._discard(window, merged.state_window)
                continue
            is_late = False
            self._enter(merged.state_window if merged is not None else window)
            self._contents.add(row)
            result = self._trigger.on_element(row, time, window, self._triggers.enter(window))
            yield from self._apply(result, window, ctx)
            self._schedule_removal(window)
        if is_late and self._is_late_row(timestamp):
            if self._late_rows is None:
                self.late_rows_dropped += 1
            else:
                ctx.output(self._late_rows, row)

    def leave_out(self, row: Row, ctx: Context) -> None:
        """Adds a row to no window; counts it if it is late."""
        timestamp = self._time_of(row, ctx)
        self._triggers.begin(ctx.timer_service())
        is_late = all(map(self._is_late, self._assigner.assign_windows(row, timestamp)))
        self.late_rows_dropped += is_late and self._is_late_row(timestamp)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[object]:
        window = window_of(self._state.namespace)
        state_window = self._state_window(window)
        if state_window is None:
            return  # the session has been merged into another one
        self._triggers.begin(ctx.timer_service())
        triggers, is_event_time = self._triggers.enter(window), ctx.time_domain() is TimeDomain.EVENT_TIME
        call = self._trigger.on_event_time if is_event_time else self._trigger.on_processing_time
        yield from self._apply(call(timestamp, window, triggers), window, ctx)
        if is_event_time == self._assigner.is_event_time:
            self._remove_or_schedule(timestamp, window, ctx)

    def _remove_or_schedule(self, timestamp: int, window: TimeWindow, ctx: Context) -> None:
        """Removes a window at its end, or later: it has a timer by the lateness that the job had when it began."""
        if timestamp >= self._removal_time(window):
            self._remove(window, ctx)
        elif self._lateness and timestamp >= window.max_timestamp:
            self._schedule_removal(window)

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _apply(self, result: TriggerResult, window: TimeWindow, ctx: Context) -> Iterator[object]:
        state_window = self._state_window(window)
        assert state_window is not None
        if result.is_fire:
            self._enter(state_window)
            call = self._contents.evaluate
            yield from call(window, lambda elements: self._call(elements, window, ctx), self._triggers)
        if result.is_purge:
            self._enter(state_window)
            self._contents.clear()

    def _call(self, elements: Iterable[Element], window: TimeWindow, ctx: Context) -> Iterator[object]:
        content = self._state.namespace
        self._enter(window)
        context = WindowContext(self._opened, ctx, window)
        process = self.function.process
        yield from check_returned_rows(process(ctx.get_current_key(), context, elements), process)
        # The caller continues with the content, which a session has in another namespace.
        self._state.set_namespace(content)

    def _remove(self, window: TimeWindow, ctx: Context) -> None:
        state_window = self._state_window(window)
        assert state_window is not None
        self._enter(state_window)
        self._contents.clear()
        self._trigger.clear(window, self._triggers.enter(window))
        self._enter(window)
        self.function.clear(WindowContext(self._opened, ctx, window))
        self._forget(window)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _merge(self, window: TimeWindow) -> Merge:
        """Adds the window of a row to the open sessions, and merges state and timers of those that it connects."""
        assert self._sessions is not None
        merge = self._sessions.add(window)
        if merge.merged:
            self._trigger.on_merge(merge.window, self._triggers.merging(merge.window, merge.merged))
            for merged in merge.merged:
                self._trigger.clear(merged, self._triggers.enter(merged))
                self._delete_removal(merged)
            self._enter(merge.state_window)
            self._state.merge_namespaces(self._contents.state, merge.merged_states)
        return merge

    def _state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Returns the window whose namespace has the content; None for a session that no longer exists."""
        return window if self._sessions is None else self._sessions.state_window(window)

    def _discard(self, window: TimeWindow, state_window: TimeWindow) -> None:
        """Removes a session that a late row was merged into: it is empty, unless the job has lowered the lateness."""
        self._enter(state_window)
        self._contents.clear()
        self._trigger.clear(window, self._triggers.enter(window))
        self._forget(window)

    def _forget(self, window: TimeWindow) -> None:
        if self._sessions is not None:
            self._sessions.remove(window)

    def _enter(self, window: TimeWindow) -> None:
        self._state.set_namespace(namespace_of(window))

    # -- time ---------------------------------------------------------------------------------------------------------

    def _time_of(self, row: object, ctx: Context) -> int:
        if not self._assigner.is_event_time:
            return ctx.timer_service().current_processing_time()
        timestamp = ctx.timestamp()
        if timestamp is None:
            raise StateError(
                "a row of an event-time window has no event time",
                hint="filter rows whose timestamp column is null before key_by",
            )
        return timestamp

    def _is_late(self, window: TimeWindow) -> bool:
        return self._assigner.is_event_time and self._removal_time(window) <= self._triggers.current_watermark()

    def _is_late_row(self, timestamp: int) -> bool:
        watermark = self._triggers.current_watermark()
        return self._assigner.is_event_time and timestamp + self._lateness <= watermark

    def _removal_time(self, window: TimeWindow) -> int:
        lateness = self._lateness if self._assigner.is_event_time else 0
        return min(window.max_timestamp + lateness, MAX_WATERMARK)

    def _schedule_removal(self, window: TimeWindow) -> None:
        time = self._removal_time(window)
        if time == MAX_WATERMARK:
            return  # the window never ends
        triggers = self._triggers.enter(window)
        if self._assigner.is_event_time:
            triggers.register_event_time_timer(time)
        else:
            triggers.register_processing_time_timer(time)

    def _delete_removal(self, window: TimeWindow) -> None:
        triggers, time = self._triggers.enter(window), self._removal_time(window)
        if self._assigner.is_event_time:
            triggers.delete_event_time_timer(time)
        else:
            triggers.delete_processing_time_timer(time)
