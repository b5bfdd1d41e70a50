"""Every way in which streams are joined and divided, over sources that both runners can read.

Most functions emit their calls, with a number for the order: that is what the graph is about.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
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
    """A row as a function received it, with the number of rows of its shop so far."""

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
    return [Order(i, f"s{i * 7 % 17}") for i in range(ORDERS)]


def payments() -> list[Payment]:
    return [Payment(i, f"s{i * 5 % 19}", i * 3 % 50) for i in range(PAYMENTS)]


def rates() -> list[Rate]:
    return [Rate(i, 10**i) for i in range(RATES)]


class RowCounter:
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def increment(self) -> int:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return count


class Together(RowCounter, KeyedCoProcessFunction[Order, Payment, Event]):
    """Counts the rows of both streams in one state; every third row of a shop goes to a side output too."""

    def process_element1(self, row: Order, ctx: Context) -> Iterator[Event]:
        yield self._event("order", row.number, ctx)

    def process_element2(self, row: Payment, ctx: Context) -> Iterator[Event]:
        yield self._event("payment", row.paid, ctx)

    def _event(self, side: str, number: int, ctx: Context) -> Event:
        shop, count = ctx.get_current_key(), self.increment()
        if count % 3 == 0:
            ctx.output(THIRDS, Third(shop, count))
            ctx.output(UNUSED, Third("", 0))
        return Event(shop, side, number, count)


class Late(RowCounter, KeyedCoProcessFunction[Order, Event, Event]):
    def process_element1(self, row: Order, ctx: Context) -> Iterator[Event]:
        yield Event(row.shop, "order", row.number, self.increment())

    def process_element2(self, row: Event, ctx: Context) -> Iterator[Event]:
        yield Event(row.shop, f"seen {row.side}", row.number, self.increment())


class Count(RowCounter, KeyedProcessFunction[Third, Third]):
    """Follows a side output: numbers the thirds of a shop."""

    def process_element(self, row: Third, ctx: Context) -> Iterator[Third]:
        yield Third(row.shop, self.increment())


class Rated(KeyedBroadcastProcessFunction[Order, Rate, Event]):
    """Emits with each order the sum of the rates that its subtask received in this batch."""

    def open(self, ctx: RuntimeContext) -> None:
        self.rates = 0
        self.orders = 0

    def process_broadcast_element(self, row: Rate, ctx: Context) -> Iterator[Event]:
        self.rates += row.factor
        yield Event(str(ctx.info.subtask), "rate", row.number, self.orders)

    def process_element(self, row: Order, ctx: Context) -> Iterator[Event]:
        self.orders += 1
        yield Event(row.shop, "order", row.number, self.rates)


def twice(row: Order) -> list[Order]:
    return [row, Order(-row.number, row.shop)]


def is_even(row: Any) -> bool:
    return bool(row.number % 2 == 0)


def is_rated(row: Order) -> bool:
    return row.number % 3 != 0


def as_order(row: Payment) -> Order:
    return Order(1000 + row.paid, row.shop_name)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job; with Spark, some of its filters are expressions of Spark."""
    home, on_spark = Path(env.parameter("home")), env.parameter("spark") == "yes"

    def source(uid: str, row_class: type[Any], rows: list[Any], size: int) -> DataStream:
        scripted: Any = ScriptedSource(row_class, rows, home / f"{uid}.ledger", slice_rows=size)
        if on_spark:
            # A job without Spark must not import it.
            from stateflow.connectors.python import PythonSource

            scripted = PythonSource(scripted)
        return env.from_source(scripted, uid=uid)

    def where(stream: DataStream, function: Callable[[Any], bool], expression: str) -> DataStream:
        return stream.transform(lambda frame: frame.where(expression)) if on_spark else stream.filter(function)

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
    thirds = together.get_side_output(THIRDS)
    out(thirds, "thirds")
    out(thirds.key_by("shop", order_by=("count",)).process(Count(), output=Third, uid="count"), "counted")

    some = where(ordered, is_rated, "number % 3 <> 0").key_by("shop")
    out(some.connect(rated.broadcast()).process(Rated(), output=Event, uid="rated"), "rated")

    everything = ordered.flat_map(twice).filter(is_even).union(paid.map(as_order, output=Order))
    out(everything, "union")
    # A stream of level 0 and one of level 1 in one operator: the first is carried over a level.
    even = where(together, is_even, "number % 2 = 0").key_by("shop", order_by=("number",))
    out(ordered.key_by("shop", order_by=("number",)).connect(even).process(Late(), output=Event, uid="late"), "late")
