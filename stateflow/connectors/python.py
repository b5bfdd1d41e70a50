"""A source that reads a `LocalSource` through Spark's Python data source API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from stateflow.api.datasets import Dataset
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice, Source, local_position, spark_position
from stateflow.config.settings import SourceSettings
from stateflow.connectors.stream_reader import forward_errors
from stateflow.errors import InputLost
from stateflow.storage import Credentials
from stateflow.types.columns.conversion import to_column, to_stored_scalar, with_type
from stateflow.types.columns.shapes import Leaf

_numbers = count(1)


class PythonSource(Source):
    """Reads a `LocalSource` on Spark's driver; for small inputs and for tests.

    Args:
        source: must return the same rows for the same position whenever it is read.
    """

    ends_by_itself = False
    """Spark reads one batch per query; the run starts queries until the source has no more rows."""

    def __init__(self, source: LocalSource) -> None:
        self.source = source
        self.schema = source.schema
        self.bounded = source.bounded
        # Spark looks up a data source by its name whenever it plans a query.
        self._name = f"stateflow_python_source_{next(_numbers)}"

    @property
    def description(self) -> str:
        return self.source.description

    def datasets(self, offset: str) -> Sequence[Dataset]:
        return self.source.datasets(offset)

    @property
    def limited_by(self) -> frozenset[str]:
        return self.source.limited_by

    def check(self, spark: SparkSession) -> None:
        """Does nothing: a local source has no columns to compare before it is read."""

    def lost_between(self, start: str, end: str, logs: Mapping[str, bytes]) -> Sequence[str]:
        """See `LocalSource.lost_between`."""
        return self.source.lost_between(local_position(start), local_position(end) or "")

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        data_source = _data_source(self._name, self.source, limits)
        spark.dataSource.register(data_source)
        frame = spark.readStream.format(data_source.name()).load()
        return frame.mapInArrow(_unpacked, self.schema.ddl) if _is_packed(self.schema) else frame


def _is_packed(schema: RowSchema) -> bool:
    """Returns whether the rows of a batch are sent to Spark as one value.

    Spark copies the rows of a Python source, and cannot copy a list or dict with None in it.
    """
    return not all(isinstance(column.shape, Leaf) for column in schema.columns)


def _packed(schema: RowSchema, rows: Sequence[object]) -> bytes:
    """Returns rows as an Arrow stream."""
    column = with_type(to_column(schema.shape, rows, exact=True), pa.struct(list(schema.arrow)))
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, schema.arrow) as stream:
        stream.write_batch(pa.RecordBatch.from_struct_array(column))
    packed: bytes = target.getvalue().to_pybytes()
    return packed


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for packed in batch.column(0).to_pylist():
            yield from pa.ipc.open_stream(packed)


def _data_source(name: str, source: LocalSource, limits: SourceSettings) -> type[DataSource]:
    """Returns a data source class with `source` in it: Spark takes a class, and sends it to its Python processes."""
    ddl, given_name = "rows binary" if _is_packed(source.schema) else source.schema.ddl, name
    credentials = Credentials.of_process()

    class LocalDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return given_name

        def schema(self) -> str:
            return ddl

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
            # In a cluster, Spark's process did not start with the variables that the job's process has read.
            credentials.adopt()
            return _Reader(source, limits)

    return LocalDataSource


class _Reader(SimpleDataSourceStreamReader):
    """A stream reader. Its offsets are ``{"position": …}`` with the source's position; ``start`` before the first."""

    def __init__(self, source: LocalSource, limits: SourceSettings) -> None:
        self._source = source
        self._limits = limits

    def initialOffset(self) -> dict[str, str]:
        return spark_position(None)

    def read(self, start: dict[str, str]) -> tuple[Iterator[tuple[object, ...]], dict[str, str]]:
        found = self._slice(start)
        if found is None:
            return iter(()), start
        return self._tuples(found.rows), spark_position(found.position)

    def readBetweenOffsets(self, start: dict[str, str], end: dict[str, str]) -> Iterator[tuple[object, ...]]:
        with forward_errors(self._source.description):
            known = self._source.between(_position(start), end["position"])
        if known is not None:
            yield from self._tuples(known)
            return
        at = start
        while at != end:
            with forward_errors(self._source.description):
                found = self._slice_again(at, end)
            yield from self._tuples(found.rows)
            at = spark_position(found.position)

    def _slice_again(self, start: dict[str, str], end: dict[str, str]) -> Slice:
        """Returns the next slice on the way to a position that the source has returned before."""
        found = self._source.read(_position(start), self._limits)
        # Without the second check, a source that stays at its position would be read without an end.
        if found is None or spark_position(found.position) == start:
            raise InputLost(
                "a source did not return the rows that it returned before",
                hint="a source has to return the same rows for the same positions",
                source=self._source.description,
                start=str(start),
                end=str(end),
            )
        return found

    def _slice(self, offset: dict[str, str]) -> Slice | None:
        with forward_errors(self._source.description):
            return self._source.read(_position(offset), self._limits)

    def _tuples(self, rows: Sequence[object]) -> Iterator[tuple[object, ...]]:
        schema = self._source.schema
        if _is_packed(schema):
            return iter([(_packed(schema, rows),)] if rows else [])
        # The iterator of a list, not a generator: Spark copies it.
        return iter([tuple(to_stored_scalar(getattr(row, name)) for name in schema.names) for row in rows])


def _position(offset: dict[str, str]) -> str | None:
    return None if offset == spark_position(None) else offset["position"]
