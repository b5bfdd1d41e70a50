"""Storage in a local or shared POSIX file system (not NFS: its clients may show a stale directory).

A file appears under its name completely or not at all: it is written without a name (``O_TMPFILE``), synced, then
linked, and link(2) fails when the name exists. Finished files of RocksDB or a Parquet writer are linked, not copied,
when they are on the same file system: a checkpoint of a gigabyte then takes milliseconds.

Below the root no symbolic link is followed, only regular files are read, and a file is linked only when it belongs to
this process's user alone: another user who may write a folder can neither lead out of it nor change a file later.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from stateflow.errors import ConfigError, CorruptFile, DataError, StorageError
from stateflow.private_files import is_ours_alone, open_private
from stateflow.storage.base import (
    TRAFFIC,
    BlobInfo,
    PutResult,
    Storage,
    check_limit,
    check_same_content,
    key_parts,
    limit_chunks,
    missing_object,
    write_chunks,
)

log = logging.getLogger(__name__)

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
        OSError: the folder does not exist.
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
        OSError: the file does not exist, or it is a folder, or it cannot be read.
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
        OSError: the file does not exist, or it is a folder, or it cannot be read.
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
        OSError: the file does not exist, or it is a folder, cannot be read, or is too large (EFBIG).
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


_COPY_CHUNK = 1 << 20
_FOLDER_TRIES = 20
_NOT_LINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
"""Errors of link(2) after which the file is copied instead."""


T = TypeVar("T")


class PosixStorage(Storage):
    """Files in a directory tree. Directories that it creates have mode 0700, files 0600, whatever the umask.

    Args:
        root: path of the directory, which may lead through symbolic links.
        folders: how the directory and those below it are opened; by its path unless given.
    """

    part_gap = 0

    def __init__(self, root: str | Path, folders: FolderTree | None = None) -> None:
        self.root = Path(root).absolute()
        self.uri = self.root.as_uri()
        self._folders = folders or FolderTree(self.root)

    def put_new(self, key: str, data: bytes) -> PutResult:
        TRAFFIC.add(1, written=len(data))
        try:
            return _retry_while_folders_vanish(lambda: self._put_unnamed(key, iter([data])), PermissionError)
        except OSError as e:
            raise _storage_error(e, key) from e

    def put_file(self, key: str, source: Path) -> None:
        with self._translate_errors(str(source)):
            file = _opened_source(source)
        with file:
            self._store(key, file)

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        if not isinstance(source, PosixStorage):
            super().copy_from(source, key, to)
            return
        with source.open(key) as file:
            self._store(to, file)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        with self.open(key) as file, self._translate_errors(key):
            # Not limit + 1: Python would allocate that many bytes for each small object.
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
        if len(data) > limit:
            raise DataError("object exceeds the size limit", key=key, limit_bytes=limit)
        TRAFFIC.add(read=len(data))
        return data

    def chunks(self, key: str) -> Iterator[bytes]:
        with self.open(key) as file, self._translate_errors(key):
            TRAFFIC.add(read=os.fstat(file.fileno()).st_size)
            yield from _chunks_of(file)

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        with self.open(key) as file, self._translate_errors(key):
            found = os.fstat(file.fileno())
            check_limit(key, found.st_size, limit)
            if is_ours_alone(found) and _linked(file.fileno(), None, target):
                return
            TRAFFIC.add(read=found.st_size)
            # Its owner may still append to a file of another user.
            write_chunks(limit_chunks(_chunks_of(file), key, limit), target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        with self.open(key) as source, self._translate_errors(key), open_private(target, must_create=True) as file:
            source.seek(offset)
            TRAFFIC.add(read=size)
            while size and (chunk := source.read(min(size, _COPY_CHUNK))):
                file.write(chunk)
                size -= len(chunk)

    @contextlib.contextmanager
    def open_parts(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        with self.open(key) as source:

            def read(offset: int, size: int) -> bytes:
                with self._translate_errors(key):
                    TRAFFIC.add(1, read=size)
                    return os.pread(source.fileno(), size, offset)

            yield read

    def info(self, key: str) -> BlobInfo | None:
        TRAFFIC.add(1)
        try:
            with self._folder_of(key) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise _storage_error(e, key) from e
        return blob_info(key, found) if stat.S_ISREG(found.st_mode) else None

    def durable_size(self, key: str) -> int | None:
        size = self.size(key)
        if size is None:
            return None
        # The writer links the file before it syncs the folder, so a power failure in between would lose the name.
        try:
            with self._folders.made(self._names(key)[:-1]) as folder:
                sync_folder(folder)
        except OSError as e:
            raise _storage_error(e, key) from e
        return size

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        TRAFFIC.add(1)
        path, _, _ = prefix.rpartition("/")
        try:
            files = list(self._folders.files(self._names(path) if path else ()))
        except OSError as e:
            raise _storage_error(e, prefix) from e
        found = (file for file in files if file.key.startswith(prefix) and file.key > start_after)
        return sorted(found, key=lambda file: file.key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        path = prefix.rstrip("/")
        try:
            return tuple(sorted(self._folders.names(self._names(path) if path else ())))
        except OSError as e:
            raise _storage_error(e, prefix) from e

    def delete(self, keys: Iterable[str]) -> None:
        TRAFFIC.add(1)
        folders = set()
        for key in keys:
            try:
                with self._folder_of(key) as (folder, name):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                # Its folder may be left, empty: by a process that was killed before it created the file.
                pass
            except (IsADirectoryError, NotADirectoryError):
                continue
            except OSError as e:
                raise _storage_error(e, key) from e
            folders.add(tuple(self._names(key)[:-1]))
        for names in folders:
            self._folders.remove_empty(names)

    def file_id(self, key: str) -> tuple[int, int] | None:
        with self.open(key) as file:
            found = os.fstat(file.fileno())
        return found.st_dev, found.st_ino

    @contextlib.contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        # The file itself: the descriptor keeps referring to it when the name does not.
        with self.open(key) as file:
            yield Path(f"/proc/self/fd/{file.fileno()}")

    def local_path(self, key: str) -> Path | None:
        return self.root.joinpath(*self._names(key))

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Opens an object for reading.

        Raises:
            MissingFile: the object does not exist.
            CorruptFile: its name refers to something other than a regular file.
        """
        TRAFFIC.add(1)
        with self._translate_errors(key), self._folder_of(key) as (folder, name):
            file = os.fdopen(open_file(folder, name), "rb")
        with file:
            yield file

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Translates errors of reading an object: MissingFile, or the error of `_storage_error`."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise missing_object(self, key) from e
        except OSError as e:
            raise _storage_error(e, key) from e

    def _names(self, key: str) -> Sequence[str]:
        return key_parts(key, self.uri)

    @contextlib.contextmanager
    def _folder_of(self, key: str) -> Iterator[tuple[int, str]]:
        """Opens the folder of `key`, which must exist, and yields its descriptor and the name in it."""
        *folders, name = self._names(key)
        with self._folders.opened(folders) as folder:
            yield folder, name

    @contextlib.contextmanager
    def _made_folder_of(self, key: str) -> Iterator[tuple[int, str]]:
        """Opens the folder of `key`, creates it if necessary, and yields its descriptor and the name in it."""
        *folders, name = self._names(key)
        with self._folders.made(folders) as folder:
            yield folder, name

    def _store(self, key: str, source: BinaryIO) -> None:
        """Links an open file under `key` if possible, else copies it.

        A hard link to a file of another user would let its owner change the data after it was verified.
        """
        TRAFFIC.add(1, written=os.fstat(source.fileno()).st_size)
        try:
            linked = is_ours_alone(os.fstat(source.fileno())) and _retry_while_folders_vanish(
                lambda: self._link_source(key, source)
            )
            result = PutResult.CREATED if linked else self._copy_source(key, source)
        except FileExistsError:
            result = PutResult.EXISTS
        except OSError as e:
            raise _storage_error(e, key) from e
        if result is not PutResult.CREATED:
            check_same_content(self, key, source)

    def _link_source(self, key: str, source: BinaryIO) -> bool:
        """Links an open file; returns False when the file system does not allow it."""
        fd = source.fileno()
        with self._made_folder_of(key) as (folder, name):
            # Setting an unchanged mode would still change the file's ctime, which fsync would then have to write.
            if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
                os.fchmod(fd, 0o600)
            os.fsync(fd)
            is_linked = _linked(fd, folder, name)
            if is_linked:
                sync_folder(folder)
        return is_linked

    def _copy_source(self, key: str, source: BinaryIO) -> PutResult:
        def content() -> Iterator[bytes]:
            source.seek(0)
            return _chunks_of(source)

        return _retry_while_folders_vanish(lambda: self._put_unnamed(key, content()), PermissionError)

    def _put_unnamed(self, key: str, content: Iterable[bytes]) -> PutResult:
        with self._made_folder_of(key) as (folder, name), _unnamed_file(folder) as fd:
            for chunk in content:
                _write_all(fd, chunk)
            os.fsync(fd)
            return _publish(fd, folder, name)


