"""Files and folders of this host that only the user of this process can access, whatever the umask."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from stateflow.errors import ConfigError

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
