"""Functions that are called with the content of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.functions.returned import check_returned_rows
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import StateError
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.time_window import TimeWindow

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Acc = TypeVar("Acc")
Result = TypeVar("Result")


class WindowStateStore:
    """Declares states that have a value per key and window, or, as global state, per key.

    A state that is declared in `ProcessWindowFunction.open` is compared with the stored state before a run starts.
    """

    def __init__(self, state: KeyedState, per_key: bool, merges: bool = False) -> None:
        self._keyed = state
        self._per_key = per_key
        self._merges = merges

    @property
    def _state(self) -> KeyedState:
        if self._merges:
            raise StateError(
                "windows that merge cannot have state of their own",
                hint="use global_state, or reduce or aggregate the rows of the window",
            )
        return self._keyed

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Returns the declared value state.

        Raises:
            StateError: the name has another declaration, or it is state of a window that may be merged.
        """
        return self._state.value_state(descriptor, per_key=self._per_key)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Returns the declared list state. Raises: as `get_state`."""
        return self._state.list_state(descriptor, per_key=self._per_key)

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Returns the declared map state. Raises: as `get_state`."""
        return self._state.map_state(descriptor, per_key=self._per_key)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Returns the declared reducing state. Raises: as `get_state`."""
        return self._state.reducing_state(descriptor, per_key=self._per_key)

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor[T, Acc, Result]
    ) -> AggregatingState[T, Acc, Result]:
        """Returns the declared aggregating state. Raises: as `get_state`."""
        return self._state.aggregating_state(descriptor, per_key=self._per_key)


class WindowOpenContext:
    """The argument of `ProcessWindowFunction.open`.

    Attributes:
        window_state: states per key and window; `ProcessWindowFunction.clear` removes their values.
        global_state: states per key.
    """

    def __init__(self, ctx: RuntimeContext, merges: bool) -> None:
        self.info = ctx.info
        self.window_state = WindowStateStore(ctx.keyed_state, per_key=False, merges=merges)
        self.global_state = WindowStateStore(ctx.keyed_state, per_key=True)


class WindowContext:
    """The window that a function is called for, its key and the current times.

    Attributes:
        window: the window.
        window_state, global_state: see `WindowOpenContext`.
    """

    def __init__(self, opened: WindowOpenContext, context: Context, window: TimeWindow) -> None:
        self.window = window
        self.window_state = opened.window_state
        self.global_state = opened.global_state
        self._context = context

    def get_current_key(self) -> Any:
        """Returns the key: the column's value, or a tuple if the key has several columns."""
        return self._context.get_current_key()

    def current_watermark(self) -> int:
        """Returns the current watermark; see `TimerService.current_watermark`."""
        return self._context.timer_service().current_watermark()

    def current_processing_time(self) -> int:
        """Returns the batch's processing time in milliseconds since 1970."""
        return self._context.timer_service().current_processing_time()

    def output(self, tag: OutputTag[T], row: T) -> None:
        """Emits a row to a side output. The row is dropped if the job does not use that output."""
        self._context.output(tag, row)


class ProcessWindowFunction(Generic[In, Out]):
    """A function that is called with the rows of a window, or with its aggregated value."""

    def open(self, ctx: WindowOpenContext) -> None:
        """Called once per batch and subtask, to declare state."""

    def process(self, key: Any, ctx: WindowContext, elements: Iterable[In]) -> Iterable[Out] | None:
        """Called whenever the trigger fires; returns or yields rows of the declared output class.

        Args:
            key: the column's value, or a tuple if the key has several columns.
            elements: the rows, in the order in which they were added; for `reduce` and `aggregate` the only element is
                the reduced row, or the result.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process")

    def clear(self, ctx: WindowContext) -> None:
        """Called when the window is removed, to remove the values of its `window_state`."""

    def close(self) -> None:
        """Called once per batch and subtask, after the last row."""


class ProcessAllWindowFunction(Generic[In, Out]):
    """A function that is called with the rows of a window over all rows of a stream, or with its aggregated value.

    `WindowContext.get_current_key` returns 0 for each window, and `global_state` is the operator's.
    """

    def open(self, ctx: WindowOpenContext) -> None:
        """Called once per batch and subtask, to declare state."""

    def process(self, ctx: WindowContext, elements: Iterable[In]) -> Iterable[Out] | None:
        """Called whenever the trigger fires; returns or yields rows of the declared output class.

        Args:
            elements: as for `ProcessWindowFunction.process`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process")

    def clear(self, ctx: WindowContext) -> None:
        """Called when the window is removed, to remove the values of its `window_state`."""

    def close(self) -> None:
        """Called once per batch and subtask, after the last row."""


PlainFunction = Callable[[Any, TimeWindow, Iterable[In]], Iterable[Out] | None]
"""A function of key, window and rows."""
PlainAllFunction = Callable[[TimeWindow, Iterable[In]], Iterable[Out] | None]
"""A function of window and rows."""


class ApplyWindow(ProcessWindowFunction[In, Out]):
    """Calls a plain function of key, window and rows."""

    def __init__(self, function: PlainFunction[In, Out]) -> None:
        self.function = function

    def process(self, key: object, ctx: WindowContext, elements: Iterable[In]) -> Iterable[Out] | None:
        return check_returned_rows(self.function(key, ctx.window, elements), self.function)


class WithoutKey(ProcessWindowFunction[In, Out]):
    """Calls a function that takes no key."""

    def __init__(self, function: ProcessAllWindowFunction[In, Out]) -> None:
        self.function = function

    def open(self, ctx: WindowOpenContext) -> None:
        self.function.open(ctx)

    def process(self, key: object, ctx: WindowContext, elements: Iterable[In]) -> Iterable[Out] | None:
        process = self.function.process
        return check_returned_rows(process(ctx, elements), process)

    def clear(self, ctx: WindowContext) -> None:
        self.function.clear(ctx)

    def close(self) -> None:
        self.function.close()


class ApplyAllWindow(ProcessWindowFunction[In, Out]):
    """Calls a plain function of window and rows."""

    def __init__(self, function: PlainAllFunction[In, Out]) -> None:
        self.function = function

    def process(self, key: object, ctx: WindowContext, elements: Iterable[In]) -> Iterable[Out] | None:
        return check_returned_rows(self.function(ctx.window, elements), self.function)


class EmitElements(ProcessWindowFunction[T, T]):
    """Emits what a window contains."""

    def process(self, key: object, ctx: WindowContext, elements: Iterable[T]) -> Iterable[T]:
        return elements
