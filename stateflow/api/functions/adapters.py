"""Keyed process functions that implement `KeyedStream.map`, `reduce`, `map_with_state` and similar methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from stateflow.api.functions.process import Context, KeyedFunction, KeyedProcessFunction, RuntimeContext
from stateflow.api.functions.returned import InvalidReturnValue
from stateflow.api.functions.rich import RichFunction, RowStep, StepKind
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import ValueStateDescriptor

In = TypeVar("In", contravariant=True)
Acc = TypeVar("Acc")
Out = TypeVar("Out", covariant=True)
Row = TypeVar("Row")
Result = TypeVar("Result")
State = TypeVar("State")

_STATE_NAME = "value"
"""Name of the only state of these functions; part of the stored format."""


class StreamAggregateFunction(Protocol[In, Acc, Out]):
    """The methods of an aggregate function that `KeyedStream.aggregate` calls."""

    def create_accumulator(self) -> Acc:
        """Returns the accumulator of a key without rows."""

    def add(self, value: In, accumulator: Acc) -> Acc:
        """Returns the accumulator with one more row."""

    def get_result(self, accumulator: Acc) -> Out:
        """Returns the row to emit."""


class RowStepFunction(KeyedProcessFunction[object, object]):
    """`map`, `flat_map` or `filter` on a keyed stream."""

    def __init__(self, step: RowStep) -> None:
        self.step = step
        self._call = step.call

    def open(self, ctx: RuntimeContext) -> None:
        if isinstance(self.step.function, RichFunction):
            self.step.function.open(ctx)

    def process_element(self, row: object, ctx: Context) -> Iterable[object] | None:
        result: Any = self._call(row)
        if self.step.kind is StepKind.FLAT_MAP:
            rows: Iterable[object] | None = result
            return rows
        if self.step.kind is StepKind.MAP:
            return (result,)
        return (row,) if result else None

    def close(self) -> None:
        if isinstance(self.step.function, RichFunction):
            self.step.function.close()


def user_function(function: KeyedFunction[object]) -> object:
    """Returns the object that the user wrote; it may have more methods than its operator calls for rows."""
    return function.step.function if isinstance(function, RowStepFunction) else function


def row_callable(function: KeyedFunction[object], method: str) -> object:
    """Returns the user's callable whose rows `method` of the operator's function returns."""
    if isinstance(function, RowStepFunction):
        return function.step.call
    if isinstance(function, _ValueStateFunction):
        return function.function
    return getattr(function, method)


class _ValueStateFunction(KeyedProcessFunction[Row, Result], Generic[Row, Result, State]):
    """A function with one value per key.

    Attributes:
        function: the user's.
    """

    function: object
    _value: ValueState[State]

    def __init__(self, value_type: object) -> None:
        self._value_type = value_type

    def open(self, ctx: RuntimeContext) -> None:
        descriptor: ValueStateDescriptor[State] = ValueStateDescriptor(_STATE_NAME, self._value_type)
        self._value = ctx.get_state(descriptor)

    def _not_a_pair(self, returned: object) -> InvalidReturnValue:
        return InvalidReturnValue(
            self.function, returned, "return two values, the result and the new state", "return (result, state)"
        )


class ReduceRows(_ValueStateFunction[Row, Row, Row]):
    """`reduce`: the value is the result of all rows so far."""

    def __init__(self, function: Callable[[Row, Row], Row], value_type: object) -> None:
        super().__init__(value_type)
        self.function = self._reduce = function

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        before = self._value.value()
        after = row if before is None else self._reduce(before, row)
        self._value.update(after)
        return (after,)


class AggregateRows(_ValueStateFunction[Row, Result, State]):
    """`aggregate`: the value is the accumulator."""

    def __init__(self, function: StreamAggregateFunction[Row, State, Result], value_type: object) -> None:
        super().__init__(value_type)
        self.function = self._aggregate = function

    def process_element(self, row: Row, ctx: Context) -> Iterable[Result]:
        before = self._value.value()
        after = self._aggregate.add(row, self._aggregate.create_accumulator() if before is None else before)
        self._value.update(after)
        return (self._aggregate.get_result(after),)


class MapRowsWithState(_ValueStateFunction[Row, Result, State]):
    """`map_with_state`."""

    def __init__(self, function: Callable[[Row, Any], tuple[Result, State | None]], value_type: object) -> None:
        super().__init__(value_type)
        self.function = self._map = function

    def process_element(self, row: Row, ctx: Context) -> Iterable[Result]:
        returned = self._map(row, self._value.value())
        try:
            result, after = returned
        except (TypeError, ValueError) as e:
            raise self._not_a_pair(returned) from e
        self._value.update(after)
        return (result,)


class FlatMapRowsWithState(_ValueStateFunction[Row, Result, State]):
    """`flat_map_with_state`."""

    def __init__(
        self, function: Callable[[Row, Any], tuple[Iterable[Result], State | None]], value_type: object
    ) -> None:
        super().__init__(value_type)
        self.function = self._flat_map = function

    def process_element(self, row: Row, ctx: Context) -> Iterable[Result]:
        returned = self._flat_map(row, self._value.value())
        try:
            results, after = returned
        except (TypeError, ValueError) as e:
            raise self._not_a_pair(returned) from e
        self._value.update(after)
        return results


class FilterRowsWithState(_ValueStateFunction[Row, Row, State]):
    """`filter_with_state`."""

    def __init__(self, function: Callable[[Row, Any], tuple[bool, State | None]], value_type: object) -> None:
        super().__init__(value_type)
        self.function = self._filter = function

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row] | None:
        returned = self._filter(row, self._value.value())
        try:
            is_kept, after = returned
        except (TypeError, ValueError) as e:
            raise self._not_a_pair(returned) from e
        self._value.update(after)
        return (row,) if is_kept else None
