"""What `build` works with: streams, keyed streams, and the words on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.api.column_aggregates import ColumnAggregates
from stateflow.api.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams, checked_pair
from stateflow.api.functions import KeyedFunction, KeyedProcessFunction
from stateflow.api.graph import (
    Edge,
    Graph,
    Keying,
    Node,
    ProcessNode,
    RowsNode,
    SinkNode,
    TransformNode,
    UnionNode,
    keying,
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
from stateflow.api.printing import PrintSink
from stateflow.api.rich_functions import RichFunction, RowStep, StepKind
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink
from stateflow.api.vectorized import VectorizedKeyedFunction
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DataStream:
    """Rows of one class. A Spark DataFrame until it is keyed."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph = graph
        self._node = node

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self._node.schema

    def transform(
        self, function: Callable[[DataFrame], DataFrame], schema: type[Any] | None = None
    ) -> DataStream:
        """Applies any stateless Spark expression to each batch: select, filter, join with a static table, UDFs.

        Args:
            function: from frame to frame; must be deterministic and may not count, collect or write.
            schema: row class of the result; by default that of this stream.
        """
        if not callable(function):
            raise JobDefinitionError("transform needs a function", hint="from DataFrame to DataFrame",
                                     given=repr(function))  # fmt: skip
        result = RowSchema.of(schema) if schema else self._node.schema
        return DataStream(self._graph, TransformNode(self._node, function, result))

    def map(
        self, function: Callable[[Any], Any] | RichFunction, *, output: type[Any] | None = None
    ) -> DataStream:
        """Makes one row of each.

        Args:
            function: a callable that takes a row, or a `RichMapFunction` object. Must be deterministic: it may be
                called more than once with a row.
            output: row class of the result; by default that of this stream.
        """
        return self._step(StepKind.MAP, function, output)

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any] | None] | RichFunction,
        *,
        output: type[Any] | None = None,
    ) -> DataStream:
        """Makes any number of rows of each; as `map`, with a `RichFlatMapFunction`."""
        return self._step(StepKind.FLAT_MAP, function, output)

    def filter(self, function: Callable[[Any], bool] | RichFunction) -> DataStream:
        """Keeps the rows for which the function is true; as `map`, with a `RichFilterFunction`."""
        return self._step(StepKind.FILTER, function, None)

    def union(self, *others: DataStream) -> DataStream:
        """The rows of this stream and of the others, which must have the same columns.

        Raises JobDefinitionError that names the columns.
        """
        if not others:
            raise JobDefinitionError("union needs another stream", hint="first.union(second, …)")
        for other in others:
            _check_stream("union", other, self._graph)
            if other.schema.columns != self.schema.columns:
                raise JobDefinitionError("the streams of a union have different columns", hint="bring them to one row "
                                         "class with map or transform", first=self.schema.ddl,
                                         other=other.schema.ddl)  # fmt: skip
        return DataStream(self._graph, UnionNode((self._node, *(other._node for other in others))))

    def broadcast(self) -> BroadcastStream:
        """The same rows for every subtask of the operator that a keyed stream is connected to them for."""
        return BroadcastStream(self._graph, self._node)

    def get_side_output(self, tag: OutputTag[Any]) -> DataStream:
        """What the operator that makes this stream emits with `ctx.output(tag, row)`.

        Raises JobDefinitionError when this is not the stream of a keyed operator.
        """
        if not isinstance(tag, OutputTag):
            raise JobDefinitionError("get_side_output needs an OutputTag", hint="the one that the function emits with",
                                     given=repr(tag))  # fmt: skip
        if not isinstance(self._node, ProcessNode):
            raise JobDefinitionError("only a keyed operator has side outputs", hint="call get_side_output on what "
                                     "process returned", tag=tag.name)  # fmt: skip
        return DataStream(self._graph, self._graph.side_output(self._node, tag))

    def key_by(self, *columns: str, order_by: Sequence[str] = ()) -> KeyedStream:
        """Sends all rows of a key to one subtask.

        Args:
            columns: the key. Its types become part of the state's format.
            order_by: columns that order a key's rows within a batch; ties keep their order of arrival.
        """
        return KeyedStream(self._graph, self._node, keying(self._node, columns, tuple(order_by)))

    def sink_to(self, sink: Sink, *, uid: str = "") -> None:
        """Writes the rows to `sink`. The uid is what the sink's table remembers this stream by."""
        if not isinstance(sink, Sink):
            raise JobDefinitionError("sink_to needs a sink", hint="an object such as DeltaSink(path)", given=repr(sink),
                                     uid=uid)  # fmt: skip
        self._graph.add_sink(SinkNode(uid, self._node, sink))

    def print(self, *, uid: str = "print", limit: int = 100) -> None:
        """Prints the rows of committed batches on the driver's standard output.

        At least once: rows are printed after their commit, and again when a run dies between printing them and telling
        the log. Meant for looking at a job, not for output that somebody depends on.

        Args:
            uid: only needs to be given for the second one.
            limit: rows that are printed of each subtask and batch; how many more there were is told.
        """
        self.sink_to(PrintSink(limit), uid=uid)

    def _step(self, kind: StepKind, function: Any, output: type[Any] | None) -> DataStream:
        schema = RowSchema.of(output) if output else self._node.schema
        return DataStream(self._graph, RowsNode(self._node, RowStep(kind, function, schema)))


