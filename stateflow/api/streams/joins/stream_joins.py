"""Joins of a stream that is not keyed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from stateflow.api.graph.job_graph import Graph
from stateflow.api.streams.joins.joined_streams import JoinedStreams, WindowedCoGroup, WindowedJoin
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.errors import JobDefinitionError


class StreamJoins(ABC, Generic[Stream]):
    """Joins within windows. `Stream` is the class of the streams that operators return."""

    _graph: Graph

    @abstractmethod
    def key_by(self, *columns: str, order_by: Sequence[str] = ()) -> KeyedInput[Stream]:
        """Partitions the stream by key."""

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
