"""Joins of two keyed streams."""

from __future__ import annotations

from stateflow.api.streams.joins.inputs import joined_pair
from stateflow.api.streams.joins.interval_joined import IntervalJoinedStreams
from stateflow.api.streams.keyed_input import KeyedInput, Stream


class KeyedJoins(KeyedInput[Stream]):
    """Joins with another keyed stream of the same job, by the key of both."""

    def interval_join(self, other: KeyedInput[Stream]) -> IntervalJoinedStreams[Stream]:
        """Joins each row with the rows of the same key whose event time is within bounds of its own.

        Args:
            other: the right stream, with a key of the same types. Both need event time.

        Raises:
            JobDefinitionError: `other` is no such stream, or a stream has no event time.
        """
        return IntervalJoinedStreams(self._add_operator, joined_pair(self, other, "interval_join"))
