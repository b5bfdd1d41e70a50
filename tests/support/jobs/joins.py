"""Orders and payments that are joined by interval and by window.

``job.folder`` has ``orders.jsonl`` and ``payments.jsonl`` and gets ``tables/``. With ``job.spark=yes`` Spark reads the
files of ``in/orders`` and ``in/payments``.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    FileSource,
    JoinContext,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource


class Order(msgspec.Struct):
    """An order, at a time in milliseconds since 1970."""

    customer: str
    at: int
    number: int


class Payment(msgspec.Struct):
    """A payment."""

    payer: str
    at: int
    amount: int


class Match(msgspec.Struct):
    """An order and a payment."""

    customer: str
    order: int
    payment: int


class Emit(ProcessJoinFunction[Order, Payment, Match]):
    """Emits the pair."""

    def process_element(self, left: Order, right: Payment, ctx: JoinContext) -> Iterator[Match]:
        yield match(left, right)


def match(order: Order, payment: Payment) -> Match:
    """Returns the pair."""
    return Match(order.customer, order.number, payment.amount)


def _stream(env: StreamExecutionEnvironment, row_class: type, name: str) -> DataStream:
    folder = Path(env.parameter("folder"))
    if env.parameter("spark", "no") == "yes":
        source: FileSource | ScriptedSource = FileSource(folder / "in" / name, schema=row_class, format="json")
    else:
        script = [row_class(**json.loads(line)) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        source = ScriptedSource(row_class, script, folder / f"{name}-ledger.jsonl", slice_rows=10)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=20)).with_timestamp_column("at")
    return env.from_source(source, uid=name).assign_timestamps_and_watermarks(strategy)


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    tables = Path(env.parameter("folder")) / "tables"
    orders, payments = _stream(env, Order, "orders"), _stream(env, Payment, "payments")
    interval = orders.key_by("customer").interval_join(payments.key_by("payer"))
    bounded = interval.between(timedelta(milliseconds=-10), timedelta(milliseconds=30))
    bounded.process(Emit(), output=Match, uid="interval").sink_to(FolderSink(tables / "interval"), uid="interval-table")
    joined = orders.join(payments).where("customer").equal_to("payer")
    windows = joined.window(TumblingEventTimeWindows.of(timedelta(milliseconds=50)))
    windows.apply(match, output=Match, uid="window").sink_to(FolderSink(tables / "window"), uid="window-table")
