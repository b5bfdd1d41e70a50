"""Creates the vectorized operator that `aggregate_columns` of windows declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateflow.api.aggregates.aggregate import Aggregate
from stateflow.api.aggregates.column_aggregates import check_output, declared_aggregate, made_columns
from stateflow.api.aggregates.distinct import DistinctValues
from stateflow.api.aggregates.first_last import First, FirstByTime, Last, LastByTime, ValueByTime
from stateflow.api.column_windows.accumulators import AccumulatorColumns
from stateflow.api.column_windows.bounds import BOUNDS, BoundColumns, is_bound
from stateflow.api.column_windows.session_windows import SessionAggregates
from stateflow.api.column_windows.slices import Slicing
from stateflow.api.column_windows.time_windows import TimeWindowAggregates
from stateflow.api.column_windows.window_aggregates import Aggregation, ColumnWindowSettings, WindowAggregates
from stateflow.api.schema import RowSchema
from stateflow.api.windows.assigners import (
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    windows_kind,
)
from stateflow.api.windows.window_operator import WindowSettings
from stateflow.errors import JobDefinitionError

AnySettings = WindowSettings[Any]
_SLICED = (
    TumblingEventTimeWindows,
    SlidingEventTimeWindows,
    TumblingProcessingTimeWindows,
    SlidingProcessingTimeWindows,
)
_SESSIONS = (EventTimeSessionWindows, ProcessingTimeSessionWindows)
_ALTERNATIVE = "call aggregate with an AggregateFunction, or process"
BY_TIME: Mapping[type[Aggregate], type[ValueByTime]] = {First: FirstByTime, Last: LastByTime}
"""The aggregates of event-time windows in place of those by the order of rows."""


def declared_aggregation(
    wanted: Mapping[str, Sequence[str]], keys: Sequence[str], given: RowSchema, output: RowSchema, time_column: str
) -> Aggregation:
    """Returns what an operator computes.

    Args:
        wanted: ``(aggregate, column)`` or ``(bound,)`` by output column.
        keys: the key columns.
        given: columns of the rows.
        output: columns of the result.
        time_column: the column by which ``first`` and ``last`` are; empty for the order of rows.

    Raises:
        JobDefinitionError: an aggregate does not exist or does not accept its column, or the output class has other
            columns.
    """
    bounds = BoundColumns.of(wanted, output)
    aggregates = {n: _aggregate(n, spec, given, time_column) for n, spec in wanted.items() if not is_bound(spec)}
    if not aggregates:
        raise JobDefinitionError(
            "windows need an aggregate", hint='such as count=("count", a column)', given=sorted(wanted)
        )
    if clash := set(keys) & bounds.bounds.keys():
        raise JobDefinitionError("an aggregate has the name of a key column", hint="rename it", names=sorted(clash))
    made = {**made_columns(aggregates, keys, given, output), **bounds.made()}
    check_output(made, keys, output)
    required = {column.name for column in output.columns if not column.nullable}
    return Aggregation(tuple(keys), AccumulatorColumns(aggregates, required), bounds, output.names)


def declared_windows(settings: AnySettings, time_column: str, aggregation: Aggregation) -> WindowAggregates:
    """Returns the operator.

    Args:
        time_column: the column with the event time; empty if the stream has none.

    Raises:
        JobDefinitionError: windows of this kind, or with this trigger, cannot be aggregated by columns.
    """
    assigner = settings.assigner
    if type(settings.trigger) is not type(assigner.default_trigger()):
        raise _refused("a trigger", type(settings.trigger).__name__)
    time = time_column if assigner.is_event_time else ""
    names, late = (windows_kind(assigner), settings.text), (settings.allowed_lateness, settings.late_rows)
    # Not subclasses, which may assign other windows.
    if isinstance(assigner, _SLICED) and type(assigner) in _SLICED:
        own = ColumnWindowSettings(time, *names, assigner.size, *late)
        return TimeWindowAggregates(own, aggregation, Slicing(assigner.size, assigner.slide, assigner.offset))
    if isinstance(assigner, _SESSIONS) and type(assigner) in _SESSIONS and isinstance(assigner.gap, int):
        own = ColumnWindowSettings(time, *names, assigner.gap, *late)
        return SessionAggregates(own, aggregation, assigner.gap)
    raise _refused("a window assigner", type(assigner).__name__)


def refuse_evictor(evictor: object) -> None:
    """Raises JobDefinitionError for an evictor, which needs all rows of a window."""
    if evictor is not None:
        raise _refused("an evictor", type(evictor).__name__)


def check_order(assigner: WindowAssigner[Any], wanted: Mapping[str, Sequence[str]]) -> None:
    """Checks aggregates of rows that `key_by` orders by another column than event time.

    Raises:
        JobDefinitionError: an aggregate depends on the order, and windows add rows in the order of event time.
    """
    ordered = sorted(name for name, spec in wanted.items() if spec[0] in ("first", "last"))
    if ordered and assigner.is_event_time and not isinstance(assigner, TumblingEventTimeWindows):
        raise JobDefinitionError(
            "first and last of these windows are by event time, not by the order of key_by",
            hint=f"leave out order_by, or begin it with the event-time column; or {_ALTERNATIVE}",
            aggregates=ordered,
            assigner=type(assigner).__name__,
        )


def _refused(what: str, given: str) -> JobDefinitionError:
    return JobDefinitionError(f"{what} of this kind cannot be used by columns", hint=_ALTERNATIVE, given=given)


def _aggregate(name: str, spec: Sequence[str], given: RowSchema, time_column: str) -> Aggregate:
    if not isinstance(spec, str) and len(spec) == 1:
        raise JobDefinitionError(
            "there is no such bound of a window", hint=f"bounds are {', '.join(BOUNDS)}", name=name, given=repr(spec)
        )
    aggregate = declared_aggregate(name, spec, given)
    by_time = BY_TIME.get(type(aggregate)) if time_column else None
    if by_time is not None:
        return by_time(aggregate.column, aggregate.where, time_column)
    return DistinctValues(aggregate.column, aggregate.where) if aggregate.is_distinct else aggregate
