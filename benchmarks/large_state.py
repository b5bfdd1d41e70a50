"""The job with large state that benchmarks of savepoints share, and how they time things."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stateflow.launch import RunRequest, run_job
from stateflow.runtime.job import BatchResult

T = TypeVar("T")
JOB = Path(__file__).parent / "jobs" / "large_state.py"
REPEATS = 3


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        slice: rows of a batch while keys come.
        rows: of a batch after that.
    """

    keys: int = 5_000_000
    slice: int = 250_000
    rows: int = 2_000


FULL = Size()


def settings_of(folder: Path, size: Size, updates: int = 0, **more: str) -> dict[str, str]:
    """Returns the settings of a run."""
    return {
        "local_dir": str(folder / "local"),
        "job.keys": str(size.keys),
        "job.updates": str(updates),
        "job.slice": str(size.slice),
        "job.small": str(size.rows),
        "requests.interval": "50ms",
        **more,
    }


def run_large_state(
    folder: Path, size: Size, updates: int = 0, on_batch: Callable[[BatchResult], None] = lambda _: None
) -> None:
    """Runs the job with the root ``root`` in a folder until all rows are processed."""
    settings = settings_of(folder, size, updates)
    run_job(RunRequest(JOB, str(folder / "root"), (settings,), "benchmark", on_batch=on_batch))


def best(work: Callable[[int], T]) -> tuple[T, float]:
    """Returns the result and the seconds of the fastest of some calls, each with its number."""
    done = [timed(lambda n=n: work(n)) for n in range(REPEATS)]  # type: ignore[misc]
    return min(done, key=lambda d: d[1])


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Returns the result and the seconds of a call."""
    began = time.monotonic()
    result = work()
    return result, time.monotonic() - began
