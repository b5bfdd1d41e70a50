"""One run of the soak job in a process of its own, which looks at itself: ``python -m benchmarks.soak_leg ORDER``.

What it sees goes to a file, a JSON line for each window of batches: times, memory of the driver, of Spark's JVM and of
Spark's Python workers, and how many objects the job root has.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.memory import MIB, workers
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult

JOB = Path(__file__).parent / "jobs" / "soak.py"


class Order(msgspec.Struct, frozen=True):
    """What a run is to do.

    Attributes:
        output: the file for what it sees.
        window: batches that one line is about.
    """

    root: str
    settings: dict[str, str]
    output: str
    window: int


class Sample(msgspec.Struct, frozen=True):
    """What a run saw in one window of batches.

    Attributes:
        batches: since the run's start.
        median_ms: of the time of a batch.
        cpu_ms: of this process, for each batch.
        resident: MiB by kind of process; `heap` is what is live in the JVM's heap.
        objects: of the job root, by area.
    """

    batches: int
    median_ms: float
    mean_ms: float
    cpu_ms: float
    resident: dict[str, float]
    objects: dict[str, int]


class Ended(msgspec.Struct, frozen=True):
    """Seconds from the call until the job was claimed and restored, and until its end."""

    start_after_s: float
    took_s: float
    batches: int


class _Watch:
    """Counts batches, and looks around after each window."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._file = Path(order.output).open("wb")
        self._batches = 0
        self._times: list[float] = []
        self._last = (time.monotonic(), time.process_time())
        self._cpu_from = self._last[1]
        self.began = time.monotonic()
        self.started = 0.0

    def note_start(self, _: JobRun) -> None:
        self.started = time.monotonic() - self.began
        self._last = (time.monotonic(), time.process_time())
        self._cpu_from = self._last[1]

    def note(self, _: BatchResult) -> None:
        now = time.monotonic()
        self._times.append((now - self._last[0]) * 1000)
        self._batches += 1
        if self._batches % self._order.window == 0:
            self.write(self._sample())
            self._times.clear()
            self._cpu_from = time.process_time()
            now = time.monotonic()
        self._last = (now, 0.0)

    def _sample(self) -> Sample:
        cpu = (time.process_time() - self._cpu_from) * 1000 / len(self._times)
        return Sample(
            self._batches,
            round(statistics.median(self._times), 2),
            round(statistics.fmean(self._times), 2),
            round(cpu, 2),
            _resident(),
            _objects(Path(self._order.root)),
        )

    def write(self, what: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(what) + b"\n")
        self._file.flush()

    def finish(self, batches: int) -> None:
        self.write(Ended(round(self.started, 3), round(time.monotonic() - self.began, 3), batches))
        self._file.close()


def _resident() -> dict[str, float]:
    """MiB of memory by kind of process: of anonymous memory, since pages of files are shared and reclaimed."""
    found = {"driver": _anonymous(os.getpid())}
    python = [_anonymous(pid) for pid in workers(os.getpid())]
    if python:
        found["workers"] = max(python)
        found |= _jvm()
    return {name: round(size / MIB, 1) for name, size in found.items()}


def _jvm() -> dict[str, float]:
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    java: Any = session.sparkContext._jvm.java  # noqa: SLF001 - PySpark has no other way into its JVM
    java.lang.System.gc()
    runtime = java.lang.Runtime.getRuntime()
    heap = runtime.totalMemory() - runtime.freeMemory()
    return {"heap": float(heap), "jvm": _anonymous(int(java.lang.ProcessHandle.current().pid()))}


def _anonymous(pid: int) -> float:
    """Resident bytes of a process that do not belong to a file; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("RssAnon:")), 0.0)


def _objects(root: Path) -> dict[str, int]:
    """Files by area. A collection may be removing some of them: what `os.walk` cannot list, it leaves out."""
    return {area.name: sum(len(files) for _, _, files in os.walk(area)) for area in root.iterdir()}


def main(arguments: list[str]) -> None:
    """Carries out the order."""
    order = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Order)
    watch = _Watch(order)
    request = RunRequest(JOB, order.root, (order.settings,), "soak", on_start=watch.note_start, on_batch=watch.note)
    result = run_job(request)
    watch.finish(result.batches)


if __name__ == "__main__":
    main(sys.argv[1:])
