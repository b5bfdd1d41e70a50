"""A source written in Python, read by Spark: any `LocalSource` becomes a streaming frame."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from stateflow.api.source import LocalSource, Slice, Source
from stateflow.errors import StorageError
from stateflow.settings import SourceSettings

_START = "start"
_numbers = count(1)


class PythonSource(Source):
    """Reads a `LocalSource` on Spark's driver side; for small inputs and for tests.

    Args:
        source: must give the same rows whenever it is asked for the same position.
    """

    ends_by_itself = False
    """Spark asks it for one batch per query; the run asks until it has nothing."""

    def __init__(self, source: LocalSource) -> None:
        self.source = source
        self.schema = source.schema
        self.bounded = source.bounded
        # Spark looks a source up by its name whenever it plans.
        self._name = f"stateflow_python_source_{next(_numbers)}"

    @property
    def description(self) -> str:
        return self.source.description

    def check(self, spark: SparkSession) -> None:
        """There is nothing to compare before reading."""

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        data_source = _data_source(self._name, self.source, limits)
        spark.dataSource.register(data_source)
        return spark.readStream.format(data_source.name()).load()


def _data_source(name: str, source: LocalSource, limits: SourceSettings) -> type[DataSource]:
    """A data source class that carries `source`: Spark takes a class, and sends it to its Python processes."""
    ddl, given_name = source.schema.ddl, name

    class LocalDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return given_name

        def schema(self) -> str:
            return ddl

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
            return _Reader(source, limits)

    return LocalDataSource


class _Reader(SimpleDataSourceStreamReader):
    """Offsets are ``{"position": …}`` with the source's own position as a text, ``start`` before the first."""

    def __init__(self, source: LocalSource, limits: SourceSettings) -> None:
        self._source = source
        self._limits = limits

    def initialOffset(self) -> dict[str, str]:
        return {"position": _START}

    def read(self, start: dict[str, str]) -> tuple[Iterator[tuple[Any, ...]], dict[str, str]]:
        found = self._slice(start)
        if found is None:
            return iter(()), start
        return self._tuples(found), {"position": found.position}

    def readBetweenOffsets(self, start: dict[str, str], end: dict[str, str]) -> Iterator[tuple[Any, ...]]:
        at = start
        while at != end:
            found = self._slice(at)
            if found is None:
                raise StorageError(
                    "a source does not give again what it gave before", start=str(at), end=str(end)
                )
            yield from self._tuples(found)
            at = {"position": found.position}

    def _slice(self, offset: dict[str, str]) -> Slice | None:
        position = offset["position"]
        return self._source.read(None if position == _START else position, self._limits)

    def _tuples(self, found: Slice) -> Iterator[tuple[Any, ...]]:
        names = self._source.schema.names
        # Of a list, not a generator: Spark copies the iterator.
        return iter([tuple(getattr(row, name) for name in names) for row in found.rows])
