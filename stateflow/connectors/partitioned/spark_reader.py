"""Reads a `PartitionedSource` through Spark's Python data source API, one task per split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateflow.api.schema import REJECTED, RejectedRecord, with_hidden_columns
from stateflow.api.source import LocalSource, Source, local_position, spark_position
from stateflow.config.settings import SourceSettings
from stateflow.config.spark_versions import arrow_schema
from stateflow.connectors.partitioned.positions import Offsets, Split
from stateflow.connectors.partitioned.source import PartitionedSource
from stateflow.connectors.partitioned.split_rows import Chunk
from stateflow.connectors.python import PythonSource
from stateflow.connectors.stream_reader import Position, StreamInput, ends_by_itself, load_stream
from stateflow.types.columns.conversion import to_column
from stateflow.types.columns.shapes import shape_of

_numbers = count(1)


class PartitionedReader(Source):
    """A `PartitionedSource` as Spark reads it."""

    has_splits = True

    def __init__(self, source: PartitionedSource) -> None:
        self.source = source
        self.schema = source.schema
        self.bounded = source.bounded
        self.on_error = source.on_error
        self._name = f"stateflow_partitioned_source_{next(_numbers)}"

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def ends_by_itself(self) -> bool:
        return ends_by_itself()

    @property
    def limited_by(self) -> frozenset[str]:
        return self.source.limited_by

    def check(self, spark: SparkSession) -> None:
        """Reads the offsets of the source, so that a source that cannot do that fails early."""
        self.source.available()

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        columns = with_hidden_columns(self.source.schema, rejects=self.source.on_error is not None)
        return load_stream(spark, self._name, columns.ddl, PartitionedInput(self.source, limits))

    def splits(self, offset: str) -> list[str]:
        return sorted(self.source.parse_offsets(local_position(offset) or ""))

    def check_position(self, offset: str) -> None:
        """See `Source.check_position`."""
        position = local_position(offset)
        if position is not None:
            self.source.check_position(position)

    def lost_between(self, start: str, end: str, logs: Mapping[str, bytes]) -> Sequence[str]:
        """See `LocalSource.lost_between`."""
        return self.source.lost_between(local_position(start), local_position(end) or "")


def as_spark_reads(source: Source | LocalSource) -> Source:
    """Returns a source of a job as Spark reads it."""
    if isinstance(source, Source):
        return source
    return PartitionedReader(source) if isinstance(source, PartitionedSource) else PythonSource(source)


@dataclass
class PartitionedInput(StreamInput):
    """A source for Spark's streams, whose offsets are ``{"position": …}`` with the source's position.

    Attributes:
        source: the source.
        limits: of a batch.
        target: where a query ends.
    """

    source: PartitionedSource
    limits: SourceSettings
    target: Offsets | None = None

    @property
    def description(self) -> str:
        return self.source.description

    def first_position(self) -> Position:
        return spark_position(self.source.first_position())

    def end_with_present_input(self) -> None:
        self.target = self.source.available().ends

    def next_position(self, start: Position) -> Position:
        return spark_position(self.source.next_position(str(start["position"]), self.limits, self.target))

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        return list(map(InputPartition, self.source.splits_of(str(start["position"]), str(end["position"]))))

    def read(self, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        split = partition.value
        assert isinstance(split, Split)
        target = arrow_schema(schema)
        for chunk in self.source.chunks(split):
            yield _with_hidden_columns(chunk, split, target)


def _with_hidden_columns(chunk: Chunk, split: Split, target: pa.Schema) -> pa.RecordBatch:
    """Returns rows and rejected records as one batch with Spark's types."""
    rejected, rows = chunk.rejected, len(chunk.columns)
    total = rows + len(rejected)
    arrays = [_padded(values, len(rejected)) for values in chunk.columns.columns]
    arrays.append(pa.repeat(pa.scalar(split.partition), total))
    if REJECTED in target.names:
        records = to_column(shape_of(RejectedRecord | None), [None] * rows + list(rejected))
        arrays.append(records)
    return pa.RecordBatch.from_arrays([a.cast(f.type) for a, f in zip(arrays, target, strict=True)], schema=target)


def _padded(values: pa.Array, more: int) -> pa.Array:
    return pa.concat_arrays([values, pa.nulls(more, values.type)]) if more else values
