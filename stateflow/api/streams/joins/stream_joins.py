"""Joins of a stream that is not keyed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Generic

from stateflow.api.graph.job_graph import Graph
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin, cached, check_lookup
from stateflow.api.schema import RowSchema
from stateflow.api.streams.joins.joined_streams import JoinedStreams, WindowedCoGroup, WindowedJoin
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stateflow.api.joins.lookup_join import ReadTable


class StreamJoins(ABC, Generic[Stream]):
    """Joins within windows, and with tables. `Stream` is the class of the streams that operators return."""

    _graph: Graph

    @property
    @abstractmethod
    def schema(self) -> RowSchema:
        """The columns of the rows."""

    @abstractmethod
    def key_by(self, *columns: str, order_by: Sequence[str] = ()) -> KeyedInput[Stream]:
        """Partitions the stream by key."""

    @abstractmethod
    def transform(self, function: Callable[[DataFrame], DataFrame], output: type[object] | None = None) -> Stream:
        """Applies a stateless Spark expression to each batch."""

    def lookup_join(
        self,
        read: ReadTable,
        *,
        on: str | Mapping[str, str],
        output: type[object],
        how: str = "left",
        cache: timedelta | None = None,
    ) -> Stream:
        """Adds columns of a table to each row, before `key_by`: the content of the table when the batch runs.

        The semantics are those of processing time: a batch that is repeated after a failure sees the table as it is
        then, and results are not corrected when the table changes. Needs Spark, and a table that fits into memory.

        Args:
            read: returns the table: ``lambda spark: spark.read.format("delta").load(path)``, or ``spark.read.jdbc(…)``.
                Each join calls it by itself.
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
        return self.transform(LookupJoin(cached(read, cache), columns), output)

    def join(self, other: StreamJoins[Stream]) -> JoinedStreams[Stream, WindowedJoin[Stream]]:
        """Joins the rows of both streams with equal columns that are in the same window.

        ``a.join(b).where("id").equal_to("id").window(…).apply(function, output=…, uid=…)``

        Raises:
            JobDefinitionError: `other` is no stream of the same job.
        """
        pair = self.key_by, self._checked(other, "join").key_by
        return JoinedStreams(pair, lambda keyed, assigner: WindowedJoin(keyed, assigner, "join"))

    def co_group(self, other: StreamJoins[Stream]) -> JoinedStreams[Stream, WindowedCoGroup[Stream]]:
        """Groups the rows of both streams with equal columns that are in the same window. Used as `join`."""
        pair = self.key_by, self._checked(other, "co_group").key_by
        return JoinedStreams(pair, lambda keyed, assigner: WindowedCoGroup(keyed, assigner, "co_group"))

    def _checked(self, other: StreamJoins[Stream], method: str) -> StreamJoins[Stream]:
        if not isinstance(other, StreamJoins) or other._graph is not self._graph:
            raise JobDefinitionError(
                f"{method} needs another stream of the same job",
                hint=f'first.{method}(second).where("id").equal_to("id"), before key_by',
                called=method,
                given=type(other).__name__,
            )
        return other
