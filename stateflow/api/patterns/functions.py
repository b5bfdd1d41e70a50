"""Functions that are called with the matches of a pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.side_outputs import OutputTag

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
Row = TypeVar("Row")

Select = Callable[..., object]
"""A function of a match, a dictionary from the name of a stage to its rows."""


class PatternProcessFunction(Generic[In, Out]):
    """Called with each match of a pattern."""

    def open(self, ctx: RuntimeContext) -> None:
        """Called once per batch and subtask, before the first match; may declare state."""

    def process_match(self, match: Mapping[str, list[In]], ctx: Context) -> Iterable[Out] | None:
        """Called with a match; returns or yields rows of the declared output class.

        Args:
            match: the rows of each stage, in their order. A stage that matched no row is missing.
            ctx: key, side outputs, and as timestamp the event time of the row that ended the match.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_match")

    def process_timed_out_match(self, match: Mapping[str, list[In]], ctx: Context) -> None:
        """Called with each partial match that exceeded the time limit; may emit rows to side outputs."""

    def close(self) -> None:
        """Called once per batch and subtask, after the last match."""


class SelectRow(PatternProcessFunction[object, object]):
    """Emits one row per match."""

    def __init__(self, function: Select) -> None:
        self.function = function

    def process_match(self, match: Mapping[str, list[object]], ctx: Context) -> Iterable[object]:
        return (self.function(match),)


class SelectRows(PatternProcessFunction[object, object]):
    """Emits the rows that a function returns for a match."""

    def __init__(self, function: Callable[..., Iterable[object] | None]) -> None:
        self.function = function

    def process_match(self, match: Mapping[str, list[object]], ctx: Context) -> Iterable[object] | None:
        return self.function(match)


class TimedOut(Generic[Row]):
    """Emits a row of a side output per partial match that exceeded the time limit.

    Args:
        tag: the side output.
        function: takes the rows of each stage.
    """

    def __init__(self, tag: OutputTag[Row], function: Callable[..., Row]) -> None:
        self.tag = tag
        self.function = function
