"""The job of jobs/timed.py in a folder, and what must come out of it, computed in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import timed
from tests.support import job_fixture, root_files
from tests.support.processes import fork, spawn

Row = tuple[str, int, int]


@dataclass
class Oracle:
    """What the job must have emitted after some runs, batch by batch."""

    slice_rows: int
    windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    late: set[int] = field(default_factory=set)
    read: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    latest: dict[str, int] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    watermark: int = -(1 << 63)

    def run(self, rows: dict[str, list[Row]]) -> None:
        """A run until it is caught up."""
        slices = {uid: _slices(rows[uid][at:], self.slice_rows) for uid, at in self.read.items()}
        for batch in zip_longest(*slices.values(), fillvalue=[]):
            self._advance()
            for row in (row for part in batch for row in part):
                self._take(row)
            given = {uid: [at for _, at, _ in part] for uid, part in zip(slices, batch, strict=True)}
            self.active = {uid for uid, times in given.items() if times}
            for uid in self.active:
                self.latest[uid] = max(*given[uid], self.latest.get(uid, given[uid][0]))
        self.read = {uid: len(rows[uid]) for uid in self.read}
        self._advance()

    @property
    def totals(self) -> Counter[tuple[int, int]]:
        totals: Counter[int] = Counter()
        for _, end, count in self.counts:
            totals[end] += count
        return Counter(totals.items())

    @property
    def counts(self) -> Counter[tuple[str, int, int]]:
        return Counter((k, end, n) for (k, end), n in self.windows.items() if end - 1 <= self.watermark)

    def _take(self, row: Row) -> None:
        key, at, number = row
        end = at // timed.WINDOW * timed.WINDOW + timed.WINDOW
        if end - 1 <= self.watermark:
            self.late.add(number)
        else:
            self.windows[key, end] += 1

    def _advance(self) -> None:
        if self.active:
            delay = timed.LATENESS.total_seconds() * 1000
            reached = min(self.latest[uid] for uid in self.active) - int(delay) - 1
            self.watermark = max(self.watermark, reached)


def _slices(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _rows(seed: int, count: int, first: int) -> list[Row]:
    """Rows of a source, mostly in order, some of them late."""
    chance = random.Random(seed)
    times = [first + 130 * n - chance.choice([0, 0, 0, 100, 250, 290, 1900]) for n in range(count)]
    return [(chance.choice("xyz"), at, seed * 10_000 + n) for n, at in enumerate(times)]


ROWS = {"a": _rows(1, 60, 5000), "b": _rows(2, 36, 5600)}


class TimedJob(job_fixture.JobFixture):
    """The job without Spark, or on it."""

    def __init__(self, folder: Path, spark: bool = False) -> None:
        # A batch on Spark takes longer.
        self.oracle = Oracle(15 if spark else 5)
        settings = {
            "job__home": folder,
            "job__spark": "yes" if spark else "no",
            "max_parallelism": 16,
            "source__max_rows_per_batch": self.oracle.slice_rows,
            "requests__interval": "20ms",
        }
        super().__init__(folder, settings, launcher=spawn if spark else fork)

    @property
    def job_file(self) -> str:
        return timed.__file__

    def deliver(self, share: float) -> dict[str, list[Row]]:
        """Makes that part of all rows be there."""
        rows = {uid: rows[: round(share * len(rows))] for uid, rows in ROWS.items()}
        for uid, given in rows.items():
            (self.folder / f"{uid}.json").write_text(json.dumps(given))
        return rows

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in FolderSink(self.folder / table).rows())

    def check(self) -> None:
        """Tables have the oracle's rows."""
        counts = Counter((key, end, count) for key, end, count, _ in self.rows("counts").elements())
        assert counts == self.oracle.counts
        assert self.rows("totals") == self.oracle.totals
        late = [number for _, _, number in self.rows("late").elements()]
        assert Counter(late) == Counter(self.oracle.late)

    def watermark(self) -> int:
        """That of both operators."""
        manifest = root_files.read_manifest(self.root, root_files.head(self.root).doc["manifest"])
        found = {o["uid"]: o["watermark"] for o in manifest["operators"]}
        assert found["windows"] == found["totals"]
        return int(found["windows"])
