"""Kills of what a job on Spark consists of, at times that a seed decides, also on a standalone cluster."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.servers.spark import Cluster, executor_of, spark_cluster
from tests.support.flights_job import FlightsJob
from tests.support.processes import ROOT, Ended, Running, spawn, wait_for

DRIVER, WORKER, JVM = "driver", "worker", "jvm"
"""The Python program, one of the Python processes of Spark's tasks, and Spark itself."""
_RUNS_EACH = 10
"""A run may end before its process is killed; more runs than this without a kill are an error."""


def check_at_rest(flights: FlightsJob) -> None:
    """What must hold at rest."""
    flights.check()


def kill_at_random(flights: FlightsJob, victims: list[str], rng: random.Random) -> None:
    """Kills one after another: a worker's death is one of a run that continues, the others end the run."""
    done, runs = 0, 0
    flights.log_format = "json"
    while done < len(victims):
        runs += 1
        assert runs <= _RUNS_EACH * len(victims), f"{runs - 1} runs ended, and {done} processes were killed"
        flights.deliver(flights.files_done + 6)
        run = flights.start()
        while done < len(victims) and _kill_one(run, victims[done], rng):
            done += 1
            if victims[done - 1] != WORKER:
                break
        ended = run.wait(run.family)
        # Without Spark, a driver fails with an error that a retry fixes.
        assert ended.code in (0, -9, 5), str(ended)
    # A run that has work in every subtask sweeps the scratch space.
    flights.run_to(flights.files_done + 1)
    flights.check()


def _kill_one(run: Running, kind: str, rng: random.Random) -> bool:
    """Waits for a random time, from the restoring on, and kills; False when the run ended before."""
    # Workers are killed at least a batch apart: Spark gives a batch up that fails time after time, and so does the run.
    batches = run.count("committed") + (rng.randrange(1, 3) if kind == WORKER else rng.randrange(3))
    delay, began = rng.uniform(0, 1), 0.0

    def due() -> bool:
        nonlocal began
        there = candidates(run, kind)
        if not began and run.count("restored") and run.count("committed") >= batches:
            began = time.monotonic()
        late_enough = bool(began) and time.monotonic() - began >= delay
        return run.poll() is not None or (late_enough and bool(there))

    wait_for(due, lambda: f"a time to kill {run}")
    if run.poll() is not None:
        return False
    try:
        os.kill(rng.choice(candidates(run, kind)), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        # Spark ended its idle workers just now.
        return _kill_one(run, kind, rng)
    return True


def candidates(run: Running, kind: str) -> list[int]:
    """The processes of a run of one kind: its driver, JVM or Python workers."""
    if kind == DRIVER:
        return [run.pid]
    found = run.workers() if kind == WORKER else [p for p in run.family() if _name_of(p) == "java"]
    return [process.pid for process in found]


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


# -- a standalone cluster, whose executors and workers are killed -----------------------------------------------------

_SETTINGS = {
    "storage__shared": "true", "checkpoints__asynchronous": "yes", "checkpoints__collect_every": 3,
    "spark__conf__spark.speculation": "true", "spark__conf__spark.speculation.multiplier": "1.1",
    "spark__conf__spark.speculation.quantile": "0.4", "spark__conf__spark.speculation.interval": "20ms",
    "spark__conf__spark.executor.memory": "700m", "spark__conf__spark.task.maxFailures": "20",
    "spark__conf__spark.driver.host": "127.0.0.1",
}  # fmt: skip
_TRIES = 4


@dataclass(frozen=True)
class ClusteredFlights:
    """A job, and the cluster that it runs on."""

    cluster: Cluster
    job: FlightsJob

    def kill_executor(self, rng: random.Random) -> bool:
        """SIGKILL of one of the executors; False when there is none at present."""
        there = self.cluster.executors()
        return bool(there) and _kill(rng.choice(there))

    def replace_worker(self) -> None:
        """SIGKILL of the cluster's youngest worker; another one comes."""
        self.cluster.kill_worker(len(self.cluster.workers) - 1)
        self.cluster.add_worker()

    def end_well(self, files: int) -> None:
        """Runs until one has processed so many files; others fail with an error that a retry fixes."""
        self.job.deliver(files)
        if not any(check_ended(self.job.run()).code == 0 for _ in range(_TRIES)):
            raise AssertionError("no run succeeded")
        check_at_rest(self.job)


@contextmanager
def clustered_flights(folder: Path, of_workers: Mapping[str, str] = {}, **options: Any) -> Iterator[ClusteredFlights]:
    """A cluster of a master and two workers, and a job that nothing was delivered for yet.

    Args:
        of_workers: their environment, and so of executors; by default executors find this checkout.
        options: for `FlightsJob`.
    """
    with spark_cluster(folder / "cluster", {"PYTHONPATH": str(ROOT), **of_workers}) as cluster:
        settings = {**_SETTINGS, "spark__master": cluster.url}
        flights = FlightsJob(
            folder / "job", settings, job_name="small_flights", launcher=spawn, log_format="json", **options
        )
        try:
            yield ClusteredFlights(cluster, flights)
        finally:
            flights.end_all()


def batches_of(run: Running) -> int:
    """How many batches a run has committed so far."""
    return run.count("committed")


def await_batches(run: Running, number: int) -> None:
    """Waits until a run has committed that many, or is over."""
    wait_for(lambda: batches_of(run) >= number or run.poll() is not None, lambda: f"{number} batches of {run}")


def check_ended(ended: Ended) -> Ended:
    """A run that lost executors succeeds, or fails with an error that a retry fixes."""
    assert ended.code in (0, 5), str(ended)
    return ended


def kill_executor_of(marker: Path, run: Running) -> None:
    """Waits for the task that has stopped itself at a failpoint, and kills it together with its executor: a daemon
    that has lost its executor cannot end a process that is stopped."""
    wait_for(lambda: bool(_written(marker)) or run.poll() is not None, lambda: f"a stopped task of {run}")
    assert _written(marker), str(run)
    stopped = psutil.Process(int(_written(marker)))
    _kill(executor_of(stopped))
    _kill(stopped)


def _written(marker: Path) -> str:
    return marker.read_text() if marker.exists() else ""


def _kill(process: psutil.Process) -> bool:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True
