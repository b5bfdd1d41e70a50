"""Which barriers become checkpoints. Pure: times in, verdicts out."""

from __future__ import annotations

import enum

from stateflow.config import CheckpointSettings


class Due(enum.Enum):
    """Why a barrier becomes a checkpoint."""

    INTERVAL = "the interval is over"
    ASKED = "somebody asked for it"


class NotDue(enum.Enum):
    """Why a barrier does not become one."""

    INTERVAL = "the interval is not over"
    MINIMUM_PAUSE = "the last checkpoint has only just been completed"


class CheckpointSchedule:
    """Counts the barriers since the last checkpoint, and the time.

    Args:
        settings: of which the intervals count; with both, the one that is over first; with none, every barrier becomes
            a checkpoint.
        began_at: when the run was restored, in seconds of a clock that never goes back.
    """

    def __init__(self, settings: CheckpointSettings, began_at: float) -> None:
        self._settings = settings
        self._began_at = began_at
        self._completed_at: float | None = None
        self._barriers = 0

    def at_barrier(self, now: float, asked: bool = False) -> Due | NotDue:
        """Says what becomes of a barrier that all tasks have reached.

        Args:
            asked: whether somebody waits for a checkpoint, which then neither interval nor pause holds up.
        """
        self._barriers += 1
        if asked:
            return Due.ASKED
        if not self._is_interval_over(now):
            return NotDue.INTERVAL
        return NotDue.MINIMUM_PAUSE if self._is_pausing(now) else Due.INTERVAL

    def completed(self, now: float) -> None:
        """The newest barrier is a checkpoint now."""
        self._barriers = 0
        self._completed_at = now

    def _is_interval_over(self, now: float) -> bool:
        batches, time = self._settings.interval_batches, self._settings.interval
        if batches is None and time is None:
            return True
        since = self._began_at if self._completed_at is None else self._completed_at
        return (batches is not None and self._barriers >= batches) or (
            time is not None and now - since >= time.total_seconds()
        )

    def _is_pausing(self, now: float) -> bool:
        pause = self._settings.min_pause
        if pause is None or self._completed_at is None:
            return False
        return now - self._completed_at < pause.total_seconds()
