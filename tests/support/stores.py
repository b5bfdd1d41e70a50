"""Backends under test, and what is wrapped around them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from stateflow.clock import ManualClock
from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.base import KeyedStateBackend, StoreSnapshot
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.types.key_encoding import encode_key


class StoreFixture(ABC):
    """Opens stores of one kind, also again from a snapshot."""

    @abstractmethod
    def new(self) -> KeyedStateBackend:
        """An empty store."""

    @abstractmethod
    def reopened(self, store: KeyedStateBackend) -> KeyedStateBackend:
        """A store that is restored from a snapshot of `store`, which is closed."""


class DictStoreFixture(StoreFixture):
    def new(self) -> KeyedStateBackend:
        return DictBackend()

    def reopened(self, store: KeyedStateBackend) -> KeyedStateBackend:
        restored = DictBackend()
        restored.write(dict(store.scan(b"")))
        store.close()
        return restored


class RocksStoreFixture(StoreFixture):
    def __init__(self, folder: Path, storage: Storage | None = None) -> None:
        self.folder = folder
        self.storage = storage or MemoryStorage()
        self.settings = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)
        self._numbers = count(1)

    def new(self) -> RocksDBBackend:
        return self.open(StoreSnapshot())

    def reopened(self, store: KeyedStateBackend) -> RocksDBBackend:
        base = store.snapshot(self.prefix())
        store.close()
        return self.open(base)

    def open(self, base: StoreSnapshot, host: str = "host") -> RocksDBBackend:
        """A store with `base` in it, on a host that may not have its files yet."""
        number = next(self._numbers)
        return RocksDBBackend(self.folder / f"store-{number}", self.cache(host), base_of(base), self.settings)

    def cache(self, host: str = "host") -> HostCache:
        return HostCache.direct(self.folder / host, self.storage, ManualClock(next(self._numbers)))

    def snapshot_of(self, entries: Mapping[bytes, bytes]) -> StoreSnapshot:
        store = self.new()
        store.write(dict(entries))
        taken = store.snapshot(self.prefix())
        store.close()
        return taken

    def prefix(self) -> str:
        return f"data/{1:020d}/{next(self._numbers):010d}-attempt/op-0-"


def base_of(taken: StoreSnapshot, subtask: int = 0) -> Base:
    """The base of a subtask whose key groups stay the same."""
    state = SubtaskState(
        subtask=subtask, first_group=0, last_group=127, snapshot="s", files=list(taken.files),
        store_manifest=taken.store_manifest,
    )  # fmt: skip
    return Base.of(state)


class CountingStore(KeyedStateBackend):
    def __init__(self, inside: KeyedStateBackend) -> None:
        self.inside = inside
        self.gets = 0
        self.multi_gets = 0
        self.scans = 0
        self.scanned = 0
        self.written = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        return self.inside.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.multi_gets += 1
        return self.inside.multi_get(keys)

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        return map(self._count, self.inside.scan_range(lower, upper))

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        self.written += len(changes)
        self.inside.write(changes)

    def count_entries(self) -> int:
        return self.inside.count_entries()

    def snapshot(self, name: str, full: bool = False) -> StoreSnapshot:
        return self.inside.snapshot(name, full)

    def close(self) -> None:
        self.inside.close()

    @property
    def reads(self) -> int:
        return self.gets + self.multi_gets + self.scans

    def _count(self, entry: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        self.scanned += 1
        return entry


def address(key: object) -> tuple[bytes, bytes]:
    """Key group and bytes of a key; which group is of no importance here."""
    return struct.pack(">H", 7), encode_key((key,))


def set_key(state: KeyedState, key: object) -> None:
    state.set_key(*address(key))


class RecordedFetches(PosixStorage):
    """A folder that records which parts of objects were fetched, by the place where they begin."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[tuple[str, int]] = []

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        self.fetched.append((key, 0))
        super().fetch(key, target, limit)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        self.fetched.append((key, offset))
        super().fetch_part(key, offset, size, target)
