"""The folder of a table, on a file system or in a store: files that are created once, and the sequence of its log.

On a file system a file is written without a name, synced and then linked: it exists completely or not at all, and a
task that dies leaves nothing. In a store of objects, a file is written to memory or a local temporary file, and stored
when it is complete; a put-if-absent decides which of two writers creates an entry of the log.

Unlike in a job root, the umask or HDFS's default decides who may read, because the readers of a table are often not the
users who run the job.

Other writers of a table can put files and paths into its folder: a FIFO, on which a reader would wait without end, or a
path through ``..`` or a link that would let readers copy the rows of another table. So files are opened below the
folder, and without following links.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile, MissingFile, StorageError
from stateflow.private_files import ScratchFolder, local_disk_errors
from stateflow.storage import BlobInfo, PutResult, Storage, open_storage
from stateflow.storage.base import has_bytes
from stateflow.storage.mounts import check_mount
from stateflow.storage.posix import LinkedFolder, NotRegular, blob_info, open_file, open_folder, open_root, sync_folder
from stateflow.storage.race_probe import check_put_if_absent

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_A = TypeVar("_A")
_T = TypeVar("_T")
_REQUESTS_AT_ONCE = 16
_ONE_BY_ONE = 16
"""Files of a sequence that are looked for one by one where a list would read the whole folder."""
_LISTED_FOLDERS = 256
"""The most folders of partitions that are listed one by one; with more, a list of the whole table takes less."""
_OWN = ".stateflow-"
"""Begins the names of folders that have stateflow's own files, such as those of a start that was killed."""
_PROBE = f"{_OWN}probe"
_clock = SystemClock()
_LINK_HINT = "replace it by a copy of the file"


class NewFile(io.RawIOBase):
    """A new file of a table, which no reader sees until `publish`; closing it before that discards it.

    Attributes:
        size: bytes written so far.
    """

    size: int = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def publish(self, path: str) -> bool:
        """Makes the bytes durable, and gives the file its path, durably. Returns False if the path exists.

        Args:
            path: path in the table; folders above it are created.
        """
        raise NotImplementedError


