"""Orders and payments that are joined in five ways.

``job.folder`` has ``orders.jsonl`` and ``payments.jsonl`` and gets ``tables/``. With ``job.spark=yes`` Spark reads the
files of ``in/orders`` and ``in/payments``.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow import (
    JoinContext,
    ProcessJoinFunction,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
)
from stateflow.api.joins.pairs import Columns
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Order(msgspec.Struct):
    """An order, at a time in milliseconds since 1970."""

    customer: str
    at: int
    number: int


class Payment(msgspec.Struct):
    payer: str
    at: int
    amount: int


class Match(msgspec.Struct):
    customer: str
    order: int
    payment: int


class Emit(ProcessJoinFunction[Order, Payment, Match]):
    def process_element(self, left: Order, right: Payment, ctx: JoinContext) -> Iterator[Match]:
        yield match(left, right)


def last_payment(order: Order, payment: Payment | None) -> Match:
    return Match(order.customer, order.number, -1 if payment is None else payment.amount)


def match(order: Order, payment: Payment) -> Match:
    return Match(order.customer, order.number, payment.amount)


def _is_prompt(order: Columns, payment: Columns) -> pa.Array:
    """Whether a payment is at most 100 ms after the order."""
    after = pc.subtract(payment["at"], order["at"])
    return pc.and_(pc.greater_equal(after, 0), pc.less_equal(after, 100))


def build(env: StreamExecutionEnvironment) -> None:
    tables = Path(env.parameter("folder")) / "tables"
    orders, payments = (
        timed(env, row, name, timedelta(milliseconds=20), ledger=f"{name}-ledger", files=f"in/{name}")
        for row, name in ((Order, "orders"), (Payment, "payments"))
    )
    interval = orders.key_by("customer").interval_join(payments.key_by("payer"))
    bounded = interval.between(timedelta(milliseconds=-10), timedelta(milliseconds=30))
    names = {"order": "left.number", "payment": "right.amount"}
    by_columns = env.parameter("columns", "no") == "yes"
    if by_columns:
        matches = bounded.select(Match, names, uid="interval")
    else:
        matches = bounded.process(Emit(), output=Match, uid="interval")
    matches.sink_to(FolderSink(tables / "interval"), uid="interval-table")
    joined = orders.join(payments).where("customer").equal_to("payer")
    windows = joined.window(TumblingEventTimeWindows.of(timedelta(milliseconds=50)))
    keyed, paid = orders.key_by("customer"), payments.key_by("payer")
    regular = keyed.regular_join(paid).select(Match, names, where=_is_prompt, uid="regular")
    regular.sink_to(FolderSink(tables / "regular"), uid="regular-table")
    # No partner of a row comes after its time to live.
    ttl = StateTtlConfig.new_builder(timedelta(milliseconds=130)).use_event_time().build()
    expiring = keyed.regular_join(paid, ttl=ttl).select(Match, names, where=_is_prompt, uid="expiring")
    expiring.sink_to(FolderSink(tables / "expiring"), uid="expiring-table")
    temporal = keyed.temporal_join(paid, how="left").apply(last_payment, output=Match, uid="temporal")
    temporal.sink_to(FolderSink(tables / "temporal"), uid="temporal-table")
    in_window = (
        windows.select(Match, names, uid="window") if by_columns else windows.apply(match, output=Match, uid="window")
    )
    in_window.sink_to(FolderSink(tables / "window"), uid="window-table")
