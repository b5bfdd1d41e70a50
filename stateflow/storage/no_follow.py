"""Opens files and folders without following symbolic links.

A user who may write below a root could otherwise make a link that leads out of it, or a FIFO on which a reader waits
without end. The root itself may be reached through links: its path comes from the operator.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TYPES = {
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class LinkedFolder(OSError):
    """A folder on the way to a file is a symbolic link."""


class NotRegular(OSError):
    """A name refers to something other than a regular file; `strerror` says to what."""


def open_root(root: Path) -> int:
    """Returns a descriptor of a folder, whose path may lead through symbolic links."""
    return os.open(root, _FOLDER)


def open_folder(parent: int, name: str) -> int:
    """Returns a descriptor of a folder in the open folder `parent`.

    Raises:
        LinkedFolder: the name is a symbolic link.
        OSError: there is no such folder.
    """
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise LinkedFolder(errno.ELOOP, "a symbolic link", _path_of(parent, name)) from None
        raise


def open_file(folder: int, name: str) -> int:
    """Returns a descriptor for reading the regular file `name` in an open folder; never waits.

    Raises:
        NotRegular: the name refers to a link, a FIFO, a socket or a device.
        OSError: there is no such file, or it is a folder, or it cannot be read.
    """
    try:
        file = os.open(name, _FILE, dir_fd=folder)
    except OSError as e:
        # Of a link and of a socket; neither can be opened.
        if e.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_regular(folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False)) from None
        raise
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode):
        return file
    os.close(file)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), _path_of(folder, name))
    raise _not_regular(folder, name, found)


def open_path(path: Path) -> BinaryIO:
    """Opens a regular file for reading; never waits.

    Args:
        path: the file. The name may not be a link; the path of its folder may lead through links.

    Raises:
        NotRegular: the name refers to a link, a FIFO, a socket or a device.
        OSError: there is no such file, or it is a folder, or it cannot be read.
    """
    folder = open_root(path.parent)
    try:
        return os.fdopen(open_file(folder, path.name), "rb")
    finally:
        os.close(folder)


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file; never waits.

    Args:
        path: as for `open_path`.
        limit: largest size in bytes.

    Raises:
        NotRegular: the name refers to a link, a FIFO, a socket or a device.
        OSError: there is no such file, or it is a folder, cannot be read, or is too large (EFBIG).
    """
    with open_path(path) as file:
        data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def _not_regular(folder: int, name: str, found: os.stat_result) -> NotRegular:
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), "special file")
    return NotRegular(errno.EINVAL, kind, _path_of(folder, name))


def _path_of(folder: int, name: str) -> str:
    return f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}"
