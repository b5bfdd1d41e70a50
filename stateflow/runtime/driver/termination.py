"""Waiting for input and the end of a run: its bounds, idle work, signals, and the timers due at the end of input."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import FrameType

from stateflow.clock import Clock
from stateflow.config.settings import RunSettings
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult

CAUGHT_UP = "caught-up"
DRAINED = "drained"
SIGNAL = "signal"
_MOST_TICKS = 10


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
    still due after ten batches are left to the next run.

    Args:
        run: started.
        bounds: the bounds of the run.
        on_batch: called after each batch.

    Returns:
        ``caught-up``, ``drained``, ``stopped``, ``taken-over`` or the name of a bound.
    """
    ended = run.ended_sources
    done = DRAINED if run.job.settings.run.drain else CAUGHT_UP
    for _ in range(_MOST_TICKS):
        if run.stopped:
            return run.stopped
        if bounds.reached is not None:
            return bounds.reached
        if not run.batches.has_due_timers(ended):
            return done
        on_batch(run.run_tick(ended))
        bounds.count_batch()
    return run.stopped or done


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


_Handler = Callable[[int, FrameType | None], object] | int | None
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Records that this process got a signal to end.

    Attributes:
        received: the name of the signal; empty before one arrives.
    """

    def __init__(self) -> None:
        self.received = ""
        self._previous: dict[signal.Signals, _Handler] = {}

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handles the signals while the body runs; a signal that this process ignores stays ignored.

        Has no effect outside of the main thread, in which Python runs handlers.
        """
        if threading.current_thread() is threading.main_thread() and not self.received:
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            self._restore()

    def receive(self, name: str) -> None:
        """Records a signal."""
        self.received = self.received or name

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.receive(signal.Signals(number).name)
        # The sender of another signal does not want to wait for the end of the batch.
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
