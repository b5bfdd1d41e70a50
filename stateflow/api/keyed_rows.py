"""The short forms on keyed streams, as process functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar

from stateflow.api.functions import Context, KeyedFunction, KeyedProcessFunction, RuntimeContext
from stateflow.api.returned import WrongReturn
from stateflow.api.rich_functions import RichFunction, RowStep, StepKind
from stateflow.descriptors import ValueStateDescriptor

In = TypeVar("In", contravariant=True)
Acc = TypeVar("Acc")
Out = TypeVar("Out", covariant=True)

_NAME = "value"
"""Of the one state that a short form has: part of the stored format."""


class StreamAggregateFunction(Protocol[In, Acc, Out]):
    """What `KeyedStream.aggregate` needs of an aggregate function."""

    def create_accumulator(self) -> Acc:
        """The accumulator of a key without rows."""

    def add(self, value: In, accumulator: Acc) -> Acc:
        """The accumulator after one more row."""

    def get_result(self, accumulator: Acc) -> Out:
        """The row to emit."""


class StepRows(KeyedProcessFunction[Any, Any]):
    """`map`, `flat_map` and `filter` with keyed state."""

    def __init__(self, step: RowStep) -> None:
        self.step = step
        self._call = step.call

    def open(self, ctx: RuntimeContext) -> None:
        if isinstance(self.step.function, RichFunction):
            self.step.function.open(ctx)

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        result = self._call(row)
        if self.step.kind is StepKind.FLAT_MAP:
            return result  # type: ignore[no-any-return]
        if self.step.kind is StepKind.MAP:
            return (result,)
        return (row,) if result else None

    def close(self) -> None:
        if isinstance(self.step.function, RichFunction):
            self.step.function.close()


def hooks_of(function: KeyedFunction[Any]) -> object:
    """The object that the user wrote, which may have more methods than its operator calls for rows."""
    return function.step.function if isinstance(function, StepRows) else function


def written_function(function: KeyedFunction[Any], method: str) -> Any:
    """What the user wrote that gives the rows of `method`."""
    if isinstance(function, StepRows):
        return function.step.call
    if isinstance(function, _WithValue):
        return function.given
    return getattr(function, method)


class _WithValue(KeyedProcessFunction[Any, Any]):
    """A function with one value per key."""

    def __init__(self, function: Any, value_type: Any) -> None:
        self._function = function
        self._value_type = value_type

    @property
    def given(self) -> Any:
        """The user's function."""
        return self._function

    def open(self, ctx: RuntimeContext) -> None:
        self._value = ctx.get_state(ValueStateDescriptor(_NAME, self._value_type))

    def _no_pair(self, returned: object) -> WrongReturn:
        return WrongReturn(self._function, returned, "return two values, the result and the new state",
                           "return (result, state)")  # fmt: skip


class ReduceRows(_WithValue):
    """The value is what has come of all rows so far."""

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any]:
        before = self._value.value()
        after = row if before is None else self._function(before, row)
        self._value.update(after)
        return (after,)


class AggregateRows(_WithValue):
    """The value is the accumulator."""

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any]:
        before = self._value.value()
        after = self._function.add(row, self._function.create_accumulator() if before is None else before)
        self._value.update(after)
        return (self._function.get_result(after),)


class MapRowsWithState(_WithValue):
    """One row for each."""

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any]:
        returned = self._function(row, self._value.value())
        try:
            result, after = returned
        except (TypeError, ValueError) as e:
            raise self._no_pair(returned) from e
        self._value.update(after)
        return (result,)


class FlatMapRowsWithState(_WithValue):
    """Any number of rows for each."""

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        returned = self._function(row, self._value.value())
        try:
            results, after = returned
        except (TypeError, ValueError) as e:
            raise self._no_pair(returned) from e
        self._value.update(after)
        return results  # type: ignore[no-any-return]


class FilterRowsWithState(_WithValue):
    """Keeps some rows."""

    def process_element(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        returned = self._function(row, self._value.value())
        try:
            stays, after = returned
        except (TypeError, ValueError) as e:
            raise self._no_pair(returned) from e
        self._value.update(after)
        return (row,) if stays else None
