"""Measures the restore of stores of a gigabyte, and the recovery time of a job whose driver is killed.

Stores are opened from the host's cache, and from a storage on another file system, which is compared with a plain copy
of the same files with hashing.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import killed_driver
from benchmarks.results import write_result
from benchmarks.stores import SUBTASKS, Stores
from stateflow.state.files.host_cache import FETCHERS, remove_tree

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        kills: of a Spark job's driver.
    """

    keys: int = 5_000_000
    repeats: int = 5
    kills: int = 5


def run(folder: Path, size: Size = Size(), other: Path = Path("/dev/shm")) -> Path:
    """Measures and writes ``restore.json``.

    Args:
        other: on another file system than `folder`, so that files are copied, not linked.
    """
    storage = other / folder.name
    assert other.stat().st_dev != folder.stat().st_dev, "files would be linked"
    try:
        figures = _stores(folder / "stores", storage, size)
    finally:
        remove_tree(storage)
    return write_result("restore", {**figures, **killed_driver.measure(folder / "job", size.kills)})


def _stores(folder: Path, storage: Path, size: Size) -> dict[str, float]:
    stores = Stores(folder, size.keys, storage_folder=storage)
    stores.load()
    stores.checkpoint()
    stores.close()
    files = {storage / file.handle.key for taken in stores.taken for file in taken.files}
    local, fetched, copied, alone = [], [], [], []
    for _ in range(size.repeats):
        local.append(_timed(lambda: _open(stores, "host")))
        fetched.append(_timed(lambda: _open(stores, "another-host")))
        remove_tree(folder / "another-host")
        copied.append(_copied(files, folder / "copy", FETCHERS))
        alone.append(_copied(files, folder / "copy", 1))
    fetch, copy = statistics.median(fetched), statistics.median(copied)
    return {
        "local_s": round(statistics.median(local), 3),
        "storage_s": round(fetch, 3),
        "copy_s": round(copy, 3),
        "copy_by_one_thread_s": round(statistics.median(alone), 3),
        "fetch_speed_vs_copy": round(copy / fetch, 2),
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
    }


def _open(stores: Stores, host: str) -> None:
    """One store after the other, as on one core."""
    for store in [stores.open(n, host) for n in range(SUBTASKS)]:
        store.close()


def _copied(files: Iterable[Path], folder: Path, threads: int) -> float:
    """Seconds of copying the files while they are hashed."""
    folder.mkdir()
    with ThreadPoolExecutor(threads) as pool:
        took = _timed(lambda: list(pool.map(lambda file: _copy(file, folder / file.name), files)))
    remove_tree(folder)
    return took


def _copy(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    with source.open("rb") as file, target.open("xb") as copy:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            copy.write(chunk)
    return digest.hexdigest()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
