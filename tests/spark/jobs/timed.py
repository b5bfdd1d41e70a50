"""Two sources with event time, windows by timers on two levels, late rows; with Spark or without.

The first level counts the rows of a key in windows of a second. The second level adds up the counts of all keys; its
own timers have the times of the first one's, so a sum is right only when what those emit arrives before they fire.
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
    WatermarkStrategy,
)
from stateflow.api.collection import CollectionSource
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink

WINDOW = 1000
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


class Growing(CollectionSource):
    """A list that is longer in a later run: it has no end."""

    bounded = False


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
        assert count, "fired twice, or before its window was there"
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


def build(env: StreamExecutionEnvironment) -> None:
    """Reads rows of the sources from ``<home>/<uid>.json``."""
    home, spark = Path(env.parameter("home")), env.parameter("spark", "no") == "yes"
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS).with_timestamp_column("at")

    def source(uid: str) -> DataStream:
        rows = [Event(*each) for each in json.loads((home / f"{uid}.json").read_text())]
        return env.from_source(Growing(rows, Event), uid=uid).assign_timestamps_and_watermarks(strategy)

    events = source("a").union(source("b")).filter(lambda row: row.key != "dropped")
    if spark:
        events = events.transform(lambda frame: frame.where("key <> 'dropped as well'"))
    counts = events.key_by("key").process(Windows(), output=Count, uid="windows")
    counts.sink_to(FolderSink(home / "counts"), uid="counts")
    counts.get_side_output(LATE).sink_to(FolderSink(home / "late"), uid="late")
    if spark:
        counts = counts.transform(lambda frame: frame.where("count > 0"))
    counts.key_by("all").process(Totals(), output=Total, uid="totals").sink_to(FolderSink(home / "totals"), uid="out")
