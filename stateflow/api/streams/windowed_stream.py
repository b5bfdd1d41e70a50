"""A keyed stream that is divided into windows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any, Never, Self, TypeVar

from stateflow.api.changelog import check_appends
from stateflow.api.column_windows.declared import AnySettings
from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag, check_late_tag
from stateflow.api.streams.keyed_input import KeyedInput, Stream, check_callable, check_function
from stateflow.api.streams.window_columns import WindowColumns
from stateflow.api.watermarks import event_time_reader
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.api.windows.contents import (
    AggregatedContents,
    BufferedContents,
    EvictedContents,
    ReducedContents,
    Summary,
    WindowContents,
)
from stateflow.api.windows.durations import duration_ms
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import ApplyWindow, EmitElements, PlainFunction, ProcessWindowFunction
from stateflow.api.windows.trigger import Trigger
from stateflow.api.windows.window_operator import WindowOperator, WindowSettings
from stateflow.errors import JobDefinitionError
from stateflow.types.descriptors import AggregateFunction

Row = TypeVar("Row")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class WindowedStream(WindowColumns[Stream]):
    """A keyed stream with windows; `reduce`, `aggregate`, `process`, `apply` or `aggregate_columns` adds the operator.

    The methods that set something return a new object.
    """

    @classmethod
    def of(cls, keyed: KeyedInput[Stream], assigner: WindowAssigner[Never]) -> WindowedStream[Stream]:
        """Returns the windows of a keyed stream.

        Raises:
            JobDefinitionError: `assigner` is no window assigner, or needs event time, which the stream does not have.
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
            JobDefinitionError: it is no trigger, or cannot be used with windows that merge.
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
                "windows cannot have this lateness",
                hint="pass a timedelta of zero or more, for windows of event time",
                given=repr(lateness),
                assigner=type(self._settings.assigner).__name__,
            )
        return self._with(replace(self._settings, allowed_lateness=length))

    def side_output_late_data(self, tag: OutputTag[Row]) -> Self:
        """Sets the side output for rows whose windows were removed already; by default they are dropped.

        Raises:
            JobDefinitionError: `tag` is no OutputTag, or is of another class than the rows.
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
            JobDefinitionError: `function` is no `AggregateFunction`.
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

    def _name(self, method: str) -> str:
        return f"{method} {type(self._settings.assigner).__name__}"


def _reduced(function: Callable[[Row, Row], Row], rows: Sequence[Row]) -> Iterable[Row]:
    return (reduce(function, rows),) if rows else ()


def _aggregated(function: AggregateFunction[In, Acc, Out], rows: Sequence[In]) -> Iterable[Out]:
    accumulator = function.create_accumulator()
    for row in rows:
        accumulator = function.add(row, accumulator)
    return (function.get_result(accumulator),)
