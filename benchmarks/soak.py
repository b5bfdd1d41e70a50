"""Long runs: whether time, memory and storage stay as they are over many batches, savepoints, restores and restarts.

Each run is a separate process. The first one processes half of the batches, the others share the rest. After each
run the job takes a savepoint, processes a few more batches, is restored to the savepoint, and has some empty runs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from benchmarks.jobs.soak import Batches, has_output
from benchmarks.memory import MIB
from benchmarks.results import write_result
from benchmarks.soak_leg import JOB, Ended, Order, Sample
from stateflow import operations
from stateflow.clock import SystemClock
from stateflow.operations import JobCode, SavepointRequest
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions

_REPOSITORY = Path(__file__).parent.parent
_SHARE = 10
"""The first and the last one of so many parts are compared."""
_SMOOTH = 5
_SLACK = 20
_EPOCH = 1_700_000_000


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        batches: without Spark, after those that make the keys.
        spark_batches: with Spark.
        rows: of a batch.
        runs: processes that the batches are divided among.
        idle_runs: with nothing to do, after each of them.
    """

    batches: int = 50_000
    spark_batches: int = 3_000
    keys: int = 25_600
    value_bytes: int = 4_096
    rows: int = 10
    runs: int = 5
    idle_runs: int = 5


@dataclass
class _Soak:
    """A job that runs again and again.

    Attributes:
        batches: after those that make the keys.
        samples: of each run.
        starts: seconds until each run was restored.
        done: batches of the source that the job is past.
    """

    folder: Path
    size: Size
    batches: int
    on_spark: bool
    samples: list[list[Sample]] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    done: int = 0
    restores: int = 0
    seconds: float = 0.0

    def play(self) -> dict[str, Any]:
        """Runs everything, checks what came out, and returns the figures."""
        self.folder.mkdir(parents=True)
        if self.on_spark:
            _write_files(self.folder / "events", self._source, self._source.fill + self.batches)
        first, *others = _shares(self.batches, self.size.runs)
        self._run(self._source.fill + first)
        for share in others:
            self._go_back(self._savepoint(), max(1, share // 20))
            for _ in range(0 if self.on_spark else self.size.idle_runs):
                self._run(0)
            self._run(share)
        self._check()
        return self._figures()

    @property
    def _source(self) -> Batches:
        return Batches(self.size.keys, self.size.rows)

    @property
    def _root(self) -> str:
        return str(self.folder / "root")

    def _settings(self, batches: int) -> dict[str, str]:
        given = {
            "job.table": str(self.folder / "table"),
            "local_dir": str(self.folder / "local"),
            "job.keys": str(self.size.keys),
            "job.value_bytes": str(self.size.value_bytes),
            "job.rows": str(self.size.rows),
            "job.batches": str(self.done - self._source.fill + batches),
            "run.max_batches": str(batches or 1),
            # Smaller than the state, so that they are full before a tenth of the batches is over.
            "rocksdb.block_cache_bytes": str(8 << 20),
            "rocksdb.write_buffer_bytes": str(4 << 20),
        }
        return {**given, "job.events": str(self.folder / "events")} if self.on_spark else given

    def _run(self, batches: int) -> None:
        """A run with so many batches; it ends since there are no more, or at its bound."""
        output, order = self.folder / "seen", self.folder / "order.json"
        window = max(10, self.batches // 200)
        order.write_bytes(msgspec.json.encode(Order(self._root, self._settings(batches), str(output), window)))
        paths = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
        subprocess.run([sys.executable, "-m", "benchmarks.soak_leg", str(order)], check=True, env=paths)
        *lines, last = output.read_bytes().splitlines()
        ended = msgspec.json.decode(last, type=Ended)
        assert ended.batches == batches, f"{ended.batches} batches instead of {batches}"
        self.samples.append([msgspec.json.decode(line, type=Sample) for line in lines])
        self.starts.append(ended.start_after_s)
        self.seconds += ended.took_s
        self.done += batches

    def _savepoint(self) -> str:
        code = JobCode(JOB, (self._settings(1),))
        return operations.create_savepoint(
            self._root, SavepointRequest(code=code, acknowledge_timeout=timedelta())
        ).name

    def _go_back(self, savepoint: str, batches: int) -> None:
        """Runs on for some batches, and goes back from there."""
        self._run(batches)
        code = JobCode(JOB, (self._settings(1),))
        plan = operations.plan_restore(self._root, code, savepoint, RestoreOptions())
        operations.restore(self._root, code, plan, RestoreRequest(SystemClock().new_id()))
        operations.dispose(self._root, savepoint)
        self.done -= batches
        self.restores += 1

    def _check(self) -> None:
        """Each row that was to come out is in the table, once."""
        files = [uri.removeprefix("file://") for uri in DeltaTable(str(self.folder / "table")).file_uris()]
        found = pa.concat_tables(parquet.read_table(file) for file in files)
        wanted = self.size.rows * sum(map(has_output, range(self._source.fill, self._source.fill + self.batches)))
        distinct = found.group_by(["key", "count"]).aggregate([]).num_rows
        assert (self.done, found.num_rows, distinct) == (self._source.fill + self.batches, wanted, wanted)

    def _figures(self) -> dict[str, Any]:
        samples = [s for run in self.samples for s in run]
        first, last = _ends(samples, self._source.fill)
        return {
            "batches": self.done,
            "restarts": len(self.samples) - 1,
            "restores": self.restores,
            "took_s": round(self.seconds, 1),
            "batch_ms": round(statistics.median(s.median_ms for s in samples), 2),
            "batch_time_last_vs_first": _ratio(last, first, lambda s: s.median_ms),
            "batch_cpu_last_vs_first": _ratio(last, first, lambda s: s.cpu_ms),
            "rss_growth_mib": {kind: growth(self.samples, kind) for kind in sorted(samples[0].resident)},
            "rss_mib": {kind: max(s.resident[kind] for s in samples) for kind in sorted(samples[0].resident)},
            "log_entries": _bounded(samples, ["log"]),
            "objects": _bounded(samples, ["data", "log", "requests", "savepoints", "probe", "spark"]),
            "history_objects": _bounded(samples, ["history"]),
            "start_after_s": self.starts[-1],
            "start_after_max_s": max(self.starts[1:], default=0),
        }


def _shares(batches: int, runs: int) -> list[int]:
    """How the batches are divided among runs: half of them for the first one."""
    rest, others = batches // 2, runs - 1
    shares = [rest // others + (n < rest % others) for n in range(others)]
    return [batches - rest, *shares]


def _ends(samples: Sequence[Sample], fill: int) -> tuple[list[Sample], list[Sample]]:
    """What the first tenth of all windows saw, after the keys were made, and the last tenth."""
    settled = [s for n, s in enumerate(samples) if n or s.batches > 2 * fill][1:] or list(samples)
    part = max(1, len(settled) // _SHARE)
    return settled[:part], settled[-part:]


def _ratio(last: list[Sample], first: list[Sample], figure: Callable[[Sample], float]) -> float:
    return round(statistics.median(map(figure, last)) / statistics.median(map(figure, first)), 3)


def growth(runs: Sequence[Sequence[Sample]], kind: str) -> float:
    """Growth of memory after the first tenth of the first, long run.

    The median of some windows counts, since a garbage collector releases memory only periodically.
    """
    longest = [s.resident[kind] for s in runs[0]]
    part = max(1, len(longest) // _SHARE)
    base = statistics.median(longest[part : part + _SMOOTH] or longest)
    later = [longest[part:], *([s.resident[kind] for s in run] for run in runs[1:])]
    tops = [statistics.median(run[at : at + _SMOOTH]) for run in later for at in range(0, len(run), _SMOOTH)]
    return round(max(tops) - base, 1)


def _bounded(samples: Sequence[Sample], areas: Sequence[str]) -> dict[str, Any]:
    """Maximum number of objects in each half; bounded if the second is at most 10 % and 20 objects above the first."""
    counts = [sum(s.objects.get(area, 0) for area in areas) for s in samples]
    half = len(counts) // 2
    first, second = max(counts[:half]), max(counts[half:])
    return {"max_first_half": first, "max_second_half": second, "bounded": second <= 1.1 * first + _SLACK}


def _write_files(folder: Path, source: Batches, batches: int) -> None:
    """A file for each batch, each a second younger than the one before."""
    folder.mkdir()
    for number in range(batches):
        path = folder / f"{number:08d}.parquet"
        parquet.write_table(pa.Table.from_pylist([msgspec.structs.asdict(r) for r in source.rows(number)]), path)
        os.utime(path, (_EPOCH + number, _EPOCH + number))


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``soak.json``."""
    figures: dict[str, Any] = {}
    if size.batches:
        figures["without_spark"] = _Soak(folder / "local", size, size.batches, on_spark=False).play()
    if size.spark_batches:
        figures["with_spark"] = _Soak(folder / "spark", size, size.spark_batches, on_spark=True).play()
    state = round(size.keys * size.value_bytes / MIB)
    return write_result("soak", {**figures, "state_mib": state, "rows_per_batch": size.rows})
