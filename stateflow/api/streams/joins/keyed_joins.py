"""Joins of two keyed streams."""

from __future__ import annotations

from stateflow.api.streams.joins.inputs import changelog_pair, joined_pair, versioned_pair
from stateflow.api.streams.joins.interval_joined import IntervalJoinedStreams
from stateflow.api.streams.joins.regular_joined import RegularJoinedStreams
from stateflow.api.streams.joins.temporal_joined import TemporalJoinedStreams
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.types.ttl_config import StateTtlConfig


class KeyedJoins(KeyedInput[Stream]):
    """Joins with another keyed stream of the same job, by the key of both."""

    def interval_join(self, other: KeyedInput[Stream]) -> IntervalJoinedStreams[Stream]:
        """Joins each row with the rows of the same key whose event time is within bounds of its own.

        Args:
            other: the right stream, with a key of the same types. Both need event time.

        Raises:
            JobDefinitionError: `other` is no such stream, or a stream has no event time or is a changelog.
        """
        return IntervalJoinedStreams(self._add_operator, joined_pair(self, other, "interval_join"))

    def regular_join(
        self, other: KeyedInput[Stream], *, how: str = "inner", ttl: StateTtlConfig | None = None
    ) -> RegularJoinedStreams[Stream]:
        """Joins each row with all rows of the same key, whenever they arrived, as Flink SQL's joins.

        All rows of both streams are kept as state, unless `ttl` limits it. The streams may be changelogs: the results
        of a row that is retracted, or replaced by a row with its upsert key, are retracted.

        Args:
            other: the right stream, with a key of the same types.
            how: ``inner``, ``left``, ``right`` or ``full``. An outer join also emits rows without a partner, and
                deletes such a result when a partner arrives.
            ttl: how long a row is kept, from its arrival; by default for ever. In Flink: `table.exec.state.ttl`.

        Raises:
            JobDefinitionError: `other` is no such stream, `how` is another kind, or a changelog is keyed with an order.
        """
        return RegularJoinedStreams(self._add_operator, changelog_pair(self, other, "regular_join"), how, ttl)

    def temporal_join(self, versions: KeyedInput[Stream], *, how: str = "inner") -> TemporalJoinedStreams[Stream]:
        """Joins each row with the version of its key that was valid at its event time.

        Flink SQL's ``FOR SYSTEM_TIME AS OF``: a version is valid from its event time until that of the next version. A
        row waits until the watermark reaches its time.

        Args:
            versions: the stream of versions, with a key of the same types. Both need event time. It may be a changelog
                with this key as its upsert key: a row of kind `DELETE` ends a version at its event time.
            how: ``inner``: rows without a version are dropped; ``left``: they are joined with None.

        Raises:
            JobDefinitionError: `versions` is no such stream, `how` is another kind, a stream has no event time, or this
                stream is a changelog.
        """
        return TemporalJoinedStreams(self._add_operator, versioned_pair(self, versions, "temporal_join"), how)
