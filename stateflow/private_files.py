"""Files and folders of this host that only the user of this process can access, whatever the umask.

`ScratchFolder` is a temporary one for copies of state, which also disappears after its process was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from stateflow.errors import ConfigError, StorageError

_OTHERS_MAY_WRITE = 0o022


def is_ours_alone(found: os.stat_result) -> bool:
    """Returns whether a file or folder belongs to this process's user, and no other user may write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE


def make_folders(folder: Path) -> None:
    """Creates a folder and the missing ones above it with mode 0700; an existing folder is not changed."""
    # Path.mkdir gives the folders above the mode that the umask leaves.
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)


def make_new_folder(folder: Path) -> None:
    """Creates a folder, which must not exist, and the missing ones above it with mode 0700. Raises FileExistsError."""
    make_folders(folder.parent)
    folder.mkdir(mode=0o700)


def make_own_folder(folder: Path, setting: str = "local_dir") -> None:
    """Creates a folder unless it exists, and checks that no other user can have put files into it.

    Args:
        folder: the folder.
        setting: the setting that names it, or a folder above it; for errors.

    Raises:
        ConfigError: the folder is a symbolic link, belongs to another user, or others may write to it.
    """
    make_folders(folder)
    # Not stat: another user could make a link in /tmp that leads to a folder of this user.
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise ConfigError(
            "a folder for files of this user alone is a symbolic link",
            hint=f"remove the link, or set {setting} to the folder that it leads to",
            path=str(folder),
            owner=found.st_uid,
        )
    if found.st_uid != os.geteuid():
        raise ConfigError(
            "a folder for files of this user alone belongs to another user",
            hint=f"set {setting} to another folder",
            path=str(folder),
            owner=found.st_uid,
        )
    if not is_ours_alone(found):
        raise ConfigError(
            "others may write to a folder for files of this user alone",
            hint=f"remove write permission with chmod go-w, or set {setting} to another folder",
            path=str(folder),
            owner=found.st_uid,
            mode=oct(found.st_mode & 0o777),
        )


def make_own_folders(root: Path, folder: Path, setting: str) -> None:
    """Creates and checks `folder` and every folder above it up to `root`, as `make_own_folder` does.

    The owner of one of them could replace those below it.
    """
    for path in [*reversed(folder.parents), folder]:
        if path.is_relative_to(root):
            make_own_folder(path, setting)


def open_private(path: Path, *, must_create: bool = False) -> BinaryIO:
    """Opens a file for writing from its beginning; a new file has mode 0600, an existing one keeps its mode.

    Args:
        path: the file.
        must_create: whether an existing file, or a link, is a FileExistsError.
    """
    flag = os.O_EXCL if must_create else os.O_TRUNC
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flag, 0o600), "wb")


def write_private(path: Path, data: bytes) -> None:
    """Writes a file as `open_private` opens it."""
    with open_private(path) as file:
        file.write(data)


PREFIX = "stateflow-scratch-"
"""Prefix of the names of all such folders."""
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
    """Opens a folder of this user; None if it belongs to another user, is not a folder, or no longer exists."""
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
