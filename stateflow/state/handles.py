"""References to stored state and to written output: what tasks report, and what manifests and log entries keep."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stateflow.keygroups import KeyGroupRange


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything stored. Unknown fields are ignored on reading, and new ones have defaults."""


@dataclass(frozen=True)
class EarliestTimers:
    """In milliseconds since 1970; no pending timer is earlier, and None says that there is none at all."""

    event: int | None = None
    processing: int | None = None

    def due(self, watermark: int | None, now: int) -> bool:
        """Whether a timer may be due."""
        return is_due(self.event, watermark) or is_due(self.processing, now)


def is_due(time: int | None, now: int | None) -> bool:
    """Whether a timer of that time, if any, is due, if there is a time at all."""
    return time is not None and now is not None and time <= now


class FileHandle(Document, frozen=True, kw_only=True):
    """A reference to one immutable stored file."""

    key: str
    size: int
    sha256: str


class StateFile(Document, frozen=True, kw_only=True):
    """A file of one subtask's state: what it is stored as, and what RocksDB calls it."""

    handle: FileHandle
    local_name: str


class StateSchema(Document, frozen=True, kw_only=True):
    """One declared state: what a reader must know before it looks at a value."""

    name: str
    kind: str
    value_type: str
    key_type: str = ""
    queryable: str = ""
    """The name under which it can be asked for; empty if it cannot."""
    ttl_time: str = ""
    """Which time its entries live in, ``processing`` or ``event``; empty when they live for ever."""
    ttl_since: int | None = None
    """Since when, in milliseconds of that time; None before there was a watermark."""
    ttl_index: bool = False
    """Whether there may be expiry entries: it has a time to live, or had one."""


class SubtaskState(Document, frozen=True, kw_only=True):
    """The state of one subtask of an operator at a barrier."""

    subtask: int
    first_group: int
    last_group: int
    snapshot: str
    """Unique name of the local snapshot: a store that is exactly this may be used again without restoring."""
    files: list[StateFile] = []
    event_timer: int | None = None
    """No pending event-time timer is earlier; None when there is none."""
    processing_timer: int | None = None
    """The same of processing-time timers."""

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups that the subtask owned."""
        return KeyGroupRange(self.first_group, self.last_group)

    @property
    def earliest_timers(self) -> EarliestTimers:
        """When the next timers are due."""
        return EarliestTimers(self.event_timer, self.processing_timer)


@dataclass(frozen=True)
class Base:
    """What a subtask starts from.

    Attributes:
        subtask: its number.
        owned: its key groups.
        parts: the stored states that have some of them, in order of key groups.
    """

    subtask: int
    owned: KeyGroupRange
    parts: tuple[SubtaskState, ...] = ()

    @classmethod
    def of(cls, state: SubtaskState) -> Base:
        """The base of the subtask that `state` was written by."""
        return cls(state.subtask, state.groups, (state,))

    @property
    def own(self) -> SubtaskState | None:
        """The state of this very subtask, with all of its key groups; None when there is no state, or the state was
        written at another parallelism."""
        same = [p for p in self.parts if (p.subtask, p.groups) == (self.subtask, self.owned)]
        return same[0] if same else None

    @property
    def earliest_timers(self) -> EarliestTimers:
        """When the next timers of all parts are due, those for other subtasks included."""
        return EarliestTimers(
            min((p.event_timer for p in self.parts if p.event_timer is not None), default=None),
            min((p.processing_timer for p in self.parts if p.processing_timer is not None), default=None),
        )

    @property
    def rescales(self) -> bool:
        """Whether the state has to be laid out anew."""
        return bool(self.parts) and self.own is None


class Committable(Document, frozen=True, kw_only=True):
    """A file that a sink wrote and nobody sees until it is published."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    stats: str = ""
    """Statistics as the sink's table format has them in a commit."""
