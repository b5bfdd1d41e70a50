"""Every way in which streams come together and part, over sources that both runners can read.

Its functions mostly tell what they were called with, in which order: that is what the graph is about.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    RichMapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

ORDERS, PAYMENTS, RATES = 90, 60, 3
ORDER_SLICE, PAYMENT_SLICE, RATE_SLICE = 30, 20, 2


class Order(msgspec.Struct):
    number: int
    shop: str


class Payment(msgspec.Struct):
    paid: int
    shop_name: str
    at: int


class Rate(msgspec.Struct):
    number: int
    factor: int


class Event(msgspec.Struct):
    """A row as a function saw it: how many of its shop it had seen by then."""

    shop: str
    side: str
    number: int
    count: int


class Third(msgspec.Struct):
    shop: str
    count: int


THIRDS = OutputTag("thirds", Third)
UNUSED = OutputTag("unused", Third)


def orders() -> list[Order]:
    """17 shops."""
    return [Order(i, f"s{i * 7 % 17}") for i in range(ORDERS)]


def payments() -> list[Payment]:
    """Of the same shops, and two more."""
    return [Payment(i, f"s{i * 5 % 19}", i * 3 % 50) for i in range(PAYMENTS)]


def rates() -> list[Rate]:
    """For every subtask."""
    return [Rate(i, 10**i) for i in range(RATES)]


class Together(KeyedCoProcessFunction[Order, Payment, Event]):
    """Counts the rows of both streams in one state; every third row of a shop goes to a side output too."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element1(self, row: Order, ctx: Context) -> Iterator[Event]:
        yield Event(row.shop, "order", row.number, self._counted(ctx))

    def process_element2(self, row: Payment, ctx: Context) -> Iterator[Event]:
        yield Event(row.shop_name, "payment", row.paid, self._counted(ctx))

    def _counted(self, ctx: Context) -> int:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count % 3 == 0:
            ctx.output(THIRDS, Third(ctx.get_current_key(), count))
            ctx.output(UNUSED, Third("", 0))
        return count


class Rated(KeyedBroadcastProcessFunction[Order, Rate, Event]):
    """Tells the sum of the rates that its subtask got in this batch, with each order."""

    def open(self, ctx: RuntimeContext) -> None:
        self.rates = 0
        self.orders = 0

    def process_broadcast_element(self, row: Rate, ctx: Context) -> Iterator[Event]:
        self.rates += row.factor
        yield Event(str(ctx.info.subtask), "rate", row.number, self.orders)

    def process_element(self, row: Order, ctx: Context) -> Iterator[Event]:
        self.orders += 1
        yield Event(row.shop, "order", row.number, self.rates)


class Count(KeyedProcessFunction[Third, Third]):
    """Behind a side output: how many thirds a shop had."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Third, ctx: Context) -> Iterator[Third]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield Third(row.shop, count)


class Shout(RichMapFunction[Event, Event]):
    """A rich function behind an operator, in the same task."""

    def open(self, ctx: RuntimeContext) -> None:
        self.mark = "!" * ctx.info.parallelism

    def map(self, row: Event) -> Event:
        return Event(row.shop + self.mark, row.side, row.number, row.count)


def twice(row: Order) -> list[Order]:
    """A flat map."""
    return [row, Order(-row.number, row.shop)]


def is_even(row: Any) -> bool:
    """A filter."""
    return bool(row.number % 2 == 0)


def as_order(row: Payment) -> Order:
    """A map to another class."""
    return Order(1000 + row.paid, row.shop_name)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))

    def source(uid: str, row_class: type[Any], rows: list[Any], size: int) -> DataStream:
        scripted: Any = ScriptedSource(row_class, rows, home / f"{uid}.ledger", slice_rows=size)
        if env.parameter("spark") == "yes":
            # What needs no Spark must not import it.
            from stateflow.connectors.python import PythonSource

            scripted = PythonSource(scripted)
        return env.from_source(scripted, uid=uid)

    def out(stream: DataStream, uid: str) -> None:
        stream.sink_to(FolderSink(home / uid), uid=f"{uid}-out")

    # The checkpoint has them in order of uids, whatever the order here is.
    ordered = source("orders", Order, orders(), ORDER_SLICE)
    rated = source("rates", Rate, rates(), RATE_SLICE)
    paid = source("payments", Payment, payments(), PAYMENT_SLICE)

    together = (
        ordered.key_by("shop", order_by=("number",))
        .connect(paid.key_by("shop_name", order_by=("at",)))
        .process(Together(), output=Event, uid="together")
    )
    out(together, "events")
    out(together.filter(is_even).map(Shout()), "shouted")
    thirds = together.get_side_output(THIRDS)
    out(thirds, "thirds")
    out(thirds.key_by("shop", order_by=("count",)).process(Count(), output=Third, uid="count"), "counted")

    out(ordered.key_by("shop").connect(rated.broadcast()).process(Rated(), output=Event, uid="rated"), "rated")

    everything = ordered.flat_map(twice).filter(is_even).union(paid.map(as_order, output=Order))
    out(everything, "union")
    # A stream of level 0 and one of level 1 in one operator: the first is carried over a level.
    out(
        ordered.key_by("shop", order_by=("number",))
        .connect(together.key_by("shop", order_by=("number",)))
        .process(Late(), output=Event, uid="late"),
        "late",
    )


class Late(KeyedCoProcessFunction[Order, Event, Event]):
    """Tells which rows came, and which of the shop in its batch."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def process_element1(self, row: Order, ctx: Context) -> Iterator[Event]:
        yield self._event(row.shop, "order", row.number)

    def process_element2(self, row: Event, ctx: Context) -> Iterator[Event]:
        yield self._event(row.shop, f"seen {row.side}", row.number)

    def _event(self, shop: str, side: str, number: int) -> Event:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return Event(shop, side, number, count)
