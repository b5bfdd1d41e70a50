"""The triggers of Flink: when the content of a window is evaluated. Rules and names are Flink's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Generic, Self, TypeVar

from stateflow.api.functions.process import RuntimeContext
from stateflow.api.windows.trigger import OnMergeContext, Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.window import duration_text, positive_ms
from stateflow.errors import JobDefinitionError
from stateflow.state.kinds.single_value import ReducingState, ValueState
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.types.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from stateflow.types.time_window import TimeWindow

In = TypeVar("In", contravariant=True)
Row = TypeVar("Row")


class EventTimeTrigger(Trigger[object]):
    """Fires when the watermark passes the end of the window, and again for each late row that is allowed."""

    @classmethod
    def create(cls) -> Self:
        """Returns the trigger."""
        return cls()

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= ctx.current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        # Otherwise on_element fires, as soon as the row that caused the merge is added.
        if window.max_timestamp > ctx.current_watermark():
            ctx.register_event_time_timer(window.max_timestamp)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger[object]):
    """Fires in the first batch whose processing time is past the end of the window."""

    @classmethod
    def create(cls) -> Self:
        """Returns the trigger."""
        return cls()

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        if window.max_timestamp > ctx.current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp)


class NeverTrigger(Trigger[object]):
    """Never fires; the default of `GlobalWindows`."""

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        """Does nothing."""

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """Does nothing."""


class CountTrigger(Trigger[object]):
    """Fires when a window has had a number of rows since it fired last."""

    _count: ReducingState[int]

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self._max_count}"

    @classmethod
    def of(cls, max_count: int) -> Self:
        """Returns the trigger. Raises JobDefinitionError if `max_count` is not an int of 1 or more."""
        if isinstance(max_count, bool) or not isinstance(max_count, int) or max_count < 1:
            raise JobDefinitionError(
                "the count of a trigger must be an int of 1 or more",
                hint="CountTrigger.of(100)",
                given=repr(max_count)[:200],
            )
        return cls(max_count)

    def open(self, ctx: RuntimeContext) -> None:
        self._count = ctx.get_reducing_state(ReducingStateDescriptor("trigger-count", _add, int))

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        self._count.add(1)
        if (self._count.get() or 0) < self._max_count:
            return TriggerResult.CONTINUE
        self._count.clear()
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._count.clear()


class _ContinuousTrigger(Trigger[object]):
    """Fires at regular intervals while a window is open."""

    _next: ReducingState[int]

    def __init__(self, interval: int) -> None:
        self._interval = interval

    def __str__(self) -> str:
        return f"{type(self).__name__} of {duration_text(self._interval)}"

    @classmethod
    def of(cls, interval: timedelta) -> Self:
        """Returns the trigger. Raises JobDefinitionError if the interval is not positive."""
        return cls(positive_ms("the interval of a trigger", interval))

    def open(self, ctx: RuntimeContext) -> None:
        self._next = ctx.get_reducing_state(ReducingStateDescriptor("trigger-next", _earlier, int))

    def _schedule(self, after: int, window: TimeWindow, register: Callable[[int], None]) -> None:
        time = min(after + self._interval, window.max_timestamp)
        if time > after:  # otherwise the window has ended, and the timer would fire again at once
            self._next.add(time)
            register(time)

    def _begin(self, now: int, window: TimeWindow, register: Callable[[int], None]) -> None:
        if self._next.get() is None:
            self._schedule(now - now % self._interval, window, register)

    def _fires(
        self, time: int, window: TimeWindow, ctx: TriggerContext, register: Callable[[int], None]
    ) -> TriggerResult:
        if self._next.get() != time:
            return TriggerResult.CONTINUE
        self._next.clear()
        # At the end of the input, every later timer of a window is due. Those of a global window would never end.
        if min(ctx.current_watermark(), window.max_timestamp) < MAX_WATERMARK:
            self._schedule(time, window, register)
        return TriggerResult.FIRE

    def _merge(self, ctx: OnMergeContext, register: Callable[[int], None]) -> None:
        ctx.merge_partitioned_state(self._next)
        if (time := self._next.get()) is not None:
            register(time)

    def _remove(self, delete: Callable[[int], None]) -> None:
        if (time := self._next.get()) is not None:
            delete(time)
            self._next.clear()


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at regular intervals of event time, and when the watermark passes the end of the window."""

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= ctx.current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp)
        self._begin(timestamp, window, ctx.register_event_time_timer)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp:
            return TriggerResult.FIRE
        return self._fires(time, window, ctx, ctx.register_event_time_timer)

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        self._merge(ctx, ctx.register_event_time_timer)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._remove(ctx.delete_event_time_timer)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires at regular intervals of processing time."""

    def on_element(self, row: object, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        self._begin(ctx.current_processing_time(), window, ctx.register_processing_time_timer)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return self._fires(time, window, ctx, ctx.register_processing_time_timer)

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        self._merge(ctx, ctx.register_processing_time_timer)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._remove(ctx.delete_processing_time_timer)


class DeltaTrigger(Trigger[Row], Generic[Row]):
    """Fires when a row differs by more than a threshold from the row for which it fired last."""

    _last: ValueState[Row]

    def __init__(self, threshold: float, delta: Callable[[Row, Row], float], row_class: type[Row]) -> None:
        self._threshold = threshold
        self._delta = delta
        self._row_class = row_class

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self._threshold}"

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Row, Row], float], row_class: type[Row]) -> Self:
        """Returns the trigger.

        Args:
            delta: takes the earlier and the current row, and returns their distance. Must be deterministic.
            row_class: class of the rows; the earlier row is kept as state.

        Raises:
            JobDefinitionError: `delta` is not callable.
        """
        if isinstance(delta, type) or not callable(delta):
            raise JobDefinitionError(
                "the delta function of a trigger must be a function",
                hint="pass a function that takes two rows and returns a number",
                given=repr(delta)[:200],
            )
        return cls(threshold, delta, row_class)

    def open(self, ctx: RuntimeContext) -> None:
        self._last = ctx.get_state(ValueStateDescriptor("trigger-last", self._row_class))

    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        last = self._last.value()
        # Not by the opposite comparison: a difference of NaN does not fire.
        if last is not None and not self._delta(last, row) > self._threshold:
            return TriggerResult.CONTINUE
        self._last.update(row)
        return TriggerResult.CONTINUE if last is None else TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._last.clear()


class PurgingTrigger(Trigger[In], Generic[In]):
    """Removes the content of a window whenever another trigger fires."""

    def __init__(self, trigger: Trigger[In]) -> None:
        self._trigger = trigger

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self._trigger}"

    @classmethod
    def of(cls, trigger: Trigger[In]) -> Self:
        """Returns the trigger. Raises JobDefinitionError if `trigger` is not a trigger."""
        if not isinstance(trigger, Trigger):
            raise JobDefinitionError(
                "PurgingTrigger needs a Trigger",
                hint="PurgingTrigger.of(CountTrigger.of(100))",
                given=repr(trigger)[:200],
            )
        return cls(trigger)

    def can_merge(self) -> bool:
        return self._trigger.can_merge()

    def open(self, ctx: RuntimeContext) -> None:
        self._trigger.open(ctx)

    def on_element(self, row: In, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self._trigger.on_element(row, timestamp, window, ctx))

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self._trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return _purging(self._trigger.on_processing_time(time, window, ctx))

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        self._trigger.on_merge(window, ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._trigger.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire else result


def _add(first: int, second: int) -> int:
    return first + second


def _earlier(first: int, second: int) -> int:
    return min(first, second)
