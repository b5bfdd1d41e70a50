"""A stream that is partitioned by key, and its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.functions.adapters import (
    AggregateRows,
    FilterRowsWithState,
    FlatMapRowsWithState,
    MapRowsWithState,
    ReduceRows,
    RowStepFunction,
    StreamAggregateFunction,
)
from stateflow.api.functions.process import KeyedFunction, KeyedProcessFunction
from stateflow.api.functions.queryable import KeepQueryableRow
from stateflow.api.functions.rich import RichFilterFunction, RichFlatMapFunction, RichMapFunction, RowStep, StepKind
from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.graph.event_time import event_time_of, ordered_by_event_time
from stateflow.api.graph.job_graph import Graph
from stateflow.api.graph.nodes import Edge, Keying, Node, PartialNode, ProcessNode
from stateflow.api.schema import RowSchema
from stateflow.api.streams.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    checked_pair,
)
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import StateDescriptor

Stream = TypeVar("Stream")
In = TypeVar("In")
Out = TypeVar("Out")
Acc = TypeVar("Acc")
State = TypeVar("State")


class KeyedStream(Generic[Stream]):
    """A stream that is partitioned by key. `Stream` is the class of the streams that its operators return.

    Args:
        add_operator: adds an operator to the graph and returns its output.
    """

    def __init__(self, graph: Graph, node: Node, keying: Keying, add_operator: Callable[[ProcessNode], Stream]) -> None:
        self._graph = graph
        self._node = node
        self._keying = keying
        self._edge = Edge(node, keying)
        self._add_operator = add_operator

    def process(
        self,
        function: KeyedProcessFunction[Any, Any] | VectorizedKeyedFunction,
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Runs a stateful function over the rows of each key, or of many keys at once if it is vectorized.

        Args:
            function: an instance; tasks receive a new copy for each batch.
            output: row class of the rows that it emits.
            uid: identifies the operator's state across all versions of the job.
            on_error: ``"fail"``: the run fails when the function raises, and nothing of the batch is committed. Or
                `DeadLetters`: such rows go to a side output. State is then encoded once per row instead of per key.

        Raises:
            JobDefinitionError: `function` is no instance of these classes, or is vectorized and has dead letters.
        """
        if not isinstance(function, KeyedProcessFunction | VectorizedKeyedFunction):
            raise JobDefinitionError(
                "process needs a KeyedProcessFunction object",
                hint="pass an instance: process(MyFunction(), …)",
                given=repr(function),
                uid=uid,
            )
        if isinstance(function, VectorizedKeyedFunction) and on_error != FAIL:
            raise JobDefinitionError(
                "a vectorized function has no dead letters",
                hint="it receives many rows per call: filter bad rows in the function, or use a KeyedProcessFunction",
                uid=uid,
            )
        return self._operator(function, RowSchema.of(output), uid, type(function).__qualname__, on_error)

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[Stream]: ...

    @overload
    def connect(self, other: KeyedStream[Stream]) -> ConnectedStreams[Stream]: ...

    def connect(
        self, other: KeyedStream[Stream] | BroadcastStream
    ) -> ConnectedStreams[Stream] | BroadcastConnectedStream[Stream]:
        """Connects this stream with another one, for a function that processes both.

        Args:
            other: a stream with keys of the same types, for a `KeyedCoProcessFunction`: both streams share its state.
                Or a broadcast stream, for a `KeyedBroadcastProcessFunction`.

        Raises:
            JobDefinitionError: `other` is no such stream of this job, or its keys have other types.
        """
        if isinstance(other, BroadcastStream) and other.graph is self._graph:
            return BroadcastConnectedStream(self._add_operator, (self._edge, Edge(other.node, None)))
        if isinstance(other, KeyedStream) and other._graph is self._graph:
            return ConnectedStreams(self._add_operator, checked_pair(self._edge, other._edge))
        raise JobDefinitionError(
            "connect needs a keyed or broadcast stream of the same job",
            hint="call key_by or broadcast on the other stream",
            given=type(other).__name__,
        )

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

    def reduce(self, function: Callable[[In, In], In], *, uid: str = "", on_error: str | DeadLetters = FAIL) -> Stream:
        """Combines the rows of each key. Emits the current result for each row.

        Args:
            function: takes the result of the earlier rows and a row, and returns a row of the same class.
        """
        _check_callable("reduce", function, uid)
        schema = self._node.schema
        name = _operator_name("reduce", function)
        return self._operator(ReduceRows(function, schema.row_class), schema, uid, name, on_error)

    def aggregate(
        self,
        function: StreamAggregateFunction[In, Acc, Out],
        *,
        accumulator: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Aggregates the rows of each key. Emits the current result for each row.

        Args:
            function: an object with `create_accumulator`, `add` and `get_result`, as of an `AggregateFunction`.
            accumulator: type of the accumulator.
            output: row class of the result.

        Raises:
            JobDefinitionError: `function` lacks one of these methods.
        """
        wanted = ("create_accumulator", "add", "get_result")
        if isinstance(function, type) or not all(callable(getattr(function, name, None)) for name in wanted):
            raise JobDefinitionError(
                "aggregate needs an aggregate function object",
                hint=f"with the methods {', '.join(wanted)}",
                given=repr(function),
                uid=uid,
            )
        name = _operator_name("aggregate", function)
        return self._operator(AggregateRows(function, accumulator), RowSchema.of(output), uid, name, on_error)

    def aggregate_columns(
        self,
        aggregates: Mapping[str, Sequence[str]],
        *,
        output: type[object],
        uid: str = "",
        divide_floats: bool = False,
    ) -> Stream:
        """Aggregates columns of each key, vectorized. Emits one row for each key that has rows in a batch.

        Args:
            aggregates: ``(kind, column)`` by output column. Kinds are ``sum``, ``count``, ``min``, ``max``, ``mean``,
                ``variance`` (of a sample), ``first``, ``last`` and ``approx_distinct`` (error about 2 %). Nulls are
                ignored. Rows are also aggregated before the shuffle if the stream has no event time and every
                aggregate is ``count`` of any column, ``sum`` or ``mean`` of an int, or ``min`` or ``max`` of anything
                but a float.
            output: row class with the key columns and the aggregates.
            divide_floats: aggregates sums and means of floats before the shuffle as well. Their last digits then depend
                on how Spark divides the rows, as in Spark's own aggregations.

        Raises:
            JobDefinitionError: an aggregate does not exist, or does not fit its column or the output class.
        """
        schema = RowSchema.of(output)
        try:
            function = ColumnAggregates(aggregates, self._keying.columns, self._node.schema, schema)
        except JobDefinitionError as e:
            e.add_facts(operator=uid)
            raise
        name = f"aggregate {', '.join(aggregates)}"
        # Tasks compute watermarks from the rows: with event time, all rows must reach the tasks.
        partial = None if event_time_of(self._node) else function.split(divide_floats)
        if partial is None:
            return self._operator(function, schema, uid, name, FAIL)
        edge = Edge(PartialNode(self._node, partial), replace(self._keying, order_by=()))
        return self._add_operator(ProcessNode(uid, (edge,), function, schema, name))

    def as_queryable_state(self, name: str, descriptor: StateDescriptor | None = None, *, uid: str) -> None:
        """Keeps the newest row of each key as a state that can be queried; the stream ends here, as in Flink.

        Args:
            name: the queryable name.
            descriptor: a `ValueStateDescriptor` of the row class, or a `ReducingStateDescriptor` that reduces the rows.
                Any other one is a JobDefinitionError: a list may grow without a limit.
        """
        function = KeepQueryableRow(name, self._node.schema.row_class, descriptor)
        self._operator(function, self._node.schema, uid, f"queryable {name}", FAIL)

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
        return self._operator(FilterRowsWithState(function, state), self._node.schema, uid, name, on_error)

    def _row_step(self, step: RowStep, uid: str, on_error: str | DeadLetters) -> Stream:
        return self._operator(RowStepFunction(step), step.schema, uid, f"{step.kind.value} {step.name}", on_error)

    def _operator(
        self, function: KeyedFunction[Any], schema: RowSchema, uid: str, name: str, on_error: str | DeadLetters
    ) -> Stream:
        edge = ordered_by_event_time(self._edge, function)
        return self._add_operator(ProcessNode(uid, (edge,), function, schema, name, checked_policy(on_error)))


def _output_of(node: Node, row_class: type[object] | None) -> RowSchema:
    return RowSchema.of(row_class) if row_class else node.schema


def _checked_name(method: str, function: object, uid: str) -> str:
    _check_callable(method, function, uid)
    return _operator_name(method, function)


def _operator_name(method: str, function: object) -> str:
    return f"{method} {getattr(function, '__qualname__', type(function).__qualname__)}"


def _check_callable(method: str, function: object, uid: str) -> None:
    if isinstance(function, type) or not callable(function):
        raise JobDefinitionError(
            f"{method} needs a function",
            hint="pass a callable that takes two arguments",
            called=method,
            given=repr(function),
            uid=uid,
        )
