"""Two streams for one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.functions import KeyedFunction
from stateflow.api.graph import Edge, Graph, Keying, Node, ProcessNode, in_time_order
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from stateflow.api.streams import DataStream

F = TypeVar("F", bound=KeyedFunction[Any])


@dataclass(frozen=True)
class BroadcastStream:
    """Rows that every subtask of an operator gets."""

    graph: Graph
    node: Node


class _TwoStreams(Generic[F]):
    """Two streams for one function.

    Args:
        add: puts the operator into the graph.
    """

    _function_class: type[KeyedFunction[Any]]
    _called: str

    def __init__(self, add: Callable[[ProcessNode], DataStream], inputs: tuple[Edge, Edge]) -> None:
        self._add = add
        self._inputs = inputs

    def process(
        self, function: F, *, output: type[Any], uid: str = "", on_error: str | DeadLetters = FAIL
    ) -> DataStream:
        """Runs a stateful function over the rows of each key; as `KeyedStream.process`."""
        if not isinstance(function, self._function_class):
            raise JobDefinitionError(f"process of {self._called} needs a {self._function_class.__name__} object",
                                     hint="make an object: process(MyFunction(), …)", given=repr(function),
                                     uid=uid)  # fmt: skip
        inputs, name = self._ordered(function), type(function).__qualname__
        return self._add(
            ProcessNode(uid, inputs, function, RowSchema.of(output), name, checked_policy(on_error))
        )

    def _ordered(self, function: F) -> tuple[Edge, ...]:
        """The inputs, in the order in which the function gets their rows."""
        return self._inputs


class ConnectedStreams(_TwoStreams[KeyedCoProcessFunction[Any, Any, Any]]):
    """Two keyed streams, whose function sees the rows of a key from both."""

    _function_class = KeyedCoProcessFunction
    _called = "connected streams"


class BroadcastConnectedStream(_TwoStreams[KeyedBroadcastProcessFunction[Any, Any, Any]]):
    """A keyed stream, and one that every subtask gets whole."""

    _function_class = KeyedBroadcastProcessFunction
    _called = "a broadcast connection"

    def _ordered(self, function: KeyedBroadcastProcessFunction[Any, Any, Any]) -> tuple[Edge, ...]:
        keyed, broadcast = self._inputs
        return in_time_order(keyed, function), broadcast


def checked_pair(first: Edge, second: Edge) -> tuple[Edge, Edge]:
    """Both, when their keys and orders are comparable. Raises JobDefinitionError."""
    assert first.keying is not None and second.keying is not None
    _refuse_unlike(
        "the keys of connected streams have different types", first.keying.types, second.keying.types
    )
    _refuse_unlike("connected streams are ordered by columns of different types", _order(first.node, first.keying),
                   _order(second.node, second.keying))  # fmt: skip
    return first, second


def _order(node: Node, keying: Keying) -> tuple[str, ...]:
    return tuple(node.schema.column(name).spark_type for name in keying.order_by)


def _refuse_unlike(sentence: str, first: tuple[str, ...], second: tuple[str, ...]) -> None:
    if first != second:
        raise JobDefinitionError(sentence, hint="bring both to the same types, in the same order", first=first,
                                 second=second)  # fmt: skip
