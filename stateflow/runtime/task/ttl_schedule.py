"""When a subtask removes expired state although it has no rows.

Each batch with rows removes some expired entries. A subtask that has no rows would keep its expired entries for as long
as none arrive, so it has a time at which it opens its store for that, in a run that waits for input. All these times
are multiples of an interval, so that the subtasks of a job have them in the same batch, and an idle run makes at most
one such batch per interval.
"""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.config.state_settings import StateSettings
from stateflow.state.handles import Base, is_due
from stateflow.state.kinds.ttl.cleanup import TtlCleanup

NEVER = (1 << 63) - 1
"""The time of a subtask in which no entry can expire."""
_WITHOUT_ROWS = 10
"""A subtask without rows removes so many times as many entries: no row waits for it."""


@dataclass(frozen=True)
class TtlSchedule:
    """The removal of expired entries by one subtask in one batch.

    Attributes:
        base: the state that the subtask starts from.
        now: the processing time of the batch, in milliseconds.
        settings: limits and interval.
    """

    base: Base
    now: int
    settings: StateSettings

    @property
    def is_due(self) -> bool:
        """Whether the subtask removes expired entries even without rows."""
        return is_due(self.base.ttl_cleanup_at, self.now)

    def clean_up(self, cleanup: TtlCleanup, *, has_rows: bool) -> int | None:
        """Removes expired entries: all of them for a full snapshot, otherwise some.

        Returns:
            When the subtask has to do it again even without rows, in milliseconds; None without a TTL in processing
            time.
        """
        is_thorough = self.is_due and not has_rows
        if self.settings.snapshots_are_full:
            cleanup.remove_all()
        else:
            cleanup.remove_some(self.settings.ttl_cleanup_entries * (_WITHOUT_ROWS if is_thorough else 1))
        shortest = cleanup.shortest_ttl()
        if shortest is None:
            return None
        planned = self.base.ttl_cleanup_at
        is_known = planned is not None or not self.base.parts
        if is_known and not self.is_due:
            # Without reading the expiry entries, in every batch: what is written now expires after `shortest`.
            return min(NEVER if planned is None else planned, self._rounded_up(self.now + shortest))
        first = cleanup.first_expiry()
        if first is None:
            return NEVER
        if first > self.now:
            return self._rounded_up(first)
        # More is due than one batch removes.
        return self.now if is_thorough else self._rounded_up(self.now + 1)

    def _rounded_up(self, time: int) -> int:
        interval = max(1, round(self.settings.ttl_cleanup_interval.total_seconds() * 1000))
        return min(NEVER, -(-time // interval) * interval)
