"""When a run ends."""

from __future__ import annotations

from stateflow.clock import Clock
from stateflow.config import RunSettings

CAUGHT_UP = "caught-up"
STOPPED = "stopped"


class Bounds:
    """Counts batches and time from its making on."""

    def __init__(self, settings: RunSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._began = clock.monotonic()
        self._batches = 0

    def count_batch(self) -> None:
        """One more batch is committed."""
        self._batches += 1

    @property
    def reached(self) -> str | None:
        """Which bound is reached: ``batches`` or ``duration``; None when the run may go on."""
        limit, duration = self._settings.max_batches, self._settings.max_duration
        if limit is not None and self._batches >= limit:
            return "batches"
        if duration is not None and self._clock.monotonic() - self._began >= duration.total_seconds():
            return "duration"
        return None
