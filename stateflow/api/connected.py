"""Two streams for one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.graph import Edge, Graph, Keying, Node, ProcessNode
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from stateflow.api.streams import DataStream


@dataclass(frozen=True)
class BroadcastStream:
    """Rows that every subtask of an operator gets."""

    graph: Graph
    node: Node


class ConnectedStreams:
    """Two keyed streams, whose function sees the rows of a key from both.

    Args:
        add: puts the operator into the graph.
    """

    def __init__(self, add: Callable[[ProcessNode], DataStream], inputs: tuple[Edge, Edge]) -> None:
        self._add = add
        self._inputs = inputs

    def process(
        self,
        function: KeyedCoProcessFunction[Any, Any, Any],
        *,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Runs a stateful function over the rows of each key; as `KeyedStream.process`."""
        if not isinstance(function, KeyedCoProcessFunction):
            raise JobDefinitionError("process of connected streams needs a KeyedCoProcessFunction object", hint="make "
                                     "an object: process(MyFunction(), …)", given=repr(function), uid=uid)  # fmt: skip
        return self._add(ProcessNode(uid, self._inputs, function, RowSchema.of(output), type(function).__qualname__,
                                     checked_policy(on_error)))  # fmt: skip


class BroadcastConnectedStream:
    """A keyed stream, and one that every subtask gets whole.

    Args:
        add: puts the operator into the graph.
    """

    def __init__(self, add: Callable[[ProcessNode], DataStream], inputs: tuple[Edge, Edge]) -> None:
        self._add = add
        self._inputs = inputs

    def process(
        self,
        function: KeyedBroadcastProcessFunction[Any, Any, Any],
        *,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Runs a stateful function over the rows of each key; as `KeyedStream.process`."""
        if not isinstance(function, KeyedBroadcastProcessFunction):
            raise JobDefinitionError("process of a broadcast connection needs a KeyedBroadcastProcessFunction object",
                                     hint="make an object: process(MyFunction(), …)", given=repr(function),
                                     uid=uid)  # fmt: skip
        return self._add(ProcessNode(uid, self._inputs, function, RowSchema.of(output), type(function).__qualname__,
                                     checked_policy(on_error)))  # fmt: skip


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
