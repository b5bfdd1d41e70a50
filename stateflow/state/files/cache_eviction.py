"""Eviction of cached state files of closed stores from a host, least recently used first.

A cache is the folder of one subtask's files; opening a store marks its cache as used. Other processes may use the
caches concurrently: a process that misses an evicted file fetches it again, and a file that a process has linked stays
available to that process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stateflow.state.files.uploads import PARTIAL_PREFIX


@dataclass(frozen=True)
class _Cache:
    used: float
    files: tuple[tuple[Path, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


def mark_used(cache: Path) -> None:
    """Marks a cache as the most recently used one."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(cache)


def trim(local_folder: Path, limit: int) -> int:
    """Removes files from caches until all caches together are within a limit.

    Files with another hard link do not count: an open store or a job root on this file system has them too, so
    removing them from the cache would free no space.

    Args:
        local_folder: the host's scratch folder of all jobs.
        limit: maximum size in bytes.

    Returns:
        The number of bytes removed.
    """
    caches = sorted(map(_read_cache, local_folder.glob("*/*/*/cache")), key=lambda cache: cache.used, reverse=True)
    kept, removed = 0, 0
    for cache in caches:
        if kept + cache.size <= limit:
            kept += cache.size
        else:
            removed += _remove(cache.files)
    return removed


def _read_cache(folder: Path) -> _Cache:
    files = []
    try:
        used = folder.stat().st_mtime
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                # A file that is being fetched has a temporary name until it is complete.
                if found.st_nlink == 1 and not entry.name.startswith(PARTIAL_PREFIX):
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
