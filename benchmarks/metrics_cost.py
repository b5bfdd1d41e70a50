"""Measures what the metrics of operators, sinks and checkpoints cost, in CPU time, for each kind of operator.

``python benchmarks/metrics_cost.py`` runs a job of each kind without Spark, over a store of RocksDB, as it is and with
functions that do nothing in place of the measurements, in turns. Both run in one process, because one process may be
slower than another one for all of its life, by more than metrics cost; each pair has a new one. A ratio is the shortest
CPU time with metrics divided by the shortest one without, of one pair; the result has the quartiles of the ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.operators import Worker  # noqa: E402
from benchmarks.regression import quartiles  # noqa: E402
from benchmarks.results import write_result  # noqa: E402

KINDS = (
    "value", "map", "list", "timers", "columns", "windows", "column-windows", "interval-join", "regular-join",
    "temporal-join", "pattern", "sql",
)  # fmt: skip
WORK = """
import gc, logging, shutil, sys, tempfile, time
from datetime import timedelta
from itertools import count
from pathlib import Path
import msgspec, numpy as np, pyarrow as pa
from stateflow import (
    KeyedProcessFunction, ListStateDescriptor, MapStateDescriptor, Pattern, ProcessJoinFunction,
    TumblingEventTimeWindows, ValueStateDescriptor, VectorizedKeyedFunction, WatermarkStrategy,
)
from benchmarks.history_leg import MEASUREMENTS, replace_all
from stateflow.clock import ManualClock
from tests.support.local_jobs import Growing, LocalJobs

class Row(msgspec.Struct):
    key: str
    at: int
    number: int

class Sum(msgspec.Struct):
    key: str
    number: int

class Value(KeyedProcessFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))
    def process_element(self, row, ctx):
        self.total.update((self.total.value() or 0) + row.number)
        yield row

class Map(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", int, int))
    def process_element(self, row, ctx):
        self.seen.put(row.number % 9, (self.seen.get(row.number % 9) or 0) + 1)
        yield row

class List(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", int))
    def process_element(self, row, ctx):
        self.seen.add(row.number)
        yield Row(row.key, row.at, sum(self.seen.get()))

class Timers(KeyedProcessFunction):
    def process_element(self, row, ctx):
        ctx.timer_service().register_event_time_timer(row.at + 500)
    def on_timer(self, timestamp, ctx):
        yield Row(ctx.get_current_key(), timestamp, 0)

class Columns(VectorizedKeyedFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))
    def process_batch(self, rows, state):
        before = state.read(self.total)
        added = np.add.reduceat(rows.column("number").to_numpy(), state.starts)
        state.write(self.total, pa.array(before.fill_null(0).to_numpy() + added))
        return rows

class Join(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield Row(left.key, right.at, left.number + right.number)

class Pair(msgspec.Struct):
    key: str
    left: int
    right: int

WINDOWS = TumblingEventTimeWindows.of(timedelta(seconds=1))
JOBS = {
    "value": lambda rows: rows.process(Value(), output=Row, uid="op"),
    "map": lambda rows: rows.process(Map(), output=Row, uid="op"),
    "list": lambda rows: rows.process(List(), output=Row, uid="op"),
    "timers": lambda rows: rows.process(Timers(), output=Row, uid="op"),
    "columns": lambda rows: rows.process(Columns(), output=Row, uid="op"),
    "windows": lambda rows: rows.window(WINDOWS).reduce(lambda a, b: Row(a.key, b.at, a.number + b.number), uid="op"),
    "column-windows": lambda rows: rows.window(WINDOWS).aggregate_columns(
        {"number": ("sum", "number")}, output=Sum, uid="op"
    ),
    "interval-join": lambda rows: rows.interval_join(rows).between(timedelta(0), timedelta(milliseconds=3)).process(
        Join(), output=Row, uid="op"
    ),
    "regular-join": lambda rows: rows.regular_join(rows).select(
        Pair, {"key": "left.key", "left": "left.number", "right": "right.number"}, uid="op"
    ),
    "temporal-join": lambda rows: rows.temporal_join(rows, how="left").apply(
        lambda left, right: Row(left.key, left.at, right.number if right else 0), output=Row, uid="op"
    ),
    "pattern": lambda rows: rows.match_pattern(Pattern.begin("any")).select(
        lambda match: match["any"][0], output=Row, uid="op"
    ),
}

kind, rows_count = sys.argv[1], int(sys.argv[3])
if kind in ("columns", "column-windows", "sql"):
    # They take less time for a row.
    rows_count *= 2
parts = {"off": MEASUREMENTS, "on": replace_all(MEASUREMENTS)}
logging.disable(logging.CRITICAL)
rows = Growing([Row(f"k{n % 5_000}", n, n) for n in range(rows_count)], Row)

def declare(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    stream = env.from_source(rows, uid="rows").assign_timestamps_and_watermarks(strategy)
    env.register_table("numbers", stream)
    if kind == "sql":
        made = env.sql_query("SELECT key, SUM(number) AS number FROM numbers GROUP BY key", uid="op").as_append_only()
    else:
        made = JOBS[kind](stream.key_by("key"))
    made.sink_to(jobs.sink("out"), uid="out")

with tempfile.TemporaryDirectory() as home:
    def work(mode):
        global jobs
        replace_all(parts[mode])
        # What the iterations before have left is not this one's.
        gc.collect()
        folder = Path(home) / "job"
        jobs = LocalJobs(
            folder, ManualClock(), state__backend="rocksdb", parallelism=2, max_parallelism=8,
            source__max_rows_per_batch=rows_count // 3,
        )
        began = time.process_time()
        jobs.run(declare)
        took = time.process_time() - began
        shutil.rmtree(folder)
        return took
    for _ in range(int(sys.argv[2])):
        work("off"), work("on")
    for line in sys.stdin:
        print(work(line.strip()), flush=True)
"""
"""The program that measures one kind: an iteration with or without metrics, as the line says that it reads."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        pairs: measurements with and without metrics, of each kind.
        rows: of an iteration; kinds that compute columns have twice as many.
        warm_up: iterations of each before those that are measured.
        iterations: of each, of which the shortest one counts.
    """

    pairs: int = 12
    rows: int = 30_000
    warm_up: int = 1
    iterations: int = 3


def measure(kinds: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Measures each kind with and without metrics."""
    ratios: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[tuple[float, float]]] = {}
    for kind in kinds:
        seconds[kind] = [_measure_pair(kind, sizes, number % 2 == 0) for number in range(sizes.pairs)]
        ratios[kind] = quartiles([with_metrics / without for with_metrics, without in seconds[kind]])
        print(kind, ratios[kind], flush=True)
    return {"ratios": ratios, "cpu_s": seconds, **asdict(sizes)}


def _measure_pair(kind: str, sizes: Sizes, off_first: bool) -> tuple[float, float]:
    """Returns the CPU time with and without metrics, in seconds."""
    order = ["off", "on"] if off_first else ["on", "off"]
    worker = Worker(ROOT, WORK, (kind, str(sizes.warm_up), str(sizes.rows)))
    measured: dict[str, list[float]] = {mode: [] for mode in order}
    for _ in range(sizes.iterations):
        for mode in order:
            measured[mode].append(worker.measure(mode))
    worker.end()
    return min(measured["on"]), min(measured["off"])


def main(arguments: Sequence[str]) -> int:
    """Measures and writes ``results/metrics-cost.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    given = vars(parser.parse_args(arguments))
    kinds = given.pop("kinds")
    print(write_result("metrics-cost", measure(kinds, Sizes(**given))).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
