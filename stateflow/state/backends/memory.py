"""Keyed state in a dictionary: the store of the memory backend, and below the filesystem backend.

A snapshot is all of it, so a batch costs as much as there is state, however little of it has changed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stateflow.errors import ConfigError
from stateflow.settings import LARGEST_MEMORY_STATE
from stateflow.state import snapshots
from stateflow.state.backend import KeyedStateBackend, Snapshot
from stateflow.state.handles import SubtaskState

_FEW = 32


class DictBackend(KeyedStateBackend):
    """Entries in a dictionary; sorted when they are first scanned, and kept so after that.

    Args:
        entries: what it starts with; not to be changed by others any more.
    """

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self.entries: dict[bytes, bytes] = {} if entries is None else entries
        self._order: _Order | None = None

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._order is None:
            self._order = _Order(self.entries)
        keys = self._order.between(lower, upper)
        # All at once: a later write must not be seen.
        return iter([(key, self.entries[key]) for key in keys])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        entries, order = self.entries, self._order
        # All of them before the first is made: changes that cannot be had must not be made in part.
        for key, value in tuple(changes.items()):
            if value is not None:
                if order is not None and key not in entries:
                    order.add(key)
                entries[key] = value
            elif entries.pop(key, None) is not None and order is not None:
                order.remove(key)

    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        return Snapshot(inline=b"".join(self.encoded()))

    def encoded(self) -> Iterator[bytes]:
        """The content as `snapshots` has it, in pieces."""
        return snapshots.encode(self.scan_range(b"", None))

    def close(self) -> None:
        self.entries = {}
        self._order = None


class _Order:
    """The keys of a dictionary in order. Changes are collected until somebody asks: one by one they would move half of
    all keys each."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Takes a key in that was not there."""
        if key in self._removed:
            self._removed.remove(key)
        else:
            self._added.add(key)

    def remove(self, key: bytes) -> None:
        """Drops a key that was there."""
        if key in self._added:
            self._added.remove(key)
        else:
            self._removed.add(key)

    def between(self, lower: bytes, upper: bytes | None) -> list[bytes]:
        """The keys from `lower` on, before `upper`."""
        self._settle()
        end = len(self._keys) if upper is None else bisect_left(self._keys, upper)
        return self._keys[bisect_left(self._keys, lower) : end]

    def _settle(self) -> None:
        if len(self._added) + len(self._removed) > _FEW:
            left = [key for key in self._keys if key not in self._removed]
            # Sorted is what it mostly is already, and that is what sorting is fast at.
            self._keys = sorted([*left, *sorted(self._added)])
        else:
            for key in self._removed:
                del self._keys[bisect_left(self._keys, key)]
            for key in self._added:
                insort(self._keys, key)
        self._added.clear()
        self._removed.clear()


def check_limit(states: Mapping[str, Iterable[SubtaskState]], limit: int) -> None:
    """Refuses a checkpoint with more state of the memory backend than the limit, which is for all of it together.

    Args:
        states: by operator.

    Raises ConfigError that names the operator with most of the state.
    """
    sizes = {
        uid: sum(len(s.inline or b"") for s in subtasks if s.backend == "memory") for uid, subtasks in states.items()
    }  # fmt: skip
    total = sum(sizes.values())
    if total > limit:
        uid = max(sizes, key=lambda u: sizes[u])
        raise ConfigError("there is more state than the memory backend may hold", hint="set state.backend to rocksdb "
                          "or filesystem, which take over what is there, or raise state.memory_limit_bytes, to "
                          f"{LARGEST_MEMORY_STATE} at most", uid=uid, uid_bytes=sizes[uid], all_bytes=total,
                          limit=limit)  # fmt: skip
