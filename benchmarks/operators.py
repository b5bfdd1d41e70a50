"""Compares the CPU time of operators in a task with that of an earlier commit, without Spark.

``python benchmarks/operators.py COMMIT`` checks the commit out into a temporary folder, and starts one process for each
version, which processes the same Arrow batches several times, over a store of RocksDB. The processes take turns, and a
pair has the shortest time of each. Each pair has new processes, because a process may be slower than another one for
all of its life. A ratio is the CPU time of this checkout divided by that of the earlier version in the same pair. Only
the operator is measured, so a whole task, with Spark, differs by less.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.regression import checked_out, quartiles  # noqa: E402
from benchmarks.results import write_result  # noqa: E402

KINDS = ("value", "map", "columns")
WORK = """
import sys, tempfile, time
from pathlib import Path
import numpy as np, pyarrow as pa
from stateflow import (
    KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor, VectorizedKeyedFunction
)
from stateflow.config.settings import RocksDBSettings
from stateflow.runtime.task.operator_runtime import InitialState
from stateflow.runtime.task.keyed_operator import KeyedOperator
from stateflow.runtime.task.vector_operator import VectorOperator
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base
from stateflow.state.host_cache import FileTransfer, HostCache
from stateflow.clock import SystemClock
from stateflow.storage import open_storage
from stateflow.types.key_groups import KeyGroupRange
from tests.support.graphs import Row
from tests.support.operators import chain_of, outputs_of, pieces_of, task_info

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

class Columns(VectorizedKeyedFunction):
    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", int))
    def process_batch(self, rows, state):
        before = state.read(self.total)
        added = np.add.reduceat(rows.column("number").to_numpy(), state.starts)
        state.write(self.total, pa.array(before.fill_null(0).to_numpy() + added))
        return rows

def prepared(kind, home):
    function = {"value": Value, "map": Map, "columns": Columns}[kind]()
    chain = chain_of(function)
    rows = [Row(f"k{n % 10_000}", n) for n in range(int(sys.argv[3]))]
    pieces = pieces_of(chain, rows, range(20_000, len(rows), 20_000))
    storage = open_storage(str(home / "root"))
    cache = HostCache(home / "cache", FileTransfer.direct(storage, home / "cache", SystemClock()), SystemClock())
    base = Base(0, KeyGroupRange(0, 127), ())
    store = RocksDBBackend(home / "store", cache, base, RocksDBSettings())
    make = VectorOperator if kind == "columns" else KeyedOperator
    given = (lambda: store) if kind == "columns" else (lambda: InitialState(store))
    return lambda: outputs_of(make(chain, task_info(), given()), pieces)

with tempfile.TemporaryDirectory() as folder:
    work = prepared(sys.argv[1], Path(folder))
    for _ in range(int(sys.argv[2])):
        work()
    for _ in sys.stdin:
        began = time.process_time()
        work()
        print(time.process_time() - began, flush=True)
"""
"""The program that measures one version; it uses names that both versions have."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        pairs: measurements of each version and kind.
        rows: of an iteration.
        warm_up: iterations before those that are measured.
        iterations: of which the shortest one counts.
    """

    pairs: int = 12
    rows: int = 100_000
    warm_up: int = 1
    iterations: int = 4


class Worker:
    """A process with one version.

    Args:
        tree: the folder of the version.
        program: the program, which measures an iteration for each line that it reads.
        arguments: of the program.
    """

    def __init__(self, tree: Path, program: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-c", program, *arguments]
        environment = {"PYTHONPATH": str(tree), "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def measure(self, what: str = "go") -> float:
        """Returns the CPU time of an iteration, in seconds.

        Args:
            what: the line that the program reads.
        """
        given, shown = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        given.write(f"{what}\n")
        given.flush()
        return float(shown.readline())

    def end(self) -> None:
        """Ends the process."""
        # Closes both pipes, and waits.
        self._process.communicate()


def measure(folder: Path, commit: str, kinds: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """Measures both versions.

    Args:
        folder: for the earlier version's files.
        commit: the earlier version.
        kinds: what to measure, of `KINDS`.
    """
    ratios: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[tuple[float, float]]] = {}
    with checked_out(commit, folder) as tree:
        for kind in kinds:
            pairs = [_measure_pair([tree, ROOT], kind, sizes) for _ in range(sizes.pairs)]
            seconds[kind] = pairs
            ratios[kind] = quartiles([after / before for before, after in pairs])
            print(kind, ratios[kind], flush=True)
    return {"against": commit, "ratios": ratios, "cpu_s": seconds, **asdict(sizes)}


def _measure_pair(trees: Sequence[Path], kind: str, sizes: Sizes) -> tuple[float, float]:
    """Returns the CPU time of both versions, in seconds."""
    workers = [Worker(tree, WORK, (kind, str(sizes.warm_up), str(sizes.rows))) for tree in trees]
    measured = [[worker.measure() for worker in workers] for _ in range(sizes.iterations)]
    for worker in workers:
        worker.end()
    return min(before for before, _ in measured), min(after for _, after in measured)


def main(arguments: Sequence[str]) -> int:
    """Measures and writes ``results/operators.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="the earlier version")
    for name, default in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    given = vars(parser.parse_args(arguments))
    commit, kinds = given.pop("commit"), given.pop("kinds")
    with tempfile.TemporaryDirectory(prefix="stateflow-operators-") as folder:
        path = write_result("operators", measure(Path(folder), commit, kinds, Sizes(**given)))
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