class TableFolder(ABC):
    """The folder of a table.

    Paths are relative, with ``/`` between the names, and not encoded. Methods raise CorruptFile for a path that leads
    out of the folder or through a link, ConfigError if access is denied, and StorageError if a request fails.

    Attributes:
        address: path or URI of the folder.
        host_local: whether only processes that have its file system can access it.
        only_files: whether it cannot have links, FIFOs or devices.
    """

    address: str
    host_local: bool = False
    only_files: bool = True

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Creates a file, atomically and durably. Returns False if another one has this path.

        The folder that it is in exists, or needs none.

        Raises:
            StorageError: whether this call has created the file is not known.
        """

    @abstractmethod
    def new_file(self) -> NewFile:
        """Returns a new file."""

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Opens a file for reading; it can seek.

        Raises:
            FileNotFoundError: it does not exist.
        """

    @abstractmethod
    def info(self, path: str) -> BlobInfo | None:
        """Returns size, time and version of a file; None if it does not exist."""

    @abstractmethod
    def files(self, folder: str, after: str = "") -> list[BlobInfo]:
        """Returns the files of a folder and those below it, in the order of their paths.

        Args:
            folder: the folder; empty for the whole table without its log.
            after: name in the folder; files with this name and names before it are left out.

        Raises:
            CorruptFile: the folder has a link, a FIFO or the like.
        """

    @property
    def prefix_lists(self) -> Storage | None:
        """The storage of the folder, if its list of a prefix takes less than one of all files; otherwise None."""
        return None

    @abstractmethod
    def names(self) -> list[str]:
        """Returns the names of the files and folders directly in the folder, but `_OWN` ones; none without a folder."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files, some of which may be deleted already."""

    @abstractmethod
    def check_writable(self, *folders: str) -> None:
        """Checks that files can be created in the table, and in its folders.

        Args:
            folders: names of folders that exist.

        Raises:
            ConfigError or StorageError: they cannot.
            EnvironmentUnsupported: the folder is on NFS, or on another file system without the necessary guarantees.
        """

    def check_put_if_absent(self) -> None:  # noqa: B027 - file systems have link(2)
        """Raises EnvironmentUnsupported unless `create` lets exactly one of several writers succeed.

        For stores, which are not all of a kind: it lets threads race for names that no reader of a table looks at.
        """

    @abstractmethod
    def make_folder(self, name: str) -> None:
        """Creates the table's folder and one in it, durably; harmless if they exist."""

    @abstractmethod
    def fetch(self, path: str, target: Path) -> None:
        """Makes a file available at the new local path `target`, as a link or a copy.

        Raises:
            FileNotFoundError: it does not exist.
        """

    def remove_abandoned_files(self) -> None:  # noqa: B027 - most folders have none
        """Removes files that no list shows and whose writers were killed."""

    def sequence(self, path_of: Callable[[int], str], first: int) -> list[BlobInfo]:
        """Returns the files of a sequence from a number on, up to the first that does not exist.

        Args:
            path_of: returns the path of the file with a number. Paths are in one folder, and ordered as the numbers.
        """
        found: list[BlobInfo] = []
        while (info := self.info(path_of(first + len(found)))) is not None:
            found.append(info)
        return found

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Returns the sizes of files in bytes; None for one that does not exist."""
        return [None if info is None else info.size for info in map(self.info, paths)]

    def fetch_all(self, targets: Iterable[tuple[str, Path]]) -> None:
        """Fetches files, as `fetch` does."""
        for path, target in targets:
            self.fetch(path, target)


def read_each(read: Callable[[_A], _T], items: Sequence[_A]) -> Iterator[_T]:
    """Yields what a function reads of each item, in order.

    Several at once, in groups that grow: many callers need few of the items, and others would wait for thousands.
    """
    yield from map(read, items[:1])
    if len(items) < 2:
        return
    begin, size = 1, 2
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        while begin < len(items):
            yield from pool.map(read, items[begin : begin + size])
            begin, size = begin + size, min(2 * size, _REQUESTS_AT_ONCE)


def open_table_folder(address: str) -> TableFolder:
    """Returns the folder at an address.

    Args:
        address: as for `open_storage`.

    Raises:
        ConfigError: the address is not valid.
    """
    storage = open_storage(address)
    local = storage.local_path("x")
    return StoreFolder(address.rstrip("/")) if local is None else DiskFolder(local.parent)


def shadow_address(address: str) -> str:
    """Returns the address of a table's shadow, next to the table.

    Raises:
        ConfigError: the table is a whole bucket or container, or the root of a file system, and has nothing next to it.
    """
    scheme, separator, rest = address.partition("://")
    named = "/" in rest.strip("/") or scheme == "memory" if separator else bool(address.strip("/"))
    if not named:
        raise ConfigError(
            "a table at the root of a bucket or a file system has no place for a shadow next to it",
            hint="give the table a folder or prefix of its own, such as s3://bucket/tables/name",
            table=address,
        )
    return f"{address}_shadow"


class DiskFolder(TableFolder):
    """A folder of a POSIX file system that supports ``O_TMPFILE``.

    Args:
        root: absolute path of the folder, which may lead through links.
    """

    host_local = True
    only_files = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = str(root)

    def create(self, path: str, data: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        with translate_disk_errors(str(self.root / folder)), UnnamedFile.create(self.root / folder) as file:
            file.write(data)
            return file.link(name)

    def new_file(self) -> NewFile:
        return UnnamedFile.create(self.root)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        with self._folder_of(path) as (folder, name), os.fdopen(open_file(folder, name), "rb") as file:
            yield file

    def info(self, path: str) -> BlobInfo | None:
        try:
            with self._folder_of(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    raise NotRegular(errno.EINVAL, "something else than a file")
                return blob_info(path, found)
        except FileNotFoundError:
            return None

    def files(self, folder: str, after: str = "") -> list[BlobInfo]:
        found = self._files_below(folder, f"{folder}/{after}" if after else "")
        return sorted(found, key=lambda file: file.key)

    def _files_below(self, start: str, after: str) -> Iterator[BlobInfo]:
        """Yields the files below a folder whose path is after another one; of the whole table, its data files.

        Raises CorruptFile for anything but files and folders in a log.
        """
        is_strict = bool(start)
        pending = [start]
        while pending:
            folder = pending.pop()
            if is_strict and (self.root / folder).is_symlink():
                raise self._not_a_file(folder)
            for entry in self._entries(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        # Data is in folders of partitions only.
                        pending += [path] if is_strict or "=" in entry.name else []
                    elif entry.is_file(follow_symlinks=False):
                        if path > after:
                            yield blob_info(path, entry.stat(follow_symlinks=False))
                    elif is_strict:
                        raise self._not_a_file(path)
                except FileNotFoundError:
                    continue

    def names(self) -> list[str]:
        return [entry.name for entry in self._entries("") if not entry.name.startswith(_OWN)]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as found:
                return list(found)
        except FileNotFoundError:
            return []
        except NotADirectoryError as e:
            raise disk_error(e, self.root) from e
        except OSError as e:
            raise disk_error(e, self.root / folder) from e

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                with self._folder_of(path) as (folder, name):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue

    def check_writable(self, *folders: str) -> None:
        check_mount(self.root, "the table")
        for folder in (self.root, *(self.root / name for name in folders)):
            existing = next(path for path in (folder, *folder.parents) if path.exists())
            with self._translate_errors(str(existing)):
                UnnamedFile.create(existing).close()

    def make_folder(self, name: str) -> None:
        folder = self.root / name
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                _sync(path.parent)
        except OSError as e:
            raise disk_error(e, folder) from e

    def fetch(self, path: str, target: Path) -> None:
        if not (self.root / path).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        target.symlink_to((self.root / path).absolute())

    @contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Yields the open folder of a file, and the file's name; translates errors."""
        *folders, name = path.split("/")
        opened: list[int] = []
        with self._translate_errors(path):
            try:
                opened.append(self._open_root())
                for each in folders:
                    opened.append(open_folder(opened[-1], each))
                yield opened[-1], name
            finally:
                for number in opened:
                    os.close(number)

    def _open_root(self) -> int:
        try:
            return open_root(self.root)
        except NotADirectoryError as e:
            raise disk_error(e, self.root) from e

    @contextmanager
    def _translate_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (LinkedFolder, NotRegular, IsADirectoryError, NotADirectoryError) as e:
            raise CorruptFile(
                "a file of a table is a link, in a linked folder, or not a regular file",
                hint=_LINK_HINT,
                file=f"{self}/{path}"[:1000],
                found=e.strerror,
            ) from e
        except OSError as e:
            if e.errno is None:  # Arrow's, about the content.
                raise
            raise disk_error(e, self.root / path) from e

    def _not_a_file(self, path: str) -> CorruptFile:
        return CorruptFile(
            "the log of a table contains something other than files",
            hint="remove it, or restore the file from a copy",
            file=str(self.root / path),
        )