@contextlib.contextmanager
def _unnamed_file(folder: int) -> Iterator[int]:
    """Opens a file without a name in an open folder; nothing of it remains when the process dies."""
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _publish(fd: int, folder: int, name: str) -> PutResult:
    """Gives an unnamed file its name."""
    try:
        _link(fd, folder, name)
    except FileExistsError:
        return PutResult.EXISTS
    try:
        sync_folder(folder)
    except OSError:
        # The name may or may not survive a power failure: the caller has to read the object.
        return PutResult.UNKNOWN
    return PutResult.CREATED


def _link(fd: int, folder: int | None, name: str | Path) -> None:
    """Links an open file to a name in an open folder, or to a path if `folder` is None."""
    # By the descriptor, not by the path, which may refer to another file by now. Linking it needs AT_SYMLINK_FOLLOW,
    # which Python passes only together with a directory fd.
    os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, dst_dir_fd=folder, follow_symlinks=True)


def _linked(fd: int, folder: int | None, name: str | Path) -> bool:
    """Links an open file as `_link`; returns False when the file system does not allow it."""
    try:
        _link(fd, folder, name)
    except OSError as e:
        if e.errno not in _NOT_LINKABLE:
            raise
        return False
    return True


def _opened_source(path: Path) -> BinaryIO:
    """Opens a local file that is to be stored, and takes other users' rights to it when this user owns it."""
    file = open_path(path)
    found = os.fstat(file.fileno())
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != 0o600:
        os.fchmod(file.fileno(), 0o600)
    return file


