"""A keyed stream that is divided into windows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any, Never, Self, TypeVar

from stateflow.api.aggregates.aggregate import Aggregate
from stateflow.api.aggregates.builtin import DistinctValues, First, FirstByTime, Last, LastByTime, ValueByTime
from stateflow.api.aggregates.column_aggregates import check_output, infer_columns, parse_aggregate
from stateflow.api.changelog import check_appends
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.graph import event_time_of, level_of
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag, check_late_tag
from stateflow.api.streams.operator_input import OperatorInput, Stream, check_callable, check_function
from stateflow.api.watermarks import event_time_reader
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
from stateflow.api.windows.column_sessions import SessionAggregates
from stateflow.api.windows.column_time_windows import TimeWindowAggregates
from stateflow.api.windows.column_windows import (
    BOUNDS,
    AccumulatorColumns,
    Aggregation,
    BoundColumns,
    ColumnWindowSettings,
    Slicing,
    WindowAggregates,
    is_bound,
)
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import ApplyWindow, EmitElements, PlainFunction, ProcessWindowFunction
from stateflow.api.windows.trigger import Trigger
from stateflow.api.windows.window import duration_ms
from stateflow.api.windows.window_operator import (
    AggregatedContents,
    BufferedContents,
    EvictedContents,
    ReducedContents,
    Summary,
    WindowContents,
    WindowOperator,
    WindowSettings,
)
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import AggregateFunction

Row = TypeVar("Row")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class WindowedStream(OperatorInput[Stream]):
    """A keyed stream with windows; `reduce`, `aggregate`, `process`, `apply` or `aggregate_columns` adds the operator.

    The methods that set something return a new object.
    """

    _settings: AnySettings
    _evictor: Evictor[Any] | None = None

    @classmethod
    def of(cls, keyed: OperatorInput[Stream], assigner: WindowAssigner[Never]) -> WindowedStream[Stream]:
        """Returns the windows of a keyed stream.

        Raises:
            JobDefinitionError: `assigner` is not a window assigner, or needs event time and the stream has none.
        """
        if not isinstance(assigner, WindowAssigner):
            raise JobDefinitionError(
                "window needs a window assigner",
                hint="such as TumblingEventTimeWindows.of(timedelta(minutes=5))",
                given=repr(assigner)[:200],
            )
        check_appends(keyed._changelog, "window")
        windowed = cls(keyed._graph, keyed._node, keyed._keying, keyed._add_operator)
        if assigner.is_event_time and not event_time_of(keyed._node):
            raise JobDefinitionError(
                "event-time windows need a stream with event time",
                hint="declare it: source.assign_timestamps_and_watermarks(…), and keep the column in the row class",
                assigner=type(assigner).__name__,
                columns=list(keyed._node.schema.names),
            )
        windowed._settings = WindowSettings(assigner, assigner.default_trigger())
        return windowed

    def trigger(self, trigger: Trigger[Any]) -> Self:
        """Sets the trigger, in place of the default one of the assigner.

        Raises:
            JobDefinitionError: it is not a trigger, or cannot be used with windows that merge.
        """
        if not isinstance(trigger, Trigger):
            raise JobDefinitionError(
                "trigger needs a Trigger object", hint="such as CountTrigger.of(100)", given=repr(trigger)[:200]
            )
        if self._settings.assigner.merges and not trigger.can_merge():
            raise JobDefinitionError(
                "a trigger cannot be used with windows that merge",
                hint="implement on_merge, or use another trigger",
                trigger=type(trigger).__name__,
                assigner=type(self._settings.assigner).__name__,
            )
        return self._with(replace(self._settings, trigger=trigger))

    def evictor(self, evictor: Evictor[Any]) -> Self:
        """Sets an evictor; the operator then stores all rows of a window. Raises JobDefinitionError."""
        if not isinstance(evictor, Evictor):
            raise JobDefinitionError(
                "evictor needs an Evictor object", hint="such as CountEvictor.of(100)", given=repr(evictor)[:200]
            )
        changed = copy.copy(self)
        changed._evictor = evictor
        return changed

    def allowed_lateness(self, lateness: timedelta) -> Self:
        """Sets for how long after its end, by the watermark, a window accepts rows. Each of them fires it again.

        Raises:
            JobDefinitionError: it is negative, or windows are not of event time.
        """
        length = duration_ms("the allowed lateness", lateness)
        if length < 0 or not self._settings.assigner.is_event_time:
            raise JobDefinitionError(
                "the allowed lateness must be zero or more, and needs windows of event time",
                hint="pass a timedelta of zero or more, for windows of event time",
                given=repr(lateness),
                assigner=type(self._settings.assigner).__name__,
            )
        return self._with(replace(self._settings, allowed_lateness=length))

    def side_output_late_data(self, tag: OutputTag[Row]) -> Self:
        """Sets the side output for rows whose windows were removed already; by default they are dropped.

        Raises:
            JobDefinitionError: `tag` is not an OutputTag, or is of another class than the rows.
        """
        check_late_tag(tag, self._node.schema.row_class)
        return self._with(replace(self._settings, late_rows=tag))

    # -- operators ----------------------------------------------------------------------------------------------------

    def reduce(
        self,
        function: Callable[[Row, Row], Row],
        window_function: ProcessWindowFunction[Row, object] | None = None,
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Reduces the rows of each window to one, as they arrive.

        Args:
            function: takes the reduced row and a row, and returns a row of the same class; associative.
            window_function: called with the reduced row; by default, the row is emitted.
            output: class of the rows that `window_function` emits.
        """
        check_callable("reduce", function, uid)
        row_class = self._node.schema.row_class
        contents = self._contents(ReducedContents(function, row_class), lambda rows: _reduced(function, rows))
        operator = self._operator_of(contents, window_function)
        return self._operator(operator, RowSchema.of(output or row_class), uid, self._name("reduce"), on_error)

    def aggregate(
        self,
        function: AggregateFunction[In, Acc, Out],
        window_function: ProcessWindowFunction[Out, object] | None = None,
        *,
        accumulator: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Aggregates the rows of each window, as they arrive.

        Args:
            function: for windows that merge, its `merge` is called, too.
            window_function: called with the result; by default, the result is emitted.
            accumulator: type of the accumulator.
            output: class of the emitted rows.

        Raises:
            JobDefinitionError: `function` is not an `AggregateFunction`.
        """
        if not isinstance(function, AggregateFunction):
            raise JobDefinitionError(
                "aggregate of a window needs an AggregateFunction object",
                hint="pass an instance of a subclass of stateflow.AggregateFunction",
                given=repr(function)[:200],
                uid=uid,
            )
        contents = self._contents(AggregatedContents(function, accumulator), lambda rows: _aggregated(function, rows))
        operator = self._operator_of(contents, window_function)
        return self._operator(operator, RowSchema.of(output), uid, self._name("aggregate"), on_error)

    def process(
        self,
        function: ProcessWindowFunction[Never, object],
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function with all rows of a window when its trigger fires. The rows are stored until then.

        Args:
            output: class of the rows that the function emits.
        """
        check_function("process of windows", function, ProcessWindowFunction, uid)
        contents = self._contents(BufferedContents(self._node.schema.row_class), tuple)
        operator = self._operator_of(contents, function)
        return self._operator(operator, RowSchema.of(output), uid, self._name("process"), on_error)

    def apply(
        self,
        function: PlainFunction[Row, object],
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function of key, window and rows, as `process`."""
        check_callable("apply", function, uid)
        contents = self._contents(BufferedContents(self._node.schema.row_class), tuple)
        operator = self._operator_of(contents, ApplyWindow(function))
        return self._operator(operator, RowSchema.of(output), uid, self._name("apply"), on_error)

    def aggregate_columns(
        self, aggregates: Mapping[str, Sequence[str]], *, output: type[object], uid: str = ""
    ) -> Stream:
        """Aggregates columns of each window, vectorized. The results are as with `aggregate`, many times faster.

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
                sessions need rows in another order than by event time.
        """
        schema = RowSchema.of(output)
        try:
            _refuse_evictor(self._evictor)
            time_column, assigner = event_time_of(self._node), self._settings.assigner
            is_by_time = self._keying.order_by[:1] in ((), (time_column,))
            order = time_column if is_by_time and assigner.is_event_time else ""
            aggregation = _make_aggregation(aggregates, self._keying.row_columns, self._node.schema, schema, order)
            function = _make_windows(self._settings, time_column, aggregation)
            if not is_by_time:
                _check_order(assigner, aggregates)
        except JobDefinitionError as e:
            e.add_facts(operator=uid)
            raise
        name = f"aggregate {', '.join(aggregates)} {type(self._settings.assigner).__name__}"
        partial = function.split(self._node.schema) if self._is_divisible(time_column) else None
        given = self if partial is None else self._with_reduced_rows(partial)
        return given._operator(function, schema, uid, name, FAIL)

    def _with(self, settings: AnySettings) -> Self:
        changed = copy.copy(self)
        changed._settings = settings
        return changed

    def _contents(self, contents: WindowContents[Row, Out], summary: Summary[Row, Out]) -> WindowContents[Row, Out]:
        if self._evictor is None:
            return contents
        time_of = event_time_reader(event_time_of(self._node))
        return EvictedContents(self._node.schema.row_class, self._evictor, time_of, summary)

    def _operator_of(
        self, contents: WindowContents[Row, Out], function: ProcessWindowFunction[Out, object] | None
    ) -> WindowOperator[Row, Out]:
        return WindowOperator(self._settings, contents, function or EmitElements())

    def _is_divisible(self, time_column: str) -> bool:
        """Returns whether the operator may take partial results, as far as its input decides that.

        Rows of sources in the order of event time let a key's windows end within a batch; and windows of processing
        time have no column for the event times of a stream.
        """
        if not self._keying.columns or bool(time_column) != self._settings.assigner.is_event_time:
            return False
        return level_of(self._node) == 0 and self._keying.order_by[:1] in ((), (time_column,))

    def _name(self, method: str) -> str:
        return f"{method} {type(self._settings.assigner).__name__}"


def _reduced(function: Callable[[Row, Row], Row], rows: Sequence[Row]) -> Iterable[Row]:
    return (reduce(function, rows),) if rows else ()


def _aggregated(function: AggregateFunction[In, Acc, Out], rows: Sequence[In]) -> Iterable[Out]:
    accumulator = function.create_accumulator()
    for row in rows:
        accumulator = function.add(row, accumulator)
    return (function.get_result(accumulator),)


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


def _make_aggregation(
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
        raise JobDefinitionError(
            "an aggregate cannot have the name of a key column", hint="rename it", names=sorted(clash)
        )
    made = {**infer_columns(aggregates, keys, given, output), **bounds.list_types()}
    check_output(made, keys, output)
    required = {column.name for column in output.columns if not column.nullable}
    return Aggregation(tuple(keys), AccumulatorColumns(aggregates, required), bounds, output.names)


def _make_windows(settings: AnySettings, time_column: str, aggregation: Aggregation) -> WindowAggregates:
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


def _refuse_evictor(evictor: object) -> None:
    """Raises JobDefinitionError for an evictor, which needs all rows of a window."""
    if evictor is not None:
        raise _refused("an evictor", type(evictor).__name__)


def _check_order(assigner: WindowAssigner[Any], wanted: Mapping[str, Sequence[str]]) -> None:
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
    return JobDefinitionError(f"aggregate_columns does not support {what} of this kind", hint=_ALTERNATIVE, given=given)


def _aggregate(name: str, spec: Sequence[str], given: RowSchema, time_column: str) -> Aggregate:
    if not isinstance(spec, str) and len(spec) == 1:
        raise JobDefinitionError(
            "a window does not have such a bound", hint=f"bounds are {', '.join(BOUNDS)}", name=name, given=repr(spec)
        )
    aggregate = parse_aggregate(name, spec, given)
    by_time = BY_TIME.get(type(aggregate)) if time_column else None
    if by_time is not None:
        return by_time(aggregate.column, aggregate.where, time_column)
    return DistinctValues(aggregate.column, aggregate.where) if aggregate.is_distinct else aggregate
