"""The current key, the times of the batch and the pending changes, shared by all states of a subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final

from stateflow.config.settings import EntryLimits
from stateflow.errors import StateError
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.stored_key import VOID_NAMESPACE
from stateflow.types.key_encoding import ends_at

RowTimes = Sequence[int | None] | None
"""Event times of rows in milliseconds since 1970, None for a row without one; None if no state needs them."""
_MAX_PENDING = 1000


@dataclass(frozen=True)
class BatchTime:
    """The times of a batch.

    Attributes:
        epoch: number of the batch in the history of the state: the epoch of its base checkpoint plus one.
        processing_time: milliseconds since 1970.
        watermark: milliseconds since 1970; None before the first watermark.
    """

    epoch: int = 0
    processing_time: int = 0
    watermark: int | None = None


class EventClock:
    """The event time that TTLs are measured in: the watermark, and the event time of the current row.

    An entry is written with the later one of both, since a batch may be long while the watermark of an operator may
    only move between batches. Whether an entry has expired depends on the watermark alone, so an entry never expires
    earlier than its TTL after its row.

    Args:
        watermark: watermark of the batch, in milliseconds since 1970; None before the first watermark.

    Attributes:
        now: the current watermark, in milliseconds since 1970; None before the first watermark.
        row_time: returns the event time of the current row, None without a row; None if rows have no event time.
    """

    def __init__(self, watermark: int | None) -> None:
        self._batch_watermark = watermark
        self._listeners: list[Callable[[], None]] = []
        self.now = watermark
        self.row_time: Callable[[], int | None] | None = None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers a function to call before each change of the time, to flush cached values at the old time."""
        self._listeners.append(listener)

    def set(self, now: int | None) -> None:
        """Sets the watermark of the current key."""
        if now != self.now:
            for listener in self._listeners:
                listener()
            self.now = now

    def reset(self) -> None:
        """Sets the watermark of the batch again, when the rows of a key end."""
        self.set(self._batch_watermark)

    def write_time(self, row: int | None = None) -> int | None:
        """Returns the event time to store with an entry; None before the first watermark and without a row time.

        Args:
            row: the event time of the row that is written or that reads the entry; None for the current row.
        """
        if row is None and self.row_time is not None:
            row = self.row_time()
        if row is None or self.now is None:
            return self.now if row is None else row
        return max(self.now, row)


class KeyContext:
    """The current key of a subtask, and access to its entries.

    Args:
        backend: the store of the subtask.
        time: times of the batch.
        undoable: whether pending changes can be rolled back to a savepoint.
        limits: the largest entries that may be written.

    Attributes:
        clock: the event time that TTLs are measured in.
        undo: the pending changes if they can be rolled back, else None.
        pending: changes of the key batch by stored key that are not written to the backend; None removes an entry.
        current_key: key group and key; None without a current key.
        namespace: the encoded namespace of the current key.
        per_key: ids of the states whose entries are always in the void namespace.
    """

    def __init__(
        self, backend: KeyedStateBackend, time: BatchTime, undoable: bool = False, limits: EntryLimits = EntryLimits()
    ) -> None:
        self.backend = backend
        self.time = time
        self.limits = limits
        self.clock = EventClock(time.watermark)
        self.undo = WriteBuffer() if undoable else None
        self.pending: dict[bytes, bytes | None] = {} if self.undo is None else self.undo
        self.current_key: tuple[bytes, bytes] | None = None
        self.namespace = VOID_NAMESPACE
        self.per_key: set[bytes] = set()
        self.bytes_read = 0
        """Bytes of the entries that `read_many` has read since the last key batch."""

    def write_through(self) -> None:
        """Writes the pending changes to the backend."""
        if self.undo is not None:
            self.undo.record_overwritten(self.backend)
        self.backend.write(self.pending)
        self.pending.clear()

    def write_through_if_many(self) -> None:
        """Writes the pending changes when there are many, to bound memory while scanning a large state."""
        if len(self.pending) >= _MAX_PENDING:
            self.write_through()

    def read(self, stored_key: bytes) -> bytes | None:
        """Returns the bytes of an entry, pending changes included; None when it does not exist."""
        data = self.pending.get(stored_key, ABSENT)
        return self.backend.get(stored_key) if data is ABSENT else data

    def read_many(self, stored_keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the bytes of many entries, pending changes included."""
        found = self.backend.multi_get(stored_keys)
        self.bytes_read += sum([len(data) for data in found if data])
        if not self.pending:
            return found
        return [self.pending.get(key, data) for key, data in zip(stored_keys, found, strict=True)]

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Returns the entries of the current namespace in order of keys, as of now; later changes are not seen.

        Args:
            prefix: a key from `stored_key`.
        """
        self.write_through()
        found = self.backend.scan(prefix)
        if self.namespace == VOID_NAMESPACE:
            return found
        # Those of a longer text sort after all keys of this namespace.
        end = len(prefix)
        return takewhile(lambda entry: ends_at(entry[0], end), found)

    def stored_key(self, state: bytes) -> bytes:
        """Returns the stored key, or the prefix of the stored keys, of one state for the current key.

        Args:
            state: the state id.

        Raises:
            StateError: no key is current.
        """
        if self.current_key is None:
            raise StateError(
                "keyed state was used without a current key",
                hint="use keyed state in process_element, not in open or close",
            )
        group, key = self.current_key
        return group + state + key + (VOID_NAMESPACE if state in self.per_key else self.namespace)


class Absent(Enum):
    """Type of `ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""An entry that is not known; None means that it is known not to exist."""


class WriteBuffer(dict[bytes, bytes | None]):
    """Pending changes by stored key; None removes the entry.

    `rollback` also undoes changes that were written through to the backend. Only item assignment is tracked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[bytes, bytes | Absent | None] | None = None
        """Pending changes at the savepoint by changed key, `ABSENT` where there was none; None without a savepoint."""
        self._overwritten: dict[bytes, bytes | None] = {}
        """Entries of the backend before they were overwritten since the savepoint."""

    def __setitem__(self, key: bytes, data: bytes | None) -> None:
        if self._before is not None and key not in self._before:
            self._before[key] = self.get(key, ABSENT)
        super().__setitem__(key, data)

    def savepoint(self) -> None:
        """Marks the point that `rollback` returns to."""
        self._before = {}
        self._overwritten = {}

    def commit(self) -> None:
        """Keeps the changes since the savepoint and removes the savepoint."""
        self._before = None
        self._overwritten = {}

    def record_overwritten(self, backend: KeyedStateBackend) -> None:
        """Records the entries of `backend` that writing the pending changes will overwrite."""
        if not self._before:
            return
        for key, old in self._before.items():
            if key not in self._overwritten:
                self._overwritten[key] = backend.get(key) if old is ABSENT else old
        self._before = {}

    def rollback(self) -> None:
        """Undoes the changes since the savepoint and removes it.

        Changes that were written through are undone by pending changes that restore the overwritten entries.
        """
        before, overwritten = self._before or {}, self._overwritten
        self.commit()
        for key, old in before.items():
            if old is ABSENT:
                self.pop(key, None)
            else:
                self[key] = old
        self.update(overwritten)
