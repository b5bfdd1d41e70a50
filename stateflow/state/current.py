"""What all states of a subtask work on: the current key, and changes that the backend does not have yet.

A stored key is ``key group (2 bytes) | state id (4) | key | 0 | user key``. The state id is a hash of the state's
name: two subtasks agree on it without talking, and it stays when other states come or go.
"""

from __future__ import annotations

import struct
from typing import Any

import xxhash

from stateflow.errors import StateError
from stateflow.state.backend import KeyedStateBackend

VOID_NAMESPACE = b"\x00"
ABSENT: Any = object()


def state_id(name: str) -> bytes:
    """Four bytes that stand for a state's name in stored keys."""
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


class CurrentKey:
    """The current key of a subtask, and how its entries are read and changed."""

    def __init__(self, backend: KeyedStateBackend) -> None:
        self.backend = backend
        self.pending: dict[bytes, bytes | None] = {}
        """Changes of this stretch, by stored key; None removes."""
        self.address: tuple[bytes, bytes] | None = None
        """Key group and key, while there is a current key."""

    def write_through(self) -> None:
        """Hands collected changes to the backend."""
        self.backend.write(self.pending)
        self.pending.clear()

    def read(self, stored_key: bytes) -> bytes | None:
        """The bytes of an entry, changes of this stretch included."""
        data = self.pending.get(stored_key, ABSENT)
        return self.backend.get(stored_key) if data is ABSENT else data

    def stored_key(self, state: bytes) -> bytes:
        """The current key's entry, or prefix of entries, of one state. Raises StateError without a key."""
        if self.address is None:
            raise StateError("state was used without a key", hint="state belongs to a key: use it in "
                             "process_element, not in open or close")  # fmt: skip
        group, key = self.address
        return group + state + key + VOID_NAMESPACE
