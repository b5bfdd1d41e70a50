"""The rows of a stream without operators, as Spark computes them in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph import Node, SourceNode
from stateflow.api.streams.data_stream import DataStream
from stateflow.runtime.spark.frames import FrameBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stateless_rows(
    stream: DataStream, given: Mapping[str, Sequence[Any]], spark: SparkSession
) -> list[tuple[Any, ...]]:
    """Returns the rows of a stream.

    Args:
        given: the rows of the batch by the uid of their source.
    """

    def leaf(node: Node) -> DataFrame:
        assert isinstance(node, SourceNode)
        return spark.createDataFrame(list(map(msgspec.structs.astuple, given[node.uid])), node.schema.ddl)

    info = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
    frame = FrameBuilder(leaf, info).frame(stream._node)
    assert frame is not None
    return [tuple(row) for row in frame.collect()]
