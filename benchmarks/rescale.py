"""Opening the stores of a checkpoint on a host that has none of its files, at its parallelism and at others."""

from __future__ import annotations

import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_assignment import bases_of
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import PosixStorage
from stateflow.types.key_groups import range_of

M = 4096
_CHUNK = 10_000
_CORES = 2


@dataclass(frozen=True)
class Size:
    """How much state there is."""

    keys: int = 5_000_000
    value_bytes: int = 200
    parallelism: int = 2
    updated: float = 0.01
    """Part of the keys that the newest snapshots changed, so that there are files which are not compacted."""


@dataclass(frozen=True)
class _Opening:
    """What one process does: opens one subtask's store."""

    root: Path
    host: Path
    base: Base
    subtasks: int
    snapshot: str


def measure(folder: Path, size: Size = Size(), repeats: int = 3) -> dict[str, Any]:
    """Builds the state and measures; each figure is the best of `repeats`.

    Every opening is on a fresh host: all files are fetched from the job root, verified, and linked. ``…_s`` is the wall
    time of all subtasks' openings in two processes, as tasks on two cores do it; ``…_sequential_s`` is that of one
    after another in one process. ``…_snapshot_s`` and ``…_written_bytes`` are of the first snapshot afterwards.
    """
    state = _build(folder / "root", folder / "build", size)
    p = size.parallelism
    figures: dict[str, Any] = {
        "keys": size.keys,
        "value_bytes": size.value_bytes,
        "parallelism": p,
        "full_bytes": sum(f.handle.size for s in state.subtasks for f in s.files),
    }
    # Not forked: RocksDB's threads, which work for all stores of a process, would be missing in the child.
    with ProcessPoolExecutor(_CORES, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.1] * _CORES))
        for name, to in (("native", p), ("double", 2 * p), ("half", p // 2), ("three_halves", p * 3 // 2)):
            for kind, run in (("", pool.map), ("_sequential", map)):
                figures |= _figures(f"{name}{kind}", partial(_open_all, folder, state, to, run), repeats)
    for name in ("double", "half", "three_halves"):
        for kind in ("", "_sequential"):
            figures[f"{name}{kind}_ratio"] = round(figures[f"{name}{kind}_s"] / figures[f"native{kind}_s"], 2)
    return figures


def _figures(name: str, run: Callable[[], tuple[float, float, int]], repeats: int) -> dict[str, Any]:
    opened, snapshot, written = min(run() for _ in range(repeats))
    return {f"{name}_s": round(opened, 3), f"{name}_snapshot_s": round(snapshot, 3), f"{name}_written_bytes": written}


def _open_all(
    folder: Path, state: OperatorState, parallelism: int, run: Callable[..., Any]
) -> tuple[float, float, int]:
    """Wall time of opening all stores, of the longest snapshot after that, and the bytes it wrote."""
    host = folder / "host"
    bases = bases_of(state, parallelism, M)
    for base in bases:
        (host / str(base.subtask)).mkdir(parents=True)
    work = [
        _Opening(folder / "root", host, b, parallelism, f"data/{2:020d}/{1:010d}-{time.time_ns()}/op-{b.subtask}-")
        for b in bases
    ]
    began = time.monotonic()
    done = list(run(_open, work))
    found = max(at for at, _, _ in done) - began
    shutil.rmtree(host)
    return found, max(s for _, s, _ in done), sum(w for _, _, w in done)


def _open(work: _Opening) -> tuple[float, float, int]:
    """When the store was open, how long its snapshot took, bytes it wrote; the last are not part of the opening."""
    storage = PosixStorage(work.root)
    homes = [work.host / str(n) for n in range(work.subtasks)]
    cache = HostCache.direct(homes[work.base.subtask], storage, SystemClock(), homes if work.base.rescales else ())
    store = RocksDBBackend(work.host / f"store-{work.base.subtask}", cache, work.base, RocksDBSettings())
    opened = time.monotonic()
    files = list(store.snapshot(work.snapshot).files)
    took = time.monotonic() - opened
    store.close()
    written = sum(f.handle.size for f in files if f.handle.key.startswith(work.snapshot))
    return opened, took, written


# -- the state ----------------------------------------------------------------------------------------------------


def _build(root: Path, scratch: Path, size: Size) -> OperatorState:
    states = [_build_subtask(root, scratch, size, subtask) for subtask in range(size.parallelism)]
    return OperatorState(uid="op", parallelism=size.parallelism, key_types=[], key_names=[], states=[], subtasks=states)


def _build_subtask(root: Path, scratch: Path, size: Size, subtask: int) -> SubtaskState:
    """All keys in random order, so that files overlap; compacted; then two snapshots with some keys changed."""
    owned = range_of(subtask, size.parallelism, M)
    cache = HostCache.direct(scratch / f"cache-{subtask}", PosixStorage(root), SystemClock())
    store = RocksDBBackend(
        scratch / f"store-{subtask}", cache, Base(subtask, owned), RocksDBSettings(compact_at_files=4)
    )
    rng = random.Random(subtask)
    numbers = list(range(size.keys // size.parallelism))
    rng.shuffle(numbers)
    prefix = f"data/{1:020d}/{{:010d}}-l0/op-{subtask}-"
    some = numbers[: int(len(numbers) * size.updated)]
    for ordinal, batch in enumerate((numbers, some, some), 1):
        for chunk in _chunks(batch):
            store.write({_key(owned.first + n % len(owned), n): os.urandom(size.value_bytes) for n in chunk})
        taken = store.snapshot(prefix.format(ordinal))
    store.close()
    return SubtaskState(
        subtask=subtask,
        first_group=owned.first,
        last_group=owned.last,
        snapshot="base",
        files=list(taken.files),
        store_manifest=taken.store_manifest,
    )


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[at : at + _CHUNK] for at in range(0, len(numbers), _CHUNK))


def _key(group: int, number: int) -> bytes:
    return struct.pack(">HIBQB", group, 7, 0x15, number, 0)
