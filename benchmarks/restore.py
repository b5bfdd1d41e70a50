"""Measures the restore of stores of a gigabyte, and the recovery time of a job whose driver is killed.

Stores are opened from the host's cache, and from a storage on another file system, which is compared with a plain copy
of the same files with hashing. A host checks a store that it has not written before it opens it: what that costs is the
difference to the restore on a host that remembers the check.
"""

from __future__ import annotations

import hashlib
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks import killed_driver
from benchmarks.results import write_result
from benchmarks.stores import SUBTASKS, Stores
from stateflow.state.host_cache import FETCHERS, remove_tree

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
    checks = _Checks(stores, folder / "another-host")
    for turn in range(size.repeats):
        local.append(_timed(lambda: _open(stores, "host")))
        fetched.append(checks.compare(turn))
        copied.append(_copied(files, folder / "copy", FETCHERS))
        alone.append(_copied(files, folder / "copy", 1))
    fetch, copy = map(statistics.median, (fetched, copied))
    return {
        "local_s": round(statistics.median(local), 3),
        "storage_s": round(fetch, 3),
        "copy_s": round(copy, 3),
        "copy_by_one_thread_s": round(statistics.median(alone), 3),
        "fetch_speed_vs_copy": round(copy / fetch, 4),
        **checks.figures(),
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
    }


def _open(stores: Stores, host: str) -> None:
    """One store after the other, as on one core."""
    for store in [stores.open(n, host) for n in range(SUBTASKS)]:
        store.close()


@dataclass(frozen=True)
class _Cost:
    """Seconds of a restore: on the clock, and of all processors in this process and its children."""

    wall: float
    cpu: float


class _Checks:
    """Restores on a host without any file, which checks the stores, and on one that remembers to have checked them.

    Args:
        stores: the stores.
        host: the folder of the host.
    """

    def __init__(self, stores: Stores, host: Path) -> None:
        self._stores = stores
        self._host = host
        self._costs: list[tuple[_Cost, _Cost]] = []
        self._restore()
        self._marks = [mark.relative_to(host) for mark in host.rglob("checked-*")]
        assert len(self._marks) == SUBTASKS, self._marks

    def compare(self, turn: int) -> float:
        """Measures both, in an order that changes with each turn; returns the seconds of the one with the check."""
        found: dict[bool, _Cost] = {}
        for is_checked in (turn % 2 == 0, turn % 2 == 1):
            remove_tree(self._host)
            for mark in self._marks if is_checked else ():
                (self._host / mark).parent.mkdir(parents=True)
                (self._host / mark).touch()
            found[is_checked] = self._restore()
        remove_tree(self._host)
        self._costs.append((found[False], found[True]))
        return found[False].wall

    def _restore(self) -> _Cost:
        before = _cpu_seconds()
        wall = _timed(lambda: _open(self._stores, self._host.name))
        return _Cost(wall, _cpu_seconds() - before)

    def figures(self) -> dict[str, float]:
        """Medians of the seconds of a check, and their share of the whole restore without it."""
        wall = [(checked.wall - known.wall, known.wall) for checked, known in self._costs]
        cpu = [(checked.cpu - known.cpu, known.cpu) for checked, known in self._costs]
        return {
            "check_s": round(statistics.median(check for check, _ in wall), 3),
            "check_share": round(statistics.median(check / restore for check, restore in wall), 3),
            "check_cpu_s": round(statistics.median(check for check, _ in cpu), 3),
            "check_cpu_share": round(statistics.median(check / restore for check, restore in cpu), 3),
        }


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


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
