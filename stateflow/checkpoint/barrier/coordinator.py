"""Decides which barriers become checkpoints, and tracks pending checkpoints. Pure: no storage, no clock."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from stateflow.config.settings import CheckpointSettings

_REMEMBERED = 100
_RETRY_SECONDS = 10.0
"""Time between two attempts of an aborted checkpoint that no barrier follows, unless there is an interval."""


class Due(enum.Enum):
    """Why a barrier becomes a checkpoint."""

    INTERVAL = "the checkpoint interval has elapsed"
    REQUESTED = "a checkpoint was requested"


class NotDue(enum.Enum):
    """Why a barrier does not become a checkpoint; its state and output pass on to the next barrier."""

    INTERVAL = "the checkpoint interval has not elapsed"
    MINIMUM_PAUSE = "the minimum pause since the last checkpoint has not elapsed"
    TOO_MANY_PENDING = "max_in_flight reached"
    SHUT_DOWN = "the run is shutting down"


class Status(enum.Enum):
    """The status of a triggered checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"


class Outcome(enum.Enum):
    """The effect of a report that a checkpoint has ended."""

    ACCEPTED = "accepted"
    DUPLICATE = "the same end was reported before"
    LATE = "another end was reported before"
    UNKNOWN = "the checkpoint does not exist, or ended long ago"


@dataclass(frozen=True)
class _Ended:
    ordinal: int
    status: Status


class CheckpointCoordinator:
    """Counts barriers and time since the last checkpoint, and tracks pending checkpoints.

    Args:
        settings: intervals, pause and limits. With two intervals, the first to elapse counts; with none, every barrier
            becomes a checkpoint.
        began_at: when the run was restored, in seconds of a monotonic clock, as all timestamps of this class.
    """

    def __init__(self, settings: CheckpointSettings, began_at: float) -> None:
        self._settings = settings
        self._triggered_at = began_at
        self._completed_at: float | None = None
        self._barriers = 0
        self._pending: dict[int, float] = {}
        self._ended: deque[_Ended] = deque(maxlen=_REMEMBERED)
        self._failures = 0
        self._is_shut_down = False

    def at_barrier(self, ordinal: int, now: float, requested: bool = False) -> Due | NotDue:
        """Decides whether a barrier that all tasks have reached becomes a checkpoint, and triggers it if so.

        Args:
            ordinal: number of the barrier in the run.
            now: timestamp.
            requested: whether a checkpoint was requested; intervals, pause and pending checkpoints do not delay it.
        """
        self._barriers += 1
        verdict = self._verdict(now, requested)
        if isinstance(verdict, Due):
            self.triggered(ordinal, now)
        return verdict

    def is_due_when_idle(self, now: float) -> bool:
        """Returns whether the newest barrier becomes a checkpoint although no other barrier follows it.

        A number of batches would not be reached, so without an interval in time that is at once.
        """
        interval = self._settings.interval
        if interval is not None and not self._has_elapsed(interval.total_seconds(), now):
            return False
        has_room = len(self._pending) < self._settings.max_in_flight
        return has_room and not self._is_shut_down and not self._is_pausing(now)

    def may_retry(self, now: float) -> bool:
        """Returns whether an aborted checkpoint is attempted again although no barrier follows it."""
        interval = self._settings.interval
        return self._has_elapsed(interval.total_seconds() if interval else _RETRY_SECONDS, now)

    def triggered(self, ordinal: int, now: float) -> None:
        """Records a pending checkpoint; also called when a checkpoint is triggered after its barrier."""
        self._pending[ordinal] = self._triggered_at = now
        self._barriers = 0

    def completed(self, ordinal: int, now: float) -> Outcome:
        """Records that a pending checkpoint was committed."""
        outcome = self._end(ordinal, Status.COMPLETED)
        if outcome is Outcome.ACCEPTED:
            self._completed_at = now
            self._failures = 0
        return outcome

    def aborted(self, ordinal: int) -> Outcome:
        """Records that a pending checkpoint failed and will never exist."""
        outcome = self._end(ordinal, Status.ABORTED)
        if outcome is Outcome.ACCEPTED:
            self._failures += 1
        return outcome

    def shut_down(self) -> None:
        """Makes every later barrier not due."""
        self._is_shut_down = True

    @property
    def pending(self) -> list[int]:
        """Ordinals of the checkpoints that have not ended, oldest first."""
        return list(self._pending)

    @property
    def has_failed_too_often(self) -> bool:
        """Whether more than `tolerable_failures` checkpoints have failed in a row."""
        return self._failures > self._settings.tolerable_failures

    def is_overdue(self, ordinal: int, now: float) -> bool:
        """Returns whether a pending checkpoint has exceeded the checkpoint timeout."""
        triggered = self._pending.get(ordinal)
        return triggered is not None and now - triggered >= self._settings.timeout.total_seconds()

    def _verdict(self, now: float, requested: bool) -> Due | NotDue:
        if self._is_shut_down:
            return NotDue.SHUT_DOWN
        if requested:
            return Due.REQUESTED
        if not self._is_interval_over(now):
            return NotDue.INTERVAL
        if self._is_pausing(now):
            return NotDue.MINIMUM_PAUSE
        return NotDue.TOO_MANY_PENDING if len(self._pending) >= self._settings.max_in_flight else Due.INTERVAL

    def _is_interval_over(self, now: float) -> bool:
        batches, time = self._settings.interval_batches, self._settings.interval
        if batches is None and time is None:
            return True
        return (batches is not None and self._barriers >= batches) or (
            time is not None and self._has_elapsed(time.total_seconds(), now)
        )

    def _has_elapsed(self, seconds: float, now: float) -> bool:
        return now - self._triggered_at >= seconds

    def _is_pausing(self, now: float) -> bool:
        pause = self._settings.min_pause
        if pause is None:
            return False
        since = now if self._pending else self._completed_at
        return since is not None and now - since < pause.total_seconds()

    def _end(self, ordinal: int, status: Status) -> Outcome:
        if self._pending.pop(ordinal, None) is not None:
            self._ended.append(_Ended(ordinal, status))
            return Outcome.ACCEPTED
        known = next((ended for ended in self._ended if ended.ordinal == ordinal), None)
        if known is None:
            return Outcome.UNKNOWN
        return Outcome.DUPLICATE if known.status is status else Outcome.LATE