class UnnamedFile(NewFile):
    """A new file in a folder that has no name yet; the kernel removes it when it is closed before it gets one.

    Args:
        folder: the folder.
        fd: descriptor of the file, which this object closes. `create` opens it before the object exists, because the
            finalizer of an object closes it even if its constructor failed.
    """

    def __init__(self, folder: Path, fd: int) -> None:
        self.folder = folder
        self._fd = fd

    @classmethod
    def create(cls, folder: Path) -> UnnamedFile:
        """Creates the file. Raises OSError."""
        return cls(folder, os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666))

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += total
        return total

    def publish(self, path: str) -> bool:
        folders = path.rpartition("/")[0]
        try:
            if folders:
                _make_folders(self.folder, folders)
            return self.link(path)
        except OSError as e:
            raise disk_error(e, self.folder / path) from e

    def link(self, name: str) -> bool:
        """Makes the bytes durable, then links them as `name`, durably. Returns False when `name` exists.

        Args:
            name: a name in the folder, or a path below it, whose folders exist.
        """
        os.fsync(self._fd)
        target = self.folder / name
        try:
            # Linking an unnamed file needs AT_SYMLINK_FOLLOW, which Python passes only together with a directory fd.
            own = f"/proc/self/fd/{self._fd}"
            os.link(own, target, src_dir_fd=self._fd, follow_symlinks=True)
        except FileExistsError:
            return False
        _sync(target.parent)
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)


