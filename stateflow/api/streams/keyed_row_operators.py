"""Operators of a keyed stream that call a function for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.functions.adapters import (
    FilterRowsWithState,
    FlatMapRowsWithState,
    MapRowsWithState,
    RowStepFunction,
)
from stateflow.api.functions.rich import RichFilterFunction, RichFlatMapFunction, RichMapFunction, RowStep, StepKind
from stateflow.api.graph.nodes import Node
from stateflow.api.schema import RowSchema
from stateflow.api.streams.keyed_input import KeyedInput, Stream, check_callable, operator_name

In = TypeVar("In")
Out = TypeVar("Out")
State = TypeVar("State")


class KeyedRowOperators(KeyedInput[Stream]):
    """Row functions, without state or with one value per key."""

    def map(
        self,
        function: Callable[[In], Out] | RichMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits one row per row. As `DataStream.map`; a `RichMapFunction` may use keyed state."""
        return self._row_step(RowStep(StepKind.MAP, function, _output_of(self._node, output)), uid, on_error)

    def flat_map(
        self,
        function: Callable[[In], Iterable[Out] | None] | RichFlatMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits zero or more rows per row. As `DataStream.flat_map`; a `RichFlatMapFunction` may use keyed state."""
        return self._row_step(RowStep(StepKind.FLAT_MAP, function, _output_of(self._node, output)), uid, on_error)

    def filter(
        self,
        function: Callable[[In], bool] | RichFilterFunction[In],
        *,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Keeps rows for which the function is true. As `DataStream.filter`; a `RichFilterFunction` may use state."""
        return self._row_step(RowStep(StepKind.FILTER, function, _output_of(self._node, None)), uid, on_error)

    def map_with_state(
        self,
        function: Callable[[In, State], tuple[Out, State | None]],
        *,
        state: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits one row per row, with one state value per key.

        Args:
            function: takes a row and the key's value, initially None. Returns a row and the new value; None clears it.
            state: type of the value.
            output: row class of the result.
        """
        name = _checked_name("map_with_state", function, uid)
        return self._operator(MapRowsWithState(function, state), RowSchema.of(output), uid, name, on_error)

    def flat_map_with_state(
        self,
        function: Callable[[In, State], tuple[Iterable[Out], State | None]],
        *,
        state: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Emits any number of rows per row, with one state value per key. As `map_with_state`."""
        name = _checked_name("flat_map_with_state", function, uid)
        return self._operator(FlatMapRowsWithState(function, state), RowSchema.of(output), uid, name, on_error)

    def filter_with_state(
        self,
        function: Callable[[In, State], tuple[bool, State | None]],
        *,
        state: object,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Keeps rows for which the function returns true, with one state value per key. As `map_with_state`."""
        name = _checked_name("filter_with_state", function, uid)
        kept = FilterRowsWithState(function, state)
        return self._operator(kept, self._node.schema, uid, name, on_error)

    def _row_step(self, step: RowStep, uid: str, on_error: str | DeadLetters) -> Stream:
        return self._operator(RowStepFunction(step), step.schema, uid, f"{step.kind.value} {step.name}", on_error)


def _output_of(node: Node, row_class: type[object] | None) -> RowSchema:
    return RowSchema.of(row_class) if row_class else node.schema


def _checked_name(method: str, function: object, uid: str) -> str:
    check_callable(method, function, uid)
    return operator_name(method, function)
