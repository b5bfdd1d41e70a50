"""The interface of triggers, which decide when the content of a window is evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Generic, Protocol, TypeVar

from stateflow.api.functions.process import RuntimeContext
from stateflow.state.kinds.keyed_state import MergeableState
from stateflow.types.time_window import TimeWindow

In = TypeVar("In", contravariant=True)


class TriggerResult(Enum):
    """The decision of a trigger: whether the window is evaluated, and whether its content is removed afterwards."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    @property
    def is_fire(self) -> bool:
        """Whether the window is evaluated."""
        return self.value[0]

    @property
    def is_purge(self) -> bool:
        """Whether the content of the window is removed."""
        return self.value[1]


class TriggerContext(Protocol):
    """Times and timers of a trigger, for the current key and window. Times are milliseconds since 1970."""

    def current_watermark(self) -> int:
        """Returns the current watermark; see `TimerService.current_watermark`."""

    def current_processing_time(self) -> int:
        """Returns the batch's processing time, which is constant during the batch."""

    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a timer for `on_event_time`."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a timer for `on_processing_time`."""

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes a timer, if it exists."""

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes a timer, if it exists."""


class OnMergeContext(TriggerContext, Protocol):
    """The context of `on_merge`; its window is the merged one."""

    def merge_partitioned_state(self, state: MergeableState) -> None:
        """Merges a trigger's state of the windows that were merged into the state of the merged window."""


class Trigger(ABC, Generic[In]):
    """Decides when a window is evaluated.

    A subclass declares its state in `open`; a state has a value per key and window. The object is copied for each batch
    of a subtask: changes of other attributes are lost after the batch.
    """

    def __str__(self) -> str:
        """Returns the text that plans show."""
        return type(self).__name__

    def open(self, ctx: RuntimeContext) -> None:
        """Called once per batch and subtask, to declare state: ``self._count = ctx.get_reducing_state(…)``."""

    @abstractmethod
    def on_element(self, row: In, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called for each row that was added to a window.

        Args:
            timestamp: event time of the row; processing time if it has none.
        """

    @abstractmethod
    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called when an event-time timer of the window fires; also for the timer that removes the window."""

    @abstractmethod
    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """Called when a processing-time timer of the window fires; also for the timer that removes the window."""

    def can_merge(self) -> bool:
        """Whether the trigger may be used with windows that merge; then it has `on_merge`."""
        return type(self).on_merge is not Trigger.on_merge

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        """Called when windows were merged; registers the timers of the merged window, and merges the states."""
        raise NotImplementedError(f"{type(self).__name__} has no on_merge")

    @abstractmethod
    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """Called when a window is removed; removes its timers and state."""
