"""The end of a run: batches without rows, while timers are due."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.runtime.bounds import CAUGHT_UP, STOPPED, Bounds
from stateflow.runtime.job import BatchResult
from stateflow.runtime.run import JobRun


def run_ticks(run: JobRun, bounds: Bounds, on_batch: Callable[[BatchResult], None]) -> str:
    """Runs tick batches until no timer is due, or until a bound; returns which.

    A watermark comes from the batches before: it is here that it reaches what the last rows allow. What is still due
    after `run.max_tick_batches` of them is left to the next run.
    """
    for _ in range(run.job.settings.run.max_tick_batches):
        if run.stopped:
            return STOPPED
        if bounds.reached is not None:
            return bounds.reached
        if not run.has_due_timers:
            return CAUGHT_UP
        on_batch(run.run_tick())
        bounds.count_batch()
    return STOPPED if run.stopped else CAUGHT_UP
