"""A job with joins in a folder, and what its tables must have, by nested loops in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter

from tests.support import folder_tables
from tests.support.job_fixture import JobFixture

Match = tuple[str, int, int]
Rows = list[tuple[str, int, int]]


def _script(count: int, seed: int) -> Rows:
    """Rows that are up to 20 ms out of order: key, time, number."""
    rng, rows, at = random.Random(seed), [], 0
    for number in range(count):
        at += rng.choice([0, 1, 3, 10])
        rows.append((rng.choice("abc"), max(at - rng.randrange(20), 0), number))
    return rows


class JoinsJob(JobFixture):
    """The job of `tests/support/jobs/joins.py`."""

    orders: Rows
    payments: Rows

    def deliver(self, count: int) -> None:
        self.orders, self.payments = _script(count, 5), _script(count, 6)
        self._write("orders", self.orders, ("customer", "at", "number"))
        self._write("payments", self.payments, ("payer", "at", "amount"))

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

    def check(self, *names: str) -> None:
        """Compares tables with plain Python."""
        for name in names:
            assert self.matches(name) == getattr(self, name)(), name

    def _pairs(self, matches: object) -> Counter[Match]:
        assert callable(matches)
        return Counter(
            (customer, number, amount)
            for customer, at, number in self.orders
            for payer, paid, amount in self.payments
            if customer == payer and matches(at, paid)
        )

    def _write(self, name: str, rows: Rows, columns: tuple[str, str, str]) -> None:
        lines = [json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows]
        (self.folder / f"{name}.jsonl").write_text("".join(lines))
        # What Spark reads: one more file.
        files = self.folder / "in" / name
        files.mkdir(parents=True, exist_ok=True)
        known = sum(len(file.read_text().splitlines()) for file in files.iterdir())
        (files / f"{len(rows):04}.json").write_text("".join(lines[known:]))
