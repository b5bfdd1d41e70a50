"""The seam between stateflow and whatever keeps its bytes."""

from __future__ import annotations

import enum
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stateflow.errors import DataError, MissingFile, StorageError


def key_parts(key: str, uri: str) -> list[str]:
    """The segments of a key; raises DataError for one that could lead out of the storage `uri`."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in key:
        raise DataError("an object's name leaves its storage", key=key, storage=uri)
    return parts


GONE = "put the file back from a copy, under the same name"
"""What to do when an object that was referred to is missing."""


class PutResult(enum.Enum):
    """What a put-if-absent did. Losing is a value; only the caller knows whether it is an error."""

    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class BlobInfo:
    """A stored object's key, relative to the storage's root, and its size in bytes."""

    key: str
    size: int


class Storage(ABC):
    """A flat store of immutable objects below one root.

    Keys are relative, made of segments joined by ``/``. A backend promises: `put_new` is atomic (of many concurrent
    callers exactly one creates, and no reader ever sees a part); what a call wrote is seen by every later `get` and
    `list`, and survives a power cut once the call returned. Transient trouble raises StorageError.
    """

    uri: str
    host_local: bool = True
    """Whether only processes of this host can see what is stored."""

    @abstractmethod
    def put_new(self, key: str, data: bytes) -> PutResult:
        """Creates `key` unless it exists. After UNKNOWN the caller must read the object to learn what happened."""

    @abstractmethod
    def put_file(self, key: str, source: Path) -> None:
        """Stores the file `source`, which must not change afterwards.

        Does nothing when `key` is there with just these bytes: after an answer that was lost, and for a name that is
        made of the content. Raises StorageError when `key` is there with others.
        """

    @abstractmethod
    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        """The object's bytes. Raises MissingFile; DataError when it is larger than `limit` bytes."""

    def chunks(self, key: str) -> Iterator[bytes]:
        """The object's bytes in pieces, for what may be larger than memory. Raises MissingFile."""
        yield self.get(key)

    @abstractmethod
    def fetch(self, key: str, target: Path) -> None:
        """Copies or links the object to the new local file `target`. Raises MissingFile."""

    @abstractmethod
    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        """Copies `size` bytes of the object from `offset`, which is within it, on to the new local file `target`;
        fewer, where it ends before. Raises MissingFile."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """The object's size in bytes, None when there is no such object."""

    def durable_size(self, key: str) -> int | None:
        """As `size`, of an object that another process may have stored just now: an answer other than None means that
        the object stays, whatever happens to any machine."""
        return self.size(key)

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        """Every object whose key begins with `prefix` and sorts after `start_after`, in order of keys."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Removes the objects; one that is not there is no error."""

    def tidy(self) -> None:  # noqa: B027
        """Removes what writers that were killed long ago left and no list shows, where a storage has such a thing."""

    def take(self, source: Storage, key: str, to: str) -> None:
        """Stores an object of `source`, which may be this storage, here as `to`: by a hard link where that is possible,
        else by a copy. A `to` that is there already is treated as `put_file` treats it.

        Raises MissingFile when there is no such object.
        """
        path = source.local_path(key)
        if path is None:
            # Through a file, because an object may be larger than memory.
            with tempfile.TemporaryDirectory(prefix="stateflow-") as folder:
                copy = Path(folder) / "object"
                source.fetch(key, copy)
                self.put_file(to, copy)
            return
        if source.size(key) is None:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=source.uri)
        self.put_file(to, path)

    def local_path(self, key: str) -> Path | None:
        """Where the object is, or would be, on this host's file system; None when it is not on one."""
        return None


def write_chunks(chunks: Iterator[bytes], target: Path) -> None:
    """Writes the new local file `target`; nothing of it is left when the chunks end by an error."""
    # Before there is a file: nothing is left of an object that is not there.
    first = next(chunks, b"")
    with target.open("xb") as file:
        try:
            file.write(first)
            file.writelines(chunks)
        except BaseException:
            target.unlink()
            raise


def check_own(storage: Storage, key: str, source: Path) -> None:
    """Raises StorageError unless the object has the bytes of the file, and stays: a request whose answer was lost, or
    the same content under another name, left it there."""
    size = storage.durable_size(key)
    if size is None:
        raise StorageError("the storage does not say whether it created an object", hint="try again", key=key)
    if size != source.stat().st_size or not _has_content(storage, key, source):
        raise StorageError("an object name was used twice", hint="another object has this name: remove it, if it is "
                           "not needed", key=key, storage=storage.uri)  # fmt: skip


def _has_content(storage: Storage, key: str, source: Path) -> bool:
    path = storage.local_path(key)
    if path is not None and path.samefile(source):
        return True
    with source.open("rb") as file:
        return all(file.read(len(chunk)) == chunk for chunk in storage.chunks(key))
