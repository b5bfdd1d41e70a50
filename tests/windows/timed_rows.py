"""Rows, results and a harness for tests of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import msgspec

from stateflow import GlobalWindow, OutputTag
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.testing import KeyedHarness, KeyedInput


class Timed(msgspec.Struct, frozen=True):
    """A row with event time in milliseconds."""

    key: str
    value: int
    at: int | None = 0


class Total(msgspec.Struct, frozen=True, order=True):
    """The sum of a window; of the global window, start and end are 0."""

    key: str
    total: int
    start: int = 0
    end: int = 0


LATE = OutputTag("late", Timed)
Windowed = WindowedStream[DataStream]
Declare = Callable[[Windowed], Windowed]
Assigner = WindowAssigner[Timed]


class Sum(ProcessWindowFunction[Timed, Total]):
    """Emits the sum of the values."""

    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
        is_global = isinstance(ctx.window, GlobalWindow)
        start, end = (0, 0) if is_global else (ctx.window.start, ctx.window.end)
        yield Total(key, sum(row.value for row in elements), start, end)


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def added(first: Timed, second: Timed) -> Timed:
    return Timed(first.key, first.value + second.value, second.at)


def reducing(assigner: Assigner, declare: Declare = lambda windows: windows) -> KeyedHarness:
    """Returns a harness that sums the values of each window as rows arrive."""

    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return declare(rows.window(assigner)).reduce(added, Sum(), output=Total, uid="w")

    return KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at"), side_outputs=(LATE,))


def processing(
    assigner: Assigner,
    declare: Declare = lambda windows: windows,
    function: ProcessWindowFunction[Timed, Total] | None = None,
) -> KeyedHarness:
    """Returns a harness that stores the rows of each window, and sums their values."""

    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return declare(rows.window(assigner)).process(function or Sum(), output=Total, uid="w")

    return KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at"), side_outputs=(LATE,))


def by_columns(assigner: Assigner, declare: Declare = lambda windows: windows) -> KeyedHarness:
    """Returns a harness that sums the values of each window by columns."""
    columns = {"total": ("sum", "value"), "start": ("window_start",), "end": ("window_end",)}

    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return declare(rows.window(assigner)).aggregate_columns(columns, output=Total, uid="w")

    return KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at"), side_outputs=(LATE,))
