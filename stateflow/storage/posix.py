"""Objects as files of a local or shared POSIX file system (not NFS: its clients may show a stale directory).

A file appears under its name complete or not at all: it is written without a name, synced, then linked, and link(2)
fails when the name exists. Files that RocksDB or a Parquet writer finished are linked, not copied, when they are on
the same file system: a checkpoint of a gigabyte costs milliseconds then.
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

from stateflow.errors import ConfigError, DataError, MissingFile, StorageError
from stateflow.storage.base import GONE, BlobInfo, PutResult, Storage, check_own, key_parts

_COPY_CHUNK = 1 << 20
_FOLDER_TRIES = 20
_MOST_DURABLE = 1000
"""As many folders are remembered as synced."""

T = TypeVar("T")


class PosixStorage(Storage):
    """A directory tree. Directories it makes are 0700, files 0600, whatever the umask."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.uri = self.root.as_uri()
        self._durable: OrderedDict[Path, None] = OrderedDict()

    def put_new(self, key: str, data: bytes) -> PutResult:
        try:
            return _while_folders_go(lambda: self._put_nameless(key, data), PermissionError)
        except OSError as e:
            raise _storage_error(e, key) from e

    def put_file(self, key: str, source: Path) -> None:
        try:
            _while_folders_go(lambda: self._link_file(key, source))
        except FileExistsError:
            check_own(self, key, source)
        except OSError as e:
            if e.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise _storage_error(e, key) from e
            self._copy_file(key, source)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri) from e
        except OSError as e:
            raise _storage_error(e, key) from e
        if len(data) > limit:
            raise DataError("object is larger than it may be", key=key, limit=limit)
        return data

    def chunks(self, key: str) -> Iterator[bytes]:
        try:
            with self._path(key).open("rb") as file:
                while chunk := file.read(_COPY_CHUNK):
                    yield chunk
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri) from e
        except OSError as e:
            raise _storage_error(e, key) from e

    def fetch(self, key: str, target: Path) -> None:
        path = self._path(key)
        try:
            try:
                os.link(path, target, follow_symlinks=False)
            except OSError as e:
                if e.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                    raise
                shutil.copyfile(path, target)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri) from e
        except OSError as e:
            raise _storage_error(e, key) from e

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        path = self._path(key)
        try:
            with path.open("rb") as source, target.open("xb") as file:
                source.seek(offset)
                while size and (chunk := source.read(min(size, _COPY_CHUNK))):
                    file.write(chunk)
                    size -= len(chunk)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri) from e
        except OSError as e:
            raise _storage_error(e, key) from e

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
            # A file has its name before whoever gave it has synced the folder, and may lose it when power fails now.
            folder = self._path(key).parent
            _sync_folder(folder)
            self._sync_names(folder)
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

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*key_parts(key, self.uri))

    def _put_nameless(self, key: str, data: bytes) -> PutResult:
        with self._nameless_file(key) as (fd, path):
            _write_all(fd, data)
            os.fsync(fd)
            return self._link(fd, path)

    @contextlib.contextmanager
    def _nameless_file(self, key: str) -> Iterator[tuple[int, Path]]:
        """A file without a name in the folder of `key`: nothing is left of it when the process dies."""
        path = self._path(key)
        self._make_folders(path.parent)
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            yield fd, path
        finally:
            os.close(fd)

    def _link(self, fd: int, path: Path) -> PutResult:
        try:
            # Python passes AT_SYMLINK_FOLLOW, which naming a nameless file needs, only when a directory fd is given.
            os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
        except FileExistsError:
            return PutResult.EXISTS
        try:
            _sync_folder(path.parent)
        except OSError:
            # The name may or may not survive a power cut: only reading the slot back can tell.
            return PutResult.UNKNOWN
        return PutResult.CREATED

    def _link_file(self, key: str, source: Path) -> None:
        path = self._path(key)
        self._make_folders(path.parent)
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Also a mode that stays the same would give the file a new time, for fsync to write.
            if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
                os.fchmod(fd, 0o600)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.link(source, path, follow_symlinks=False)
        _sync_folder(path.parent)

    def _copy_file(self, key: str, source: Path) -> None:
        try:
            result = _while_folders_go(lambda: self._copy_nameless(key, source), PermissionError)
        except OSError as e:
            raise _storage_error(e, key) from e
        if result is not PutResult.CREATED:
            check_own(self, key, source)

    def _copy_nameless(self, key: str, source: Path) -> PutResult:
        with self._nameless_file(key) as (fd, path), source.open("rb") as file:
            while chunk := file.read(_COPY_CHUNK):
                _write_all(fd, chunk)
            os.fsync(fd)
            return self._link(fd, path)

    def _make_folders(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        # What is there may have been made by another process that has not synced it yet.
        self._sync_names(folder)
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            _sync_folder(path.parent)
            self._durable[path] = None

    def _sync_names(self, folder: Path) -> None:
        """Makes the names of a folder and of those above it durable, up to the root; once in this process.

        A folder that is removed while it is empty, and made again, is synced by whoever makes it. Only probes and
        requests are in such folders: no checkpoint is lost with them.
        """
        while folder not in self._durable and self.root in folder.parents:
            _sync_folder(folder.parent)
            self._durable[folder] = None
            folder = folder.parent
        while len(self._durable) > _MOST_DURABLE:
            self._durable.popitem(last=False)

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
            self._durable.pop(folder, None)
            folder = folder.parent


def _while_folders_go(work: Callable[[], T], *also: type[OSError]) -> T:
    """Does `work` again when a collector, or another run's probe, removes the empty folder between two of its steps:
    a file without a name does not keep its folder.

    Args:
        also: what says so besides: of opening a file without a name in a folder that is just being removed, ext4 says
            now and then that it is not permitted. What is really not permitted fails each time.
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
        return ConfigError("the storage does not let us write or read", hint="check owner and permissions",
                           path=e.filename or key, reason=e.strerror)  # fmt: skip
    if e.errno == errno.EEXIST:
        return StorageError("an object name was used twice", key=key)
    if e.errno == errno.ENOTDIR:
        return ConfigError("the storage's path leads through something that is not a folder",
                           hint="choose another path", path=e.filename or key)  # fmt: skip
    if e.errno in (errno.EOPNOTSUPP, errno.EISDIR) and e.filename:
        return ConfigError("the file system cannot create files without a name (O_TMPFILE)",
                           hint="use a local or clustered Linux file system, not NFS", path=e.filename)  # fmt: skip
    return StorageError("the file system failed", path=e.filename or key, reason=e.strerror, errno=e.errno)
