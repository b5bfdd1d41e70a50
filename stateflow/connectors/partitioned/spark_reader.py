"""Reads a `PartitionedSource` through Spark's Python data source API, one task per split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from stateflow.api.schema import REJECTED, RejectedRecord, with_hidden_columns
from stateflow.api.source import LocalSource, Source, local_position, spark_position
from stateflow.config.settings import SourceSettings
from stateflow.config.spark_versions import running_version
from stateflow.connectors.partitioned.positions import Offsets, Split
from stateflow.connectors.partitioned.source import PartitionedSource
from stateflow.connectors.partitioned.split_rows import Chunk
from stateflow.connectors.python import PythonSource, forward_errors
from stateflow.types.columns.conversion import to_column
from stateflow.types.columns.shapes import shape_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

_numbers = count(1)


class PartitionedReader(Source):
    """A `PartitionedSource` as Spark reads it."""

    has_splits = True

    def __init__(self, source: PartitionedSource) -> None:
        self.source = source
        self.ends_by_itself = running_version().has_available_now_readers
        self.schema = source.schema
        self.bounded = source.bounded
        self.on_error = source.on_error
        # Spark looks up a data source by its name whenever it plans a query.
        self._name = f"stateflow_partitioned_source_{next(_numbers)}"

    @property
    def description(self) -> str:
        return self.source.description

    @property
    def limited_by(self) -> frozenset[str]:
        return self.source.limited_by

    def check(self, spark: SparkSession) -> None:
        """Reads the offsets of the source, so that a source that cannot do that fails early."""
        self.source.available()

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        data_source = _data_source(self._name, self.source, limits)
        spark.dataSource.register(data_source)
        return spark.readStream.format(data_source.name()).load()

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


def _data_source(name: str, source: PartitionedSource, limits: SourceSettings) -> type[DataSource]:
    """Returns a data source class with `source` in it: Spark takes a class, and sends it to its Python processes."""
    given_name, ddl = name, with_hidden_columns(source.schema, rejects=source.on_error is not None).ddl

    class PartitionedDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return given_name

        def schema(self) -> str:
            return ddl

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return _new_reader(source, limits, schema)

    return PartitionedDataSource


def _new_reader(source: PartitionedSource, limits: SourceSettings, schema: StructType) -> DataSourceStreamReader:
    """Returns a stream reader for the running version of Spark."""
    if not running_version().has_available_now_readers:
        return _OneBatchReader(source, limits, schema)
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class AvailableNowReader(_Reader, SupportsTriggerAvailableNow):
        """Ends a run at the positions that the source has at its start."""

        def prepareForTriggerAvailableNow(self) -> None:
            with forward_errors(source.description):
                self._target = source.available().ends

        def latestOffset(self, start: Mapping[str, str], limit: ReadLimit) -> dict[str, str]:
            # The limits are the settings of the run, whatever Spark's trigger is.
            return self._next(start["position"])

    return AvailableNowReader(source, limits, schema)


class _Reader(DataSourceStreamReader):
    """A stream reader. Its offsets are ``{"position": …}`` with the source's position."""

    def __init__(self, source: PartitionedSource, limits: SourceSettings, schema: StructType) -> None:
        self._source = source
        self._limits = limits
        self._schema = schema
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, str]:
        with forward_errors(self._source.description):
            return spark_position(self._source.first_position())

    def _next(self, start: str) -> dict[str, str]:
        """Returns the offset at the end of the batch that begins at a position."""
        with forward_errors(self._source.description):
            return spark_position(self._source.next_position(start, self._limits, self._target))

    def partitions(self, start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[InputPartition]:
        if start == end:
            return []
        with forward_errors(self._source.description):
            return list(map(InputPartition, self._source.splits_of(start["position"], end["position"])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        split = partition.value
        assert isinstance(split, Split)
        target = to_arrow_schema(self._schema, timezone="UTC")
        with forward_errors(self._source.description):
            for chunk in self._source.chunks(split):
                yield _with_hidden_columns(chunk, split, target)


class _OneBatchReader(_Reader):
    """A reader for a Spark that reads one batch per query, and does not say where a batch begins.

    Spark plans each batch by `partitions`, and calls it with the offset of the last batch, twice, when a query starts.
    """

    _first: str | None = None
    _planned: str | None = None

    def initialOffset(self) -> dict[str, str]:
        # Read once: a source that begins at its end must not return a later position than its first batch begins at.
        if self._first is None:
            self._first = super().initialOffset()["position"]
        return spark_position(self._first)

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, str]:
        return self._next(self.initialOffset()["position"] if self._planned is None else self._planned)

    def partitions(self, start: Mapping[str, str], end: Mapping[str, str]) -> Sequence[InputPartition]:
        self._planned = end["position"]
        return super().partitions(start, end)


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
