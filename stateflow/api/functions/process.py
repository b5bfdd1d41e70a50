"""What users write: functions over keyed rows, and what these are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from stateflow.api.side_outputs import OutputTag, SideOutputs
from stateflow.api.timers import TimerService
from stateflow.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.errors import StateError
from stateflow.state.aggregating_state import AggregatingState
from stateflow.state.keyed import KeyedState
from stateflow.state.list_state import ListState
from stateflow.state.map_state import MapState
from stateflow.state.operator_state import BroadcastState, OperatorStateStore
from stateflow.state.reducing_state import ReducingState
from stateflow.state.timers import TimeDomain
from stateflow.state.value_state import ValueState

In = TypeVar("In")
Out = TypeVar("Out")
T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Acc = TypeVar("Acc")


@dataclass(frozen=True)
class TaskInfo:
    """Which subtask of which operator works, and what time it is for the whole batch.

    Attributes:
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
    """Given to `open`: where a function gets its state from."""

    def __init__(self, state: KeyedState, info: TaskInfo) -> None:
        self._state = state
        self.info = info

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """The declared value state. Raises StateError when the name is taken by another kind or type."""
        return self._state.value_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """The declared list state. Raises StateError as `get_state` does."""
        return self._state.list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """The declared map state. Raises StateError as `get_state` does."""
        return self._state.map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """The declared reducing state. Raises StateError as `get_state` does."""
        return self._state.reducing_state(descriptor)

    def get_aggregating_state(
        self, descriptor: AggregatingStateDescriptor[In, Acc, Out]
    ) -> AggregatingState[In, Acc, Out]:
        """The declared aggregating state. Raises StateError as `get_state` does."""
        return self._state.aggregating_state(descriptor)

    def get_folding_state(
        self, descriptor: FoldingStateDescriptor[In, Acc]
    ) -> AggregatingState[In, Acc, Acc]:
        """Deprecated: the aggregating state that folds. Raises StateError as `get_state` does."""
        return self._state.folding_state(descriptor)


class Context:
    """Given with each row."""

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
        self._key: tuple[Any, ...] = ()
        self._side = side or SideOutputs()
        self._timers = timers or TimerService()
        self._time_of: Callable[[Any], int | None] | None = None

    def output(self, tag: OutputTag[T], row: T) -> None:
        """Emits a row into a side output. It goes nowhere when the job does not use that output."""
        self._side.add(tag, row)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        """A map that is the same in every subtask. Rows of the broadcast stream may change it, others read it.

        Raises StateError in a function without a broadcast stream, and when the name is taken by another declaration;
        IncompatibleState when what is stored cannot be read as what is declared.
        """
        if self._operator_state is None:
            raise StateError("broadcast state needs a broadcast stream", hint="connect(other.broadcast()), with a "
                             "KeyedBroadcastProcessFunction", name=descriptor.name)  # fmt: skip
        return self._operator_state.get_broadcast_state(descriptor)

    def get_current_key(self) -> Any:
        """The row's key: the column's value, or a tuple when the key has several columns.

        Raises StateError for a row of a broadcast stream.
        """
        if not self._key:
            raise StateError("there is no current key", hint="rows of a broadcast stream have none")
        return self._key[0] if len(self._key) == 1 else self._key

    def current_processing_time(self) -> datetime:
        """The batch's processing time: one value for all its rows."""
        return self.info.processing_time

    def timer_service(self) -> TimerService:
        """The time, and the timers of the current key."""
        return self._timers

    def timestamp(self) -> int | None:
        """The row's event time, in milliseconds since 1970; None when it has none, and when none is declared."""
        return None if self._time_of is None or self.row is None else self._time_of(self.row)

    @property
    def key_values(self) -> tuple[Any, ...]:
        """For the runtime only: the current key's columns; empty for a row of a broadcast stream."""
        return self._key

    def set_key(self, key: tuple[Any, ...]) -> None:
        """For the runtime only."""
        self._key = key

    def mark_side_outputs(self) -> dict[str, int]:
        """For the runtime only: how much was emitted to side outputs, for `take_back_side_outputs`."""
        return self._side.mark()

    def take_back_side_outputs(self, mark: dict[str, int]) -> None:
        """For the runtime only: forgets what was emitted to side outputs since the mark."""
        self._side.take_back(mark)

    def set_time_of(self, time_of: Callable[[Any], int | None] | None) -> None:
        """For the runtime only: how the event time of the rows that come is read."""
        self._time_of = time_of

    def take_side_outputs(self) -> dict[str, list[Any]]:
        """For the runtime only: the rows by the tag's name, once."""
        return self._side.take()


class OnTimerContext(Context):
    """Given with each timer that is due."""

    __slots__ = ("_domain", "_timestamp")

    def __init__(
        self,
        info: TaskInfo,
        timers: TimerService,
        side: SideOutputs,
        operator_state: OperatorStateStore | None = None,
    ) -> None:
        super().__init__(info, timers, side, operator_state)
        self._domain = TimeDomain.EVENT_TIME
        self._timestamp = 0

    def time_domain(self) -> TimeDomain:
        """Which time the timer went by."""
        return self._domain

    def timestamp(self) -> int | None:
        """The timer's time."""
        return self._timestamp

    def set_timer(self, domain: TimeDomain, timestamp: int) -> None:
        """For the runtime only."""
        self._domain = domain
        self._timestamp = timestamp


class KeyedFunction(Generic[Out]):
    """What all functions over keyed rows have.

    An object of one lives for one batch: it is sent to the task, opened, fed, and thrown away. What must last goes into
    state.
    """

    def open(self, ctx: RuntimeContext) -> None:
        """Called once per batch and subtask, before the first row. Declare state here."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Out] | None:
        """Called for each timer that is due, in order of time; returns, or yields, rows of the declared output
        class."""
        return None

    def on_batch_end(self, ctx: Context) -> Iterable[Out] | None:
        """Called for each key that had rows in the batch, after the last of them."""
        return None

    def close(self) -> None:
        """Called once per batch and subtask, after the last row, also when a row failed."""


def has_timers(function: KeyedFunction[Any]) -> bool:
    """Whether a function does something when a timer is due."""
    return type(function).on_timer is not KeyedFunction.on_timer


class KeyedProcessFunction(KeyedFunction[Out], Generic[In, Out]):
    """A function over the rows of a keyed stream.

    A key's rows of one batch come one after another, in the order that `key_by` declares. Without a declared order, the
    rows of sources come by event time if they have one and the function has timers; else as they arrived.
    """

    def process_element(self, row: In, ctx: Context) -> Iterable[Out] | None:
        """Called for each row; returns, or yields, rows of the declared output class."""
        raise NotImplementedError(f"{type(self).__name__} has no process_element")