def _make_folders(root: Path, folders: str) -> None:
    """Creates folders below an existing one, durably.

    Also folders that exist are made durable: another process may have created them just now.
    """
    path = root
    for name in folders.split("/"):
        parent, path = path, path / name
        path.mkdir(exist_ok=True)
        if path.is_symlink():
            raise CorruptFile(
                "a folder of a partition is a link, which would lead the files of a sink out of its table",
                hint="replace it by a folder",
                folder=str(path),
            )
        _sync(parent)


def _sync(folder: Path) -> None:
    """Makes the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_folder(fd)
    finally:
        os.close(fd)


def disk_error(e: OSError, path: Path) -> ConfigError | StorageError:
    """Translates an error of the file system that a table is in.

    Args:
        path: the file or folder that was accessed.
    """
    facts = {"path": str(path), "reason": e.strerror or str(e)}
    if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return ConfigError("access to the table's folder was denied", hint="check owner and permissions", **facts)
    if e.errno in (errno.EOPNOTSUPP, errno.EISDIR):
        return ConfigError(
            "the table's file system does not support O_TMPFILE",
            hint="use a local or clustered Linux file system, not NFS",
            **facts,
        )
    if e.errno == errno.ENOTDIR:
        return ConfigError("the table's path is not a folder", hint="choose another path", **facts)
    return StorageError("operation on the table's file system failed", **facts, errno=e.errno)


@contextmanager
def translate_disk_errors(path: str) -> Iterator[None]:
    """Translates errors of the file system in its body, which accesses a path of a table; see `disk_error`."""
    try:
        yield
    except OSError as e:
        raise disk_error(e, Path(path)) from e


class StoreFolder(TableFolder):
    """A prefix of a bucket, or a folder of HDFS.

    The store is opened when it is first needed: a task has no credentials before.

    Args:
        address: as for `open_storage`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # Objects in memory belong to one process.
        self.host_local = address.startswith("memory:")

    @property
    def _storage(self) -> Storage:
        return open_storage(self.address, is_private=False)

    def create(self, path: str, data: bytes) -> bool:
        return _create(self._storage, path, data)

    def new_file(self) -> NewFile:
        return _StagedFile(self._storage)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        try:
            with self._storage.open(path) as file:
                yield file
        except MissingFile as e:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e

    def info(self, path: str) -> BlobInfo | None:
        return self._storage.info(path)

    def files(self, folder: str, after: str = "") -> list[BlobInfo]:
        if folder:
            return self._storage.list(f"{folder}/", f"{folder}/{after}" if after else "")
        top = self._storage.list_folder("")
        return sorted([*top.files, *self._partitions(top.folders)], key=lambda file: file.key)

    def _partitions(self, folders: Iterable[str]) -> Iterator[BlobInfo]:
        """Yields the files in folders of partitions. Does not list the log, which may have thousands of entries."""
        names = [name for name in folders if "=" in name]
        if self._storage.lists_from_names:
            # All values of a column at once.
            prefixes = {f"{name.partition('=')[0]}=" for name in names}
        else:
            prefixes = {f"{name}/" for name in names} if len(names) <= _LISTED_FOLDERS else {""}
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            for found in pool.map(self._storage.list, sorted(prefixes)):
                yield from (file for file in found if "=" in file.key.partition("/")[0] and "/" in file.key)

    @property
    def prefix_lists(self) -> Storage | None:
        return self._storage if self._storage.lists_from_names else None

    def names(self) -> list[str]:
        listed = self._storage.list_folder("")
        names = (*(file.key for file in listed.files), *listed.folders)
        return [name for name in names if not name.startswith(_OWN)]

    def delete(self, paths: Iterable[str]) -> None:
        self._storage.delete(paths)

    def check_writable(self, *folders: str) -> None:
        """Does nothing: only writing shows whether it can be, and a table may have more files than a list should."""

    def check_put_if_absent(self) -> None:
        check_put_if_absent(self._storage, lambda: f"{_PROBE}/{_clock.new_id()}")

    def make_folder(self, name: str) -> None:
        """Does nothing: a store has no folders of its own."""

    def remove_abandoned_files(self) -> None:
        self._storage.remove_abandoned_files()

    def fetch(self, path: str, target: Path) -> None:
        try:
            self._storage.fetch(path, target)
        except MissingFile as e:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from e

    def sequence(self, path_of: Callable[[int], str], first: int) -> list[BlobInfo]:
        found: list[BlobInfo] = []
        # A commit finds one file. A list of the whole folder takes less only for a reader that is far behind.
        while not self._storage.lists_from_names and len(found) < _ONE_BY_ONE:
            if (next_one := self.info(path_of(first + len(found)))) is None:
                return found
            found.append(next_one)
        begin = first + len(found)
        folder, _, before = path_of(begin - 1).rpartition("/") if begin else (path_of(0).rpartition("/")[0], "", "")
        infos = {file.key: file for file in self.files(folder, before)}
        while (info := infos.get(path_of(first + len(found)))) is not None:
            found.append(info)
        return found

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return list(pool.map(self._storage.size, paths))

    def fetch_all(self, targets: Iterable[tuple[str, Path]]) -> None:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            for _ in pool.map(lambda each: self.fetch(*each), targets):
                pass


