"""The job of jobs/timed.py in a folder, and its expected tables, computed in plain Python."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path

from tests.spark.jobs import timed
from tests.spark.processes import ModuleJob
from tests.support import root_files

Row = tuple[str, int, int]
_DELAY = timed.LATENESS // timedelta(milliseconds=1)


@dataclass
class Oracle:
    """The rows that the job must have emitted after some runs."""

    slice_rows: int
    windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    late: set[int] = field(default_factory=set)
    latest: dict[str, int] = field(default_factory=dict)
    watermark: int = -(1 << 63)
    drained: bool = False
    _read: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    _ordered: list[Row] = field(default_factory=list)

    def run(self, rows: dict[str, list[Row]]) -> None:
        """A run until it has processed all rows."""
        slices = {uid: _slices(rows[uid][at:], self.slice_rows) for uid, at in self._read.items()}
        for batch in zip_longest(*slices.values(), fillvalue=[]):
            self._advance()
            for row in (row for part in batch for row in part):
                self._take(row)
            given = {uid: [at for _, at, _ in part] for uid, part in zip(slices, batch, strict=True)}
            for uid, times in given.items():
                # Rows that the job drops count as well.
                self.latest |= {uid: max(*times, self.latest.get(uid, times[0]))} if times else {}
        self._read = {uid: len(rows[uid]) for uid in self._read}
        self._ordered = rows["c"]
        self._advance()

    @property
    def counts(self) -> Counter[tuple[str, int, int]]:
        ended = {window: n for window, n in self.windows.items() if self.drained or window[1] - 1 <= self.watermark}
        return Counter((key, end, n) for (key, end), n in ended.items())

    @property
    def totals(self) -> Counter[tuple[int, int]]:
        totals: Counter[int] = Counter()
        for _, end, count in self.counts:
            totals[end] += count
        return Counter(totals.items())

    @property
    def visits(self) -> Counter[tuple[str, int, int, int]]:
        """Those that ended before the newest row, of any key."""
        found: dict[str, list[list[int]]] = {}
        for key, at, _ in self._ordered:
            own = found.setdefault(key, [])
            if own and at - own[-1][-1] <= timed.GAP:
                own[-1].append(at)
            else:
                own.append([at])
        newest = max(at for _, at, _ in self._ordered)
        ended = [(k, v) for k, own in found.items() for v in own if self.drained or v[-1] + timed.GAP < newest]
        return Counter((key, visit[0], visit[-1], len(visit)) for key, visit in ended)

    def _take(self, row: Row) -> None:
        key, at, number = row
        if key == "dropped":
            return
        end = at // timed.WINDOW * timed.WINDOW + timed.WINDOW
        if end - 1 <= self.watermark:
            self.late.add(number)
        else:
            self.windows[key, end] += 1

    def _advance(self) -> None:
        if self.latest.keys() == self._read.keys():
            self.watermark = max(self.watermark, min(self.latest.values()) - _DELAY - 1)


def _slices(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def _rows(seed: int, count: int, first: int) -> list[Row]:
    """Rows of a source, most of them in order, some of them late."""
    chance = random.Random(seed)
    times = [first + 130 * n - chance.choice([0, 0, 0, 100, 250, 290, 1900]) for n in range(count)]
    return [(chance.choice(["x", "y", "z", "dropped"]), at, seed * 10_000 + n) for n, at in enumerate(times)]


def _ordered_rows(count: int) -> list[Row]:
    """Rows in order of event time; a batch of five has several visits of a key."""
    chance, at, rows = random.Random(3), 1000, []
    for number in range(count):
        at += chance.choice([1, 20, 60, 90, 130])
        rows.append((chance.choice("vw"), at, number))
    return rows


ROWS = {"a": _rows(1, 60, 5000), "b": _rows(2, 60, 5600), "c": _ordered_rows(60)}


class TimedJob(ModuleJob):
    """The job without Spark, or on it."""

    def __init__(self, folder: Path, spark: bool = False) -> None:
        # A batch takes longer on Spark.
        self.oracle = Oracle(15 if spark else 5)
        settings = {"max_parallelism": 16, "requests__interval": "20ms", "checkpoints__asynchronous": "no"}
        super().__init__(folder, timed, spark=spark, source__max_rows_per_batch=self.oracle.slice_rows, **settings)

    def deliver(self, share: float) -> None:
        """Makes that share of all rows available; the oracle reads them."""
        self.deliver_later(share)
        self.oracle.run({uid: json.loads((self.folder / f"{uid}.json").read_text()) for uid in ROWS})

    def deliver_later(self, share: float) -> None:
        """Makes that share of all rows available."""
        for uid, rows in ROWS.items():
            (self.folder / f"{uid}.json").write_text(json.dumps(rows[: round(share * len(rows))]))

    def check(self) -> None:
        """The tables have the oracle's rows."""
        assert Counter(row[:3] for row in self.rows("counts").elements()) == self.oracle.counts
        assert self.rows("totals") == self.oracle.totals
        assert Counter(number for _, _, number in self.rows("late").elements()) == Counter(self.oracle.late)
        assert self.rows("visits") == self.oracle.visits

    def check_drained(self) -> None:
        """All windows and visits have been emitted."""
        self.oracle.drained = True
        self.check()

    def watermark(self) -> int:
        """The watermark of both levels of windows."""
        manifest = root_files.read_manifest(self.root, root_files.head(self.root).doc["manifest"])
        found = {o["uid"]: o["watermark"] for o in manifest["operators"]}
        assert found["windows"] == found["totals"]
        return int(found["windows"])
