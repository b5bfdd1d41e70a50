"""All subtasks of an operator with their stores, on one host after another, for tests of state backends."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from stateflow.clock import ManualClock
from stateflow.keygroups import range_of, subtask_of
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.transfer import HostCache
from stateflow.storage import MemoryStorage

Opener = Callable[[Path, HostCache, Base], KeyedStateBackend]
"""Opens a store: its working folder, which does not exist; the host's cache of files; what it starts from."""
GROUPS = 64
"""Key groups of the operator whose subtasks are tried."""
_numbers = count(1)
"""For names that no other snapshot has, also not one of another fleet on the same storage."""


def key_of(group: int, rest: bytes = b"") -> bytes:
    """A stored key: its key group, then anything."""
    return struct.pack(">H", group) + rest


class Fleet:
    """All subtasks of one operator, on one host after another.

    Args:
        opener: opens one store.
        folder: for working folders and caches.
        backend: what `SubtaskState.backend` has.
    """

    def __init__(self, opener: Opener, folder: Path, backend: str) -> None:
        self.storage = MemoryStorage()
        self.stores: list[KeyedStateBackend] = []
        self._opener = opener
        self._folder = folder
        self._backend = backend

    def open(self, states: Sequence[SubtaskState] = (), parallelism: int = 1) -> KeyedStateBackend:
        """Opens every subtask on a host that has no file yet; returns the first."""
        home = self._folder / f"host-{next(_numbers)}"
        self.stores = [self._open(home, s, parallelism, states) for s in range(parallelism)]
        return self.stores[0]

    def _open(
        self, home: Path, subtask: int, parallelism: int, states: Sequence[SubtaskState]
    ) -> KeyedStateBackend:
        owned = range_of(subtask, parallelism, GROUPS)
        base = Base(subtask, owned, tuple(s for s in states if s.groups.overlap(owned)))
        cache = HostCache.direct(home / f"cache-{subtask}", self.storage, ManualClock(next(_numbers)))
        return self._opener(home / f"work-{subtask}", cache, base)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """To each subtask what it owns."""
        parallelism = len(self.stores)
        for number, store in enumerate(self.stores):
            store.write({k: v for k, v in changes.items() if _owner(k, parallelism) == number})

    def snapshot(self) -> list[SubtaskState]:
        """What each subtask would report."""
        return [self._snapshot(number, store) for number, store in enumerate(self.stores)]

    def _snapshot(self, number: int, store: KeyedStateBackend) -> SubtaskState:
        owned = range_of(number, len(self.stores), GROUPS)
        name = f"data/{1:020d}/{next(_numbers):010d}-a/op-{number}-"
        taken = store.snapshot(name)
        return SubtaskState(subtask=number, first_group=owned.first, last_group=owned.last, snapshot=name,
                            files=list(taken.files), backend=self._backend, inline=taken.inline,
                            store_manifest=taken.store_manifest)  # fmt: skip

    def close(self) -> None:
        """Closes every store."""
        for store in self.stores:
            store.close()
        self.stores = []

    def restored(self, parallelism: int = 1) -> list[SubtaskState]:
        """Goes on from a snapshot of now, elsewhere; returns the snapshot."""
        states = self.snapshot()
        self.close()
        self.open(states, parallelism)
        return states

    def content(self) -> dict[bytes, bytes]:
        """What all stores have together; each key must be where it belongs."""
        found: dict[bytes, bytes] = {}
        for number, store in enumerate(self.stores):
            entries = dict(store.scan(b""))
            assert [k for k in entries if _owner(k, len(self.stores)) != number] == []
            found |= entries
        return found


def _owner(key: bytes, parallelism: int) -> int:
    return subtask_of(struct.unpack(">H", key[:2])[0], parallelism, GROUPS)
