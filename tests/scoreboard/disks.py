"""File systems of a few megabytes, which can be full."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, megabytes: int = 24) -> Iterator[Path]:
    """A file system of a few megabytes; only root can make one."""
    folder.mkdir()
    size = f"size={megabytes}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Leaves so many bytes in the file system of a folder; returns the file that has all others."""
    space, filler = os.statvfs(folder), folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, space.f_bavail * space.f_frsize - leave))
    return filler
