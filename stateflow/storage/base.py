"""The storage interface, and helpers that several backends share."""

from __future__ import annotations

import contextlib
import enum
import io
import os
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.private_files import open_private

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def key_parts(key: str, uri: str) -> list[str]:
    """Returns the segments of a key.

    Args:
        uri: the address of the storage, for the error.

    Raises:
        DataError: the key could refer to a path outside of the storage.
    """
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in key:
        raise DataError("object key leads out of its storage", key=key, storage=uri)
    return parts


MISSING_OBJECT_HINT = "restore the file from a copy, under the same name"
"""The hint of errors about an object that is referenced but does not exist."""


@dataclass(frozen=True)
class TrafficCounts:
    """Requests to storage, and the bytes of objects that they have read and written."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def __add__(self, other: TrafficCounts) -> TrafficCounts:
        return TrafficCounts(
            self.requests + other.requests, self.bytes_read + other.bytes_read, self.bytes_written + other.bytes_written
        )

    def __sub__(self, other: TrafficCounts) -> TrafficCounts:
        return TrafficCounts(
            self.requests - other.requests, self.bytes_read - other.bytes_read, self.bytes_written - other.bytes_written
        )


class Traffic:
    """Counts the requests of a process to storages, in all threads: of object stores and HDFS, and calls for files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = TrafficCounts()

    def add(self, requests: int = 0, *, read: int = 0, written: int = 0) -> None:
        """Adds requests and bytes."""
        with self._lock:
            now = self._counts
            self._counts = TrafficCounts(now.requests + requests, now.bytes_read + read, now.bytes_written + written)

    def now(self) -> TrafficCounts:
        """Returns the counts since the start of the process."""
        return self._counts


TRAFFIC = Traffic()
"""The traffic of this process."""