def _create(storage: Storage, path: str, data: bytes) -> bool:
    """Creates an object; returns False if another one has its name. Raises StorageError as `TableFolder.create`."""
    if storage.put_new(path, data) is PutResult.CREATED:
        return True
    # An answer was lost: this call's first request may have created the object, also if it exists now.
    try:
        return storage.get(path) == data
    except MissingFile as e:
        # The request may still arrive, so this is not the absence of a file that should be there.
        raise StorageError(
            "the storage did not confirm that it created a file",
            hint="a new run continues from the last checkpoint",
            storage=storage.uri,
            file=path,
        ) from e


def _create_large(storage: Storage, path: str, source: Path) -> bool:
    """Stores a file as an object; returns False if another one has its name. Raises StorageError as `_create`.

    In a bucket an upload in parts replaces an object that another writer stores meanwhile. Names of data files have one
    writer. A part of a checkpoint of Delta is equally good from each of its writers, which state the same version.
    """
    try:
        storage.put_file(path, source)
    except StorageError:
        # The object that exists decides, as in `_create`: of another writer, or this one's after a lost answer.
        if storage.size(path) is None:
            raise
        with source.open("rb") as file:
            return has_bytes(storage, path, file)
    return True


_IN_MEMORY = 16 << 20


class _StagedFile(NewFile):
    """A new file in memory, and above 16 MiB in a local temporary file; `publish` stores it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._memory = io.BytesIO()
        self._scratch: ScratchFolder | None = None
        self._file: BinaryIO | None = None

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        with local_disk_errors(Path(tempfile.gettempdir())):
            if self._file is None and self.size + len(view) > _IN_MEMORY:
                self._scratch = ScratchFolder()
                self._file = (self._scratch.path / "file").open("wb")
                self._file.write(self._memory.getbuffer())
                self._memory = io.BytesIO()
            (self._file or self._memory).write(view)
        self.size += len(view)
        return len(view)

    def publish(self, path: str) -> bool:
        if self._file is None or self._scratch is None:
            return _create(self._storage, path, self._memory.getvalue())
        with local_disk_errors(self._scratch.path):
            self._file.close()
        return _create_large(self._storage, path, self._scratch.path / "file")

    def close(self) -> None:
        super().close()
        if self._file is not None:
            self._file.close()
        if self._scratch is not None:
            self._scratch.remove()