def _retry_while_folders_vanish(work: Callable[[], T], *also: type[OSError]) -> T:
    """Retries `work` when a collector, or another run's probe, removes the empty folder between two of its steps.

    An unnamed file does not keep its folder from being removed.

    Args:
        also: further errors that can mean the same: ext4 sometimes reports EPERM for an unnamed file in a folder that
            is being removed. A real lack of permission fails at every attempt.
    """
    for _ in range(_FOLDER_TRIES - 1):
        with contextlib.suppress(FileNotFoundError, *also):
            return work()
    return work()


def _chunks_of(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_COPY_CHUNK):
        yield chunk


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _storage_error(e: OSError, key: str) -> StorageError | ConfigError | CorruptFile:
    if isinstance(e, NotRegular):
        return CorruptFile(
            "the object is not a regular file",
            hint="restore another checkpoint or savepoint; if you made the link, put the file itself in its place",
            path=e.filename,
            found=e.strerror,
        )
    if isinstance(e, LinkedFolder):
        return ConfigError(
            "a folder of the storage is a symbolic link, which is not followed",
            hint="move the folder itself to this place, or mount it there with mount --bind",
            path=e.filename,
        )
    if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ConfigError(
            "access to the storage was denied",
            hint="check owner and permissions",
            path=e.filename or key,
            reason=e.strerror,
        )
    if e.errno == errno.EEXIST:
        return StorageError("object exists already", key=key)
    if e.errno == errno.ENOTDIR:
        return ConfigError(
            "a parent of the storage's path is a file", hint="choose another path", path=e.filename or key
        )
    if e.errno in (errno.EOPNOTSUPP, errno.EISDIR) and e.filename:
        return ConfigError(
            "the file system does not support O_TMPFILE",
            hint="use a local or clustered Linux file system, not NFS",
            path=e.filename,
        )
    return StorageError("file system operation failed", path=e.filename or key, reason=e.strerror, errno=e.errno)


_REMEMBERED_FOLDERS = 1000
"""How many synced folders are remembered."""
_MOST_LEVELS = 32
"""How many levels of folders a listing descends: each takes a descriptor, and the keys of stateflow have at most 8."""


Names = Sequence[str]


