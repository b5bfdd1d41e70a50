"""A stream that is partitioned by key, and its operators."""

from __future__ import annotations

from typing import Never, overload

from stateflow.api.changelog import Changelog, check_appends, check_row_kind
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.functions.process import KeyedProcessFunction
from stateflow.api.functions.queryable import KeepQueryableRow
from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.graph.nodes import Edge
from stateflow.api.patterns.pattern import Pattern
from stateflow.api.schema import RowSchema
from stateflow.api.streams.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    checked_pair,
)
from stateflow.api.streams.joins.keyed_joins import KeyedJoins
from stateflow.api.streams.keyed_aggregations import KeyedAggregations
from stateflow.api.streams.keyed_input import Stream
from stateflow.api.streams.keyed_over import KeyedOver
from stateflow.api.streams.keyed_ranking import KeyedRanking
from stateflow.api.streams.keyed_row_operators import KeyedRowOperators
from stateflow.api.streams.pattern_stream import PatternStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import StateDescriptor


class KeyedStream(
    KeyedRowOperators[Stream], KeyedAggregations[Stream], KeyedJoins[Stream], KeyedRanking[Stream], KeyedOver[Stream]
):
    """A stream that is partitioned by key. `Stream` is the class of the streams that its operators return."""

    def process(
        self,
        function: KeyedProcessFunction[Never, object] | VectorizedKeyedFunction,
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Runs a stateful function over the rows of each key, or of many keys at once if it is vectorized.

        Args:
            function: an instance; tasks receive a new copy for each batch.
            output: row class of the rows that it emits.
            uid: identifies the operator's state across all versions of the job.
            on_error: ``"fail"``: the run fails when the function raises, and nothing of the batch is committed. Or
                `DeadLetters`: such rows go to a side output. State is then encoded once per row instead of per key.

        Raises:
            JobDefinitionError: `function` is no instance of these classes, or is vectorized and has dead letters.
        """
        if not isinstance(function, KeyedProcessFunction | VectorizedKeyedFunction):
            raise JobDefinitionError(
                "process needs a KeyedProcessFunction object",
                hint="pass an instance: process(MyFunction(), …)",
                given=repr(function),
                uid=uid,
            )
        if isinstance(function, VectorizedKeyedFunction) and on_error != FAIL:
            raise JobDefinitionError(
                "a vectorized function has no dead letters",
                hint="it receives many rows per call: filter bad rows in the function, or use a KeyedProcessFunction",
                uid=uid,
            )
        check_row_kind(self._changelog, "process", uid)
        return self._any_operator(function, RowSchema.of(output), uid, type(function).__qualname__, on_error)

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[Stream]: ...

    @overload
    def connect(self, other: KeyedStream[Stream]) -> ConnectedStreams[Stream]: ...

    def connect(
        self, other: KeyedStream[Stream] | BroadcastStream
    ) -> ConnectedStreams[Stream] | BroadcastConnectedStream[Stream]:
        """Connects this stream with another one, for a function that processes both.

        Args:
            other: a stream with keys of the same types, for a `KeyedCoProcessFunction`: both streams share its state.
                Or a broadcast stream, for a `KeyedBroadcastProcessFunction`.

        Raises:
            JobDefinitionError: `other` is no such stream of this job, or its keys have other types.
        """
        check_row_kind(self._changelog, "connect")
        if isinstance(other, BroadcastStream) and other.graph is self._graph:
            return BroadcastConnectedStream(self._add_operator, (self._edge, Edge(other.node, None)))
        if isinstance(other, KeyedStream) and other._graph is self._graph:
            check_row_kind(other._changelog, "connect")
            return ConnectedStreams(self._add_operator, checked_pair(self._edge, other._edge))
        raise JobDefinitionError(
            "connect needs a keyed or broadcast stream of the same job",
            hint="call key_by or broadcast on the other stream",
            given=type(other).__name__,
        )

    def window(self, assigner: WindowAssigner[Never]) -> WindowedStream[Stream]:
        """Divides the rows of each key into windows.

        Args:
            assigner: such as ``TumblingEventTimeWindows.of(timedelta(minutes=5))``.

        Raises:
            JobDefinitionError: `assigner` is no window assigner, or needs event time, which the stream does not have,
                or the stream is a changelog.
        """
        return WindowedStream.of(self, assigner)

    def match_pattern(self, pattern: Pattern) -> PatternStream[Stream]:
        """Matches the rows of each key with a pattern, in the order of event time.

        Args:
            pattern: such as ``Pattern.begin("low", lambda row: row.price < 10).next("high", lambda row: …)``.

        Raises:
            JobDefinitionError: `pattern` is no pattern or cannot be matched, or the stream has no event time or is a
                changelog.
        """
        return PatternStream.of(self, pattern)

    def as_queryable_state(self, name: str, descriptor: StateDescriptor | None = None, *, uid: str) -> None:
        """Keeps the newest row of each key as a state that can be queried; the stream ends here, as in Flink.

        Args:
            name: the queryable name.
            descriptor: a `ValueStateDescriptor` of the row class, or a `ReducingStateDescriptor` that reduces the rows.
                Any other one is a JobDefinitionError: a list may grow without a limit.
        """
        function = KeepQueryableRow(name, self._node.schema.row_class, descriptor)
        upserts = Changelog(self._keying.columns)
        if self._changelog != upserts:
            check_appends(self._changelog, "as_queryable_state", uid)
        self._any_operator(function, self._node.schema, uid, f"queryable {name}", FAIL)
