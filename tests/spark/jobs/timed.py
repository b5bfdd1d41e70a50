"""Event time: windows by timers on two levels with late rows, and visits by timers; with Spark or without.

The first level counts the rows of a key in windows of a second. The second level adds up the counts of all keys; its
timers have the same times as those of the first, so a sum is right only if the rows of the first arrive before they
fire. A visit ends with a gap in the rows of its key; its function never compares times, so it is right only if a timer
fires before the next row of its key, also within a batch.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink
from tests.support.local_jobs import Growing

WINDOW, GAP = 1000, 100
LATENESS = timedelta(milliseconds=300)


class Event(msgspec.Struct):
    key: str
    at: int
    number: int


class Count(msgspec.Struct):
    key: str
    end: int
    count: int
    all: str = "all"


class Total(msgspec.Struct):
    end: int
    count: int


class Visit(msgspec.Struct):
    key: str
    first: int
    last: int
    rows: int


LATE = OutputTag("late", Event)


class Windows(KeyedProcessFunction[Event, Count]):
    """Counts per key and window."""

    def open(self, ctx: RuntimeContext) -> None:
        self.counts = ctx.get_map_state(MapStateDescriptor("counts", int, int))

    def process_element(self, row: Event, ctx: Context) -> None:
        assert ctx.timestamp() == row.at
        end = row.at // WINDOW * WINDOW + WINDOW
        timers = ctx.timer_service()
        if end - 1 <= timers.current_watermark():
            ctx.output(LATE, row)
            return
        self.counts.put(end, (self.counts.get(end) or 0) + 1)
        timers.register_event_time_timer(end - 1)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Count]:
        count = self.counts.get(timestamp + 1)
        assert count, "fired twice, or before its window existed"
        self.counts.remove(timestamp + 1)
        assert timestamp <= ctx.timer_service().current_watermark()
        yield Count(ctx.get_current_key(), timestamp + 1, count)


class Totals(KeyedProcessFunction[Count, Total]):
    """Counts per window over all keys."""

    def open(self, ctx: RuntimeContext) -> None:
        self.totals = ctx.get_map_state(MapStateDescriptor("totals", int, int))

    def process_element(self, row: Count, ctx: Context) -> None:
        self.totals.put(row.end, (self.totals.get(row.end) or 0) + row.count)
        ctx.timer_service().register_event_time_timer(row.end - 1)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Total]:
        yield Total(timestamp + 1, self.totals.get(timestamp + 1) or 0)
        self.totals.remove(timestamp + 1)


class Visits(KeyedProcessFunction[Event, Visit]):
    """Adds each row to the open visit."""

    def open(self, ctx: RuntimeContext) -> None:
        self.visit = ctx.get_state(ValueStateDescriptor("visit", Visit))

    def process_element(self, row: Event, ctx: Context) -> None:
        visit, timers = self.visit.value() or Visit(row.key, row.at, row.at, 0), ctx.timer_service()
        timers.delete_event_time_timer(visit.last + GAP)
        self.visit.update(Visit(row.key, visit.first, row.at, visit.rows + 1))
        timers.register_event_time_timer(row.at + GAP)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Visit]:
        visit = self.visit.value()
        assert visit is not None and visit.last + GAP == timestamp
        self.visit.clear()
        yield visit


def build(env: StreamExecutionEnvironment) -> None:
    """Reads rows of the sources from ``<home>/<uid>.json``; those of ``c`` are in order of event time."""
    home, spark = Path(env.parameter("home")), env.parameter("spark", "no") == "yes"
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS).with_timestamp_column("at")
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")

    def source(uid: str, strategy: WatermarkStrategy = bounded) -> DataStream:
        rows = [Event(*each) for each in json.loads((home / f"{uid}.json").read_text())]
        return env.from_source(Growing(rows, Event), uid=uid).assign_timestamps_and_watermarks(strategy)

    def out(stream: DataStream, table: str) -> None:
        stream.sink_to(FolderSink(home / table), uid=f"{table}-out")

    events, ordered = source("a").union(source("b")).filter(lambda row: row.key != "dropped"), source("c", in_order)
    if spark:
        events = events.transform(lambda frame: frame.where("key <> 'dropped as well'"))
        ordered = ordered.transform(lambda frame: frame.where("key <> ''"))
    counts = events.key_by("key").process(Windows(), output=Count, uid="windows")
    out(counts, "counts")
    out(counts.get_side_output(LATE), "late")
    if spark:
        counts = counts.transform(lambda frame: frame.where("count > 0"))
    out(counts.key_by("all").process(Totals(), output=Total, uid="totals"), "totals")
    out(ordered.key_by("key").process(Visits(), output=Visit, uid="visits"), "visits")
