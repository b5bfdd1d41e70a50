"""Keyed state in a dictionary: the store of the memory backend, and the base class of the filesystem backend.

A snapshot holds the whole state, so a batch's cost grows with the state, not with its changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stateflow.config.state_settings import LARGEST_MEMORY_STATE
from stateflow.errors import ConfigError
from stateflow.state.backends import hashmap_snapshot
from stateflow.state.backends.base import KeyedStateBackend, Snapshot
from stateflow.state.handles import SubtaskState

_FEW = 32


class DictBackend(KeyedStateBackend):
    """A store with its entries in a dictionary, whose keys are sorted at the first scan and kept sorted from then on.

    Args:
        entries: the initial entries, owned by the store from now on.
    """

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self.entries: dict[bytes, bytes] = {} if entries is None else entries
        self._sorted_keys: _SortedKeys | None = None

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted_keys is None:
            self._sorted_keys = _SortedKeys(self.entries)
        keys = self._sorted_keys.between(lower, upper)
        # Copied now, since the scan must not see a later write.
        return iter([(key, self.entries[key]) for key in keys])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        entries, sorted_keys = self.entries, self._sorted_keys
        # Read all changes before applying the first one: if reading fails, none may be applied.
        for key, value in tuple(changes.items()):
            if value is not None:
                if sorted_keys is not None and key not in entries:
                    sorted_keys.add(key)
                entries[key] = value
            elif entries.pop(key, None) is not None and sorted_keys is not None:
                sorted_keys.remove(key)

    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        return Snapshot(inline=b"".join(self.encoded()))

    def encoded(self) -> Iterator[bytes]:
        """Yields the content in the format of `hashmap_snapshot`, in chunks."""
        return hashmap_snapshot.encode(self.scan_range(b"", None))

    def close(self) -> None:
        self.entries = {}
        self._sorted_keys = None


class _SortedKeys:
    """The sorted keys of a dictionary.

    Changes are collected until the next read: applied one by one, each would move half of all keys.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Adds a key that is not in the dictionary."""
        if key in self._removed:
            self._removed.remove(key)
        else:
            self._added.add(key)

    def remove(self, key: bytes) -> None:
        """Removes a key of the dictionary."""
        if key in self._added:
            self._added.remove(key)
        else:
            self._removed.add(key)

    def between(self, lower: bytes, upper: bytes | None) -> list[bytes]:
        """Returns the keys with lower <= key < upper."""
        self._apply_changes()
        end = len(self._keys) if upper is None else bisect_left(self._keys, upper)
        return self._keys[bisect_left(self._keys, lower) : end]

    def _apply_changes(self) -> None:
        if len(self._added) + len(self._removed) > _FEW:
            left = [key for key in self._keys if key not in self._removed]
            # Sorting is fast here, since most of the list is sorted already.
            self._keys = sorted([*left, *sorted(self._added)])
        else:
            for key in self._removed:
                del self._keys[bisect_left(self._keys, key)]
            for key in self._added:
                insort(self._keys, key)
        self._added.clear()
        self._removed.clear()


def check_limit(states: Mapping[str, Iterable[SubtaskState]], limit: int) -> None:
    """Checks the total size of the memory backend's state in a checkpoint.

    Args:
        states: states of the subtasks by operator uid.
        limit: maximum size in bytes, for all operators together.

    Raises:
        ConfigError: the state is larger; the error names the operator with the most state.
    """
    sizes = {
        uid: sum(len(s.inline or b"") for s in subtasks if s.backend == "memory") for uid, subtasks in states.items()
    }
    total = sum(sizes.values())
    if total > limit:
        uid = max(sizes, key=lambda u: sizes[u])
        raise ConfigError(
            "the state exceeds the limit of the memory backend",
            hint="set state.backend to rocksdb or filesystem, which can read the existing state, or raise "
            f"state.memory_limit_bytes to at most {LARGEST_MEMORY_STATE}",
            uid=uid,
            uid_bytes=sizes[uid],
            all_bytes=total,
            limit=limit,
        )
