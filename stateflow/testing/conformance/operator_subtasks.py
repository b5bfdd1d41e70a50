"""The subtasks of an operator with their state backends, for conformance tests."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from stateflow.clock import ManualClock
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, SubtaskState
from stateflow.storage import MemoryStorage, Storage
from stateflow.types.key_groups import range_of, subtask_of

Opener = Callable[[Path, HostCache, Base], KeyedStateBackend]
"""Opens a state backend.

Arguments: its working folder, which does not exist; the host's file cache; the state that it starts from.
"""
GROUPS = 64
"""Number of key groups of the operator."""
_numbers = count(1)
"""For unique names of snapshots and hosts in this process."""


def key_of(group: int, rest: bytes = b"") -> bytes:
    """Returns a stored key: its key group, then `rest`."""
    return struct.pack(">H", group) + rest


class OperatorSubtasks:
    """All subtasks of one operator; each restore moves them to a new host.

    Args:
        opener: opens a state backend.
        folder: parent of the working folders and file caches.
        backend: value of `SubtaskState.backend`.
    """

    def __init__(self, opener: Opener, folder: Path, backend: str) -> None:
        self.storage: Storage = MemoryStorage()
        self.stores: list[KeyedStateBackend] = []
        self._opener = opener
        self._folder = folder
        self._backend = backend

    def open(self, states: Sequence[SubtaskState] = (), parallelism: int = 1) -> KeyedStateBackend:
        """Opens every subtask on a host with an empty file cache. Returns the first subtask's state backend."""
        host_folder = self._folder / f"host-{next(_numbers)}"
        self.stores = [self._open(host_folder, s, parallelism, states) for s in range(parallelism)]
        return self.stores[0]

    def _open(
        self, host_folder: Path, subtask: int, parallelism: int, states: Sequence[SubtaskState]
    ) -> KeyedStateBackend:
        owned = range_of(subtask, parallelism, GROUPS)
        base = Base(subtask, owned, tuple(s for s in states if s.groups.overlap(owned)))
        cache = HostCache.direct(host_folder / f"cache-{subtask}", self.storage, ManualClock(next(_numbers)))
        return self._opener(host_folder / f"work-{subtask}", cache, base)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Writes each change to the subtask that owns its key group; None removes a key."""
        parallelism = len(self.stores)
        for number, store in enumerate(self.stores):
            store.write({k: v for k, v in changes.items() if _owner(k, parallelism) == number})

    def snapshot(self) -> list[SubtaskState]:
        """Takes a snapshot of each subtask."""
        return [self._snapshot(number, store) for number, store in enumerate(self.stores)]

    def _snapshot(self, number: int, store: KeyedStateBackend) -> SubtaskState:
        owned = range_of(number, len(self.stores), GROUPS)
        name = f"data/{1:020d}/{next(_numbers):010d}-a/op-{number}-"
        taken = store.snapshot(name)
        return SubtaskState(
            subtask=number,
            first_group=owned.first,
            last_group=owned.last,
            snapshot=name,
            files=list(taken.files),
            backend=self._backend,
            inline=taken.inline,
            store_manifest=taken.store_manifest,
        )

    def close(self) -> None:
        """Closes every state backend."""
        for store in self.stores:
            store.close()
        self.stores = []

    def restored(self, parallelism: int = 1) -> list[SubtaskState]:
        """Takes a snapshot and restores it on a new host. Returns the snapshot."""
        states = self.snapshot()
        self.close()
        self.open(states, parallelism)
        return states

    def content(self) -> dict[bytes, bytes]:
        """Returns the entries of all subtasks; asserts that each key is in the subtask that owns it."""
        found: dict[bytes, bytes] = {}
        for number, store in enumerate(self.stores):
            entries = dict(store.scan(b""))
            assert [k for k in entries if _owner(k, len(self.stores)) != number] == []
            found |= entries
        return found


def _owner(key: bytes, parallelism: int) -> int:
    return subtask_of(struct.unpack(">H", key[:2])[0], parallelism, GROUPS)
