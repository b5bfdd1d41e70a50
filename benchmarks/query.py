"""Measures queries of a job's state while the job runs at full speed on the same cores.

The job runs without Spark, with two subtasks and one value of 200 random bytes per key; each batch updates one percent
of the keys. A state server and a client are processes of their own. Blocks of batches with queries, paced at the goal's
rate, alternate with blocks in which server and client are stopped by a signal; the slowdown is the median over pairs of
blocks. How many values a client gets without pacing is measured in further blocks.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.jobs.large_state import Keys
from benchmarks.results import write_result
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import Positions
from stateflow.runtime.job.loader import create_or_open_job, load_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage

JOB = Path(__file__).parent / "jobs" / "large_state.py"
_LOAD = Path(__file__).parent / "query_load.py"
_SETTLE_SECONDS = 0.3
"""What a client measures so soon after its process continues is the end of its pause."""


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        slice: rows of a batch while keys come.
        changed: keys that a batch updates.
        rate: values that the paced client asks for in a second.
        chunk: keys of a request.
        blocks: pairs of blocks.
        batches: batches of a block.
    """

    keys: int = 5_000_000
    slice: int = 250_000
    changed: int = 50_000
    rate: int = 5_000
    chunk: int = 100
    blocks: int = 8
    batches: int = 5


def run(folder: Path, size: Size = Size()) -> Path:
    """Builds the state, measures, and writes ``query.json``."""
    job = _Job(folder, size)
    job.load()
    with _server(folder) as server, _client(folder, size, size.rate) as paced:
        blocks = _alternate(job, size, (server, paced))
    samples = _samples(folder)
    with _server(folder), _client(folder, size, 0):
        unpaced = [job.block() for _ in range(size.blocks)]
    job.end()
    fastest = _samples(folder)
    during = [s for s in samples if any(b.begin + _SETTLE_SECONDS < s[0] < b.end for b in blocks.queried)]
    latencies = sorted(s[1] * 1000 for s in during)
    inside = [s for s in fastest if unpaced[0].begin < s[0] < unpaced[-1].end]
    figures = {
        "gets_per_s": round(len(inside) * size.chunk / (unpaced[-1].end - unpaced[0].begin)),
        "get_p50_ms": round(statistics.median(latencies), 2),
        "get_p99_ms": round(latencies[int(len(latencies) * 0.99)], 2),
        "paced_gets_per_s": round(
            len(during) * size.chunk / sum(b.end - b.begin - _SETTLE_SECONDS for b in blocks.queried)
        ),
        "job_slowdown": round(blocks.slowdown, 3),
        "visible_after_ms": _visible(job.committed, during),
        "keys": size.keys,
        "keys_per_request": size.chunk,
        "value_bytes": 200,
        "batch_ms": round(1000 * statistics.median(b.end - b.begin for b in blocks.alone) / size.batches, 1),
    }
    return write_result("query", figures)


@dataclass(frozen=True)
class _Block:
    begin: float
    end: float


@dataclass(frozen=True)
class _Blocks:
    """Pairs of blocks: with queries, and without."""

    queried: list[_Block] = field(default_factory=list)
    alone: list[_Block] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        pairs = zip(self.queried, self.alone, strict=True)
        return statistics.median((a.end - a.begin) / (b.end - b.begin) for a, b in pairs) - 1


class _Job:
    """The job, batch by batch.

    Attributes:
        committed: when each checkpoint was committed, by id.
    """

    def __init__(self, folder: Path, size: Size) -> None:
        settings = {
            "local_dir": str(folder / "local"),
            "job.keys": str(size.keys),
            "job.updates": "1000000000",
            "job.slice": str(size.slice),
            "job.small": str(size.changed),
            "parallelism": "2",
        }
        self.committed: dict[int, float] = {}
        self._size, self._root = size, folder / "root"
        env, resolved = declare(load_job(JOB).build, JOB.stem, (settings,))
        job = create_or_open_job(env.graph, resolved, open_storage(str(self._root)), SystemClock())
        self.run = JobRun(job, LocalExecutor())
        self.run.start()
        self._source = Keys(size.keys, 1_000_000_000, size.slice, size.changed)
        self._position: str | None = None

    def load(self) -> None:
        """Writes each key once, and some of them again."""
        for _ in range(-(-self._size.keys // self._size.slice) + self._size.batches):
            self._batch()
        self.run.commit_pending()

    def block(self) -> _Block:
        """Runs some batches, and waits for the last one's checkpoint."""
        began = time.time()
        for _ in range(self._size.batches):
            self._batch()
        self.run.commit_pending()
        return _Block(began, time.time())

    def end(self) -> None:
        """Ends the run."""
        self.run.finish()
        self.run.abandon()
        store_cache.close_all()

    def _batch(self) -> None:
        found = self._source.read(self._position, self.run.job.settings.source)
        assert found is not None
        self._position = found.position
        ((uid, description),) = self.run.job.sources
        here = SourcePosition(uid=uid, description=description, offset=found.position)
        self.run.run_batch({uid: found.rows}, lambda _: Positions([here]))
        for entry in (self._root / "log").iterdir():
            if entry.name.isdigit() and int(entry.name) not in self.committed:
                self.committed[int(entry.name)] = entry.stat().st_mtime


def _alternate(job: _Job, size: Size, processes: tuple[subprocess.Popen[str], ...]) -> _Blocks:
    blocks = _Blocks()
    for _ in range(size.blocks):
        blocks.queried.append(job.block())
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        blocks.alone.append(job.block())
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
    return blocks


@contextmanager
def _server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "stateflow", "serve", "--job-root", str(folder / "root"), "--port", "0"]
    with _program([*command, "--lease", "3600", "--cache-mib", "512"]) as process:
        yield process


@contextmanager
def _client(folder: Path, size: Size, rate: int) -> Iterator[subprocess.Popen[str]]:
    sizes = map(str, (size.keys, rate, size.chunk))
    command = [sys.executable, str(_LOAD), str(folder / "root"), *sizes, str(folder / "samples.json")]
    with _program(command) as process:
        yield process


@contextmanager
def _program(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process, once it has printed a line; SIGTERM ends it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None and process.stdout.readline(), command
            yield process
        finally:
            process.terminate()
            process.wait(60)


def _samples(folder: Path) -> list[tuple[float, float, int]]:
    found: list[Any] = json.loads((folder / "samples.json").read_text())
    return [(float(at), float(seconds), int(checkpoint)) for at, seconds, checkpoint in found]


def _visible(committed: dict[int, float], samples: list[tuple[float, float, int]]) -> dict[str, float]:
    """Returns how long after its COMMIT a checkpoint was in an answer for the first time."""
    first: dict[int, float] = {}
    for at, _, checkpoint in samples:
        first.setdefault(checkpoint, at)
    newest_seen = sorted(first)
    times = sorted(1000 * (first[c] - committed[c]) for c in newest_seen[1:] if c in committed)
    return {"median": round(statistics.median(times), 1), "max": round(times[-1], 1), "checkpoints": len(times)}
