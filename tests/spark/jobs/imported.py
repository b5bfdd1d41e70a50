"""The job that continues queries of Structured Streaming: an aggregation, a processor with state and timers,
dropDuplicates, and an aggregation of windows.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    Context,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.testing.sinks import FolderSink

GAP = 10_000_000
"""Milliseconds of event time after an order that a reminder follows; longer than all orders take."""


class Order(msgspec.Struct):
    shop: str
    product: str
    amount: int
    at: int


class Stats(msgspec.Struct):
    orders: int
    total: int


class Count(msgspec.Struct):
    shop: str
    orders: int
    total: int


class Last(msgspec.Struct):
    at: int
    total: int


class Seen(msgspec.Struct):
    shop: str
    at: int
    text: str


class Window(msgspec.Struct):
    shop: str
    start: int
    orders: int
    total: int


STATS = ValueStateDescriptor("stats", Stats)
LAST = ValueStateDescriptor("last", Last)
AMOUNTS = ListStateDescriptor("amounts", int)
PRODUCTS = MapStateDescriptor("products", str, int)


class Counts(KeyedProcessFunction[Order, Count]):
    """The aggregation: ``count(*), sum(amount)`` by shop."""

    def open(self, ctx: RuntimeContext) -> None:
        self.stats = ctx.get_state(STATS)

    def process_element(self, row: Order, ctx: Context) -> Iterator[Count]:
        before = self.stats.value() or Stats(0, 0)
        after = Stats(before.orders + 1, before.total + row.amount)
        self.stats.update(after)
        yield Count(row.shop, after.orders, after.total)


class Visits(KeyedProcessFunction[Order, Seen]):
    """Emits all that it knows with each order, and a reminder a while after it."""

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(LAST)
        self.amounts, self.products = ctx.get_list_state(AMOUNTS), ctx.get_map_state(PRODUCTS)

    def process_element(self, row: Order, ctx: Context) -> Iterator[Seen]:
        before = self.last.value() or Last(0, 0)
        self.last.update(Last(row.at, before.total + row.amount))
        self.amounts.add(row.amount)
        self.products.put(row.product, (self.products.get(row.product) or 0) + row.amount)
        ctx.timer_service().register_event_time_timer(row.at + GAP)
        known = [before.at, before.total, list(self.amounts.get()), dict(self.products.items())]
        yield Seen(row.shop, row.at, json.dumps(known, sort_keys=True))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Seen]:
        yield Seen(ctx.get_current_key(), timestamp, "reminder")


def source(home: Path) -> FileSource:
    """Returns the source of all queries, which ends: then all timers fire."""
    return FileSource(home / "orders", schema=Order, format="json", bounded=True)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job in the folder `home`."""
    home = Path(env.parameter("home"))
    counted = env.from_source(source(home), uid="counted")
    counted.key_by("shop").process(Counts(), output=Count, uid="counts").sink_to(FolderSink(home / "counts"), uid="out")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    visited = env.from_source(source(home), uid="visited").assign_timestamps_and_watermarks(strategy)
    seen = visited.key_by("shop").process(Visits(), output=Seen, uid="visits")
    seen.sink_to(FolderSink(home / "seen"), uid="seen-out")
    once = env.from_source(source(home), uid="repeated").key_by("shop", "product").deduplicate(uid="distinct")
    once.sink_to(FolderSink(home / "distinct"), uid="distinct-out")
    timed = env.from_source(source(home), uid="windowed").assign_timestamps_and_watermarks(strategy)
    sliding = timed.key_by("shop").window(SlidingEventTimeWindows.of(timedelta(seconds=4), timedelta(seconds=2)))
    sums = {"start": ("window_start",), "orders": ("count", "shop"), "total": ("sum", "amount")}
    windows = sliding.aggregate_columns(sums, output=Window, uid="windows")
    windows.sink_to(FolderSink(home / "windows"), uid="windows-out")
