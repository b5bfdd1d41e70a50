"""Measures the recovery time of a job on Spark: from the driver's SIGKILL to the next run's first committed batch.

The next run starts immediately, as a retry without delay would. The start of the Spark session, mostly that of a JVM,
is measured separately: it takes the same time without stateflow. So does the first batch of a cold JVM; the same job
with Spark's own operator and checkpoints, killed in the same way, shows its share. As a program, this is the driver.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.data import Events, write_events
from benchmarks.runs import JOB
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.spark.session import session
from stateflow.storage import open_storage

_EVENTS = Events(files=2_000, rows_per_file=10_000, keys=100_000)
_AFTER = 5
_POLL_SECONDS, _LIMIT_SECONDS = 0.005, 180


@dataclass(frozen=True)
class _Job:
    """The same job, by us or by Spark.

    Attributes:
        drive: runs it in a folder until it is killed, and writes ``spark.json`` there.
        newest: a number that grows with each batch that is committed in the folder.
    """

    name: str
    drive: Callable[[Path], None]
    newest: Callable[[Path], int]


def measure(folder: Path, kills: int, events: Events = _EVENTS) -> dict[str, Any]:
    """Kills each job's driver `kills` times during a batch and measures each recovery; the two jobs take turns."""
    jobs = [_OURS, _SPARKS]
    away: dict[str, list[float]] = {job.name: [] for job in jobs}
    spark: dict[str, list[float]] = {job.name: [] for job in jobs}
    for job in jobs:
        write_events(folder / job.name / "events", events)
        with _driver(folder, job) as process:
            _await(folder, job, process, _AFTER)
    for _ in range(kills):
        for job in jobs:
            killed = time.monotonic()
            with _driver(folder, job) as process:
                _await(folder, job, process, 1)
                away[job.name].append(time.monotonic() - killed)
                told = json.loads((folder / job.name / "spark.json").read_text())
                spark[job.name].append(told["seconds"])
                _await(folder, job, process, _AFTER)
    rest = {name: [whole - start for whole, start in zip(away[name], spark[name], strict=True)] for name in away}
    return {
        "recovery_s": round(statistics.median(rest["ours"]), 2),
        "recovery_worst_s": round(max(rest["ours"]), 2),
        "recovery_of_spark_alone_s": round(statistics.median(rest["spark"]), 2),
        "spark_start_s": round(statistics.median(spark["ours"]), 2),
        "kills": kills,
    }


@contextmanager
def _driver(folder: Path, job: _Job) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the job, which ends by SIGKILL."""
    command = [sys.executable, "-m", "benchmarks.killed_driver", job.name, str(folder / job.name)]
    with (folder / job.name / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parent.parent)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _await(folder: Path, job: _Job, process: subprocess.Popen[bytes], batches: int) -> None:
    """Until so many more are committed."""
    here = folder / job.name
    seen, until = job.newest(here), time.monotonic() + _LIMIT_SECONDS
    while batches:
        if time.monotonic() > until or process.poll() is not None:
            raise RuntimeError(f"the driver got nowhere:\n{(here / 'log').read_text()[-3000:]}")
        newest = job.newest(here)
        batches -= newest != seen
        seen = newest
        time.sleep(_POLL_SECONDS)


def _tell(folder: Path, seconds: float) -> None:
    told = folder / f"spark-{os.getpid()}.json"
    told.write_text(json.dumps({"seconds": seconds}))
    told.rename(folder / "spark.json")


def _newest_checkpoint(folder: Path) -> int:
    try:
        return JobRoot.open(open_storage(str(folder / "root")), SystemClock(), "benchmark").head().checkpoint_id
    except (ConfigError, DataError):
        # No job root yet, or no entry in it.
        return 0


def _drive(folder: Path) -> None:
    real = session.open_session

    def timed(*arguments: Any) -> Any:
        began = time.monotonic()
        spark = real(*arguments)
        _tell(folder, time.monotonic() - began)
        return spark

    settings = {
        "job.events": str(folder / "events"),
        "job.table": str(folder / "table"),
        "parallelism": "2",
        "job.files": "1",
        "local_dir": str(folder / "local"),
    }
    with patch.object(session, "open_session", timed):
        run_job(RunRequest(JOB, str(folder / "root"), (settings,), "benchmark"))


def _newest_commit(folder: Path) -> int:
    names = [path.name for path in (folder / "checkpoint" / "commits").glob("[0-9]*")]
    return max(map(int, names), default=-1) + 1


def _drive_spark(folder: Path) -> None:
    from pyspark.sql import SparkSession

    from benchmarks.peers.spark_native import SETTINGS, transformed

    builder = SparkSession.builder.master("local[2,4]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    began = time.monotonic()
    spark = builder.getOrCreate()
    _tell(folder, time.monotonic() - began)
    stream = spark.readStream.schema("key bigint, value double").option("maxFilesPerTrigger", 1)
    means = transformed(stream.parquet((folder / "events").as_uri()))
    # Spark's file sink takes no updates; each batch appends its rows.
    query = means.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
    query.foreachBatch(lambda rows, _: rows.write.mode("append").parquet(str(folder / "table"))).start()
    spark.streams.awaitAnyTermination()


_OURS = _Job("ours", _drive, _newest_checkpoint)
_SPARKS = _Job("spark", _drive_spark, _newest_commit)


if __name__ == "__main__":
    {job.name: job for job in (_OURS, _SPARKS)}[sys.argv[1]].drive(Path(sys.argv[2]))
