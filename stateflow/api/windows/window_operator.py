"""The operator of windows: adds rows to the windows of a key, evaluates them when their trigger fires, removes them.

The algorithm is that of Flink's `WindowOperator`. Each window is a namespace of the key. A timer at the end of the
window, plus the allowed lateness, removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.api.functions.process import Context, KeyedProcessFunction, OnTimerContext, RuntimeContext
from stateflow.api.functions.returned import checked_rows
from stateflow.api.side_outputs import OutputTag
from stateflow.api.windows.assigners import WindowAssigner, windows_kind
from stateflow.api.windows.contents import WindowContents
from stateflow.api.windows.durations import duration_text
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext, WindowOpenContext
from stateflow.api.windows.sessions import Merge, OpenSessions
from stateflow.api.windows.trigger import Trigger, TriggerResult
from stateflow.api.windows.trigger_context import WindowTriggerContext
from stateflow.api.windows.window import namespace_of, window_of
from stateflow.errors import StateError
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.types.time_window import TimeWindow

Row = TypeVar("Row")
Element = TypeVar("Element")


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
        yield from checked_rows(process(ctx.get_current_key(), context, elements), process)
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
