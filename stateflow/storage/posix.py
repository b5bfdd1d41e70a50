"""Storage in a local or shared POSIX file system (not NFS: its clients may show a stale directory).

A file appears under its name completely or not at all: it is written without a name (``O_TMPFILE``), synced, then
linked, and link(2) fails when the name exists. Finished files of RocksDB or a Parquet writer are linked, not copied,
when they are on the same file system: a checkpoint of a gigabyte then takes milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from stateflow.errors import ConfigError, DataError, StorageError
from stateflow.storage.base import BlobInfo, PutResult, Storage, check_same_content, key_parts, missing_object

_COPY_CHUNK = 1 << 20
_FOLDER_TRIES = 20
_REMEMBERED_FOLDERS = 1000
"""How many synced folders are remembered."""
_NOT_LINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
"""Errors of link(2) after which the file is copied instead."""

T = TypeVar("T")


class PosixStorage(Storage):
    """Files in a directory tree. Directories that it creates have mode 0700, files 0600, whatever the umask."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.uri = self.root.as_uri()
        self._synced_folders: OrderedDict[Path, None] = OrderedDict()

    def put_new(self, key: str, data: bytes) -> PutResult:
        try:
            return _retry_while_folders_vanish(lambda: self._put_unnamed(key, data), PermissionError)
        except OSError as e:
            raise _storage_error(e, key) from e

    def put_file(self, key: str, source: Path) -> None:
        try:
            _retry_while_folders_vanish(lambda: self._link_file(key, source))
        except FileExistsError:
            check_same_content(self, key, source)
        except OSError as e:
            if e.errno not in _NOT_LINKABLE:
                raise _storage_error(e, key) from e
            self._copy_file(key, source)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        with self._translated_errors(key), self._path(key).open("rb") as file:
            # Not limit + 1: Python would allocate that many bytes for each small object.
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)
        if len(data) > limit:
            raise DataError("object exceeds the size limit", key=key, limit=limit)
        return data

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._translated_errors(key), self._path(key).open("rb") as file:
            while chunk := file.read(_COPY_CHUNK):
                yield chunk

    def fetch(self, key: str, target: Path) -> None:
        path = self._path(key)
        with self._translated_errors(key):
            try:
                os.link(path, target, follow_symlinks=False)
            except OSError as e:
                if e.errno not in _NOT_LINKABLE:
                    raise
                shutil.copyfile(path, target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        with self._translated_errors(key), self._path(key).open("rb") as source, target.open("xb") as file:
            source.seek(offset)
            while size and (chunk := source.read(min(size, _COPY_CHUNK))):
                file.write(chunk)
                size -= len(chunk)

    def size(self, key: str) -> int | None:
        try:
            found = self._path(key).lstat()
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as e:
            raise _storage_error(e, key) from e

    def durable_size(self, key: str) -> int | None:
        size = self.size(key)
        if size is None:
            return None
        try:
            # The writer links the file before it syncs the folder, so a power failure in between would lose the name.
            folder = self._path(key).parent
            _sync_folder(folder)
            self._sync_parents(folder)
        except OSError as e:
            raise _storage_error(e, key) from e
        return size

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder, _, _ = prefix.rpartition("/")
        start = self._path(folder) if folder else self.root
        try:
            found = [b for b in self._walk(start, folder) if b.key.startswith(prefix)]
        except OSError as e:
            raise _storage_error(e, prefix) from e
        return sorted((b for b in found if b.key > start_after), key=lambda b: b.key)

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            try:
                path.unlink()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                continue
            except OSError as e:
                raise _storage_error(e, key) from e
            folders.add(path.parent)
        for folder in folders:
            self._remove_empty(folder)

    def local_path(self, key: str) -> Path | None:
        return self._path(key)

    @contextlib.contextmanager
    def _translated_errors(self, key: str) -> Iterator[None]:
        """Translates errors of reading an object: MissingFile, or the error of `_storage_error`."""
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise missing_object(self, key) from e
        except OSError as e:
            raise _storage_error(e, key) from e

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*key_parts(key, self.uri))

    def _put_unnamed(self, key: str, data: bytes) -> PutResult:
        with self._unnamed_file(key) as (fd, path):
            _write_all(fd, data)
            os.fsync(fd)
            return self._link(fd, path)

    @contextlib.contextmanager
    def _unnamed_file(self, key: str) -> Iterator[tuple[int, Path]]:
        """Opens a file without a name in the folder of `key`; nothing of it remains when the process dies."""
        path = self._path(key)
        self._make_folders(path.parent)
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            yield fd, path
        finally:
            os.close(fd)

    def _link(self, fd: int, path: Path) -> PutResult:
        try:
            # Linking an unnamed file needs AT_SYMLINK_FOLLOW, which Python passes only together with a directory fd.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except FileExistsError:
            return PutResult.EXISTS
        try:
            _sync_folder(path.parent)
        except OSError:
            # The name may or may not survive a power failure: the caller has to read the object.
            return PutResult.UNKNOWN
        return PutResult.CREATED

    def _link_file(self, key: str, source: Path) -> None:
        path = self._path(key)
        self._make_folders(path.parent)
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Setting an unchanged mode would still change the file's ctime, which fsync would then have to write.
            if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
                os.fchmod(fd, 0o600)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(source, path, follow_symlinks=False)
        _sync_folder(path.parent)

    def _copy_file(self, key: str, source: Path) -> None:
        try:
            result = _retry_while_folders_vanish(lambda: self._copy_unnamed(key, source), PermissionError)
        except OSError as e:
            raise _storage_error(e, key) from e
        if result is not PutResult.CREATED:
            check_same_content(self, key, source)

    def _copy_unnamed(self, key: str, source: Path) -> PutResult:
        with self._unnamed_file(key) as (fd, path), source.open("rb") as file:
            while chunk := file.read(_COPY_CHUNK):
                _write_all(fd, chunk)
            os.fsync(fd)
            return self._link(fd, path)

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        # Another process may have created the existing folder and not synced it yet.
        self._sync_parents(folder)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            _sync_folder(path.parent)
            self._synced_folders[path] = None

    def _sync_parents(self, folder: Path) -> None:
        """Makes the names of a folder and of its parents durable, up to the root; once per process.

        When another process removes the empty folder and creates it again, that process syncs it. Only probes and
        requests are in such folders, so no checkpoint is lost with them.
        """
        while folder not in self._synced_folders and self.root in folder.parents:
            _sync_folder(folder.parent)
            self._synced_folders[folder] = None
            folder = folder.parent
        while len(self._synced_folders) > _REMEMBERED_FOLDERS:
            self._synced_folders.popitem(last=False)

    def _walk(self, folder: Path, key: str) -> Iterator[BlobInfo]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            name = f"{key}/{entry.name}" if key else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(folder / entry.name, name)
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield BlobInfo(name, entry.stat(follow_symlinks=False).st_size)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.root and self.root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return
            self._synced_folders.pop(folder, None)
            folder = folder.parent


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


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _storage_error(e: OSError, key: str) -> StorageError | ConfigError:
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
