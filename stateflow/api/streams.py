"""What `build` works with: streams, keyed streams, and the words on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stateflow.api.functions import KeyedProcessFunction
from stateflow.api.graph import Graph, Keying, Node, ProcessNode, SinkNode, TransformNode, keying
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink
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


class KeyedStream:
    """Rows grouped by key."""

    def __init__(self, graph: Graph, node: Node, keys: Keying) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys

    def process(
        self, function: KeyedProcessFunction[Any, Any], *, output: type[Any], uid: str = ""
    ) -> DataStream:
        """Runs a stateful function over the rows of each key.

        Args:
            function: is sent to tasks anew for each batch.
            output: row class of what it yields.
            uid: what the operator's state is matched by, over all versions of the job.
        """
        if not isinstance(function, KeyedProcessFunction):
            raise JobDefinitionError("process needs a KeyedProcessFunction object", hint="make an object: "
                                     "process(MyFunction(), …)", given=repr(function), uid=uid)  # fmt: skip
        node = ProcessNode(uid, self._node, self._keys, function, RowSchema.of(output))
        return DataStream(self._graph, self._graph.add_operator(node))