class PutResult(enum.Enum):
    """The result of a put-if-absent. A lost race is a result, not an error: only the caller knows what it means."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class BlobInfo:
    """A stored object.

    Two are equal if key and size are.

    Attributes:
        key: key relative to the storage's root.
        size: size in bytes.
        modified_ms: time of the object's creation by the storage's clock, in milliseconds since 1970.
        version: identifies the object, also when another one has its key later.
    """

    key: str
    size: int
    modified_ms: int = field(default=0, compare=False)
    version: str = field(default="", compare=False)


@dataclass(frozen=True)
class FolderList:
    """The content of a folder.

    Attributes:
        files: the objects directly in it.
        folders: the names of the folders directly in it, sorted.
    """

    files: tuple[BlobInfo, ...]
    folders: tuple[str, ...]


class Storage(ABC):
    """A flat store of immutable objects below one root.

    Keys are relative and consist of segments joined by ``/``. A backend guarantees:

    - `put_new` is atomic: of many concurrent callers exactly one creates the object, and no reader sees a part of it.
    - Every `get` and `list` that starts after a write returned sees the written object, and the object survives a
      power failure.

    Transient failures raise StorageError.
    """

    uri: str
    host_local: bool = True
    """Whether only processes of this host can read what is stored."""
    lists_from_names: bool = False
    """Whether `list` reads what a prefix or `start_after` asks for, and not the whole folder."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> PutResult:
        """Creates `key` unless it exists.

        Returns:
            UNKNOWN when the outcome is not known: the caller must read the object to learn it.
        """

    @abstractmethod
    def put_file(self, key: str, source: Path) -> None:
        """Stores the local file `source`, which must not change afterwards.

        Does nothing when `key` exists with exactly these bytes: an earlier attempt whose response was lost may have
        stored it, and so may another writer when the name is derived from the content.

        Raises:
            StorageError: `key` exists with other bytes.
        """

    @abstractmethod
    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        """Returns the object's bytes.

        Raises:
            MissingFile: the object does not exist.
            DataError: the object is larger than `limit` bytes.
        """

    def chunks(self, key: str) -> Iterator[bytes]:
        """Yields the object's bytes in pieces, for objects that may be larger than memory.

        Raises:
            MissingFile: the object does not exist.
        """
        yield self.get(key)

    @abstractmethod
    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        """Copies or links the object to the new local file `target`.

        Args:
            key: key of the object.
            target: path of the file.
            limit: the recorded size in bytes: a larger object may have been put in place of the recorded one, and is
                not copied; None for no limit.

        Raises:
            MissingFile: the object does not exist.
            CorruptFile: the object is larger than `limit`.
        """

    @abstractmethod
    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        """Copies `size` bytes of the object, from `offset`, to the new local file `target`.

        `offset` must be within the object. The file is shorter when the object ends before `size` bytes.

        Raises:
            MissingFile: the object does not exist.
        """

    part_gap: int = 1 << 20
    """Bytes between two parts of an object that take less time to read than a further request."""

    @contextlib.contextmanager
    def open_parts(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        """Yields a function that returns parts of an object: bytes from an offset, up to a number of bytes.

        It returns fewer bytes only at the end of the object; the offset must be within the object.

        Raises:
            MissingFile: the object does not exist; the function raises it as well.
        """
        with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
            path = Path(folder) / "part"

            def read(offset: int, size: int) -> bytes:
                self.fetch_part(key, offset, size, path)
                data = path.read_bytes()
                path.unlink()
                return data

            yield read

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Yields a file for reading the object, which can seek. An object of up to 4 MiB is read at once.

        Raises:
            MissingFile: the object does not exist.
        """
        size = self.size(key)
        if size is None:
            raise missing_object(self, key)
        with self.open_parts(key) as read:
            if size <= READ_AT_ONCE:
                yield io.BytesIO(read(0, size) if size else b"")
            else:
                yield open_in_parts(read, size)

    @abstractmethod
    def info(self, key: str) -> BlobInfo | None:
        """Returns the object's size, time and version; None when it does not exist."""

    def size(self, key: str) -> int | None:
        """Returns the object's size in bytes, or None when it does not exist."""
        found = self.info(key)
        return None if found is None else found.size

    def durable_size(self, key: str) -> int | None:
        """Returns the object's size in bytes after making sure that the object survives a failure of any machine.

        For objects that another process may have stored just now. Returns None when the object does not exist.
        """
        return self.size(key)

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        """Returns all objects whose key starts with `prefix` and sorts after `start_after`, sorted by key.

        After a key with a number, as in logs, those with characters outside ASCII may be missing: HDFS sorts otherwise.
        """

    def folders(self, prefix: str) -> tuple[str, ...]:
        """Returns the names of the folders directly below a folder, sorted; with less work than listing their objects.

        A file system may also have folders without an object.

        Args:
            prefix: the folder, which ends with a slash; empty for the root.
        """
        return self.list_folder(prefix).folders

    def list_folder(self, prefix: str) -> FolderList:
        """Returns the objects and folders directly below a folder; argument as of `folders`."""
        found = [(blob, *blob.key.removeprefix(prefix).partition("/")[:2]) for blob in self.list(prefix)]
        return FolderList(
            tuple(blob for blob, _, slash in found if not slash),
            tuple(sorted({name for _, name, slash in found if slash})),
        )

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Deletes the objects; missing objects are ignored."""

    def remove_abandoned_files(self) -> None:  # noqa: B027
        """Removes files that `list` does not show and whose writers were killed, if the backend has such files."""

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        """Stores a copy of an object of `source`, which may be this storage, under the key `to`.

        A file system may link the file instead of copying it. An existing `to` is handled as in `put_file`.

        Raises:
            MissingFile: `key` does not exist in `source`.
        """
        with source.local_copy(key) as copy:
            self.put_file(to, copy)

    @contextlib.contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        """Yields the path of a local file with the object's bytes, because an object may be larger than memory.

        Raises:
            MissingFile: the object does not exist.
        """
        with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
            copy = Path(folder) / "object"
            self.fetch(key, copy)
            yield copy

    def file_id(self, key: str) -> tuple[int, int] | None:
        """Returns device and inode number of the object's file, which hard links share.

        None for storage that is not a file system.

        Raises:
            MissingFile: the object does not exist.
        """
        return None

    def local_path(self, key: str) -> Path | None:
        """Returns the path of the object on this host's file system; None for storage that is not a file system."""
        return None


READ_AT_ONCE = 4 << 20
"""Bytes of an object that `Storage.open` reads in one request."""
_READ_AHEAD = 1 << 20
"""A request takes as long as reading some hundred kilobytes."""


def open_in_parts(read: Callable[[int, int], bytes], size: int) -> BinaryIO:
    """Returns an object as a file that reads it part by part.

    Args:
        read: as `Storage.open_parts` yields it.
        size: size of the object in bytes.
    """
    return io.BufferedReader(_PartsFile(read, size), _READ_AHEAD)


class _PartsFile(io.RawIOBase):
    """An object as a file: each read is one request for a part.

    Args:
        read: as `Storage.open_parts` yields it.
        size: size of the object in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read_part = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._at)
        # The offset of a request must be within the object.
        data = self._read_part(self._at, wanted) if wanted > 0 else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def missing_object(storage: Storage, key: str) -> MissingFile:
    """Returns the error for an object that does not exist."""
    return MissingFile("object does not exist", hint=MISSING_OBJECT_HINT, key=key, storage=storage.uri)


def check_limit(key: str, size: int, limit: int | None) -> None:
    """Raises CorruptFile if an object of which at least `size` bytes are known is larger than `limit`."""
    if limit is not None and size > limit:
        raise CorruptFile(
            "a stored object is larger than recorded",
            hint="restore an older checkpoint",
            file=key,
            expected_bytes=limit,
        )


def limit_chunks(chunks: Iterable[bytes], key: str, limit: int | None) -> Iterator[bytes]:
    """Yields the chunks of an object; raises CorruptFile as soon as they are more than `limit` bytes."""
    received = 0
    for chunk in chunks:
        received += len(chunk)
        check_limit(key, received, limit)
        yield chunk


def write_chunks(chunks: Iterator[bytes], target: Path) -> None:
    """Writes the new local file `target`, and removes it again when `chunks` raises."""
    # Read before the file is created: a missing object then leaves no file.
    first = next(chunks, b"")
    with open_private(target, must_create=True) as file:
        try:
            file.write(first)
            file.writelines(chunks)
        except BaseException:
            target.unlink()
            raise


def check_same_content(storage: Storage, key: str, source: BinaryIO) -> None:
    """Checks that an existing object has the bytes of an open local file, and makes it durable.

    The object may be the result of a request whose response was lost, or have a name that is derived from its content.

    Raises:
        StorageError: the object has other bytes, or it is not known whether it exists.
    """
    size = storage.durable_size(key)
    if size is None:
        raise StorageError("storage did not confirm that it created an object", hint="retry", key=key)
    own = os.fstat(source.fileno())
    if size != own.st_size or not (storage.file_id(key) == (own.st_dev, own.st_ino) or has_bytes(storage, key, source)):
        raise StorageError(
            "object exists with other content",
            hint="remove the stored object if it is not needed",
            key=key,
            storage=storage.uri,
            stored_bytes=size,
            new_bytes=own.st_size,
        )


def has_bytes(storage: Storage, key: str, source: BinaryIO) -> bool:
    """Returns whether an existing object has exactly the bytes of an open local file. Raises MissingFile."""
    source.seek(0)
    return all(source.read(len(chunk)) == chunk for chunk in storage.chunks(key)) and not source.read(1)
