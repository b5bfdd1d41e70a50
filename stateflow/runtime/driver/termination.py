"""End of a run: its bounds, and the batches without rows that fire due timers at the end of input."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.clock import Clock
from stateflow.config.settings import RunSettings
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult

CAUGHT_UP = "caught-up"
DRAINED = "drained"
STOPPED = "stopped"


class RunBounds:
    """Counts the batches of a run and measures its time since the first `begin()`; a restart resets neither.

    Args:
        settings: the settings with the bounds.
        clock: measures the time.
    """

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._began: float | None = None
        self._batches = 0

    def begin(self) -> None:
        """Starts the clock of `run.max_duration`, once the run is restored; later calls have no effect."""
        if self._began is None:
            self._began = self._clock.monotonic()

    def count_batch(self) -> None:
        """Counts a batch."""
        self._batches += 1

    @property
    def reached(self) -> str | None:
        """The bound that is reached: ``batches`` or ``duration``; None while the run may continue."""
        limit, duration = self._settings.max_batches, self._settings.max_duration
        if limit is not None and self._batches >= limit:
            return "batches"
        if duration is not None and self._elapsed >= duration.total_seconds():
            return "duration"
        return None

    @property
    def _elapsed(self) -> float:
        return 0.0 if self._began is None else self._clock.monotonic() - self._began


def run_ticks(run: JobRun, bounds: RunBounds, on_batch: Callable[[BatchResult], None]) -> str:
    """Runs batches without rows until no timer is due, or until a bound is reached.

    Called when the run has caught up: bounded sources have ended, and all sources if the run drains. The watermark of a
    batch is that of the batches before it, so only these batches reach the watermark of the last rows. Timers that are
    still due after `run.max_tick_batches` batches are left to the next run.

    Args:
        run: started.
        bounds: the bounds of the run.
        on_batch: called after each batch.

    Returns:
        ``caught-up``, ``drained``, ``stopped`` or the name of a bound.
    """
    ended = run.ended_sources
    done = DRAINED if run.job.settings.run.drain else CAUGHT_UP
    for _ in range(run.job.settings.run.max_tick_batches):
        if run.stopped:
            return STOPPED
        if bounds.reached is not None:
            return bounds.reached
        if not run.batches.has_due_timers(ended):
            return done
        on_batch(run.run_tick(ended))
        bounds.count_batch()
    return STOPPED if run.stopped else done
