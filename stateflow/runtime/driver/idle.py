"""What a continuous run does while no input arrives: checkpoints, requests, due timers and expired state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.termination import RunBounds
from stateflow.runtime.job.job import BatchResult

IDLE_INTERVAL = timedelta(milliseconds=500)
"""Time between two polls for input that find none, unless ``run.interval`` is set, and between two calls of `step`."""
_AFTER_BATCH = timedelta(milliseconds=10)
"""Pause after a batch without rows: its timers may have set others that are due."""


class IdleWork:
    """The work of a continuous run between two batches with input; called by one thread at a time.

    Nothing is appended to the log unless a barrier waits for its checkpoint, a request is served, timers are due or
    state has expired.

    Args:
        run: started.
        bounds: counts the batches without rows.
        on_batch: called after each of them.
    """

    def __init__(self, run: JobRun, bounds: RunBounds, on_batch: Callable[[BatchResult], None]) -> None:
        self._run = run
        self._bounds = bounds
        self._on_batch = on_batch

    def step(self, caught_up: bool) -> timedelta:
        """Does what is due now; returns the time until the next step.

        Args:
            caught_up: whether all input of bounded sources has been read, so that their event-time timers are due.

        Raises as `JobRun.run_batch` does.
        """
        self._run.poll()
        ended = self._run.job.plan.bounded if caught_up else frozenset[str]()
        batches = self._run.batches
        if self._run.stopped or not (batches.has_due_timers(ended) or batches.has_due_cleanup()):
            return IDLE_INTERVAL
        self._on_batch(self._run.run_tick(ended))
        self._bounds.count_batch()
        return _AFTER_BATCH
