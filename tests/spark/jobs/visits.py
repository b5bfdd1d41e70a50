"""Visits by timers that never compare times: right only where a timer fires before the next row of its key.

The rows of one source come in order of event time; with Spark or without.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.api.collection import CollectionSource
from stateflow.testing.sinks import FolderSink

GAP = 100


class Event(msgspec.Struct):
    key: str
    at: int


class Visit(msgspec.Struct):
    key: str
    first: int
    last: int
    rows: int


class Growing(CollectionSource):
    """A list that is longer in a later run."""

    bounded = False


class Visits(KeyedProcessFunction[Event, Visit]):
    """Adds each row to the open visit."""

    def open(self, ctx: RuntimeContext) -> None:
        self.visit = ctx.get_state(ValueStateDescriptor("visit", Visit))

    def process_element(self, row: Event, ctx: Context) -> None:
        visit, timers = self.visit.value() or Visit(row.key, row.at, row.at, 0), ctx.timer_service()
        timers.delete_event_time_timer(visit.last + GAP)
        visit.rows += 1
        visit.last = row.at
        self.visit.update(visit)
        timers.register_event_time_timer(visit.last + GAP)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Visit]:
        visit = self.visit.value()
        assert visit is not None and visit.last + GAP == timestamp
        self.visit.clear()
        yield visit


def build(env: StreamExecutionEnvironment) -> None:
    """Reads rows from ``<home>/events.json``."""
    home = Path(env.parameter("home"))
    rows = [Event(*each) for each in json.loads((home / "events.json").read_text())]
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    events = env.from_source(Growing(rows, Event), uid="events").assign_timestamps_and_watermarks(in_order)
    if env.parameter("spark", "no") == "yes":
        events = events.transform(lambda frame: frame.where("key <> ''"))
    visits = events.key_by("key").process(Visits(), output=Visit, uid="visits")
    visits.sink_to(FolderSink(home / "visits"), uid="visits-table")
