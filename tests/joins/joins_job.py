"""A job with joins in a folder, and what its tables must have, by nested loops in plain Python."""

from __future__ import annotations

import random
from collections import Counter

from tests.support import folder_tables, stored_state
from tests.support.job_fixture import OracleJob, Tables

Match = tuple[str, int, int]
Rows = list[tuple[str, int, int]]


def _script(count: int, seed: int) -> Rows:
    """Rows that are up to 20 ms out of order: key, time, number."""
    rng, rows, at = random.Random(seed), [], 0
    for number in range(count):
        at += rng.choice([0, 1, 3, 10])
        rows.append((rng.choice("abc"), max(at - rng.randrange(20), 0), number))
    return rows


class JoinsJob(OracleJob):
    seed = 5
    complete = frozenset({"interval", "regular", "expiring"})
    orders: Rows
    payments: Rows

    def deliver(self, count: int) -> None:
        self.orders, self.payments = _script(count, self.seed), _script(count, self.seed + 1)
        self._write("orders", self.orders, ("customer", "at", "number"))
        self._write("payments", self.payments, ("payer", "at", "amount"))

    def found(self) -> Tables:
        return {name: self.matches(name) for name in self.wanted()}

    def wanted(self) -> Tables:
        return {
            "interval": self.interval(), "window": self.window(), "regular": self.regular(), "expiring": self.regular(),
            "temporal": self.temporal(),
        }  # fmt: skip

    def matches(self, name: str) -> Counter[Match]:
        rows = folder_tables.rows(self.table(name))
        return Counter((row["customer"], row["order"], row["payment"]) for row in rows)

    def interval(self) -> Counter[Match]:
        return self._pairs(lambda order, payment: -10 <= payment - order <= 30)

    def window(self) -> Counter[Match]:
        return self._pairs(lambda order, payment: order // 50 == payment // 50)

    def regular(self) -> Counter[Match]:
        return self._pairs(lambda order, payment: 0 <= payment - order <= 100)

    def temporal(self) -> Counter[Match]:
        found: Counter[Match] = Counter()
        for customer, at, number in self.orders:
            before = [(paid, amount) for payer, paid, amount in self.payments if payer == customer and paid <= at]
            found[customer, number, max(before)[1] if before else -1] += 1
        return found

    def stored_rows(self, uid: str) -> int:
        """How many orders and payments the state of an operator has."""
        (operator,) = [each for each in self.manifest["operators"] if each["uid"] == uid]
        states = {stored_state.state_id(each["name"]) for each in operator["states"]}
        entries = (stored_state.stored_entries(self.root, each) for each in operator["subtasks"])
        return sum(key[2:6] in states for each in entries for key, _ in each)

    def _pairs(self, matches: object) -> Counter[Match]:
        assert callable(matches)
        return Counter(
            (customer, number, amount)
            for customer, at, number in self.orders
            for payer, paid, amount in self.payments
            if customer == payer and matches(at, paid)
        )

    def _write(self, name: str, rows: Rows, columns: tuple[str, str, str]) -> None:
        self.write(name, [dict(zip(columns, row, strict=True)) for row in rows], below=name)
