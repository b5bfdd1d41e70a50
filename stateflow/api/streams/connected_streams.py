"""Two streams that one function processes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Never, TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.graph import Edge, Graph, Node, ProcessNode, order_by_event_time
from stateflow.api.schema import Column, RowSchema
from stateflow.api.streams.operator_input import check_function
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.shapes import Leaf

Function = TypeVar("Function", bound=KeyedFunction[object])
Stream = TypeVar("Stream")
"""The class of result streams. A type variable, because that class has methods that return the classes below."""


@dataclass(frozen=True)
class BroadcastStream:
    """A stream whose rows every subtask of an operator receives."""

    graph: Graph
    node: Node


class _FunctionInputs(Generic[Function, Stream]):
    """The two inputs of a function.

    Args:
        add_operator: adds the operator to the graph and returns its output.
        inputs: the edges, in the order in which they were connected.
    """

    _function_class: type[KeyedFunction[object]]
    _description: str

    def __init__(self, add_operator: Callable[[ProcessNode], Stream], inputs: tuple[Edge, Edge]) -> None:
        self._add_operator = add_operator
        self._inputs = inputs

    def process(
        self, function: Function, *, output: type[object], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> Stream:
        """Runs a stateful function over the rows of each key. Arguments: see `KeyedStream.process`.

        Raises:
            JobDefinitionError: the function is not of the class that this connection needs.
        """
        check_function(f"process of {self._description}", function, self._function_class, uid)
        inputs, name = self._ordered_inputs(function), type(function).__qualname__
        node = ProcessNode(uid, inputs, function, RowSchema.of(output), name, check_policy(on_error))
        return self._add_operator(node)

    def _ordered_inputs(self, function: Function) -> tuple[Edge, ...]:
        """Returns the inputs with the row order that the function needs."""
        return self._inputs


class ConnectedStreams(_FunctionInputs[KeyedCoProcessFunction[Never, Never, object], Stream]):
    """Two keyed streams; the function processes the rows of a key from both."""

    _function_class = KeyedCoProcessFunction
    _description = "connected streams"


class BroadcastConnectedStream(_FunctionInputs[KeyedBroadcastProcessFunction[Never, Never, object], Stream]):
    """A keyed stream and a broadcast stream."""

    _function_class = KeyedBroadcastProcessFunction
    _description = "a broadcast connection"

    def _ordered_inputs(self, function: KeyedBroadcastProcessFunction[Never, Never, object]) -> tuple[Edge, ...]:
        keyed, broadcast = self._inputs
        return order_by_event_time(keyed, function), broadcast


def check_pair(first: Edge, second: Edge) -> tuple[Edge, Edge]:
    """Returns both edges.

    Raises:
        JobDefinitionError: the types of the keys or of the order columns differ.
    """
    assert first.keying is not None and second.keying is not None
    keys, others = (_types(edge.node, edge.keying.columns) for edge in (first, second) if edge.keying)
    _check_same_types("the keys of connected streams have different types", keys, others)
    orders, others = (_types(edge.node, edge.keying.order_by) for edge in (first, second) if edge.keying)
    _check_same_types("connected streams are ordered by columns of different types", orders, others)
    return first, second


def _types(node: Node, columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(_type_name, map(node.schema.column, columns)))


def _type_name(column: Column) -> str:
    """Returns a name of the column's type. A UUID and a text differ, although their columns have the same type."""
    shape = column.shape
    return shape.kind.__name__ if isinstance(shape, Leaf) and shape.is_converted else column.dtype


def _check_same_types(message: str, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    if first != second:
        raise JobDefinitionError(
            message, hint="convert both to the same types, in the same order", first=first, second=second
        )
