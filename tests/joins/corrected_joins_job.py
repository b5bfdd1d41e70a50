"""A job with co-groups, outer joins and SQL in a folder, and what its tables must have, by nested loops."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from typing import NamedTuple

from tests.support import delta_tables, folder_tables
from tests.support.job_fixture import OracleJob, Row, Tables

Table = Counter[tuple[object, ...]]
START = datetime.fromisoformat("1970-01-01")


class Order(NamedTuple):
    customer: str
    at: int
    number: int
    amount: int


class Payment(NamedTuple):
    payer: str
    at: int
    paid: int
    receipt: int


def _times(count: int, rng: random.Random) -> list[int]:
    """Seconds that are up to 19 s out of order."""
    times, clock = [], 0
    for _ in range(count):
        clock += rng.choice([0, 1, 3, 10])
        times.append(max(clock - rng.randrange(20), 0))
    return times


def _orders(count: int, seed: int) -> list[Order]:
    # What is drawn for the rows must not depend on their number.
    times, rng = _times(count, random.Random(seed)), random.Random(seed)
    return [Order(rng.choice("abc"), at, number, rng.randrange(60)) for number, at in enumerate(times)]


def _payments(count: int, seed: int) -> list[Payment]:
    """Some orders are paid before they arrive, some twice, some never; and some payments have no order."""
    times, rng = _times(count, random.Random(seed)), random.Random(seed)
    return [
        Payment(rng.choice("abc"), at, max(receipt + rng.randrange(-20, 20), -3), receipt)
        for receipt, at in enumerate(times)
    ]


class CorrectedJoinsJob(OracleJob):
    seed = 8
    complete = frozenset({"left", "right", "full", "accounts", "dearest", "debts"})
    orders: list[Order]
    payments: list[Payment]

    def deliver(self, count: int) -> None:
        self.orders, self.payments = _orders(count, self.seed), _payments(count, self.seed + 1)
        for name, rows in (("orders", self.orders), ("payments", self.payments)):
            self.write(name, [_written(row) for row in rows], below=name)

    def found(self) -> Tables:
        rows = {name: folder_tables.rows(self.table(name)) for name in ("groups", "spent", "left", "right", "full")}
        groups = [{**row, "start": row["start"] // 1000} for row in rows["groups"]]
        spent = [{**row, "start": _seconds(row["start"])} for row in rows["spent"]]
        by_key = {name: delta_tables.rows(self.table(name)) for name in ("accounts", "dearest", "debts")}
        added_up = {name: _remaining(rows[name]) for name in ("left", "right", "full")}
        appended = {"groups": groups, "spent": spent, **by_key}
        return {**added_up, **{name: _multiset(each) for name, each in appended.items()}}

    def wanted(self) -> Tables:
        return {
            "groups": self._groups(), "spent": self._spent(),
            "left": Counter((order.customer, order.number, receipt) for order, receipt in self._left()),
            "right": self._right(), "full": self._full(),
            "accounts": Counter((name, results, paid) for name, results, paid, _ in self._debts()),
            "dearest": self._dearest(), "debts": self._debts(),
        }  # fmt: skip

    def _groups(self) -> Table:
        """The number of orders and of payments of each customer in each 50 s that has one of either."""
        orders = Counter((order.customer, order.at // 50 * 50) for order in self.orders)
        payments = Counter((payment.payer, payment.at // 50 * 50) for payment in self.payments)
        return Counter((*window, orders[window], payments[window]) for window in orders.keys() | payments.keys())

    def _spent(self) -> Table:
        found: Table = Counter()
        for customer, start in {(order.customer, order.at // 50 * 50) for order in self.orders}:
            amounts = [o.amount for o in self.orders if (o.customer, o.at // 50 * 50) == (customer, start)]
            found[customer, start, len(amounts), sum(amounts)] += 1
        return found

    def _left(self) -> list[tuple[Order, int | None]]:
        """Each order with each of its payments, or with None."""
        found: list[tuple[Order, int | None]] = []
        for order in self.orders:
            receipts = [payment.receipt for payment in self.payments if payment.paid == order.number]
            found += [(order, receipt) for receipt in receipts] or [(order, None)]
        return found

    def _right(self) -> Table:
        """Each payment with its order, or with None."""
        numbers = {order.number for order in self.orders}
        paid = ((payment, payment.paid if payment.paid in numbers else None) for payment in self.payments)
        return Counter((payment.payer, payment.receipt, number) for payment, number in paid)

    def _full(self) -> Table:
        """The pairs of an order and a payment that is not before it, and the rows without a partner."""
        pairs = [(o, p) for o in self.orders for p in self.payments if o.number == p.paid and o.at <= p.at]
        found: Table = Counter((order.number, payment.receipt) for order, payment in pairs)
        found.update((order.number, None) for order in self.orders if all(order != o for o, _ in pairs))
        found.update((None, payment.receipt) for payment in self.payments if all(payment != p for _, p in pairs))
        return found

    def _dearest(self) -> Table:
        found: Table = Counter()
        for customer in {order.customer for order in self.orders}:
            ranked = sorted((-o.amount, o.number) for o in self.orders if o.customer == customer)
            for place, (amount, number) in enumerate(ranked[:2], 1):
                found[customer, number, -amount, place] += 1
        return found

    def _debts(self) -> Counter[tuple[str, int, int, int]]:
        found: Counter[tuple[str, int, int, int]] = Counter()
        for customer in {order.customer for order in self.orders}:
            of = [(order, receipt) for order, receipt in self._left() if order.customer == customer]
            paid = [receipt for _, receipt in of if receipt is not None]
            found[customer, len(of), len(paid), sum(order.amount for order, _ in of)] += 1
        return found


def _written(row: Order | Payment) -> Row:
    return {**row._asdict(), "at": (START + timedelta(seconds=row.at)).isoformat()}


def _seconds(text: str) -> int:
    return (datetime.fromisoformat(text) - START) // timedelta(seconds=1)


def _multiset(rows: list[Row]) -> Table:
    return Counter(tuple(row.values()) for row in rows)


def _remaining(changes: list[Row]) -> Table:
    """The rows that are left without those that were retracted. A count below zero is a row that never came."""
    found: Table = Counter()
    for row in changes:
        kind = row.pop("kind")
        found[tuple(row.values())] += -1 if kind in ("-U", "-D") else 1
    return found
