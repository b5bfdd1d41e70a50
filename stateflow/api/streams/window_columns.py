"""Aggregation of windows by columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateflow.api.column_windows.declared import (
    AnySettings,
    check_order,
    declared_aggregation,
    declared_windows,
    refuse_evictor,
)
from stateflow.api.dead_letters import FAIL
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.graph.traversal import level_of
from stateflow.api.schema import RowSchema
from stateflow.api.streams.keyed_input import KeyedInput, Stream
from stateflow.api.windows.evictors import Evictor
from stateflow.errors import JobDefinitionError


class WindowColumns(KeyedInput[Stream]):
    """The part of `WindowedStream` that aggregates by columns."""

    _settings: AnySettings
    _evictor: Evictor[Any] | None = None

    def aggregate_columns(
        self, aggregates: Mapping[str, Sequence[str]], *, output: type[object], uid: str = ""
    ) -> Stream:
        """Aggregates columns of each window, vectorized. The results are those of `aggregate`, many times faster.

        Windows are tumbling, sliding, or sessions with a fixed gap, of event time or processing time, with the default
        trigger. Rows of sources are also aggregated before the shuffle, for each key and slice, if windows are tumbling
        or sliding, late rows are dropped, and no aggregate depends on how rows are divided.

        In windows of event time, ``first`` and ``last`` are by event time, and in order of arrival for rows with the
        same time. With an `order_by` of `key_by` that begins with another column, which sliding windows and sessions
        refuse, they are in that order within a batch, and in order of arrival across batches. So they are in windows of
        processing time.

        Args:
            aggregates: ``(kind, column)`` by output column, with the kinds of `KeyedStream.aggregate_columns`; or
                ``("window_start",)``, ``("window_end",)`` or ``("window_time",)``, the last instant of the window.
                These are milliseconds since 1970 if the column is declared as int, or a datetime in UTC.
            output: row class with the key columns and the aggregates.

        Raises:
            JobDefinitionError: an aggregate does not exist, or does not fit its column or the output class; or windows
                with this assigner, trigger or evictor need each row; or ``first`` and ``last`` of sliding windows and
                sessions need rows in another order than that of event time.
        """
        schema = RowSchema.of(output)
        try:
            refuse_evictor(self._evictor)
            time_column, assigner = event_time_of(self._node), self._settings.assigner
            is_by_time = self._keying.order_by[:1] in ((), (time_column,))
            order = time_column if is_by_time and assigner.is_event_time else ""
            aggregation = declared_aggregation(aggregates, self._keying.row_columns, self._node.schema, schema, order)
            function = declared_windows(self._settings, time_column, aggregation)
            if not is_by_time:
                check_order(assigner, aggregates)
        except JobDefinitionError as e:
            e.add_facts(operator=uid)
            raise
        name = f"aggregate {', '.join(aggregates)} {type(self._settings.assigner).__name__}"
        partial = function.split(self._node.schema) if self._is_divisible(time_column) else None
        given = self if partial is None else self._reduced(partial)
        return given._operator(function, schema, uid, name, FAIL)

    def _is_divisible(self, time_column: str) -> bool:
        """Returns whether the operator may take partial results, as far as its input decides that.

        Rows of sources in the order of event time let a key's windows end within a batch; and windows of processing
        time have no column for the event times of a stream.
        """
        if not self._keying.columns or bool(time_column) != self._settings.assigner.is_event_time:
            return False
        return level_of(self._node) == 0 and self._keying.order_by[:1] in ((), (time_column,))
