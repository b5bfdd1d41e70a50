"""Orders and payments in co-groups, in outer joins whose results are corrected, and in tables of SQL statements.

``job.folder`` has ``orders.jsonl`` and ``payments.jsonl`` and gets ``tables/``.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow import (
    DeltaSink,
    RowKind,
    StateTtlConfig,
    StreamExecutionEnvironment,
    TimeWindow,
    TumblingEventTimeWindows,
)
from stateflow.api.joins.pairs import Columns
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Order(msgspec.Struct):
    customer: str
    at: datetime
    number: int
    amount: int


class Payment(msgspec.Struct):
    payer: str
    at: datetime
    paid: int
    receipt: int


class Customer(msgspec.Struct):
    customer: str
    start: int
    orders: int
    payments: int


class PaidOrder(msgspec.Struct):
    kind: RowKind
    customer: str
    number: int
    receipt: int | None


class Matched(msgspec.Struct):
    kind: RowKind
    number: int | None
    receipt: int | None


class Receipt(msgspec.Struct):
    kind: RowKind
    payer: str
    receipt: int
    number: int | None


class Account(msgspec.Struct):
    kind: RowKind
    customer: str
    results: int
    receipts: int


def grouped(customer: str, window: TimeWindow, orders: list[Order], payments: list[Payment]) -> Iterator[Customer]:
    yield Customer(customer, window.start, len(orders), len(payments))


def paid_order(order: Order, payment: Payment | None) -> PaidOrder:
    return PaidOrder(RowKind.INSERT, order.customer, order.number, None if payment is None else payment.receipt)


def receipt_of(order: Order | None, payment: Payment) -> Receipt:
    return Receipt(RowKind.INSERT, payment.payer, payment.receipt, None if order is None else order.number)


def is_after(order: Columns, payment: Columns) -> pa.Array:
    return pc.less_equal(order["at"], payment["at"])


STATEMENTS = """
    INSERT INTO spent
    SELECT customer, window_start AS start, COUNT(*) AS orders, SUM(amount) AS total
    FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '50' SECOND))
    GROUP BY customer, window_start, window_end;

    INSERT INTO dearest
    SELECT customer, number, amount, place
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY amount DESC, number) AS place FROM orders)
    WHERE place <= 2;

    INSERT INTO debts
    SELECT o.customer, COUNT(*) AS results, COUNT(p.receipt) AS receipts, SUM(o.amount) AS total
    FROM orders AS o LEFT JOIN payments AS p ON o.number = p.paid
    GROUP BY o.customer;
"""


def build(env: StreamExecutionEnvironment) -> None:
    tables = Path(env.parameter("folder")) / "tables"
    orders, payments = (
        timed(env, row, name, timedelta(seconds=20), ledger=f"{name}-ledger")
        for row, name in ((Order, "orders"), (Payment, "payments"))
    )

    both = orders.co_group(payments).where("customer").equal_to("payer")
    groups = both.window(TumblingEventTimeWindows.of(timedelta(seconds=50)))
    grouped_rows = groups.apply(grouped, output=Customer, uid="groups")
    grouped_rows.sink_to(FolderSink(tables / "groups"), uid="groups-table")

    numbered, paid = orders.key_by("number"), payments.key_by("paid")
    left = numbered.regular_join(paid, how="left").apply(paid_order, output=PaidOrder, uid="left")
    left.sink_to(FolderSink(tables / "left"), uid="left-table")
    full = numbered.regular_join(paid, how="full").select(Matched, where=is_after, uid="full")
    full.sink_to(FolderSink(tables / "full"), uid="full-table")

    # Nothing expires while a test runs; each row is stored with its time.
    day = StateTtlConfig.new_builder(timedelta(days=1)).build()
    right = numbered.regular_join(paid, how="right", ttl=day).apply(receipt_of, output=Receipt, uid="right")
    right.sink_to(FolderSink(tables / "right"), uid="right-table")

    wanted = {"results": ("count", "number"), "receipts": ("count", "receipt")}
    accounts = left.key_by("customer").aggregate_columns(wanted, output=Account, uid="accounts")
    accounts.sink_to(DeltaSink(tables / "accounts", mode="upsert", keys="customer"), uid="accounts-table")

    env.register_table("orders", orders)
    env.register_table("payments", payments)
    env.register_sink("spent", FolderSink(tables / "spent"))
    env.register_sink("dearest", DeltaSink(tables / "dearest", mode="upsert", keys=("customer", "place")))
    env.register_sink("debts", DeltaSink(tables / "debts", mode="upsert", keys="customer"))
    env.sql(STATEMENTS)
