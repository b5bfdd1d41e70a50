"""Keyed process functions, and the contexts that their methods receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from stateflow.api.side_outputs import OutputTag, SideOutputs
from stateflow.errors import StateError
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.list_state import ListState
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.state.kinds.operator_state import BroadcastState, OperatorStateStore
from stateflow.state.kinds.single_value import AggregatingState, ReducingState, ValueState
from stateflow.state.kinds.timers import MAX_WATERMARK, NO_WATERMARK, Timers
from stateflow.state.stored_key import TimeDomain
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


class TimerService:
    """The current time and the timers of the current key. All times are milliseconds since 1970.

    Args:
        timers: None if the function cannot use timers.
        processing_time: processing time of the batch.
        watermark: None before there is one.
        refused: why timers cannot be registered; empty if they can.

    Attributes:
        MAX_WATERMARK: the watermark after bounded sources have ended, or while the job drains. A function that
            registers a new event-time timer whenever one fires must stop then, since the new timer is due immediately.
    """

    MAX_WATERMARK = MAX_WATERMARK

    def __init__(
        self, timers: Timers | None = None, processing_time: int = 0, watermark: int | None = None, refused: str = ""
    ) -> None:
        self._timers = timers
        self._processing_time = processing_time
        self._watermark = watermark
        self._refused = refused or ("this function has no timers" if timers is None else "")

    def current_processing_time(self) -> int:
        """Returns the batch's processing time, which is constant during the batch."""
        return self._processing_time

    def current_watermark(self) -> int:
        """Returns the current watermark. A row with this event time or an earlier one is late.

        It is -2^63 before there is a watermark and `MAX_WATERMARK` at the end of the input. It never decreases for a
        key, but may be lower for the next key.
        """
        return NO_WATERMARK if self._watermark is None else self._watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires for the current key when the watermark reaches `timestamp`.

        If the watermark has reached it already, the timer fires at the next advance of the watermark, at the latest in
        the next batch; within `on_timer`, it fires immediately.

        Raises:
            StateError: the row has no key, `timestamp` is invalid, or the function has no `on_timer`.
        """
        self._own().register(TimeDomain.EVENT_TIME, timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Registers a timer that fires for the current key in the first batch whose processing time is >= `timestamp`.

        Raises: as `register_event_time_timer`.
        """
        self._own().register(TimeDomain.PROCESSING_TIME, timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer with this timestamp, if it exists."""
        self._own().delete(TimeDomain.EVENT_TIME, timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes the current key's timer with this timestamp, if it exists."""
        self._own().delete(TimeDomain.PROCESSING_TIME, timestamp)

    def advance(self, watermark: int | None) -> None:
        """For the runtime only: sets the current watermark."""
        self._watermark = watermark

    def _own(self) -> Timers:
        if self._timers is None or self._refused:
            raise StateError(
                f"a timer cannot be used: {self._refused}",
                hint="use timers in functions of keyed streams that define on_timer",
            )
        return self._timers


In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Acc = TypeVar("Acc")


@dataclass(frozen=True)
class TaskInfo:
    """The subtask of an operator, and the times of the batch.

    Attributes:
        uid: uid of the operator.
        subtask: index of the subtask, below `parallelism` unless that is 0.
        parallelism: number of subtasks; 0 for a rich function on the stream of a source on Spark (see `RichFunction`).
        max_parallelism: number of key groups.
        processing_time: constant during the batch.
        epoch: number of the batch along the job's state, over all runs, restores and forks.
        watermark: milliseconds since 1970; None before there is one.
    """

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    processing_time: datetime
    epoch: int = 0
    watermark: int | None = None


class RuntimeContext:
    """The argument of `open`, which declares keyed state."""

    def __init__(self, state: KeyedState, info: TaskInfo) -> None:
        self.keyed_state = state
        """For the runtime only: all keyed state, in the current namespace."""
        self.info = info

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Returns the declared value state. Raises StateError if the name has another declaration."""
        return self.keyed_state.value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Returns the declared list state. Raises: as `get_state`."""
        return self.keyed_state.list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Returns the declared map state. Raises: as `get_state`."""
        return self.keyed_state.map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Returns the declared reducing state. Raises: as `get_state`."""
        return self.keyed_state.reducing_state(descriptor)

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor[In, Acc, Out]
    ) -> AggregatingState[In, Acc, Out]:
        """Returns the declared aggregating state. Raises: as `get_state`."""
        return self.keyed_state.aggregating_state(descriptor)

    def get_folding_state(self, descriptor: FoldingStateDescriptor[In, Acc]) -> AggregatingState[In, Acc, Acc]:
        """Deprecated: returns an aggregating state that folds. Raises: as `get_state`."""
        return self.keyed_state.folding_state(descriptor)


