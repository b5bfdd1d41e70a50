"""What `build` works with: streams, and the words on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.api.checkpointed import CheckpointedFunction, CheckpointListener
from stateflow.api.connected import BroadcastStream
from stateflow.api.dead_letters import FAIL, DeadLetters, checked_policy
from stateflow.api.graph import (
    Graph,
    Node,
    ProcessNode,
    RowsNode,
    SinkNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    keying,
    level_of,
    naming_stream,
    sources_of,
    strategies,
)
from stateflow.api.keyed_stream import KeyedStream
from stateflow.api.printing import PrintSink
from stateflow.api.rich_functions import RichFunction, RowStep, StepKind
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.api.sink import Sink
from stateflow.api.watermarks import WatermarkStrategy
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
        self,
        function: Callable[[DataFrame], DataFrame],
        output: type[Any] | None = None,
        *,
        schema: type[Any] | None = None,
    ) -> DataStream:
        """Applies any stateless Spark expression to each batch: select, filter, join with a static table, UDFs.

        Args:
            function: from frame to frame; must be deterministic and may not count, collect or write.
            output: row class of the result; by default that of this stream.
            schema: the same as `output`, as sources call it.

        Raises JobDefinitionError when both are given and differ.
        """
        if output is not None and schema is not None and output is not schema:
            raise JobDefinitionError("transform has two row classes of its result", hint="output and schema mean the "
                                     "same: pass one", output=output.__name__, schema=schema.__name__)  # fmt: skip
        output = output or schema
        if not callable(function):
            raise JobDefinitionError("transform needs a function", hint="from DataFrame to DataFrame",
                                     given=repr(function))  # fmt: skip
        result = RowSchema.of(output) if output else self._node.schema
        return DataStream(self._graph, TransformNode(self._node, function, result))

    def map(
        self,
        function: Callable[[Any], Any] | RichFunction,
        *,
        output: type[Any] | None = None,
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Makes one row of each.

        Args:
            function: a callable that takes a row, or a `RichMapFunction` object. Must be deterministic: it may be
                called more than once with a row.
            output: row class of the result; by default that of this stream.
            on_error: ``"fail"``, or `DeadLetters`: then the function, or a copy of it, is called twice with each row.
        """
        return self._step(StepKind.MAP, function, output, on_error)

    def flat_map(
        self,
        function: Callable[[Any], Iterable[Any] | None] | RichFunction,
        *,
        output: type[Any] | None = None,
        on_error: str | DeadLetters = FAIL,
    ) -> DataStream:
        """Makes any number of rows of each; as `map`, with a `RichFlatMapFunction`."""
        return self._step(StepKind.FLAT_MAP, function, output, on_error)

    def filter(
        self, function: Callable[[Any], bool] | RichFunction, *, on_error: str | DeadLetters = FAIL
    ) -> DataStream:
        """Keeps the rows for which the function is true; as `map`, with a `RichFilterFunction`."""
        return self._step(StepKind.FILTER, function, None, on_error)

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

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> DataStream:
        """The same rows, with event time: in a column that must be there up to the first `key_by`.

        The watermark is computed per source, from the rows that came in earlier batches.

        Raises JobDefinitionError behind a union, behind an operator, and for a column that is no time.
        """
        if not isinstance(strategy, WatermarkStrategy):
            raise JobDefinitionError("assign_timestamps_and_watermarks needs a WatermarkStrategy", hint="such as "
                                     "WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5))",
                                     given=repr(strategy))  # fmt: skip
        sources = sorted({source.uid for source in sources_of(self._node)})
        if level_of(self._node) or len(sources) != 1:
            raise JobDefinitionError("event time is declared on the stream of one source", hint="before union and "
                                     "before key_by", sources=sources)  # fmt: skip
        with naming_stream("assign_timestamps_and_watermarks", self._node):
            strategy.check(self.schema)
        node = WatermarkNode(self._node, strategy)
        strategies([node])
        return DataStream(self._graph, node)

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

    def get_dead_letters(self) -> DataStream:
        """The rows that the function that makes this stream failed on, as rows of class `DeadLetter`.

        Raises JobDefinitionError when it was not given ``on_error=DeadLetters(…)``.
        """
        return DataStream(self._graph, self._graph.dead_letters(self._node))

    def key_by(self, *columns: str, order_by: Sequence[str] = ()) -> KeyedStream:
        """Sends all rows of a key to one subtask.

        Args:
            columns: the key. Its types become part of the state's format.
            order_by: columns that order a key's rows within a batch; ties keep their order of arrival.
        """
        keys = keying(self._node, columns, tuple(order_by))
        return KeyedStream(self._graph, self._node, keys, self._add_operator)

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

    def _add_operator(self, node: ProcessNode) -> DataStream:
        return DataStream(self._graph, self._graph.add_operator(node))

    def _step(
        self, kind: StepKind, function: Any, output: type[Any] | None, on_error: str | DeadLetters
    ) -> DataStream:
        schema = RowSchema.of(output) if output else self._node.schema
        if isinstance(function, CheckpointedFunction | CheckpointListener):
            raise JobDefinitionError("a row function on an unkeyed stream takes no part in checkpoints", hint="call "
                                     "key_by before it", given=repr(function))  # fmt: skip
        step = RowStep(kind, function, schema, checked_policy(on_error))
        return DataStream(self._graph, self._graph.add_rows(RowsNode(self._node, step)))


def _check_stream(word: str, other: object, graph: Graph) -> None:
    if not isinstance(other, DataStream) or other._graph is not graph:
        raise JobDefinitionError(f"{word} needs streams of the same job", hint="call key_by after it",
                                 given=type(other).__name__)  # fmt: skip
