"""Hours and sessions of readings, by rows and by columns, and hours of all sensors together.

``job.folder`` has ``readings.jsonl`` and gets ``tables/``. With ``job.spark=yes`` Spark reads the files of ``in/``,
or of ``job.input``.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    EventTimeSessionWindows,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WindowContext,
)
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Reading(msgspec.Struct):
    sensor: str
    at: int
    value: int


class Sum(msgspec.Struct):
    sensor: str
    start: int
    end: int
    value: int


class Emit(ProcessWindowFunction[Reading, Sum]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Reading]) -> Iterator[Sum]:
        yield Sum(key, ctx.window.start, ctx.window.end, sum(row.value for row in elements))


class EmitAll(ProcessAllWindowFunction[Reading, Sum]):
    def process(self, ctx: WindowContext, elements: Iterable[Reading]) -> Iterator[Sum]:
        yield Sum("all", ctx.window.start, ctx.window.end, sum(row.value for row in elements))


class SumOfAll(msgspec.Struct):
    start: int
    end: int
    value: int


def added(first: Reading, second: Reading) -> Reading:
    return Reading(first.sensor, first.at, first.value + second.value)


COLUMNS = {"start": ("window_start",), "end": ("window_end",), "value": ("sum", "value")}


def build(env: StreamExecutionEnvironment) -> None:
    folder = Path(env.parameter("folder"))
    stream = timed(env, Reading, "readings", timedelta(milliseconds=20))
    readings = stream.key_by("sensor")
    hours_of = TumblingEventTimeWindows.of(timedelta(milliseconds=60))
    hours = readings.window(hours_of)
    sessions = readings.window(EventTimeSessionWindows.with_gap(timedelta(milliseconds=30)))
    for name, windows in (("hours", hours), ("sessions", sessions)):
        by_columns = windows.aggregate_columns(COLUMNS, output=Sum, uid=f"column-{name}")
        by_columns.sink_to(FolderSink(folder / f"tables/column-{name}"), uid=f"column-{name}-table")
    hours.reduce(added, Emit(), output=Sum, uid="hours").sink_to(FolderSink(folder / "tables/hours"), uid="hours-table")
    sessions.process(Emit(), output=Sum, uid="sessions").sink_to(
        FolderSink(folder / "tables/sessions"), uid="sessions-table"
    )
    of_all = stream.window_all(hours_of)
    of_all.reduce(added, EmitAll(), output=Sum, uid="all-hours").sink_to(
        FolderSink(folder / "tables/all-hours"), uid="all-hours-table"
    )
    of_all.aggregate_columns(COLUMNS, output=SumOfAll, uid="column-all-hours").sink_to(
        FolderSink(folder / "tables/column-all-hours"), uid="column-all-hours-table"
    )
