"""Windows by timers on two levels, on Spark and without it, against a computation in plain Python."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from stateflow.testing.sinks import FolderSink
from tests.recovery import disk
from tests.spark.jobs import timed

ROOT = Path(__file__).parents[2]
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


class Box:
    """A job root with the job's files."""

    def __init__(self, home: Path, spark: bool = False) -> None:
        self.home = home
        self.spark = spark
        # A batch on Spark takes longer.
        self.oracle = Oracle(15 if spark else 5)
        self.said = ""

    def deliver(self, share: float) -> dict[str, list[Row]]:
        rows = {uid: rows[: round(share * len(rows))] for uid, rows in ROWS.items()}
        for uid, given in rows.items():
            (self.home / f"{uid}.json").write_text(json.dumps(given))
        return rows

    def run(self, failpoint: str = "", **settings: Any) -> int:
        given = {"job.home": self.home, "job.spark": "yes" if self.spark else "no", "local_dir": self.home / "local",
                 "source.max_rows_per_batch": self.oracle.slice_rows, "max_parallelism": 16, **settings}  # fmt: skip
        return self.command("run", timed.__file__, *_set(given), failpoint=failpoint)

    def command(self, *arguments: str, failpoint: str = "", fails: bool = False) -> int:
        once = {"STATEFLOW_FAILPOINT": failpoint, "STATEFLOW_FAILPOINT_ONCE": str(self.home / "reached")}
        environment = {**os.environ, "PYTHONPATH": str(ROOT)} | (once if failpoint else {})
        command = [sys.executable, "-m", "stateflow", *arguments, "--job-root", str(self.home / "root")]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        self.said = ended.stdout + ended.stderr
        if not failpoint and not fails:
            assert ended.returncode == 0, self.said[-3000:]
        return ended.returncode

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in FolderSink(self.home / table).rows())

    def check(self) -> None:
        counts = Counter((key, end, count) for key, end, count, _ in self.rows("counts").elements())
        assert counts == self.oracle.counts
        assert self.rows("totals") == self.oracle.totals
        late = [number for _, _, number in self.rows("late").elements()]
        assert Counter(late) == Counter(self.oracle.late)

    def watermark(self) -> int:
        manifest = disk.read_manifest(self.root, disk.head(self.root).doc["manifest"])
        found = {o["uid"]: o["watermark"] for o in manifest["operators"]}
        assert found["windows"] == found["totals"]
        return int(found["windows"])

    @property
    def root(self) -> Path:
        return self.home / "root"


def _set(settings: dict[str, object]) -> Sequence[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def _run_twice(box: Box) -> None:
    for share in (0.6, 1):
        box.oracle.run(box.deliver(share))
        box.run()
        box.check()
    assert box.oracle.late
    assert len(box.oracle.totals) > 5
    assert box.watermark() == box.oracle.watermark


def test_windows_of_two_sources_on_two_levels_are_what_plain_python_says(box: Box) -> None:
    _run_twice(box)


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_too_behind_expressions_and_with_tick_batches(tmp_path: Path) -> None:
    _run_twice(Box(tmp_path, spark=True))


def test_the_last_windows_fire_in_tick_batches_and_not_when_none_are_left(box: Box) -> None:
    box.oracle.run(box.deliver(1))
    box.run(**{"run.max_batches": 12})
    assert len(box.oracle.counts) > len(box.rows("counts"))
    box.run()
    box.check()
    batches = len(disk.history(box.root))
    assert batches == 13
    box.run()
    assert len(disk.history(box.root)) == batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint", ["task.fired:21", "task.processed:30", "task.uploaded:15", "batch.reported:9", "commit.after:12",
                  "publish.after:9", "task.fired:51"]
)  # fmt: skip
def test_a_kill_while_timers_fire_changes_nothing(box: Box, failpoint: str) -> None:
    box.oracle.run(box.deliver(1))
    assert box.run(failpoint) == -9
    box.run()
    box.check()


def test_timers_move_with_their_keys_to_another_parallelism(box: Box) -> None:
    for share, parallelism in ((0.3, 1), (0.7, 3), (1, 2)):
        box.oracle.run(box.deliver(share))
        box.run(parallelism=parallelism)
        box.check()


def test_draining_fires_every_window_before_the_savepoint_and_the_watermark_stays(box: Box) -> None:
    rows = box.deliver(0.5)
    box.oracle.run(rows)
    box.run()
    assert len(box.oracle.windows) > len(box.oracle.counts)
    reached, before = box.watermark(), disk.head(box.root)
    _ask_to_drain(box.root)
    box.deliver(1)
    box.run()
    assert box.watermark() == reached
    box.oracle.watermark = 1 << 62
    box.check()
    assert disk.head(box.root).doc["sources"] == before.doc["sources"]
    made = disk.savepoints(box.root)["last"]
    assert made["drained"] is True
    assert made["checkpoint_id"] > before.seq


def test_without_a_run_nothing_can_be_drained_while_timers_are_pending(box: Box) -> None:
    box.oracle.run(box.deliver(0.2))
    box.run()
    assert box.command("stop", "--savepoint", "--drain", fails=True) != 0
    assert "no run is there to fire the job's event-time timers" in box.said
    assert box.command("stop", "--savepoint") == 0


def _ask_to_drain(root: Path) -> None:
    document = {"id": "r1", "kind": "stop", "savepoint": "last", "origin": "stop", "by": "ada", "reason": "",
                "drain": True, "at": "2026-01-01"}  # fmt: skip
    (root / "requests").mkdir(exist_ok=True)
    (root / "requests" / "r1").write_bytes(disk.sealed(document))