class FolderTree:
    """Opens folders by their names below a folder. A symbolic link in place of one of them raises LinkedFolder.

    Args:
        root: the folder, whose path may lead through symbolic links.
        inner: names of the folders from `root` to the one below which all others are; no links either.
    """

    def __init__(self, root: Path, inner: Names = ()) -> None:
        self._root = root
        self._inner = tuple(inner)
        self._synced: OrderedDict[tuple[str, ...], None] = OrderedDict()

    @contextlib.contextmanager
    def opened(self, names: Names) -> Iterator[int]:
        """Yields a descriptor of an existing folder."""
        folder = open_root(self._root)
        try:
            for name in (*self._inner, *names):
                folder = _replaced(folder, open_folder(folder, name))
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def made(self, names: Names) -> Iterator[int]:
        """Yields a descriptor of a folder, which is created if necessary, after making its name durable.

        Names are synced once per process: when another process removes the empty folder and creates it again, that
        process syncs it. Only probes and requests are in such folders, so no checkpoint is lost with them.
        """
        folder, path = self._made_root(), (*self._inner, *names)
        try:
            for level in range(1, len(path) + 1):
                folder = _replaced(folder, self._enter(folder, path[:level]))
            yield folder
        finally:
            os.close(folder)

    def remove_empty(self, names: Names) -> None:
        """Removes a folder, and the ones above it except the root, as far as they are empty."""
        for level in range(len(names), 0, -1):
            try:
                with self.opened(names[: level - 1]) as parent:
                    os.rmdir(names[level - 1], dir_fd=parent)
            except OSError:
                return
            self._synced.pop((*self._inner, *names[:level]), None)

    def files(self, names: Names) -> Iterator[BlobInfo]:
        """Yields the regular files below a folder, in any order; none when the folder does not exist."""
        try:
            with self.opened(names) as folder:
                yield from _files_below(folder, "/".join(names))
        except (FileNotFoundError, NotADirectoryError):
            return

    def names(self, names: Names) -> list[str]:
        """Returns the names of the folders directly in a folder, without links; none when that does not exist."""
        try:
            with self.opened(names) as folder, os.scandir(folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _made_root(self) -> int:
        """Opens the root; creates it, and the folders above it, if they do not exist."""
        with contextlib.suppress(FileNotFoundError):
            return open_root(self._root)
        missing = [self._root]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            parent = open_root(path.parent)
            try:
                sync_folder(parent)
            finally:
                os.close(parent)
        return open_root(self._root)

    def _enter(self, parent: int, names: tuple[str, ...]) -> int:
        """Opens the folder with the last of the names in its open parent, and creates it if necessary."""
        name = names[-1]
        try:
            folder = open_folder(parent, name)
        except FileNotFoundError:
            self._synced.pop(names, None)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            folder = open_folder(parent, name)
        try:
            # Another process may have created an existing folder and not synced it yet.
            if names not in self._synced:
                sync_folder(parent)
                self._remember(names)
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _remember(self, names: tuple[str, ...]) -> None:
        self._synced[names] = None
        while len(self._synced) > _REMEMBERED_FOLDERS:
            self._synced.popitem(last=False)


def sync_folder(folder: int) -> None:
    """Makes the names in an open folder durable."""
    os.fsync(folder)


def _replaced(folder: int, inner: int) -> int:
    os.close(folder)
    return inner


@dataclass
class _Level:
    """An open folder of a listing: its descriptor, its path below the root, and what is still to be visited in it."""

    folder: int
    path: str
    entries: list[os.DirEntry[str]]

    @classmethod
    def of(cls, folder: int, path: str) -> _Level:
        with os.scandir(folder) as entries:
            return cls(folder, path, list(entries))


def blob_info(key: str, found: os.stat_result) -> BlobInfo:
    """Returns the facts of a file as a `BlobInfo`."""
    version = f"{found.st_dev}.{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"
    return BlobInfo(key, found.st_size, found.st_mtime_ns // 1_000_000, version)


def _files_below(folder: int, path: str) -> Iterator[BlobInfo]:
    levels, skipped = [_Level.of(folder, path)], 0
    try:
        while levels:
            level = levels[-1]
            if not level.entries:
                levels.pop()
                _close_inner(level, folder)
                continue
            entry = level.entries.pop()
            inner_path = f"{level.path}/{entry.name}" if level.path else entry.name
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if entry.is_file(follow_symlinks=False):
                    yield blob_info(inner_path, entry.stat(follow_symlinks=False))
                elif entry.is_dir(follow_symlinks=False):
                    if len(levels) < _MOST_LEVELS:
                        levels.append(_opened_level(level.folder, entry.name, inner_path))
                    else:
                        skipped += 1
    finally:
        for level in levels:
            _close_inner(level, folder)
    if skipped:
        # One user's folders must not make every command fail. Nothing of stateflow is as deep.
        log.warning("skipped %d folders that are more than %d levels below %r", skipped, _MOST_LEVELS, path)


def _opened_level(parent: int, name: str, path: str) -> _Level:
    folder = open_folder(parent, name)
    try:
        return _Level.of(folder, path)
    except BaseException:
        os.close(folder)
        raise


def _close_inner(level: _Level, root: int) -> None:
    if level.folder != root:
        os.close(level.folder)
