"""The job on Spark on a standalone cluster, whose executors and workers are killed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.recovery.random_kills import check_at_rest
from tests.servers.spark import Cluster, executor_of, spark_cluster
from tests.support.flights_job import FlightsJob
from tests.support.processes import ROOT, Ended, Running, spawn, wait_for

_SETTINGS = {
    "storage__shared": "true",
    "checkpoints__asynchronous": "yes",
    "checkpoints__collect_every": 3,
    "spark__conf__spark.speculation": "true",
    "spark__conf__spark.speculation.multiplier": "1.1",
    "spark__conf__spark.speculation.quantile": "0.4",
    "spark__conf__spark.speculation.interval": "20ms",
    "spark__conf__spark.executor.memory": "700m",
    "spark__conf__spark.task.maxFailures": "20",
    "spark__conf__spark.driver.host": "127.0.0.1",
}
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