class Context:
    """The context of a row."""

    __slots__ = ("_key", "_operator_state", "_side", "_time_of", "_timers", "info", "row")

    def __init__(
        self,
        info: TaskInfo,
        timers: TimerService | None = None,
        side: SideOutputs | None = None,
        operator_state: OperatorStateStore | None = None,
    ) -> None:
        self.info = info
        self._operator_state = operator_state
        self.row: Any = None
        """For the runtime only: the row that is being processed."""
        self._key: tuple[object, ...] = ()
        self._side = side or SideOutputs()
        self._timers = timers or TimerService()
        self._time_of: Callable[[object], int | None] | None = None

    def output(self, tag: OutputTag[T], row: T) -> None:
        """Emits a row to a side output. The row is dropped if the job does not use that output."""
        self._side.add(tag, row)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """Returns a map that is the same in every subtask. Only rows of the broadcast stream may change it.

        Raises:
            StateError: the function has no broadcast stream, or the name has another declaration.
            IncompatibleState: the stored state cannot be read as the declared type.
        """
        if self._operator_state is None:
            raise StateError(
                "broadcast state requires a broadcast stream",
                hint="connect(other.broadcast()), with a KeyedBroadcastProcessFunction",
                name=descriptor.name,
            )
        return self._operator_state.get_broadcast_state(descriptor)

    def get_current_key(self) -> Any:
        """Returns the row's key: the column's value, or a tuple if the key has several columns.

        Raises:
            StateError: the row is of a broadcast stream.
        """
        if not self._key:
            raise StateError("a row of a broadcast stream has no key", hint="read the key in process_element")
        return self._key[0] if len(self._key) == 1 else self._key

    def current_processing_time(self) -> datetime:
        """Returns the batch's processing time, which is constant during the batch."""
        return self.info.processing_time

    def timer_service(self) -> TimerService:
        """Returns the current times and the timers of the current key."""
        return self._timers

    def timestamp(self) -> int | None:
        """Returns the row's event time in milliseconds since 1970; None if it has none, or no column is declared."""
        return None if self._time_of is None or self.row is None else self._time_of(self.row)

    @property
    def key_values(self) -> tuple[object, ...]:
        """For the runtime only: the current key's columns; empty for a row of a broadcast stream."""
        return self._key

    def set_key(self, key: tuple[object, ...]) -> None:
        """For the runtime only: sets the current key."""
        self._key = key

    def mark_side_outputs(self) -> dict[str, int]:
        """For the runtime only: returns the number of rows per side output, for `rollback_side_outputs`."""
        return self._side.mark()

    def side_outputs_since(self, mark: dict[str, int]) -> dict[str, list[object]]:
        """For the runtime only: returns the rows that were emitted to side outputs since `mark`, by tag name."""
        return self._side.since(mark)

    def rollback_side_outputs(self, mark: dict[str, int]) -> None:
        """For the runtime only: removes the rows that were emitted to side outputs since `mark`."""
        self._side.rollback(mark)

    def set_time_of(self, time_of: Callable[[object], int | None] | None) -> None:
        """For the runtime only: sets the function that returns a row's event time."""
        self._time_of = time_of

    def take_side_outputs(self) -> dict[str, list[object]]:
        """For the runtime only: returns the rows of side outputs by tag name, and removes them."""
        return self._side.take()


class OnTimerContext(Context):
    """The context of a timer."""

    __slots__ = ("_domain", "_timestamp")

    def __init__(
        self, info: TaskInfo, timers: TimerService, side: SideOutputs, operator_state: OperatorStateStore | None = None
    ) -> None:
        super().__init__(info, timers, side, operator_state)
        self._domain = TimeDomain.EVENT_TIME
        self._timestamp = 0

    def time_domain(self) -> TimeDomain:
        """Returns whether the timer is of event time or processing time."""
        return self._domain

    def timestamp(self) -> int | None:
        """Returns the timer's timestamp."""
        return self._timestamp

    def set_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """For the runtime only: sets the current timer."""
        self._domain = domain
        self._timestamp = timestamp


class KeyedFunction(Generic[Out]):
    """Base class of all functions of keyed streams.

    A copy of the object lives for one batch of one subtask. Store data that later batches need in state.

    Attributes:
        late_rows_dropped: number of rows of the batch that the function has dropped because they were too late. A
            metric has the sum of all functions.
        hot_keys: for a join, the number of pairs of rows that the batch has compared for each of some keys, which take
            most of its time. The run logs them.
    """

    late_rows_dropped = 0
    hot_keys: Mapping[str, int] = MappingProxyType({})

    def open(self, ctx: RuntimeContext) -> None:
        """Called once per batch and subtask, before the first row, to declare state."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Out] | None:
        """Called for each due timer, in order of time; returns or yields rows of the declared output class."""
        return None

    def on_batch_end(self, ctx: Context) -> Iterable[Out] | None:
        """Called for each key that had rows in the batch, after its last row."""
        return None

    def close(self) -> None:
        """Called once per batch and subtask, after the last row, also when a row failed."""


def has_timers(function: KeyedFunction[object]) -> bool:
    """Returns whether a function overrides `on_timer`."""
    return type(function).on_timer is not KeyedFunction.on_timer


class KeyedProcessFunction(KeyedFunction[Out], Generic[In, Out]):
    """A function of a keyed stream.

    A key's rows of one batch are processed one after another, in the order that `key_by` declares. Without a declared
    order, rows of sources are processed by event time if they have one and the function has timers; otherwise in order
    of arrival.
    """

    def process_element(self, row: In, ctx: Context) -> Iterable[Out] | None:
        """Called for each row; returns or yields rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element")
