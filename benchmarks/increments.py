"""What checkpoints upload: increments beside what changed, and compaction over many batches, of both kinds.

The stores are those of a job with two subtasks: RocksDB as operators have it, a job root on POSIX, keys and values as
keyed state encodes them. Keys are drawn at random, distinct within a batch; values are 200 random bytes.
"""

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

from benchmarks.results import write_result
from stateflow.clock import SystemClock
from stateflow.config import COMPACTIONS, RocksDBSettings
from stateflow.keygroups import range_of
from stateflow.serializers import encode_key
from stateflow.state.backend import Snapshot
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.rocksdb import RocksDBBackend
from stateflow.state.store_manifest import parse
from stateflow.state.transfer import HostCache, remove_tree
from stateflow.storage import PosixStorage

_SUBTASKS = 2
_GROUPS = 128
_VALUE = 200
_CHUNK = 50_000
_SHARES = {"0_1": 0.001, "1": 0.01, "5": 0.05, "20": 0.2}
_REPEATS = 3


@dataclass(frozen=True)
class Size:
    """How much there is to do."""

    keys: int = 5_000_000
    batches: int = 200
    early: int = 10
    looked_up: int = 3_000
    rounds: int = 20


def run(folder: Path, size: Size = Size()) -> Path:
    """Measures and writes ``increments.json``."""
    figures: dict[str, Any] = _shares(folder / "shares", size)
    kinds = {kind: _long_run(folder / kind, size, kind) for kind in COMPACTIONS}
    chosen = kinds[RocksDBSettings().compaction]
    figures |= {name: chosen[name] for name in ("total_ratio_200_batches", "lookup_ratio_200_vs_10")}
    figures |= {"restore_ratio": chosen["restore_ratio"], "by_compaction": kinds, "keys": size.keys}
    return write_result("increments", figures)


