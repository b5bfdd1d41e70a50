"""The input of an operator of a keyed stream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Self, TypeVar

from stateflow.api.changelog import Changelog, check_appends, row_kind_of
from stateflow.api.dead_letters import DeadLetters, check_policy
from stateflow.api.functions.process import KeyedFunction
from stateflow.api.graph import Edge, Graph, Keying, Node, ProcessNode, ReducedNode, Reduction, order_by_event_time
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

Stream = TypeVar("Stream")


class OperatorInput(Generic[Stream]):
    """A stream with its key. `Stream` is the class of the streams that operators return.

    Args:
        add_operator: adds an operator to the graph and returns its output.
        changelog: how the rows correct earlier ones; None if they do not.
    """

    def __init__(
        self,
        graph: Graph,
        node: Node,
        keying: Keying,
        add_operator: Callable[[ProcessNode], Stream],
        changelog: Changelog | None = None,
    ) -> None:
        self._graph = graph
        self._node = node
        self._keying = keying
        self._edge = Edge(node, keying)
        self._add_operator = add_operator
        self._changelog = changelog

    def _operator(
        self, function: KeyedFunction[object], schema: RowSchema, uid: str, name: str, on_error: str | DeadLetters
    ) -> Stream:
        check_appends(self._changelog, name.split()[0], uid)
        return self._any_operator(function, schema, uid, name, on_error)

    def _any_operator(
        self, function: KeyedFunction[object], schema: RowSchema, uid: str, name: str, on_error: str | DeadLetters
    ) -> Stream:
        """Adds an operator that may take the rows of a changelog."""
        edge = order_by_event_time(self._edge, function)
        policy = check_policy(on_error)
        return self._add_operator(ProcessNode(uid, (edge,), function, schema, name, policy, appends=self._appends))

    def _with_reduced_rows(self, reduction: Reduction) -> Self:
        """Returns the input with reduced rows, without an order of their own."""
        changed = copy.copy(self)
        changed._edge = Edge(ReducedNode(self._node, reduction), replace(self._keying, order_by=()))
        return changed

    @property
    def _appends(self) -> bool:
        """Whether rows with a row kind are rows of their own, because the user called `as_append_only`."""
        return self._changelog is None and bool(row_kind_of(self._node.schema))


def operator_name(method: str, function: object) -> str:
    """Returns the name that plans and metrics show for an operator."""
    return f"{method} {getattr(function, '__qualname__', type(function).__qualname__)}"


def check_callable(method: str, function: object, uid: str) -> None:
    """Raises JobDefinitionError for a function that is a class, or cannot be called."""
    if isinstance(function, type) or not callable(function):
        raise JobDefinitionError(
            f"{method} needs a function",
            hint="pass a callable that takes two arguments",
            called=method,
            given=repr(function),
            uid=uid,
        )


def check_function(called: str, function: object, wanted: type[object], uid: str) -> None:
    """Raises JobDefinitionError for a function that is not an object of a class.

    Args:
        called: the method that takes the function, for the error.
        wanted: the class.
        uid: uid of the operator.
    """
    if not isinstance(function, wanted):
        raise JobDefinitionError(
            f"{called} needs a {wanted.__name__} object",
            hint="pass an instance: process(MyFunction(), …)",
            given=repr(function)[:200],
            wanted=wanted.__name__,
            uid=uid,
        )
