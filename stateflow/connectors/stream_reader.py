"""Streams of Spark that Python reads: the positions of a source, and the reader that a version of Spark takes.

From Spark 4.2 on, a stream reader in Python ends a query by itself (the AvailableNow trigger), and gets the begin of
each batch. Before, it reads one batch per query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stateflow.checkpoint.barriers import message_with
from stateflow.config.spark_versions import running_version
from stateflow.errors import BatchFailed, StateflowError
from stateflow.helpers import line_of_user
from stateflow.storage import Credentials

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

Position = Mapping[str, object]
"""An offset of Spark: an object of JSON, which Spark stores unchanged."""


class StreamInput(ABC):
    """The input of a stream: its positions and, unless tasks read files between two positions themselves, its rows.

    Spark pickles it: one copy in a Python process of the driver says what a batch has, and copies in tasks read rows.
    An exception of a method ends the query with an error that names the source.
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """Description of the source, for errors."""

    @abstractmethod
    def first_position(self) -> Position:
        """Returns where a new job begins."""

    @abstractmethod
    def end_with_present_input(self) -> None:
        """Lets no later batch pass the end that the input has now."""

    @abstractmethod
    def next_position(self, start: Position) -> Position:
        """Returns where the batch ends that begins at a position; `start` if there is no new input."""

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        """Returns the parts of a batch, one for each task."""
        return ()

    def read(self, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part, with the types of `schema`."""
        return iter(())


def load_stream(spark: SparkSession, name: str, ddl: str, stream: StreamInput) -> DataFrame:
    """Returns the streaming frame of an input.

    Args:
        name: by which Spark finds the input whenever it plans a query: another one for each input of a session, and the
            same in each of its queries, since a session keeps all.
        ddl: columns of the frame.
        stream: the input.
    """
    data_source = _data_source(name, ddl, stream)
    spark.dataSource.register(data_source)
    return spark.readStream.format(name).load()


def ends_by_itself() -> bool:
    """Returns whether the stream of `load_stream` ends once it has read the present input; see `Source`."""
    return running_version().has_available_now_readers


def _data_source(name: str, ddl: str, stream: StreamInput) -> type[DataSource]:
    """Returns a data source class with an input in it: Spark takes a class, and sends it to its Python processes."""
    from pyspark.sql.datasource import DataSource

    given_name, given_ddl, available_now = name, ddl, ends_by_itself()
    credentials = Credentials.of_process()

    class PythonStream(DataSource):
        @classmethod
        def name(cls) -> str:
            return given_name

        def schema(self) -> str:
            return given_ddl

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            # In a cluster, Spark's processes did not start with the variables that the job's process has read.
            credentials.adopt()
            return new_reader(stream, schema, available_now=available_now)

    return PythonStream


def new_reader(stream: StreamInput, schema: StructType, *, available_now: bool) -> DataSourceStreamReader:
    """Returns the stream reader of an input.

    Args:
        schema: columns of its rows.
        available_now: whether Spark can ask it to end with the present input; see `SparkVersion`.
    """
    from pyspark.sql.datasource import DataSourceStreamReader

    if not available_now:
        # Not by a class statement: the types of later versions have other parameters of latestOffset.
        bases = (_OneBatchCalls, DataSourceStreamReader)
        new: Callable[..., DataSourceStreamReader] = type("OneBatchReader", bases, {})
        return new(stream, schema)
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    class AvailableNowReader(_AvailableNowCalls, DataSourceStreamReader, SupportsTriggerAvailableNow):
        pass

    return AvailableNowReader(stream, schema)


class _Calls:
    """The methods that Spark calls on both kinds of readers."""

    def __init__(self, stream: StreamInput, schema: StructType) -> None:
        self._stream = stream
        self._schema = schema

    def initialOffset(self) -> dict[str, object]:
        with forward_errors(self._stream.description):
            return dict(self._stream.first_position())

    def _next(self, start: Position) -> dict[str, object]:
        with forward_errors(self._stream.description):
            return dict(self._stream.next_position(start))

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        if start == end:
            return []
        with forward_errors(self._stream.description):
            return self._stream.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with forward_errors(self._stream.description):
            yield from self._stream.read(partition, self._schema)


class _AvailableNowCalls(_Calls):
    """Ends a query at the position that the input has at its start."""

    def prepareForTriggerAvailableNow(self) -> None:
        with forward_errors(self._stream.description):
            self._stream.end_with_present_input()

    def latestOffset(self, start: Position, limit: object) -> dict[str, object]:
        # The limits are the settings of the run, whatever Spark's trigger is.
        return self._next(start)


class _OneBatchCalls(_Calls):
    """Reads one batch per query, of which Spark does not pass the begin.

    Spark plans each batch by `partitions`, and calls it with the offset of the last batch, twice, when a query starts.
    """

    _first: dict[str, object] | None = None
    _planned: Position | None = None

    def initialOffset(self) -> dict[str, object]:
        # Asked once: an input that begins at its end must not return a later position than its first batch begins at.
        if self._first is None:
            self._first = super().initialOffset()
        return self._first

    def latestOffset(self) -> dict[str, object]:
        # Without parameters: a later Spark then treats it as 4.0 does, and so do the tests.
        return self._next(self.initialOffset() if self._planned is None else self._planned)

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        self._planned = end
        return super().partitions(start, end)


@contextmanager
def forward_errors(source: str) -> Iterator[None]:
    """Encodes errors in a message, since Spark forwards only messages.

    Args:
        source: description of the source.
    """
    try:
        yield
    except StateflowError as e:
        raise RuntimeError(message_with(e)) from e
    except Exception as e:
        raise RuntimeError(message_with(read_failure("a source cannot be read", source, e))) from e


def read_failure(what: str, source: str, error: Exception, **facts: str) -> BatchFailed:
    """Returns the error for an exception of the user's code in a source; a retry may succeed.

    Args:
        what: the first part of the message, such as ``a source cannot be read``.
        source: description of the source.
        error: the exception.
        facts: more facts.
    """
    return BatchFailed(
        what,
        hint="a new run continues from the last checkpoint; if that fails as well, fix the source",
        source=source,
        **facts,
        reason=f"{type(error).__name__}: {error}"[:500],
        where=line_of_user(error),
    )
