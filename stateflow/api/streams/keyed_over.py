"""Aggregates of a keyed stream over the rows before each row."""

from __future__ import annotations

from collections.abc import Mapping

from stateflow.api.dead_letters import FAIL
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.over.frames import Frame, Preceding, Unbounded
from stateflow.api.over.over_aggregates import OverAggregates, OverColumns
from stateflow.api.schema import RowSchema
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.errors import JobDefinitionError


class KeyedOver(KeyedInput[Stream]):
    """Aggregates over rows in the order of event time."""

    def over_columns(
        self,
        aggregates: Mapping[str, tuple[str, str]],
        *,
        output: type[object],
        preceding: Preceding = Unbounded.RANGE,
        uid: str = "",
    ) -> Stream:
        """Emits each row once, with aggregates over it and the rows of its key before it, as ``OVER`` of Flink SQL.

        A row is emitted when the watermark reaches its time. Rows that are late by then are dropped.

        Args:
            aggregates: ``(kind, column)`` by output column. Kinds are ``count``, ``sum``, ``min``, ``max`` and
                ``mean``. Nulls are ignored.
            output: row class with the columns of the rows and the aggregates.
            preceding: how many rows before the row belong to its frame, as ``ROWS BETWEEN n PRECEDING AND CURRENT
                ROW``; or, as a duration, how much earlier they may be, as ``RANGE BETWEEN …``. All rows of the same
                time belong to a range. `Unbounded.RANGE`, the default as in SQL, and `Unbounded.ROW` are all rows
                before.
            uid: identifies the operator's state across all versions of the job.

        Raises:
            JobDefinitionError: the stream has no event time or is a changelog, an aggregate does not exist, or the
                output class has other columns.
        """
        if not event_time_of(self._node):
            raise JobDefinitionError(
                "aggregates over rows need a stream with event time",
                hint="declare it: source.assign_timestamps_and_watermarks(…), and keep the column in the row class",
                uid=uid,
            )
        frame, schema = Frame.of(preceding), RowSchema.of(output)
        columns = OverColumns(dict(aggregates), self._node.schema, schema)
        return self._operator(OverAggregates(columns, frame), schema, uid, "over_columns", FAIL)
