"""Large RocksDB stores without a job: those of two subtasks, with a job root on POSIX, and random values."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.base import StoreSnapshot
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache, remove_tree
from stateflow.storage import PosixStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import range_of

SUBTASKS = 2
_GROUPS = 128
_VALUE = 200
_CHUNK = 50_000


@dataclass(frozen=True)
class LookUps:
    """How many keys are asked for in each of how many rounds."""

    keys: int = 3_000
    rounds: int = 20


@dataclass
class Stores:
    """The stores of all subtasks, and what their snapshots uploaded."""

    folder: Path
    keys: int
    settings: RocksDBSettings = field(default_factory=RocksDBSettings)
    storage_folder: Path | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.storage = PosixStorage(self.storage_folder or self.folder / "root")
        self._numbers = count(1)
        self.taken = [StoreSnapshot()] * SUBTASKS
        self.stores = [self.open(n, "host") for n in range(SUBTASKS)]

    def load(self) -> int:
        """Writes each key once; returns the encoded bytes."""
        written = 0
        for first in range(0, self.keys, _CHUNK):
            written += self.change(range(first, min(first + _CHUNK, self.keys)))
        return written

    def change(self, numbers: range | list[int]) -> int:
        """Updates keys; returns their encoded bytes."""
        changes: list[dict[bytes, bytes | None]] = [{} for _ in self.stores]
        for number in numbers:
            changes[number % SUBTASKS][_encoded(number)] = self.rng.randbytes(_VALUE)
        for store, changed in zip(self.stores, changes, strict=True):
            for entries in _chunks(changed):
                store.write(entries)
        return sum(len(key) + _VALUE for changed in changes for key in changed)

    def checkpoint(self) -> tuple[int, int]:
        """Takes a snapshot of each; returns the bytes that were uploaded, and those of compaction among them."""
        known = {f.handle.key for taken in self.taken for f in taken.files}
        prefix = f"data/{1:020d}/{next(self._numbers):010d}-bench/op-"
        self.taken = [store.snapshot(f"{prefix}{n}-") for n, store in enumerate(self.stores)]
        new = {f.handle.key: f.handle.size for taken in self.taken for f in taken.files}
        uploaded = sum(size for key, size in new.items() if key not in known)
        return uploaded, sum(taken.compaction_bytes for taken in self.taken)

    def compare_look_ups(self, early: list[StoreSnapshot], size: LookUps) -> tuple[float, float]:
        """Median microseconds of a look-up of a random key, a hundred at a time, in the stores as they were early and
        as they are now. Both are opened for this and take turns, so that the machine's load affects both."""
        late = self.taken
        times: tuple[list[float], list[float]] = ([], [])
        opened = []
        for taken in (early, late):
            self.taken = taken
            opened.append([self.open(n, "looked-up") for n in range(SUBTASKS)])
        self.taken = late
        for _ in range(size.rounds):
            for stores, found in zip(opened, times, strict=True):
                found += self._looked_up(stores, size.keys)
        for store in itertools.chain(*opened):
            store.close()
        return statistics.median(times[0]), statistics.median(times[1])

    def _looked_up(self, stores: list[RocksDBBackend], number: int) -> list[float]:
        times = []
        for turn in range(number // 100):
            subtask = turn % SUBTASKS
            chosen = [self.rng.randrange(self.keys // SUBTASKS) * SUBTASKS + subtask for _ in range(100)]
            asked = [_encoded(n) for n in chosen]
            began = time.perf_counter()
            stores[subtask].multi_get(asked)
            times.append((time.perf_counter() - began) * 10_000)
        return times

    def close(self) -> None:
        """Closes all stores."""
        for store in self.stores:
            store.close()

    def restore(self, host: str) -> float:
        """Seconds until all stores are open on a host that has none of the files."""
        began = time.perf_counter()
        opened = [self.open(n, host) for n in range(SUBTASKS)]
        seconds = time.perf_counter() - began
        for store in opened:
            store.close()
        remove_tree(self.folder / host)
        return seconds

    def open(self, subtask: int, host: str, incremental: bool = True) -> RocksDBBackend:
        """The store of a subtask as it was taken last, on a host, which keeps what it has fetched."""
        home = self.folder / host / str(subtask)
        home.mkdir(parents=True, exist_ok=True)
        cache = HostCache.direct(home / "cache", self.storage, SystemClock())
        owned, taken = range_of(subtask, SUBTASKS, _GROUPS), self.taken[subtask]
        state = SubtaskState(
            subtask=subtask,
            first_group=owned.first,
            last_group=owned.last,
            snapshot="s",
            files=list(taken.files),
            store_manifest=taken.store_manifest,
        )
        base = Base(subtask, owned, (state,) if taken.files else ())
        return RocksDBBackend(home / f"work-{next(self._numbers)}", cache, base, self.settings, incremental)

    def write_full(self) -> None:
        """All of the state as one new file per subtask: what a full checkpoint is."""
        now = [self.open(n, "host") for n in range(SUBTASKS)]
        entries = [dict(store.scan(b"")) for store in now]
        for store in now:
            store.close()
        self.taken = [StoreSnapshot()] * SUBTASKS
        self.stores = [self.open(n, "full", incremental=False) for n in range(SUBTASKS)]
        for store, content in zip(self.stores, entries, strict=True):
            for chunk in _chunks(content):
                store.write(chunk)
        self.checkpoint()


def _encoded(number: int) -> bytes:
    """A key of a subtask: its group, the key as keyed state has it, and the state's number."""
    owned = range_of(number % SUBTASKS, SUBTASKS, _GROUPS)
    group = owned.first + (number // SUBTASKS * 40503 % 65536) % (owned.last - owned.first + 1)
    return group.to_bytes(2, "big") + encode_key((number,)) + b"\x01"


def _chunks(entries: dict[bytes, Any]) -> Iterator[dict[bytes, bytes | None]]:
    items = list(entries.items())
    for first in range(0, len(items), _CHUNK):
        yield dict(items[first : first + _CHUNK])
