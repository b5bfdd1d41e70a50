"""A job that writes changelogs to Delta tables, and what the tables must have, by plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

from tests.support import delta_tables
from tests.support.job_fixture import OracleJob, Row, Tables


def _bids(count: int, seed: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        {"item": rng.choice("abcde"), "at": n // 2 - rng.randrange(9), "price": rng.randrange(60), "number": n}
        for n in range(count)
    ]


class ChangelogsJob(OracleJob):
    seed = 5
    complete = frozenset({"newest", "best", "changes"})
    rows: list[Row]

    def deliver(self, count: int) -> None:
        self.rows = _bids(count, self.seed)
        self.write("bids", self.rows)

    def found(self) -> Tables:
        return {name: _multiset(delta_tables.rows(self.table(name))) for name in self.wanted()}

    def wanted(self) -> Tables:
        of: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            of[row["item"]].append(row)
        newest = [max(rows, key=lambda row: (row["at"], row["number"])) for rows in of.values()]
        ranked = [sorted(rows, key=lambda r: (-r["price"], r["at"], r["number"]))[:3] for rows in of.values()]
        best = [{"place": place, **row} for rows in ranked for place, row in enumerate(rows, 1)]
        changes = [row for rows in ranked for row in rows]
        return {"newest": _multiset(newest), "best": _multiset(best), "changes": _multiset(changes)}


def _multiset(rows: list[Row]) -> Counter[tuple[object, ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)
