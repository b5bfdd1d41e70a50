"""Which barriers become checkpoints, and what becomes of these. Pure: times and events in, verdicts out."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from stateflow.settings import CheckpointSettings

_REMEMBERED = 100


class Due(enum.Enum):
    """Why a barrier becomes a checkpoint."""

    INTERVAL = "the interval is over"
    ASKED = "somebody asked for it"


class NotDue(enum.Enum):
    """Why a barrier does not become one; what it has done passes on to the next one."""

    INTERVAL = "the interval is not over"
    MINIMUM_PAUSE = "the last checkpoint has only just been completed"
    TOO_MANY_PENDING = "as many checkpoints as may be are not completed yet"
    SHUT_DOWN = "the run takes no checkpoints any more"


class Status(enum.Enum):
    """What has become of a checkpoint."""

    PENDING = "pending"
    COMPLETED = "completed"
    ABORTED = "aborted"


class Outcome(enum.Enum):
    """What the news of a checkpoint's end did."""

    ACCEPTED = "accepted"
    DUPLICATE = "that was known"
    LATE = "it had ended otherwise before"
    UNKNOWN = "there is no such checkpoint, or it ended long ago"


@dataclass(frozen=True)
class _Ended:
    ordinal: int
    status: Status


class CheckpointCoordinator:
    """Counts the barriers and the time since the last checkpoint, and knows those that are pending.

    Args:
        settings: of which the intervals count; with both, the one that is over first; with none, every barrier becomes
            a checkpoint.
        began_at: when the run was restored, in seconds of a clock that never goes back.
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

    def at_barrier(self, ordinal: int, now: float, asked: bool = False) -> Due | NotDue:
        """Says what becomes of a barrier that all tasks have reached.

        Args:
            asked: whether somebody waits for a checkpoint, which then neither interval nor pause holds up, nor others
                that are pending.
        """
        self._barriers += 1
        verdict = self._verdict(now, asked)
        if isinstance(verdict, Due):
            self.triggered(ordinal, now)
        return verdict

    def triggered(self, ordinal: int, now: float) -> None:
        """A checkpoint is pending, also one out of turn, of a barrier that was told before."""
        self._pending[ordinal] = self._triggered_at = now
        self._barriers = 0

    def completed(self, ordinal: int, now: float) -> Outcome:
        """A pending checkpoint exists now."""
        outcome = self._end(ordinal, Status.COMPLETED)
        if outcome is Outcome.ACCEPTED:
            self._completed_at = now
            self._failures = 0
        return outcome

    def aborted(self, ordinal: int) -> Outcome:
        """A pending checkpoint will never exist."""
        outcome = self._end(ordinal, Status.ABORTED)
        if outcome is Outcome.ACCEPTED:
            self._failures += 1
        return outcome

    def shut_down(self) -> None:
        """Takes no more barriers."""
        self._is_shut_down = True

    @property
    def pending(self) -> list[int]:
        """Ordinals of the checkpoints that have not ended, oldest first."""
        return list(self._pending)

    @property
    def has_failed_too_often(self) -> bool:
        """Whether more checkpoints have failed one after the other than a run bears."""
        return self._failures > self._settings.tolerable_failures

    def overdue(self, ordinal: int, now: float) -> bool:
        """Whether a pending checkpoint has taken longer than it may."""
        triggered = self._pending.get(ordinal)
        return triggered is not None and now - triggered >= self._settings.timeout.total_seconds()

    def _verdict(self, now: float, asked: bool) -> Due | NotDue:
        if self._is_shut_down:
            return NotDue.SHUT_DOWN
        if asked:
            return Due.ASKED
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
            time is not None and now - self._triggered_at >= time.total_seconds()
        )

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
