"""Measures queries of a job's state while the job runs at full speed on the same cores.

The job runs without Spark, with two subtasks and one value of 200 random bytes per key; each batch updates one percent
of the keys. A state server and its clients are processes of their own. The phases:

- Blocks of batches with queries, paced at the goal's rate, alternate with blocks in which server and client are stopped
  by a signal; the slowdown is the median over pairs of blocks. The requests of the first kind are those of `get_p99_ms`
  and `visible_after_ms`.
- The same client while the job waits after each checkpoint: the difference is what the machine's load adds.
- A client without a pause between requests; two clients that ask for single keys; and connections that ask for
  single keys with next to no work for the client, with the job and without it.

A phase ends with its number of blocks, or when its time is over.
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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.jobs.large_state import Keys
from benchmarks.results import write_result
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import Positions
from stateflow.runtime.job_loader import create_or_open_job, load_job
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage

JOB = Path(__file__).parent / "jobs" / "large_state.py"
_LOAD = Path(__file__).parent / "query_load.py"
_CONNECTIONS = Path(__file__).parent / "query_connections.py"
_SETTLE_SECONDS = 0.3
"""What a client measures so soon after its process continues is the end of its pause."""
_MARGIN_SECONDS = 2.0
_PAIRS_SECONDS, _PAUSES_SECONDS, _PHASE_SECONDS, _IDLE_SECONDS, _PAUSE_SECONDS = 60.0, 20.0, 15.0, 3.0, 1.0


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        slice: rows of a batch while keys come.
        changed: keys that a batch updates.
        rate: values that the paced client asks for in a second.
        chunk: keys of a request.
        blocks: pairs of blocks; half as many without pairs.
        batches: batches of a block.
        pauses: batches with a pause after them.
        connections: connections with a request for a single key in progress.
    """

    keys: int = 5_000_000
    slice: int = 250_000
    changed: int = 50_000
    rate: int = 5_000
    chunk: int = 100
    blocks: int = 5
    batches: int = 7
    pauses: int = 10
    connections: int = 8


def run(folder: Path, size: Size = Size()) -> Path:
    """Builds the state, measures, and writes ``query.json``."""
    job = _Job(folder, size)
    job.load()
    figures = _measure_paced(job, folder, size)
    figures |= _measure_unpaced(job, folder, size)
    figures |= _measure_single(job, folder, size)
    figures |= _measure_connections(job, folder, size)
    job.end()
    about = {"keys": size.keys, "keys_per_request": size.chunk, "value_bytes": 200, "connections": size.connections}
    return write_result("query", figures | about)


def _measure_paced(job: _Job, folder: Path, size: Size) -> dict[str, object]:
    with _server(folder) as server, _client(folder, size) as client:
        blocks = _alternate(job, size, (server, client))
        pauses = _with_pauses(job, size)
    samples = _samples(folder / "client.json")
    during = _inside(samples, blocks.queried, _SETTLE_SECONDS)
    paused = _inside(samples, pauses)
    seconds = sum(b.seconds - _SETTLE_SECONDS for b in blocks.queried)
    visible = _visible(job.committed, samples, blocks.queried, _MARGIN_SECONDS)
    visible_paused = _visible(job.committed, samples, pauses, _PAUSE_SECONDS - _SETTLE_SECONDS)
    return {
        **_latency("get", during),
        "get_p99_paused_ms": _latency("get", paused)["get_p99_ms"],
        "get_slowest": _slowest(during),
        "get_client_cpu_ms": round(1000 * statistics.median(s.worked for s in during), 2),
        "paced_gets_per_s": round(len(during) * size.chunk / seconds),
        "job_slowdown": round(blocks.slowdown, 3),
        "visible_after_ms": visible,
        "visible_after_paused_ms": visible_paused,
        "visible_after_load_share": round(1 - visible_paused["median"] / visible["median"], 2),
        "batch_ms": round(1000 * statistics.median(b.seconds for b in blocks.alone) / size.batches, 1),
    }


def _measure_unpaced(job: _Job, folder: Path, size: Size) -> dict[str, object]:
    with _server(folder) as server, _client(folder, replace(size, rate=0)):
        load = _under_load(job, size, server)
    answered = _inside(_samples(folder / "client.json"), load.blocks)
    return {
        "gets_per_s": round(len(answered) * size.chunk / load.seconds),
        "get_server_cpu_ms": round(1000 * load.server_cpu / len(answered), 2),
    }


def _measure_single(job: _Job, folder: Path, size: Size) -> dict[str, object]:
    single = replace(size, rate=0, chunk=1)
    with _server(folder) as server, _client(folder, single), _client(folder, single, "other.json"):
        load = _under_load(job, size, server)
    answered = [s for name in ("client.json", "other.json") for s in _inside(_samples(folder / name), load.blocks)]
    return {
        "single_gets_per_s": round(len(answered) / load.seconds),
        **_latency("single_get", answered),
        "single_client_cpu_ms": round(1000 * statistics.median(s.worked for s in answered), 2),
    }


def _measure_connections(job: _Job, folder: Path, size: Size) -> dict[str, object]:
    arguments = (str(size.keys), str(size.connections))
    with _server(folder) as server, _querying(folder, _CONNECTIONS, arguments, "connections.json"):
        load = _under_load(job, size, server)
        began, cpu = time.time(), _cpu_seconds(server)
        time.sleep(_IDLE_SECONDS)
        idle = _Block(began, time.time())
        cpu = _cpu_seconds(server) - cpu
    samples = _samples(folder / "connections.json")
    during, alone = _inside(samples, load.blocks), _inside(samples, [idle])
    return {
        "connection_gets_per_s": round(len(during) / load.seconds),
        **_latency("connection_get", during),
        "connection_gets_per_s_without_job": round(len(alone) / idle.seconds),
        "single_server_cpu_ms": round(1000 * cpu / len(alone), 3),
    }


