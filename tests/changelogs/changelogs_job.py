"""A job that writes changelogs to Delta tables, and what the tables must have, by plain Python."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.support.job_fixture import JobFixture

Row = dict[str, Any]


def _bids(count: int) -> list[Row]:
    rng = random.Random(5)
    return [
        {"item": rng.choice("abcde"), "at": n // 2 - rng.randrange(9), "price": rng.randrange(60), "number": n}
        for n in range(count)
    ]


class ChangelogsJob(JobFixture):
    """The job of `tests/support/jobs/changelogs.py`."""

    rows: list[Row]

    def deliver(self, count: int) -> None:
        self.rows = _bids(count)
        lines = [json.dumps(row) + "\n" for row in self.rows]
        (self.folder / "bids.jsonl").write_text("".join(lines))
        # What Spark reads: one more file.
        files = self.folder / "in"
        files.mkdir(exist_ok=True)
        known = sum(len(file.read_text().splitlines()) for file in files.iterdir())
        (files / f"{count:04}.json").write_text("".join(lines[known:]))

    def content(self, name: str) -> list[Row]:
        uris = DeltaTable(str(self.table(name))).file_uris()
        rows = [row for uri in uris for row in pq.read_table(uri, partitioning=None).to_pylist()]
        return sorted(rows, key=lambda row: row["number"])

    def check_tables(self) -> None:
        of: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            of[row["item"]].append(row)
        newest = [max(rows, key=lambda row: (row["at"], row["number"])) for rows in of.values()]
        best = [
            {"place": place, **row}
            for rows in of.values()
            for place, row in enumerate(sorted(rows, key=lambda r: (-r["price"], r["at"], r["number"]))[:3], 1)
        ]
        assert self.content("newest") == sorted(newest, key=lambda row: row["number"])
        best.sort(key=lambda row: row["number"])
        assert self.content("best") == best
        assert self.content("changes") == [{n: v for n, v in row.items() if n != "place"} for row in best]
