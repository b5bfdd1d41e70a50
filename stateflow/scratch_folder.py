"""Temporary folders for copies of state, which also disappear after their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from stateflow.errors import StorageError

PREFIX = "stateflow-scratch-"
"""What the names of all such folders begin with."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class ScratchFolder:
    """A folder in the folder for temporary files, with mode 0700; `remove`, or the end of a `with` block, removes it.

    The process holds a lock on it, which ends with the process. So the next scratch folder on the host removes those of
    the same user's killed processes: a state of many gigabytes would otherwise stay after each killed attempt.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.path, self._lock = _new_folder()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes the folder and what is in it; does nothing the second time."""
        if self._lock is not None:
            # A process that was forked from this one may still write to it.
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def local_disk_errors(path: Path) -> Iterator[None]:
    """Raises StorageError for an error of the operating system in its body, which writes temporary files at a path."""
    try:
        yield
    except OSError as e:
        raise StorageError(
            "temporary files cannot be written to the local disk",
            hint="free space there, or set TMPDIR to a folder on another disk, then repeat the call",
            path=str(path),
            reason=str(e)[:500],
        ) from e


def remove_abandoned() -> None:
    """Removes the scratch folders of this user's processes that have ended."""
    with os.scandir(tempfile.gettempdir()) as found:
        paths = [Path(entry.path) for entry in found if entry.name.startswith(PREFIX)]
    for path in paths:
        with _opened(path) as lock:
            if lock is not None and _try_lock(lock):
                shutil.rmtree(path, ignore_errors=True)


def _new_folder() -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = None
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, _DIRECTORY)
        if lock is None:
            continue
        # Another process may take the folder for an abandoned one until it is locked.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path, lock
        os.close(lock)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Opens a folder of this user; None for what belongs to another user, is no folder, or no longer exists."""
    try:
        folder = os.open(path, _DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield folder if os.fstat(folder).st_uid == os.geteuid() else None
    finally:
        os.close(folder)


def _try_lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
