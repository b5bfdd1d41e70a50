"""A stream whose rows are all divided into windows, without a key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Never, TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetters
from stateflow.api.side_outputs import OutputTag
from stateflow.api.streams.operator_input import Stream, check_callable, check_function
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.evictors import Evictor
from stateflow.api.windows.functions import (
    ApplyAllWindow,
    PlainAllFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WithoutKey,
)
from stateflow.api.windows.trigger import Trigger
from stateflow.types.descriptors import AggregateFunction

Row = TypeVar("Row")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class AllWindowedStream(Generic[Stream]):
    """All rows of a stream, with windows; it has the methods of `WindowedStream`, with functions without a key.

    Args:
        windows: the windows of the key that all rows have.
    """

    def __init__(self, windows: WindowedStream[Stream]) -> None:
        self._windows = windows

    def trigger(self, trigger: Trigger[Any]) -> AllWindowedStream[Stream]:
        """Sets the trigger; see `WindowedStream.trigger`."""
        return AllWindowedStream(self._windows.trigger(trigger))

    def evictor(self, evictor: Evictor[Any]) -> AllWindowedStream[Stream]:
        """Sets an evictor; see `WindowedStream.evictor`."""
        return AllWindowedStream(self._windows.evictor(evictor))

    def allowed_lateness(self, lateness: timedelta) -> AllWindowedStream[Stream]:
        """Sets for how long a window accepts late rows; see `WindowedStream.allowed_lateness`."""
        return AllWindowedStream(self._windows.allowed_lateness(lateness))

    def side_output_late_data(self, tag: OutputTag[Row]) -> AllWindowedStream[Stream]:
        """Sets the side output for late rows; see `WindowedStream.side_output_late_data`."""
        return AllWindowedStream(self._windows.side_output_late_data(tag))

    def reduce(
        self,
        function: Callable[[Row, Row], Row],
        window_function: ProcessAllWindowFunction[Row, object] | None = None,
        *,
        output: type[object] | None = None,
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Reduces the rows of each window to one; see `WindowedStream.reduce`."""
        keyed = _keyed(window_function, uid)
        return self._windows.reduce(function, keyed, output=output, uid=uid, on_error=on_error)

    def aggregate(
        self,
        function: AggregateFunction[In, Acc, Out],
        window_function: ProcessAllWindowFunction[Out, object] | None = None,
        *,
        accumulator: object,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Aggregates the rows of each window; see `WindowedStream.aggregate`."""
        keyed = _keyed(window_function, uid)
        return self._windows.aggregate(
            function, keyed, accumulator=accumulator, output=output, uid=uid, on_error=on_error
        )

    def process(
        self,
        function: ProcessAllWindowFunction[Never, object],
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function with all rows of a window when its trigger fires; see `WindowedStream.process`."""
        check_function("process of all windows", function, ProcessAllWindowFunction, uid)
        return self._windows.process(WithoutKey(function), output=output, uid=uid, on_error=on_error)

    def apply(
        self,
        function: PlainAllFunction[Row, object],
        *,
        output: type[object],
        uid: str = "",
        on_error: str | DeadLetters = FAIL,
    ) -> Stream:
        """Calls a function of window and rows, as `process`."""
        check_callable("apply", function, uid)
        return self._windows.process(ApplyAllWindow(function), output=output, uid=uid, on_error=on_error)

    def aggregate_columns(
        self, aggregates: Mapping[str, Sequence[str]], *, output: type[object], uid: str = ""
    ) -> Stream:
        """Aggregates columns of each window, vectorized; see `WindowedStream.aggregate_columns`.

        Args:
            output: row class with the aggregates.
        """
        return self._windows.aggregate_columns(aggregates, output=output, uid=uid)


def _keyed(
    function: ProcessAllWindowFunction[Out, object] | None, uid: str
) -> ProcessWindowFunction[Out, object] | None:
    """Returns a function of keyed windows that calls one without a key. Raises JobDefinitionError."""
    if function is None:
        return None
    check_function("window_function of all windows", function, ProcessAllWindowFunction, uid)
    return WithoutKey(function)
