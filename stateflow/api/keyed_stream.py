"""Rows grouped by key, and the words on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stateflow.api.column_aggregates import ColumnAggregates
from stateflow.api.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams, checked_pair
from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.functions import KeyedFunction, KeyedProcessFunction
from stateflow.api.graph import (
    Edge,
    Graph,
    Keying,
    Node,
    PartialNode,
    ProcessNode,
    event_time_of,
    in_time_order,
)
from stateflow.api.keyed_rows import (
    AggregateRows,
    FilterRowsWithState,
    FlatMapRowsWithState,
    MapRowsWithState,
    ReduceRows,
    StepRows,
    StreamAggregateFunction,
)
from stateflow.api.rich_functions import RowStep, StepKind
from stateflow.api.schema import RowSchema
from stateflow.api.vectorized import VectorizedKeyedFunction
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from stateflow.api.streams import DataStream


class KeyedStream:
    """Rows grouped by key.

    Args:
        add: puts an operator into the graph.
    """

    def __init__(
        self, graph: Graph, node: Node, keys: Keying, add: Callable[[ProcessNode], DataStream]
    ) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys
        self._edge = Edge(node, keys)
        self._add = add

    def process(
        self,
        function: KeyedProcessFunction[Any, Any] | VectorizedKeyedFunction,
        *,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Runs a stateful function over the rows of each key, or, vectorized, of many keys at once.

        Args:
            function: is sent to tasks anew for each batch.
            output: row class of what it yields.
            uid: what the operator's state is matched by, over all versions of the job.
            on_error: ``"fail"``: the run fails when the function raises, and the batch leaves nothing behind. Or
                `DeadLetters`: such rows are kept apart. That costs an encoding of state per row instead of per key.
        """
        if not isinstance(function, KeyedProcessFunction | VectorizedKeyedFunction):
            raise JobDefinitionError("process needs a KeyedProcessFunction object", hint="make an object: "
                                     "process(MyFunction(), …)", given=repr(function), uid=uid)  # fmt: skip
        if isinstance(function, VectorizedKeyedFunction) and on_error != FAIL:
            raise JobDefinitionError("a vectorized function has no dead letters", hint="it gets many rows at once: "
                                     "tell good from bad ones in it, or work row by row", uid=uid)  # fmt: skip
        return self._operator(function, RowSchema.of(output), uid, type(function).__qualname__, on_error)

    def connect(self, other: KeyedStream | BroadcastStream) -> Any:
        """This stream and another for one function.

        Args:
            other: keyed by the same types: the function is a `KeyedCoProcessFunction`, and both streams share its
                state. Or broadcast: the function is a `KeyedBroadcastProcessFunction`.

        Returns:
            `ConnectedStreams` or `BroadcastConnectedStream`, which have `process`.
        """
        if isinstance(other, BroadcastStream) and other.graph is self._graph:
            return BroadcastConnectedStream(self._add, (self._edge, Edge(other.node, None)))
        if isinstance(other, KeyedStream) and other._graph is self._graph:
            return ConnectedStreams(self._add, checked_pair(self._edge, other._edge))
        raise JobDefinitionError("connect needs a keyed or broadcast stream of the same job", hint="call key_by or "
                                 "broadcast on the other stream", given=type(other).__name__)  # fmt: skip

    def map(
        self,
        function: Any,
        *,
        output: type[Any] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """As `DataStream.map`; a `RichMapFunction` may have state for each key."""
        return self._stepped(StepKind.MAP, function, output, uid, on_error)

    def flat_map(
        self,
        function: Any,
        *,
        output: type[Any] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """As `DataStream.flat_map`; a `RichFlatMapFunction` may have state for each key."""
        return self._stepped(StepKind.FLAT_MAP, function, output, uid, on_error)

    def filter(self, function: Any, *, uid: str = "", on_error: str | DeadLetters = FAIL) -> DataStream:
        """As `DataStream.filter`; a `RichFilterFunction` may have state for each key."""
        return self._stepped(StepKind.FILTER, function, None, uid, on_error)

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Combines the rows of each key: emits, for each row, what has come of all rows so far.

        Args:
            function: from what has come so far, and a row, to a row of the same class.
        """
        _check_callable("reduce", function, uid)
        schema = self._node.schema
        return self._operator(ReduceRows(function, schema.row_class), schema, uid, _name("reduce", function),
                              on_error)  # fmt: skip

    def aggregate(
        self,
        function: StreamAggregateFunction[Any, Any, Any],
        *,
        accumulator: Any,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Aggregates the rows of each key: emits, for each row, the result so far.

        Args:
            function: an object with `create_accumulator`, `add` and `get_result`, as an `AggregateFunction` has.
            accumulator: type of the accumulator.
            output: row class of the result.
        """
        wanted = ("create_accumulator", "add", "get_result")
        if isinstance(function, type) or not all(callable(getattr(function, name, None)) for name in wanted):
            raise JobDefinitionError("aggregate needs an aggregate function object", hint=f"with {', '.join(wanted)}",
                                     given=repr(function), uid=uid)  # fmt: skip
        return self._operator(AggregateRows(function, accumulator), RowSchema.of(output), uid,
                              _name("aggregate", function), on_error)  # fmt: skip

    def aggregate_columns(
        self,
        aggregates: Mapping[str, Sequence[str]],
        *,
        output: type[Any],
        uid: str = "",
        divide_floats: bool = False,
    ) -> DataStream:
        """Aggregates columns of each key, vectorized: emits one row for each key that had rows in a batch.

        Args:
            aggregates: by the output's column: ``(kind, column)``. Kinds are ``sum``, ``count``, ``min``, ``max``,
                ``mean``, ``variance`` (of a sample), ``first``, ``last`` and ``approx_distinct`` (within about 2 %).
                Nulls do not count. Where every one of them is ``count`` of any column, ``sum`` or ``mean`` of an int,
                or ``min`` or ``max`` of anything but a float, and the stream has no event time, rows are aggregated
                also before the shuffle.
            output: row class with the columns of the key and of the aggregates.
            divide_floats: aggregates sums and means of floats before the shuffle as well. Their last digits then depend
                on how Spark divides the rows, as they do in its own aggregations.

        Raises:
            JobDefinitionError: an aggregate, its column or the output class does not fit.
        """
        schema = RowSchema.of(output)
        try:
            function = ColumnAggregates(aggregates, self._keys.columns, self._node.schema, schema)
        except JobDefinitionError as e:
            e.add_facts(operator=uid)
            raise
        name = f"aggregate {', '.join(aggregates)}"
        # Watermarks are found in the rows, by the tasks: with an event time, all rows must get there.
        partial = None if event_time_of(self._node) else function.split(divide_floats)
        if partial is None:
            return self._operator(function, schema, uid, name, FAIL)
        edge = Edge(PartialNode(self._node, partial), replace(self._keys, order_by=()))
        return self._add(ProcessNode(uid, (edge,), function, schema, name))

    def map_with_state(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        *,
        state: Any,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Makes one row of each, with the help of a value per key.

        Args:
            function: from a row and the key's value, None at first, to a row and the new value; None clears it.
            state: type of the value.
            output: row class of the result.
        """
        _check_callable("map_with_state", function, uid)
        return self._operator(MapRowsWithState(function, state), RowSchema.of(output), uid,
                              _name("map_with_state", function), on_error)  # fmt: skip

    def flat_map_with_state(
        self,
        function: Callable[[Any, Any], tuple[Iterable[Any], Any]],
        *,
        state: Any,
        output: type[Any],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """As `map_with_state`, with any number of rows for each."""
        _check_callable("flat_map_with_state", function, uid)
        return self._operator(FlatMapRowsWithState(function, state), RowSchema.of(output), uid,
                              _name("flat_map_with_state", function), on_error)  # fmt: skip

    def filter_with_state(
        self,
        function: Callable[[Any, Any], tuple[bool, Any]],
        *,
        state: Any,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """As `map_with_state`; the function says whether the row stays."""
        _check_callable("filter_with_state", function, uid)
        return self._operator(FilterRowsWithState(function, state), self._node.schema, uid,
                              _name("filter_with_state", function), on_error)  # fmt: skip

    def _stepped(
        self,
        kind: StepKind,
        function: Any,
        output: type[Any] | None,
        uid: str,
        on_error: str | DeadLetters,
    ) -> DataStream:
        schema = RowSchema.of(output) if output else self._node.schema
        step = RowStep(kind, function, schema)
        return self._operator(StepRows(step), schema, uid, f"{kind.value} {step.name}", on_error)

    def _operator(
        self,
        function: KeyedFunction[Any],
        schema: RowSchema,
        uid: str,
        name: str,
        on_error: str | DeadLetters,
    ) -> DataStream:
        edge = in_time_order(self._edge, function)
        return self._add(ProcessNode(uid, (edge,), function, schema, name, checked_policy(on_error)))


def _name(word: str, function: Any) -> str:
    return f"{word} {getattr(function, '__qualname__', type(function).__qualname__)}"


def _check_callable(word: str, function: Any, uid: str) -> None:
    if isinstance(function, type) or not callable(function):
        raise JobDefinitionError(f"{word} needs a function", hint="a callable that takes two arguments",
                                 given=repr(function), uid=uid)  # fmt: skip
