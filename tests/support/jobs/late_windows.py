"""Hours and sessions that accept late readings for a time, by rows and by columns, and the readings that are too late.

``job.folder`` has ``readings.jsonl`` and gets ``tables/``. The readings are out of order by more than the bound of the
watermark, and by more than the allowed lateness.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WindowContext,
)
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Reading(msgspec.Struct):
    """A reading of a sensor, at a time in milliseconds since 1970."""

    sensor: str
    at: int
    number: int


class Numbers(msgspec.Struct):
    """The numbers of the readings of a window."""

    key: str
    start: int
    end: int
    numbers: list[int]


class EmitNumbers(ProcessWindowFunction[Reading, Numbers]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Reading]) -> Iterator[Numbers]:
        yield Numbers(key, ctx.window.start, ctx.window.end, sorted(row.number for row in elements))


class Sum(msgspec.Struct):
    sensor: str
    start: int
    end: int
    readings: int
    total: int


LATE = OutputTag("late", Reading)
COLUMNS = {
    "start": ("window_start",),
    "end": ("window_end",),
    "readings": ("count", "number"),
    "total": ("sum", "number"),
}


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def build(env: StreamExecutionEnvironment) -> None:
    folder = Path(env.parameter("folder"))
    readings = timed(env, Reading, "readings", ms(10)).key_by("sensor")

    hours = readings.window(TumblingEventTimeWindows.of(ms(60))).allowed_lateness(ms(40))
    sessions = readings.window(EventTimeSessionWindows.with_gap(ms(20))).allowed_lateness(ms(60))
    for name, windows in (("hours", hours), ("sessions", sessions)):
        with_late = windows.side_output_late_data(LATE)
        by_rows = with_late.process(EmitNumbers(), output=Numbers, uid=name)
        by_columns = with_late.aggregate_columns(COLUMNS, output=Sum, uid=f"column-{name}")
        for uid, results in ((name, by_rows), (f"column-{name}", by_columns)):
            results.sink_to(FolderSink(folder / "tables" / uid), uid=f"{uid}-table")
            late = results.get_side_output(LATE)
            late.sink_to(FolderSink(folder / "tables" / f"late-{uid}"), uid=f"late-{uid}-table")
