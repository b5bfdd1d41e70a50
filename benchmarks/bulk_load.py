"""Opening RocksDB stores with the state of a canonical savepoint, compared with ``cp`` of its files.

``python -m benchmarks.bulk_load`` prints the figures; the files are below the folder for temporary files.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_assignment import bases_of
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings, StateSettings
from stateflow.state.backends import canonical_file
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import blocks_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.handles import CANONICAL, Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import PosixStorage
from stateflow.types.key_groups import range_of

_MAX_PARALLELISM = 4096
_CORES = 2


@dataclass(frozen=True)
class Size:
    """How much state there is."""

    keys: int = 5_000_000
    value_bytes: int = 200
    parallelism: int = 2


@dataclass(frozen=True)
class Opening:
    """The opening of one subtask's store, on a host of its own."""

    root: Path
    host: Path
    base: Base
    snapshot: str


@dataclass(frozen=True)
class _Opened:
    """When a store was open, CPU seconds that its process used for that, seconds of its first snapshot."""

    at: float
    cpu: float
    snapshot: float


def measure(folder: Path, size: Size = Size(), repeats: int = 3) -> dict[str, Any]:
    """Writes the files of a savepoint and restores them; each figure is the best of `repeats`.

    ``…_s`` is the wall time until all stores are open in two processes, on a host without files; ``…_sequential_s`` is
    that of one after another in one process. ``…_cpu_s`` is the CPU time of all openings. ``…_snapshot_s`` is the wall
    time of the longest first snapshot, which is not part of an opening.
    """
    state = _build(folder, size)
    root = folder / "root"
    p = size.parallelism
    figures: dict[str, Any] = {
        "keys": size.keys,
        "value_bytes": size.value_bytes,
        "canonical_bytes": sum(f.handle.size for s in state.subtasks for f in s.files),
    }
    with ProcessPoolExecutor(_CORES, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.1] * _CORES))
        for name, to in (("same", p), ("double", 2 * p), ("half", p // 2)):
            for kind, run in (("", pool.map), ("_sequential", map)):
                figures |= _figures(f"{name}{kind}", [_open_all(folder, state, to, run) for _ in range(repeats)])
    figures["cp_s"] = round(min(_cp(root, folder / "copy") for _ in range(repeats)), 3)
    figures["same_to_cp"] = round(figures["same_s"] / figures["cp_s"], 2)
    return figures


def _figures(name: str, runs: list[tuple[float, float, float]]) -> dict[str, Any]:
    took, cpu, snapshot = min(runs)
    found = {f"{name}_s": took, f"{name}_snapshot_s": snapshot, f"{name}_cpu_s": cpu}
    return {key: round(value, 3) for key, value in found.items()}


def _open_all(
    folder: Path, state: OperatorState, parallelism: int, run: Callable[..., Any]
) -> tuple[float, float, float]:
    host = folder / "host"
    work = [
        Opening(folder / "root", host / str(b.subtask), b, f"data/{time.time_ns()}/op-{b.subtask}-")
        for b in bases_of(state, parallelism, _MAX_PARALLELISM)
    ]
    began = time.monotonic()
    opened: list[_Opened] = list(run(open_store, work))
    shutil.rmtree(host)
    shutil.rmtree(folder / "root" / "data")
    # Those of one process follow one another, each with its snapshot, which is not part of the opening.
    snapshots = sum(o.snapshot for o in opened[:-1]) if run is map else 0.0
    took = max(o.at for o in opened) - began - snapshots
    return took, sum(o.cpu for o in opened), max(o.snapshot for o in opened)


def open_store(work: Opening) -> _Opened:
    """Opens a store, and takes its first snapshot if it has a name."""
    cache = HostCache.direct(work.host / "cache", PosixStorage(work.root), SystemClock())
    cpu = _cpu_seconds()
    store = open_backend(StoreLocation(work.host / "store", cache, RocksDBSettings()), work.base, StateSettings())
    opened, cpu = time.monotonic(), _cpu_seconds() - cpu
    if work.snapshot:
        store.snapshot(work.snapshot)
    took = time.monotonic() - opened
    store.close()
    return _Opened(opened, cpu, took)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _cp(source: Path, target: Path) -> float:
    began = time.monotonic()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    took = time.monotonic() - began
    shutil.rmtree(target)
    return took


# -- the state ----------------------------------------------------------------------------------------------------


def _build(folder: Path, size: Size) -> OperatorState:
    states = [_build_subtask(folder, size, subtask) for subtask in range(size.parallelism)]
    return OperatorState(uid="op", parallelism=size.parallelism, key_types=[], key_names=[], states=[], subtasks=states)


def _build_subtask(folder: Path, size: Size, subtask: int) -> SubtaskState:
    owned = range_of(subtask, size.parallelism, _MAX_PARALLELISM)
    header = CanonicalHeader(
        uid="op",
        key_types=[],
        max_parallelism=_MAX_PARALLELISM,
        first_group=owned.first,
        last_group=owned.last,
        states=[],
    )

    def entries() -> Iterator[tuple[bytes, bytes]]:
        count = size.keys // size.parallelism
        for group in range(len(owned)):
            for number in range(group, count, len(owned)):
                key = struct.pack(">HIBQB", owned.first + group, 7, 0x15, number, 0)
                yield key, os.urandom(size.value_bytes)

    path = folder / f"canonical-{subtask}"
    with path.open("wb") as file:
        file.writelines(canonical_file.encode_file(header, blocks_of(entries())))
    cache = HostCache.direct(folder / "build", PosixStorage(folder / "root"), SystemClock())
    files = cache.store([path], f"savepoint/{subtask}-")
    shutil.rmtree(folder / "build")
    path.unlink()
    return SubtaskState(
        subtask=subtask,
        first_group=owned.first,
        last_group=owned.last,
        snapshot=f"canonical-{subtask}",
        backend=CANONICAL,
        files=files,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(Path(scratch)), indent=2))
