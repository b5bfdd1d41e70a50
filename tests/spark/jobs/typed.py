"""Rows of every type, by rows and by columns; with Spark, as a file source reads them, or without it."""

import datetime
import decimal
import enum
import uuid
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa

from stateflow import (
    Context,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
    precision,
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Line(msgspec.Struct):
    name: str
    price: Annotated[decimal.Decimal, precision(12, scale=2)]
    tags: list[Colour]


class Order(msgspec.Struct, kw_only=True):
    id: uuid.UUID
    colour: Colour
    level: Level
    price: Annotated[decimal.Decimal, precision(12, scale=2)]
    at: datetime.time
    lasting: datetime.timedelta
    lines: list[Line]
    first: Line | None
    sizes: dict[str, int | None]


class Counted(msgspec.Struct, kw_only=True):
    """An order with the number and the prices of the orders of its key so far."""

    order: Order
    count: int
    prices: Annotated[decimal.Decimal, precision(22, scale=2)]
    key: str


class Total(msgspec.Struct):
    colour: Colour
    sum: Annotated[decimal.Decimal, precision(22, scale=2)]
    least: Annotated[decimal.Decimal, precision(12, scale=2)]
    latest: datetime.time
    longest: datetime.timedelta
    last: uuid.UUID


def _order(n: int) -> Order:
    colour = (Colour.RED, Colour.BLUE)[n % 2]
    line = Line(f"line {n}", decimal.Decimal(n).scaleb(-2), [colour] * (n % 3))
    return Order(
        id=uuid.UUID(int=n % 4),
        colour=colour,
        level=Level(n % 2 + 1),
        price=decimal.Decimal(n % 8 * 7).scaleb(-2),
        at=datetime.time(n % 8, 0, 0, n % 8),
        lasting=datetime.timedelta(days=-(n % 2), microseconds=n % 8),
        lines=[line] * (n % 4),
        first=line if n % 3 else None,
        sizes={"a": n, "b": None},
    )


ORDERS = [_order(n) for n in range(40)]
KEY = ("id", "colour", "level", "at", "lasting", "price")


class Count(KeyedProcessFunction[Order, Counted]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))
        self.last = ctx.get_state(ValueStateDescriptor("last", Order))

    def process_element(self, row: Order, ctx: Context) -> tuple[Counted]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.last.update(row)
        return (self._counted(row, count, ctx),)

    def _counted(self, row: Order, count: int, ctx: Context) -> Counted:
        key = ctx.get_current_key()
        assert key == tuple(getattr(row, name) for name in KEY), key
        assert [type(part) for part in key] == [type(getattr(row, name)) for name in KEY]
        return Counted(order=row, count=count, prices=row.price * count, key=repr(key))


class Timed(Count):
    """The same, emitted by a timer, whose key comes from the stored state."""

    def process_element(self, row: Order, ctx: Context) -> tuple[()]:  # type: ignore[override]
        super().process_element(row, ctx)
        ctx.timer_service().register_processing_time_timer(1)
        return ()

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> tuple[Counted]:
        row = self.last.value()
        assert row is not None
        return (self._counted(row, self.count.value() or 0, ctx),)


class Latest(VectorizedKeyedFunction):
    """The last order of each key, with columns as state."""

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", Order))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        ends = batch.take(pa.array(state.starts + state.counts - 1))
        state.write(self.last, pa.StructArray.from_arrays(ends.columns, names=ends.schema.names))
        again = state.read(self.last)
        return pa.RecordBatch.from_arrays(again.flatten(), names=ends.schema.names)


def _same(order: Order) -> Order:
    return order


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home = Path(env.parameter("home"))
    given = env.parameter("given")
    if given == "listed":
        orders = env.from_collection(ORDERS, Order, uid="orders")
    else:
        orders = env.from_source(FileSource(home / given, schema=Order, format=given), uid="orders")
    if env.parameter("spark") == "yes":
        # A Spark expression and a row function, which change nothing.
        orders = orders.transform(lambda frame: frame).map(_same, output=Order)
    orders.sink_to(DeltaSink(home / "orders"), uid="orders-out")
    keyed = orders.key_by(*KEY)
    keyed.process(Count(), output=Counted, uid="count").sink_to(DeltaSink(home / "counted"), uid="counted")
    keyed.process(Timed(), output=Counted, uid="timed").sink_to(DeltaSink(home / "timed"), uid="timed-out")
    latest = keyed.process(Latest(), output=Order, uid="latest")
    latest.sink_to(DeltaSink(home / "latest"), uid="latest-out")
    totals = orders.key_by("colour").aggregate_columns(
        {
            "sum": ("sum", "price"),
            "least": ("min", "price"),
            "latest": ("max", "at"),
            "longest": ("max", "lasting"),
            "last": ("last", "id"),
        },
        output=Total,
        uid="totals",
    )
    totals.sink_to(DeltaSink(home / "totals"), uid="totals-out")
