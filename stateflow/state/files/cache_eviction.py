"""What this host keeps of stores that nobody has open: bounded, the least recently used go first.

A cache is the folder of one subtask's files. Whoever opens a store marks its cache as used. Other processes may do
anything meanwhile: a file that is gone when somebody wants it is fetched, and one that somebody has linked stays for
him.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stateflow.state.uploads import INCOMING


@dataclass(frozen=True)
class _Cache:
    used: float
    files: tuple[tuple[Path, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


def mark_used(cache: Path) -> None:
    """Makes it the one that was used last."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(cache)


def trim(local_folder: Path, limit: int) -> int:
    """Removes files of caches until all of them together take at most so many bytes; returns how many bytes went.

    Files that have another name as well count for nothing: an open store or a job root on this file system has them,
    and removing one here would free no space.

    Args:
        local_folder: scratch space of this host, of all jobs.
    """
    caches = sorted(map(_look, local_folder.glob("*/*/*/cache")), key=lambda cache: cache.used, reverse=True)
    kept, removed = 0, 0
    for cache in caches:
        if kept + cache.size <= limit:
            kept += cache.size
        else:
            removed += _remove(cache.files)
    return removed


def _look(folder: Path) -> _Cache:
    files = []
    try:
        used = folder.stat().st_mtime
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                # What is just being fetched has another name until it is whole.
                if found.st_nlink == 1 and not entry.name.startswith(INCOMING):
                    files.append((Path(entry.path), found.st_size))
    except FileNotFoundError:
        return _Cache(0.0, ())
    return _Cache(used, tuple(files))


def _remove(files: Iterable[tuple[Path, int]]) -> int:
    removed = 0
    for path, size in files:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed += size
    return removed
