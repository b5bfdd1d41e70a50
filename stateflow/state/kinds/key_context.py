"""What all states of a subtask work on: the current key, the batch's times, and changes that are not written yet.

A stored key is ``key group (2 bytes) | state id (4) | key | namespace | user key``. The state id is a hash of the
state's name: two subtasks agree on it without talking, and it stays when other states come or go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import xxhash

from stateflow.errors import StateError
from stateflow.serializers import encode_key
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.changes import ABSENT, Changes

ADDRESS_BYTES = 6
"""Key group and state id: what stands in front of the key."""
VOID_NAMESPACE = b"\x00"
_SLICE = 1000


def state_id(name: str) -> bytes:
    """Four bytes that stand for a state's name in stored keys."""
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


def encode_namespace(namespace: object) -> bytes:
    """A namespace as part of a stored key; None is the void one. Raises StateError for what cannot be part of a key."""
    return encode_key((namespace,))


@dataclass(frozen=True)
class BatchTime:
    """When a batch is, in each sense that state knows.

    Attributes:
        epoch: number of the batch along the job's state: one more than that of the checkpoint it starts from.
        processing_time: milliseconds since 1970.
        watermark: the same; None before there is one.
    """

    epoch: int = 0
    processing_time: int = 0
    watermark: int | None = None


class EventClock:
    """The event time that a time to live counts by: the watermark of what is processed, and the time of its row.

    An entry is written at the later one of both: a batch may be long, and the watermark of an operator may only move
    between batches. It has expired by the watermark alone, so never earlier than its time to live after its row.

    Args:
        watermark: of the batch, in milliseconds since 1970; None before there is one.
    """

    def __init__(self, watermark: int | None) -> None:
        self._batch = watermark
        self._before_move: list[Callable[[], None]] = []
        self.now = watermark
        self.row_time: Callable[[], int | None] | None = None
        """Returns the event time of the current row; None without a row."""

    def before_move(self, act: Callable[[], None]) -> None:
        """Lets `act` be called each time before the clock moves: what is held back was written by then."""
        self._before_move.append(act)

    def set(self, now: int | None) -> None:
        """Sets the event time of the next row or timer of the current key."""
        if now != self.now:
            for act in self._before_move:
                act()
            self.now = now

    def reset(self) -> None:
        """Goes back to the watermark of the batch: another key comes, or none."""
        self.set(self._batch)

    def of_write(self) -> int | None:
        """The event time of what is written now."""
        row = None if self.row_time is None else self.row_time()
        if row is None or self.now is None:
            return self.now if row is None else row
        return max(self.now, row)


class CurrentKey:
    """The current key of a subtask, and how its entries are read and changed.

    Args:
        undoable: whether changes may be taken back to a mark.
    """

    def __init__(self, backend: KeyedStateBackend, time: BatchTime, undoable: bool = False) -> None:
        self.backend = backend
        self.time = time
        self.clock = EventClock(time.watermark)
        self.marked = Changes() if undoable else None
        self.pending: dict[bytes, bytes | None] = {} if self.marked is None else self.marked
        """Changes of this stretch, by stored key; None removes."""
        self.address: tuple[bytes, bytes] | None = None
        """Key group and key, while there is a current key."""
        self.namespace = VOID_NAMESPACE

    def write_through(self) -> None:
        """Hands collected changes to the backend."""
        if self.marked is not None:
            self.marked.expect_write(self.backend)
        self.backend.write(self.pending)
        self.pending.clear()

    def write_some(self) -> None:
        """The same, once there are many: what walks over a large state must not collect it in memory."""
        if len(self.pending) >= _SLICE:
            self.write_through()

    def read(self, stored_key: bytes) -> bytes | None:
        """The bytes of an entry, changes of this stretch included."""
        data = self.pending.get(stored_key, ABSENT)
        return self.backend.get(stored_key) if data is ABSENT else data

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries of the current namespace as they are now, in order of keys; later changes are not seen.

        Args:
            prefix: from `stored_key`.
        """
        self.write_through()
        found = self.backend.scan(prefix)
        if self.namespace == VOID_NAMESPACE:
            return found
        # A text is encoded with a zero at its end, or with a zero and 0xff where it has a zero itself: what goes on
        # with 0xff belongs to a longer text, and sorts behind everything of this one.
        end = len(prefix)
        return takewhile(lambda entry: entry[0][end : end + 1] != b"\xff", found)

    def stored_key(self, state: bytes) -> bytes:
        """The current key's entry, or prefix of entries, of one state. Raises StateError without a key."""
        if self.address is None:
            raise StateError("state was used without a key", hint="state belongs to a key: use it in "
                             "process_element, not in open or close")  # fmt: skip
        group, key = self.address
        return group + state + key + self.namespace
