"""How long a job on Spark is away whose driver is killed: from the SIGKILL to the first checkpoint of the next run.

The next run begins at once, as a retry without delay would. The start of Spark itself, that of a JVM mostly, is told
apart: it takes what it takes without stateflow as well. Run as a program, this is the driver.
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
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.data import Events, write_events
from benchmarks.runs import JOB
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.clock import SystemClock
from stateflow.environment import RunRequest, run_job
from stateflow.errors import ConfigError, DataError
from stateflow.runtime import session
from stateflow.storage import open_storage

_EVENTS = Events(files=2_000, rows_per_file=10_000, keys=100_000)
_AFTER = 5
_POLL_SECONDS, _LIMIT_SECONDS = 0.005, 180


def measure(folder: Path, kills: int, events: Events = _EVENTS) -> dict[str, Any]:
    """Kills a job's driver so many times, in the midst of its batches, and measures each time what follows."""
    write_events(folder / "events", events)
    away, spark = [], []
    with _driver(folder) as process:
        head = _checkpoints(folder, process, None, _AFTER)
    for _ in range(kills):
        killed = time.monotonic()
        with _driver(folder) as process:
            first = _checkpoints(folder, process, head, 1)
            away.append(time.monotonic() - killed)
            spark.append(json.loads((folder / "spark.json").read_text())["seconds"])
            head = _checkpoints(folder, process, first, _AFTER)
    ours = [whole - start for whole, start in zip(away, spark, strict=True)]
    return {
        "recovery_s": round(statistics.median(ours), 2),
        "recovery_worst_s": round(max(ours), 2),
        "spark_start_s": round(statistics.median(spark), 2),
        "kills": kills,
    }


@contextmanager
def _driver(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the job, which ends by SIGKILL."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.killed_driver", str(folder)], stdout=log,
                                   stderr=log, cwd=Path(__file__).parent.parent)  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _checkpoints(folder: Path, process: subprocess.Popen[bytes], before: Head | None, number: int) -> Head:
    """The head when so many checkpoints are behind another one."""
    first = before.entry.seq if before else 0
    until = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < until and process.poll() is None:
        head = _head(folder)
        # Each is one entry; the CLAIM of a run is one that is none.
        if head is not None and head.entry.is_checkpoint and head.entry.seq > first + number:
            return head
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"the driver got nowhere:\n{(folder / 'log').read_text()[-3000:]}")


def _head(folder: Path) -> Head | None:
    try:
        return JobRoot.open(open_storage(str(folder / "root")), SystemClock(), "benchmark").head()
    except (ConfigError, DataError):
        # No job root yet, or no entry in it.
        return None


def _drive(folder: Path) -> None:
    real = session.open_session

    def timed(*arguments: Any) -> Any:
        began = time.monotonic()
        spark = real(*arguments)
        told = folder / f"spark-{os.getpid()}.json"
        told.write_text(json.dumps({"seconds": time.monotonic() - began}))
        told.rename(folder / "spark.json")
        return spark

    settings = {"job.events": str(folder / "events"), "job.table": str(folder / "table"), "parallelism": "2",
                "job.files": "1", "local_dir": str(folder / "local")}  # fmt: skip
    with patch.object(session, "open_session", timed):
        run_job(RunRequest(JOB, str(folder / "root"), (settings,), "benchmark"))


if __name__ == "__main__":
    _drive(Path(sys.argv[1]))
