"""The end of a run: batches without rows, while timers are due."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.runtime.bounds import CAUGHT_UP, DRAINED, STOPPED, Bounds
from stateflow.runtime.job import BatchResult
from stateflow.runtime.run import JobRun


def run_ticks(run: JobRun, bounds: Bounds, on_batch: Callable[[BatchResult], None]) -> str:
    """Runs tick batches until no timer is due, or until a bound; returns which. The run is caught up: bounded sources
    have ended, and all sources of a run that drains.

    A watermark comes from the batches before: it is here that it reaches what the last rows allow. What is still due
    after `run.max_tick_batches` of them is left to the next run.
    """
    ended = run.ended_sources
    done = DRAINED if run.job.settings.run.drain else CAUGHT_UP
    for _ in range(run.job.settings.run.max_tick_batches):
        if run.stopped:
            return STOPPED
        if bounds.reached is not None:
            return bounds.reached
        if not run.has_due_timers(ended):
            return done
        on_batch(run.run_tick(ended))
        bounds.count_batch()
    return STOPPED if run.stopped else done
