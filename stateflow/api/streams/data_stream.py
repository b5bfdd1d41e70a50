"""A stream of rows, and its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Never, TypeVar

from stateflow.api.changelog import (
    Changelog,
    after_filter,
    after_flat_map,
    after_map,
    check_key_by,
    check_row_kind,
    of_union,
    with_keys,
)
from stateflow.api.dead_letters import FAIL, DeadLetters, check_policy
from stateflow.api.functions.checkpointed import CheckpointedFunction, CheckpointListener
from stateflow.api.functions.rich import (
    RichFilterFunction,
    RichFlatMapFunction,
    RichMapFunction,
    RowFunction,
    RowStep,
    StepKind,
)
from stateflow.api.functions.vectorized import ColumnsFunction
from stateflow.api.graph import (
    ONE_KEY,
    ColumnsNode,
    Graph,
    Node,
    ProcessNode,
    RowsNode,
    SinkNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    add_stream_facts,
    changelog_of,
    level_of,
    make_keying,
    sources_of,
    watermark_strategies,
)
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin, cache_table, check_lookup
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import PrintSink, Sink
from stateflow.api.streams.all_windowed_stream import AllWindowedStream
from stateflow.api.streams.connected_streams import BroadcastStream
from stateflow.api.streams.joins.joined_streams import JoinedStreams, WindowedCoGroup, WindowedJoin
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.streams.operator_input import OperatorInput
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.watermarks import WatermarkStrategy
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stateflow.api.joins.lookup_join import ReadTable
    from stateflow.api.source import Source


In = TypeVar("In")
Out = TypeVar("Out")
Row = TypeVar("Row")


class DataStream:
    """A stream of rows of one class; a Spark DataFrame up to `key_by`."""

    def __init__(self, graph: Graph, node: Node, changelog: Changelog | None = None) -> None:
        self._graph = graph
        self._node = node
        self._changelog = changelog

    @classmethod
    def from_node(cls, graph: Graph, node: Node) -> DataStream:
        """Returns the rows of a source or an operator, which its declaration or a `RowKind` field makes a changelog."""
        return cls(graph, node, changelog_of(node))

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        return self._node.schema

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        output: type[object] | None = None,
        *,
        schema: type[object] | None = None,
    ) -> DataStream:
        """Applies a stateless Spark expression to each batch: select, filter, join with a static table, UDFs.

        What needs other rows of the stream, such as an aggregate, is refused before a run.

        Args:
            function: takes and returns a DataFrame; must be deterministic and may not count, collect or write.
            output: row class of the result; by default the class of this stream.
            schema: an alias of `output`, named as in sources.

        Raises:
            JobDefinitionError: `function` is not callable, or `output` and `schema` differ.
        """
        _check_callable("transform", function, "a function that takes and returns a DataFrame")
        node = TransformNode(self._node, function, self._output(_one_class(output, schema)))
        return DataStream(self._graph, node, after_map(self._changelog, self.schema, node.schema))

    def transform_columns(self, function: ColumnsFunction, *, output: type[object] | None = None) -> DataStream:
        """Applies a stateless function to the rows as Arrow columns: filter, computed columns, any number of rows.

        Directly after an operator or a `FileSource` of local Parquet files, tasks call it without rows of Spark.

        Args:
            function: takes some rows as a `pyarrow.RecordBatch`, how many differs between runs, and returns rows with
                the columns of `output` as one or a `pyarrow.Table`, or None. Must be deterministic.
            output: row class of the result; by default the class of this stream.
        """
        _check_callable("transform_columns", function, "a function that takes and returns Arrow columns")
        node = ColumnsNode(self._node, function, self._output(output))
        return DataStream(self._graph, node, after_map(self._changelog, self.schema, node.schema))

    def map(
        self,
        function: Callable[[In], Out] | RichMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Emits one row per row.

        Args:
            function: a callable that takes a row, or a `RichMapFunction` object. Must be deterministic: it may be
                called more than once with a row.
            output: row class of the result; by default the class of this stream.
            on_error: ``"fail"``, or `DeadLetters`: then the function, or a copy of it, is called twice with each row.
        """
        return self._row_step(StepKind.MAP, function, output, on_error)

    def flat_map(
        self,
        function: Callable[[In], Iterable[Out] | None] | RichFlatMapFunction[In, Out],
        *,
        output: type[object] | None = None,
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Emits any number of rows per row. As `map`, with a `RichFlatMapFunction`."""
        return self._row_step(StepKind.FLAT_MAP, function, output, on_error)

    def filter(
        self, function: Callable[[In], bool] | RichFilterFunction[In], *, on_error: str | DeadLetters = FAIL
    ) -> DataStream:
        """Keeps the rows for which the function is true. As `map`, with a `RichFilterFunction`."""
        return self._row_step(StepKind.FILTER, function, None, on_error)

    def union(self, *others: DataStream) -> DataStream:
        """Returns the rows of this stream and of the others, which must have the same columns.

        Raises:
            JobDefinitionError: the columns differ, or a stream belongs to another job.
        """
        if not others:
            raise JobDefinitionError("union needs another stream", hint="call first.union(second, …)", called="union")
        for other in others:
            _check_union(self, other)
        changelog = of_union([self._changelog, *(other._changelog for other in others)])
        return DataStream(self._graph, UnionNode((self._node, *(other._node for other in others))), changelog)

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """Returns the same rows with event time, in a column that must exist up to the first `key_by`.

        The watermark is computed per source, from the rows of earlier batches.

        Raises:
            JobDefinitionError: the stream has rows of several sources or of an operator, or the column holds no
                timestamps.
        """
        if not isinstance(strategy, WatermarkStrategy):
            raise JobDefinitionError(
                "assign_timestamps_and_watermarks needs a WatermarkStrategy",
                hint="such as WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5))",
                given=repr(strategy),
            )
        sources = sorted({source.uid for source in sources_of(self._node)})
        if level_of(self._node) or len(sources) != 1:
            raise JobDefinitionError(
                "event time must be declared on the stream of one source",
                hint="call assign_timestamps_and_watermarks before union and before key_by",
                sources=sources,
            )
        with add_stream_facts("assign_timestamps_and_watermarks", self._node):
            strategy.check(self.schema)
        node = WatermarkNode(self._node, strategy)
        watermark_strategies([node])
        return DataStream(self._graph, node, self._changelog)

    def broadcast(self) -> BroadcastStream:
        """Returns the stream for `KeyedStream.connect`; every subtask of that operator receives all of its rows."""
        check_row_kind(self._changelog, "broadcast")
        return BroadcastStream(self._graph, self._node)

    def get_side_output(self, tag: OutputTag[Row]) -> DataStream:
        """Returns the rows that the operator of this stream emits with `ctx.output(tag, row)`.

        Raises:
            JobDefinitionError: this is not the output of a keyed operator.
        """
        if not isinstance(tag, OutputTag):
            raise JobDefinitionError(
                "get_side_output needs an OutputTag", hint="pass the tag that the function emits to", given=repr(tag)
            )
        if not isinstance(self._node, ProcessNode):
            raise JobDefinitionError(
                "get_side_output needs the output of a keyed operator",
                hint="call get_side_output on the stream that process returned",
                tag=tag.name,
            )
        return DataStream.from_node(self._graph, self._graph.side_output(self._node, tag))

    def get_dead_letters(self) -> DataStream:
        """Returns the rows for which the function of this stream raised, as `DeadLetter` rows.

        Raises:
            JobDefinitionError: the function was not declared with ``on_error=DeadLetters(…)``.
        """
        return DataStream(self._graph, self._graph.dead_letters(self._node))

    def key_by(self, *columns: str, order_by: str | Sequence[str] = ()) -> KeyedStream[DataStream]:
        """Partitions the stream by key: one subtask processes all rows of a key.

        Args:
            columns: the key. Its types become part of the state's format.
            order_by: column, or columns, that order a key's rows within a batch; ties keep their order of arrival.
        """
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        keying = make_keying(self._node, columns, order)
        check_key_by(self._changelog, columns)
        return KeyedStream(self._graph, self._node, keying, self._add_operator, self._changelog)

    def window_all(self, assigner: WindowAssigner[Never]) -> AllWindowedStream[DataStream]:
        """Divides all rows of the stream into windows. One subtask processes them: prefer `key_by` and `window`.

        Args:
            assigner: such as ``TumblingEventTimeWindows.of(timedelta(minutes=5))``.

        Raises:
            JobDefinitionError: `assigner` is not a window assigner, or needs event time and the stream has none;
                or the stream is a changelog.
        """
        keyed = OperatorInput(self._graph, self._node, ONE_KEY, self._add_operator, self._changelog)
        return AllWindowedStream(WindowedStream.of(keyed, assigner))

    def lookup_join(
        self,
        read: ReadTable | Source,
        *,
        on: str | Mapping[str, str],
        output: type[object],
        how: str = "left",
        cache: timedelta | None = None,
    ) -> DataStream:
        """Adds columns of a table to each row, before `key_by`: the content of the table when the batch runs.

        The semantics are as with processing time: a batch that is repeated after a failure sees the table as it is
        then, and results are not corrected when the table changes. Needs Spark, and a table that fits into memory.

        Args:
            read: a `DeltaSource` without changes or a `FileSource`, of which all present rows are read; or a function
                that returns the table: ``lambda spark: spark.read.jdbc(…)``. Each join reads it by itself.
            on: the column that must be equal, or columns of the stream with those of the table: ``{"origin": "faa"}``.
            output: class of the result. A field has the value of the stream's column of its name, or of the table's.
            how: ``left``: a row without a match has nulls; ``inner``: it is dropped. A row may have several matches.
            cache: for how long a content that was read is used for further batches; by default for one batch.

        Raises:
            JobDefinitionError: an argument is not valid, or the stream has no such column.
        """
        names = {on: on} if isinstance(on, str) else dict(on)
        check_lookup(read, names, how, cache)
        for name in names:
            self.schema.column(name)
        columns = LookupColumns(names, RowSchema.of(output).names, how)
        return self.transform(LookupJoin(cache_table(read, cache), columns), output)

    def join(self, other: DataStream) -> JoinedStreams[DataStream, WindowedJoin[DataStream]]:
        """Joins the rows of both streams with equal columns that are in the same window.

        ``a.join(b).where("id").equal_to("id").window(…).apply(function, output=…, uid=…)``

        Raises:
            JobDefinitionError: `other` is not a stream of the same job.
        """
        pair = self.key_by, self._check_other(other, "join").key_by
        return JoinedStreams(pair, lambda keyed, assigner: WindowedJoin(keyed, assigner, "join"))

    def co_group(self, other: DataStream) -> JoinedStreams[DataStream, WindowedCoGroup[DataStream]]:
        """Groups the rows of both streams with equal columns that are in the same window. Used as `join`."""
        pair = self.key_by, self._check_other(other, "co_group").key_by
        return JoinedStreams(pair, lambda keyed, assigner: WindowedCoGroup(keyed, assigner, "co_group"))

    def as_append_only(self) -> DataStream:
        """Returns the stream with each row as a row of its own; a `RowKind` is a column like others from then on."""
        return DataStream(self._graph, self._node)

    def as_changelog(self, *keys: str, retracts: bool = False) -> DataStream:
        """Returns the stream as a changelog: each row replaces the earlier row of its key.

        Args:
            keys: the columns of the upsert key. All rows of a key must come from the same key of an operator, or the
                same partition of a source. By a column of type `RowKind`, some of them are deletes.
            retracts: whether each row that is replaced or deleted is retracted by an equal row of kind `UPDATE_BEFORE`
                or `DELETE`. Operators may then drop, count and divide the rows in any way, and no key is needed.
        """
        return DataStream(self._graph, self._node, with_keys(self.schema, keys, retracts=retracts))

    def sink_to(self, sink: Sink, *, uid: str = "") -> None:
        """Writes the rows to `sink`.

        Args:
            uid: identifies this sink; the sink's table stores it with each commit.

        Raises:
            JobDefinitionError: the stream is a changelog, and the sink only appends rows, or has other keys.
        """
        if not isinstance(sink, Sink):
            raise JobDefinitionError(
                "sink_to needs a Sink", hint="pass an object such as DeltaSink(path)", given=repr(sink), uid=uid
            )
        if self._changelog is not None:
            sink = sink.for_changelog(self._changelog)
        self._graph.add_sink(SinkNode(uid, self._node, sink))

    def print(self, *, uid: str = "print", limit: int = 100) -> None:
        """Prints the rows of committed batches to the driver's standard output, for debugging.

        At-least-once: rows are printed after their commit, and printed again if the run dies before the log records
        that they were printed.

        Args:
            uid: required only for a second print sink.
            limit: maximum number of rows printed per subtask and batch; the number of further rows is printed, too.
        """
        self.sink_to(PrintSink(limit), uid=uid)

    def _add_operator(self, node: ProcessNode) -> DataStream:
        return DataStream.from_node(self._graph, self._graph.add_operator(node))

    def _row_step(
        self, kind: StepKind, function: RowFunction, output: type[object] | None, on_error: str | DeadLetters
    ) -> DataStream:
        if isinstance(function, CheckpointedFunction | CheckpointListener):
            raise JobDefinitionError(
                "a row function on an unkeyed stream does not participate in checkpoints",
                hint="call key_by before it",
                given=repr(function),
            )
        step = RowStep(kind, function, self._output(output), check_policy(on_error))
        # Dead letters are dropped rows.
        changelog = after_filter(self._changelog) if step.on_error or kind is StepKind.FILTER else self._changelog
        if kind is not StepKind.FILTER:
            after = after_map if kind is StepKind.MAP else after_flat_map
            changelog = after(changelog, self.schema, step.schema)
        return DataStream(self._graph, self._graph.add_rows(RowsNode(self._node, step)), changelog)

    def _check_other(self, other: DataStream, method: str) -> DataStream:
        if not isinstance(other, DataStream) or other._graph is not self._graph:
            raise JobDefinitionError(
                f"{method} needs another stream of the same job",
                hint=f'first.{method}(second).where("id").equal_to("id"), before key_by',
                called=method,
                given=type(other).__name__,
            )
        return other

    def _output(self, row_class: type[object] | None) -> RowSchema:
        return RowSchema.of(row_class) if row_class else self._node.schema


def _check_union(stream: DataStream, other: object) -> None:
    if not isinstance(other, DataStream) or other._graph is not stream._graph:
        raise JobDefinitionError(
            "union needs streams of the same job",
            hint="pass streams of the same environment; call key_by after union",
            called="union",
            given=type(other).__name__,
        )
    if other.schema.columns != stream.schema.columns:
        raise JobDefinitionError(
            "union needs streams with the same columns",
            hint="convert them to one row class with map or transform",
            first=stream.schema.ddl,
            other=other.schema.ddl,
        )


def _check_callable(called: str, function: object, wanted: str) -> None:
    if not callable(function):
        raise JobDefinitionError(f"{called} needs a function", hint=f"pass {wanted}", given=repr(function))


def _one_class(output: type[object] | None, schema: type[object] | None) -> type[object] | None:
    """Returns the row class of two arguments with the same meaning."""
    if output is not None and schema is not None and output is not schema:
        raise JobDefinitionError(
            "transform takes one row class of its result",
            hint="output and schema are aliases: pass one",
            output=output.__name__,
            schema=schema.__name__,
        )
    return output or schema
