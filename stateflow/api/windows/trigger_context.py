"""The context that the operator of windows passes to triggers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from stateflow.api.functions.timers import TimerService
from stateflow.api.windows.window import namespace_of
from stateflow.state.kinds.keyed_state import KeyedState, MergeableState
from stateflow.types.time_window import TimeWindow


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
