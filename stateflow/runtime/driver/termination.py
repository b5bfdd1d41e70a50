"""When a run ends."""

from __future__ import annotations

from stateflow.clock import Clock
from stateflow.settings import RunSettings

CAUGHT_UP = "caught-up"
DRAINED = "drained"
STOPPED = "stopped"


class Bounds:
    """Counts batches, and time from the first `begin` on; both go on when a run starts again."""

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._began: float | None = None
        self._batches = 0

    def begin(self) -> None:
        """The run is restored."""
        if self._began is None:
            self._began = self._clock.monotonic()

    def count_batch(self) -> None:
        """One more batch is committed."""
        self._batches += 1

    @property
    def reached(self) -> str | None:
        """Which bound is reached: ``batches`` or ``duration``; None when the run may go on."""
        limit, duration = self._settings.max_batches, self._settings.max_duration
        if limit is not None and self._batches >= limit:
            return "batches"
        if duration is not None and self._elapsed >= duration.total_seconds():
            return "duration"
        return None

    @property
    def _elapsed(self) -> float:
        return 0.0 if self._began is None else self._clock.monotonic() - self._began
