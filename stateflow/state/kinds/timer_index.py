"""The earliest times of a subtask's timers, so that due timers are found without scanning the store."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

from stateflow.state.handles import EarliestTimers
from stateflow.types.key_groups import KeyGroupRange


class TimeDomain(Enum):
    """The time that a timer refers to."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


@dataclass
class EarliestTimes:
    """Lower bounds for the times of pending timers in one time domain.

    Attributes:
        bound: bound for all key groups, until the store was read; None without timers.
        groups: bound for each key group that has timers; None until the store was read.
    """

    bound: int | None
    groups: dict[bytes, int] | None = None

    @property
    def earliest(self) -> int | None:
        """Lower bound of the times of all timers; None without timers."""
        if self.groups is None:
            return self.bound
        return min(self.groups.values(), default=None)

    def add(self, group: bytes, time: int) -> None:
        """Adds a timer."""
        if self.groups is None:
            self.bound = time if self.bound is None else min(self.bound, time)
            return
        known = self.groups.get(group)
        if known is None or time < known:
            self.groups[group] = time

    def get(self, group: bytes) -> int | None:
        """Returns the bound for a key group; None without timers."""
        return self.groups.get(group) if self.groups is not None else self.bound

    def remove(self, group: bytes) -> None:
        """Removes the bound of a key group whose timers are about to be read; the reader adds those that remain."""
        if self.groups is not None:
            self.groups.pop(group, None)

    def take_due(self, until: int, owned: KeyGroupRange) -> dict[bytes, int]:
        """Removes and returns the bounds of the key groups that may have timers up to `until`."""
        bound = self.earliest
        if bound is None or bound > until:
            return {}
        if self.groups is None:
            self.groups = {}
            return {struct.pack(">H", owned.first + at): bound for at in range(len(owned))}
        taken = {group: time for group, time in self.groups.items() if time <= until}
        for group in taken:
            del self.groups[group]
        return taken


class TimerIndex:
    """The earliest times of a subtask's timers, kept as long as its store is open.

    Args:
        earliest: the times in the manifest.
    """

    def __init__(self, earliest: EarliestTimers | None = None) -> None:
        found = earliest or EarliestTimers()
        self.times = {
            TimeDomain.EVENT_TIME: EarliestTimes(found.event),
            TimeDomain.PROCESSING_TIME: EarliestTimes(found.processing),
        }

    @property
    def earliest(self) -> EarliestTimers:
        """The times to store in the manifest."""
        event, processing = (self.times[domain].earliest for domain in TimeDomain)
        return EarliestTimers(event, processing)