@dataclass
class _Stores:
    """The stores of all subtasks, and what their snapshots uploaded."""

    folder: Path
    settings: RocksDBSettings
    keys: int
    dice: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.storage = PosixStorage(self.folder / "root")
        self._numbers = count(1)
        self.taken = [Snapshot()] * _SUBTASKS
        self.stores = [self._open(n, "host") for n in range(_SUBTASKS)]

    def load(self) -> int:
        """Writes each key once; returns the encoded bytes."""
        written = 0
        for first in range(0, self.keys, _CHUNK):
            written += self.change(range(first, min(first + _CHUNK, self.keys)))
        return written

    def change(self, numbers: range | list[int]) -> int:
        """Writes keys anew; returns their encoded bytes."""
        changes: list[dict[bytes, bytes | None]] = [{} for _ in self.stores]
        for number in numbers:
            changes[number % _SUBTASKS][_encoded(number)] = self.dice.randbytes(_VALUE)
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

    def compare_look_ups(self, early: list[Snapshot], size: Size) -> tuple[float, float]:
        """Median microseconds of a look-up of a random key, a hundred at a time, in the stores as they were early and
        as they are: both opened anew, and asked in turns, so that the machine's mood is the same for both."""
        late = self.taken
        times: tuple[list[float], list[float]] = ([], [])
        opened = []
        for taken in (early, late):
            self.taken = taken
            opened.append([self._open(n, "looked-up") for n in range(_SUBTASKS)])
        self.taken = late
        for _ in range(size.rounds):
            for stores, found in zip(opened, times, strict=True):
                found += self._looked_up(stores, size.looked_up)
        for store in itertools.chain(*opened):
            store.close()
        return statistics.median(times[0]), statistics.median(times[1])

    def _looked_up(self, stores: list[RocksDBBackend], number: int) -> list[float]:
        times = []
        for turn in range(number // 100):
            subtask = turn % _SUBTASKS
            chosen = [self.dice.randrange(self.keys // _SUBTASKS) * _SUBTASKS + subtask for _ in range(100)]
            asked = [_encoded(n) for n in chosen]
            began = time.perf_counter()
            stores[subtask].multi_get(asked)
            times.append((time.perf_counter() - began) * 10_000)
        return times

    def runs(self) -> float:
        """How many files a look-up may have to ask, on average over the stores: of each level below the first one."""
        return statistics.mean(_sorted_runs(taken) for taken in self.taken)

    def close(self) -> None:
        """Closes all stores."""
        for store in self.stores:
            store.close()

    def restore(self, host: str) -> float:
        """Seconds until all stores are open on a host that has none of the files."""
        began = time.perf_counter()
        opened = [self._open(n, host) for n in range(_SUBTASKS)]
        seconds = time.perf_counter() - began
        for store in opened:
            store.close()
        remove_tree(self.folder / host)
        return seconds

    def _open(self, subtask: int, host: str, incremental: bool = True) -> RocksDBBackend:
        home = self.folder / host / str(subtask)
        home.mkdir(parents=True, exist_ok=True)
        cache = HostCache.direct(home / "cache", self.storage, SystemClock())
        owned, taken = range_of(subtask, _SUBTASKS, _GROUPS), self.taken[subtask]
        state = SubtaskState(subtask=subtask, first_group=owned.first, last_group=owned.last, snapshot="s",
                             files=list(taken.files), store_manifest=taken.store_manifest)  # fmt: skip
        base = Base(subtask, owned, (state,) if taken.files else ())
        return RocksDBBackend(home / f"work-{next(self._numbers)}", cache, base, self.settings, incremental)

    def write_full(self) -> None:
        """All of the state as one new file per subtask: what a full checkpoint is."""
        now = [self._open(n, "host") for n in range(_SUBTASKS)]
        entries = [dict(store.scan(b"")) for store in now]
        for store in now:
            store.close()
        self.taken = [Snapshot()] * _SUBTASKS
        self.stores = [self._open(n, "full", incremental=False) for n in range(_SUBTASKS)]
        for store, content in zip(self.stores, entries, strict=True):
            for chunk in _chunks(content):
                store.write(chunk)
        self.checkpoint()


def _shares(folder: Path, size: Size) -> dict[str, Any]:
    """Increments of one batch each, without the bytes of a compaction, over the encoded bytes that changed."""
    stores = _Stores(folder, RocksDBSettings(), size.keys)
    stores.load()
    stores.checkpoint()
    figures = {}
    for name, share in _SHARES.items():
        changed = stores.change(stores.dice.sample(range(size.keys), int(size.keys * share)))
        uploaded, compacted = stores.checkpoint()
        figures[f"ratio_{name}_percent"] = round((uploaded - compacted) / changed, 3)
    stores.close()
    remove_tree(folder)
    return figures


def _long_run(folder: Path, size: Size, compaction: str) -> dict[str, Any]:
    """Batches of one percent: what they upload in all, and what look-ups cost early and late."""
    stores = _Stores(folder, RocksDBSettings(compaction=compaction), size.keys)
    loaded = stores.load()
    stores.checkpoint()
    changed, uploads, compacted, runs, seconds = 0, [], 0, [], []
    early: list[Snapshot] = []
    for batch in range(1, size.batches + 1):
        changed += stores.change(stores.dice.sample(range(size.keys), size.keys // 100))
        began = time.perf_counter()
        uploaded, rewritten = stores.checkpoint()
        seconds.append(time.perf_counter() - began)
        uploads.append(uploaded)
        compacted += rewritten
        runs.append(stores.runs())
        if batch == size.early:
            early = list(stores.taken)
    stores.close()
    before, behind = stores.compare_look_ups(early, size)
    incremental = min(stores.restore("another-host") for _ in range(_REPEATS))
    stored = sum(f.size for taken in stores.taken for f in taken.files)
    stores.write_full()
    full = min(stores.restore("third-host") for _ in range(_REPEATS))
    stores.close()
    remove_tree(folder)
    return {
        "total_ratio_200_batches": round(sum(uploads) / changed, 2),
        "write_amplification": round((sum(uploads) - changed) / changed + 1, 2),
        "files_per_look_up": round(statistics.mean(runs), 1),
        "most_files_per_look_up": max(runs),
        "look_up_us_after_10": round(before, 2),
        "look_up_us_after_200": round(behind, 2),
        "lookup_ratio_200_vs_10": round(behind / before, 2),
        "peak_upload_of_state": round(max(uploads) / loaded, 2),
        "space_amplification": round(stored / loaded, 2),
        "compaction_share": round(compacted / sum(uploads), 2),
        "checkpoint_ms_median": round(statistics.median(seconds) * 1000, 1),
        "checkpoint_ms_worst": round(max(seconds) * 1000, 1),
        "restore_s_after_200": round(incremental, 3),
        "restore_s_full": round(full, 3),
        "restore_ratio": round(incremental / full, 2),
    }


def _sorted_runs(taken: Snapshot) -> int:
    levels = [file.level for file in parse(taken.store_manifest, "a benchmark").files]
    return levels.count(0) + len({*levels} - {0})


def _encoded(number: int) -> bytes:
    """A key of a subtask: its group, the key as keyed state has it, and the state's number."""
    owned = range_of(number % _SUBTASKS, _SUBTASKS, _GROUPS)
    group = owned.first + (number // _SUBTASKS * 40503 % 65536) % (owned.last - owned.first + 1)
    return group.to_bytes(2, "big") + encode_key((number,)) + b"\x01"


def _chunks(entries: dict[bytes, Any]) -> Iterator[dict[bytes, bytes | None]]:
    items = list(entries.items())
    for first in range(0, len(items), _CHUNK):
        yield dict(items[first : first + _CHUNK])
