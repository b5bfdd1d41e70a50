"""End of a run: its bounds, and the batches without rows that fire due timers at the end of input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from stateflow.clock import Clock
from stateflow.config.settings import RunSettings
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.stop_signal import StopSignal
from stateflow.runtime.job.job import BatchResult

CAUGHT_UP = "caught-up"
DRAINED = "drained"
SIGNAL = "signal"


class RunBounds:
    """Counts the batches of a run and measures its time since the first `begin()`; a restart resets neither.

    Args:
        settings: the settings with the bounds.
        clock: measures the time.

    Attributes:
        end: the value of ``run.until``.
        signal: the signal that ends a continuous run.
    """

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self.end = settings.end
        self.signal = StopSignal()
        self._settings = settings
        self._clock = clock
        self._began: float | None = None
        self._until: datetime | None = None
        self._batches = 0

    def begin(self) -> None:
        """Starts to measure the time of the run, once it is restored; later calls have no effect."""
        if self._began is None:
            self._began = self._clock.monotonic()
            self._until = self.end.next_time(self._clock.now())

    def count_batch(self) -> None:
        """Counts a batch."""
        self._batches += 1

    @property
    def reached(self) -> str | None:
        """The bound that is reached: ``batches``, ``duration``, ``until`` or ``signal``; None if none is."""
        limit, duration, after = self._settings.max_batches, self._settings.max_duration, self.end.after
        if self.signal.received:
            return SIGNAL
        if limit is not None and self._batches >= limit:
            return "batches"
        if duration is not None and self._elapsed >= duration.total_seconds():
            return "duration"
        if after is not None and self._elapsed >= after.total_seconds():
            return "until"
        return "until" if self._until is not None and self._clock.now() >= self._until else None

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
        ``caught-up``, ``drained``, ``stopped``, ``taken-over`` or the name of a bound.
    """
    ended = run.ended_sources
    done = DRAINED if run.job.settings.run.drain else CAUGHT_UP
    for _ in range(run.job.settings.run.max_tick_batches):
        if run.stopped:
            return run.stopped
        if bounds.reached is not None:
            return bounds.reached
        if not run.batches.has_due_timers(ended):
            return done
        on_batch(run.run_tick(ended))
        bounds.count_batch()
    return run.stopped or done
