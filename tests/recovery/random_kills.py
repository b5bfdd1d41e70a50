"""Kills of what a job on Spark consists of, at times that a seed decides."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil

from tests.support import root_files
from tests.support.flights_job import FlightsJob
from tests.support.processes import Running, wait_for

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
        flights.deliver(_files_done(flights) + 6)
        run = flights.start()
        while done < len(victims) and _kill_one(run, victims[done], rng):
            done += 1
            if victims[done - 1] != WORKER:
                break
        ended = run.wait(run.family)
        # Without Spark, a driver fails with an error that a retry fixes.
        assert ended.code in (0, -9, 5), str(ended)
    # A run that has work in every subtask sweeps the scratch space.
    flights.run_to(_files_done(flights) + 1)
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


def _files_done(flights: FlightsJob) -> int:
    """How many files are in checkpoints."""
    found = root_files.entries(flights.root)
    return root_files.files_read(found[-1]) if found else 0