@dataclass(frozen=True)
class _Block:
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class _Sample:
    """A request: when it ended, how long it took, its checkpoint, CPU time of the client, and its wait for a core."""

    at: float
    seconds: float
    checkpoint: int = 0
    worked: float = 0.0
    waited: float = 0.0


@dataclass(frozen=True)
class _Load:
    """Blocks with queries, their duration, and CPU seconds of the server meanwhile."""

    blocks: list[_Block]
    seconds: float
    server_cpu: float


@dataclass(frozen=True)
class _Blocks:
    """Pairs of blocks: with queries, and without."""

    queried: list[_Block] = field(default_factory=list)
    alone: list[_Block] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        pairs = zip(self.queried, self.alone, strict=True)
        return statistics.median(a.seconds / b.seconds for a, b in pairs) - 1


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

    def block(self, batches: int = 0) -> _Block:
        """Runs some batches, and waits for the last one's checkpoint."""
        began = time.time()
        for _ in range(batches or self._size.batches):
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
    blocks, until = _Blocks(), time.time() + _PAIRS_SECONDS
    for number in range(size.blocks):
        if number and time.time() > until:
            break
        blocks.queried.append(job.block())
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        blocks.alone.append(job.block())
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
    return blocks


def _with_pauses(job: _Job, size: Size) -> list[_Block]:
    """Returns the times from each COMMIT on in which the job waits."""
    found, until = [], time.time() + _PAUSES_SECONDS
    time.sleep(_IDLE_SECONDS)
    for number in range(size.pauses):
        if number and time.time() > until:
            break
        began = job.block(batches=1).end - 2 * _SETTLE_SECONDS
        time.sleep(_PAUSE_SECONDS)
        found.append(_Block(began, time.time()))
    return found


def _under_load(job: _Job, size: Size, server: subprocess.Popen[str]) -> _Load:
    cpu, until, blocks = _cpu_seconds(server), time.time() + _PHASE_SECONDS, [job.block()]
    while len(blocks) < size.blocks // 2 and time.time() < until:
        blocks.append(job.block())
    return _Load(blocks, sum(b.seconds for b in blocks), _cpu_seconds(server) - cpu)


def _cpu_seconds(process: subprocess.Popen[str]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _server(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "stateflow", "serve", "--job-root", str(folder / "root"), "--port", "0"]
    with _program([*command, "--lease", "3600", "--cache-mib", "512"]) as process:
        yield process


def _client(folder: Path, size: Size, name: str = "client.json") -> AbstractContextManager[subprocess.Popen[str]]:
    return _querying(folder, _LOAD, tuple(map(str, (size.keys, size.rate, size.chunk))), name)


@contextmanager
def _querying(folder: Path, program: Path, arguments: tuple[str, ...], name: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(program), str(folder / "root"), *arguments, str(folder / name)]
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


def _samples(path: Path) -> list[_Sample]:
    found: list[list[float]] = json.loads(path.read_text())
    return [_Sample(at, seconds, int(more[0]) if more else 0, *more[1:]) for at, seconds, *more in found]


def _inside(samples: list[_Sample], blocks: list[_Block], settle: float = 0.0) -> list[_Sample]:
    return [s for s in samples if any(b.begin + settle < s.at < b.end for b in blocks)]


def _latency(name: str, samples: list[_Sample]) -> dict[str, object]:
    ordered = sorted(1000 * s.seconds for s in samples)
    return {
        f"{name}_p50_ms": round(statistics.median(ordered), 2),
        f"{name}_p90_ms": round(ordered[int(len(ordered) * 0.9)], 2),
        f"{name}_p99_ms": round(ordered[int(len(ordered) * 0.99)], 2),
        f"{name}_max_ms": round(ordered[-1], 2),
        f"{name}_requests": len(ordered),
    }


def _slowest(samples: list[_Sample]) -> dict[str, float]:
    """Returns what the slowest two percent of requests consist of; the rest is the server, and its wait for a core."""
    slowest = sorted(samples, key=lambda s: s.seconds)[-max(1, len(samples) // 50) :]
    seconds = sum(s.seconds for s in slowest)
    worked, waited = sum(s.worked for s in slowest) / seconds, sum(s.waited for s in slowest) / seconds
    return {
        "client_works": round(worked, 2),
        "client_waits_for_a_core": round(waited, 2),
        "rest": round(1 - worked - waited, 2),
    }


def _visible(
    committed: dict[int, float], samples: list[_Sample], blocks: list[_Block], margin: float
) -> dict[str, float]:
    """Returns how long after its COMMIT a checkpoint, or a later one, was in an answer for the first time.

    Args:
        committed: when each checkpoint was committed.
        samples: the requests, also those outside of the blocks.
        blocks: the times that count: of checkpoints that were committed in a block, at least `margin` seconds before
            its end, or in its first half. One that was in no answer until the end of its block counts with this time.
    """
    times = []
    for block in blocks:
        answers = [s for s in samples if block.begin < s.at < block.end]
        last = block.end - min(margin, block.seconds / 2)
        for checkpoint, at in committed.items():
            if block.begin + _SETTLE_SECONDS <= at <= last:
                seen = min((s.at for s in answers if s.at >= at and s.checkpoint >= checkpoint), default=block.end)
                times.append(1000 * (seen - at))
    times.sort()
    return {
        "median": round(statistics.median(times), 1),
        "p90": round(times[int(len(times) * 0.9)], 1),
        "max": round(times[-1], 1),
        "checkpoints": len(times),
    }
