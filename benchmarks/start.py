"""Measures runs without new input, from the start of their process to its end: idle starts, and runs with Spark."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import JOB

_PROJECT = Path(__file__).parent.parent
_PROGRAM = str(_PROJECT / "stateflow" / "__main__.py")


@dataclass(frozen=True)
class Size:
    """How many runs are measured, after one that reads the input."""

    idle: int = 9
    with_spark: int = 3


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``start.json``.

    ``idle_run_s`` is a run as Airflow launches it, through ``stateflow submit``; ``idle_command_s`` the command
    ``stateflow run``; ``spark_run_s`` a run without new input that starts Spark, also through spark-submit.
    """
    write_events(folder / "events", Events(files=2, rows_per_file=10_000, keys=1_000))
    _timed(_run(folder), idle=False)
    idle = [_timed(_submit(folder), idle=True) for _ in range(size.idle)]
    command = [_timed(_run(folder), idle=True) for _ in range(size.idle)]
    spark = [_timed(_submit(folder, "--set", "run.skip_idle=no"), idle=False) for _ in range(size.with_spark)]
    figures = {
        "idle_run_s": round(statistics.median(idle), 2),
        "idle_run_max_s": round(max(idle), 2),
        "idle_command_s": round(statistics.median(command), 2),
        "spark_run_s": round(statistics.median(spark), 2) if spark else None,
    }
    return write_result("start", figures)


def _submit(folder: Path, *more: str) -> list[str]:
    program = shutil.which("spark-submit")
    assert program is not None, "spark-submit is not on the PATH"
    return [sys.executable, _PROGRAM, "submit", *_arguments(folder), *more, "--", program, "--master", "local[2,4]"]


def _run(folder: Path) -> list[str]:
    return [sys.executable, _PROGRAM, "run", *_arguments(folder)]


def _arguments(folder: Path) -> list[str]:
    settings = {"job.events": folder / "events", "job.table": folder / "table", "local_dir": folder / "local"}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = ["--result-file", str(folder / "result.json")]
    return [str(JOB), "--job-root", str(folder / "root"), *assignments, *result]


def _timed(command: Sequence[str], *, idle: bool) -> float:
    """Returns the seconds of a program, after checking its result."""
    result = Path(command[command.index("--result-file") + 1])
    result.unlink(missing_ok=True)
    paths = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_DRIVER_PYTHON": sys.executable}
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(result.read_text())["result"]["idle"] is idle, done.stderr[-4000:]
    return seconds