class KeyedStream:
    """Rows grouped by key."""

    def __init__(self, graph: Graph, node: Node, keys: Keying) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys

    def process(
        self,
        function: KeyedProcessFunction[Any, Any] | VectorizedKeyedFunction,
        *,
        output: type[Any],
        uid: str = "",
    ) -> DataStream:
        """Runs a stateful function over the rows of each key, or, vectorized, of many keys at once.

        Args:
            function: is sent to tasks anew for each batch.
            output: row class of what it yields.
            uid: what the operator's state is matched by, over all versions of the job.
        """
        if not isinstance(function, KeyedProcessFunction | VectorizedKeyedFunction):
            raise JobDefinitionError("process needs a KeyedProcessFunction object", hint="make an object: "
                                     "process(MyFunction(), …)", given=repr(function), uid=uid)  # fmt: skip
        return self._operator(function, RowSchema.of(output), uid, type(function).__qualname__)

    def connect(self, other: KeyedStream | BroadcastStream) -> Any:
        """This stream and another for one function.

        Args:
            other: keyed by the same types: the function is a `KeyedCoProcessFunction`, and both streams share its
                state. Or broadcast: the function is a `KeyedBroadcastProcessFunction`.

        Returns:
            `ConnectedStreams` or `BroadcastConnectedStream`, which have `process`.
        """
        own = Edge(self._node, self._keys)
        if isinstance(other, BroadcastStream) and other.graph is self._graph:
            return BroadcastConnectedStream(self._add, (own, Edge(other.node, None)))
        if isinstance(other, KeyedStream) and other._graph is self._graph:
            return ConnectedStreams(self._add, checked_pair(own, Edge(other._node, other._keys)))
        raise JobDefinitionError("connect needs a keyed or broadcast stream of the same job", hint="call key_by or "
                                 "broadcast on the other stream", given=type(other).__name__)  # fmt: skip

    def map(self, function: Any, *, output: type[Any] | None = None, uid: str = "") -> DataStream:
        """As `DataStream.map`; a `RichMapFunction` may have state for each key."""
        return self._stepped(StepKind.MAP, function, output, uid)

    def flat_map(self, function: Any, *, output: type[Any] | None = None, uid: str = "") -> DataStream:
        """As `DataStream.flat_map`; a `RichFlatMapFunction` may have state for each key."""
        return self._stepped(StepKind.FLAT_MAP, function, output, uid)

    def filter(self, function: Any, *, uid: str = "") -> DataStream:
        """As `DataStream.filter`; a `RichFilterFunction` may have state for each key."""
        return self._stepped(StepKind.FILTER, function, None, uid)

    def reduce(self, function: Callable[[Any, Any], Any], *, uid: str = "") -> DataStream:
        """Combines the rows of each key: emits, for each row, what has come of all rows so far.

        Args:
            function: from what has come so far, and a row, to a row of the same class.
        """
        _check_callable("reduce", function, uid)
        schema = self._node.schema
        return self._operator(ReduceRows(function, schema.row_class), schema, uid, _name("reduce", function))

    def aggregate(
        self,
        function: StreamAggregateFunction[Any, Any, Any],
        *,
        accumulator: Any,
        output: type[Any],
        uid: str = "",
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
                              _name("aggregate", function))  # fmt: skip

    def aggregate_columns(
        self, aggregates: Mapping[str, Sequence[str]], *, output: type[Any], uid: str = ""
    ) -> DataStream:
        """Aggregates columns of each key, vectorized: emits one row for each key that had rows in a batch.

        Args:
            aggregates: by the output's column: ``(kind, column)``. Kinds are ``sum``, ``count``, ``min``, ``max``,
                ``mean``, ``variance`` (of a sample), ``first``, ``last`` and ``approx_distinct`` (within about 2 %).
                Nulls do not count.
            output: row class with the columns of the key and of the aggregates.

        Raises:
            JobDefinitionError: an aggregate, its column or the output class does not fit.
        """
        schema = RowSchema.of(output)
        function = ColumnAggregates(aggregates, self._keys.columns, self._node.schema, schema)
        return self._operator(function, schema, uid, f"aggregate {', '.join(aggregates)}")

    def map_with_state(
        self, function: Callable[[Any, Any], tuple[Any, Any]], *, state: Any, output: type[Any], uid: str = ""
    ) -> DataStream:
        """Makes one row of each, with the help of a value per key.

        Args:
            function: from a row and the key's value, None at first, to a row and the new value; None clears it.
            state: type of the value.
            output: row class of the result.
        """
        _check_callable("map_with_state", function, uid)
        return self._operator(MapRowsWithState(function, state), RowSchema.of(output), uid,
                              _name("map_with_state", function))  # fmt: skip

    def flat_map_with_state(
        self,
        function: Callable[[Any, Any], tuple[Iterable[Any], Any]],
        *,
        state: Any,
        output: type[Any],
        uid: str = "",
    ) -> DataStream:
        """As `map_with_state`, with any number of rows for each."""
        _check_callable("flat_map_with_state", function, uid)
        return self._operator(FlatMapRowsWithState(function, state), RowSchema.of(output), uid,
                              _name("flat_map_with_state", function))  # fmt: skip

    def filter_with_state(
        self, function: Callable[[Any, Any], tuple[bool, Any]], *, state: Any, uid: str = ""
    ) -> DataStream:
        """As `map_with_state`; the function says whether the row stays."""
        _check_callable("filter_with_state", function, uid)
        return self._operator(FilterRowsWithState(function, state), self._node.schema, uid,
                              _name("filter_with_state", function))  # fmt: skip

    def _stepped(self, kind: StepKind, function: Any, output: type[Any] | None, uid: str) -> DataStream:
        schema = RowSchema.of(output) if output else self._node.schema
        step = RowStep(kind, function, schema)
        return self._operator(StepRows(step), schema, uid, f"{kind.value} {step.name}")

    def _operator(self, function: KeyedFunction[Any], schema: RowSchema, uid: str, name: str) -> DataStream:
        return self._add(ProcessNode(uid, (Edge(self._node, self._keys),), function, schema, name))

    def _add(self, node: ProcessNode) -> DataStream:
        return DataStream(self._graph, self._graph.add_operator(node))


def _name(word: str, function: Any) -> str:
    return f"{word} {getattr(function, '__qualname__', type(function).__qualname__)}"


def _check_callable(word: str, function: Any, uid: str) -> None:
    if isinstance(function, type) or not callable(function):
        raise JobDefinitionError(f"{word} needs a function", hint="a callable that takes two arguments",
                                 given=repr(function), uid=uid)  # fmt: skip


def _check_stream(word: str, other: object, graph: Graph) -> None:
    if not isinstance(other, DataStream) or other._graph is not graph:
        raise JobDefinitionError(f"{word} needs streams of the same job", hint="call key_by after it",
                                 given=type(other).__name__)  # fmt: skip
