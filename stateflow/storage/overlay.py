"""A storage that can be read, with scratch storage for everything that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stateflow.errors import InternalError
from stateflow.storage.base import BlobInfo, PutResult, Storage
from stateflow.storage.paths import generation_folder

SCRATCH_GENERATION = 10**18
"""The generation of files that are written to scratch storage. No run has it: a generation is the number of a log
entry."""
_PREFIX = generation_folder(SCRATCH_GENERATION)


class OverlayStorage(Storage):
    """The data of a job root, and the files of `SCRATCH_GENERATION`, which are kept in another storage.

    Nothing else can be written or deleted, so that a batch that runs again cannot change the job root.

    Args:
        root: the job root.
        scratch: storage for the files of `SCRATCH_GENERATION`.
    """

    def __init__(self, root: Storage, scratch: Storage) -> None:
        self.root = root
        self.scratch = scratch
        self.uri = root.uri
        self.part_gap = root.part_gap
        self.host_local = root.host_local or scratch.host_local

    def put_new(self, key: str, data: bytes) -> PutResult:
        return self._writable(key).put_new(key, data)

    def put_file(self, key: str, source: Path) -> None:
        self._writable(key).put_file(key, source)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self._of(key).get(key, limit)

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._of(key).chunks(key)

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        self._of(key).fetch(key, target, limit)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        self._of(key).fetch_part(key, offset, size, target)

    @contextmanager
    def open_parts(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        with self._of(key).open_parts(key) as read:
            yield read

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        with self._of(key).open(key) as file:
            yield file

    def info(self, key: str) -> BlobInfo | None:
        return self._of(key).info(key)

    def durable_size(self, key: str) -> int | None:
        return self._of(key).durable_size(key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted({*self.root.folders(prefix), *self.scratch.folders(prefix)}))

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        if prefix.startswith(_PREFIX):
            return self.scratch.list(prefix, start_after)
        found = self.root.list(prefix, start_after)
        if not _PREFIX.startswith(prefix):
            return found
        return sorted([*found, *self.scratch.list(_PREFIX, start_after)], key=lambda blob: blob.key)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._writable(key).delete([key])

    @contextmanager
    def local_copy(self, key: str) -> Iterator[Path]:
        with self._of(key).local_copy(key) as copy:
            yield copy

    def file_id(self, key: str) -> tuple[int, int] | None:
        return self._of(key).file_id(key)

    def local_path(self, key: str) -> Path | None:
        return self._of(key).local_path(key)

    def _of(self, key: str) -> Storage:
        return self.scratch if key.startswith(_PREFIX) else self.root

    def _writable(self, key: str) -> Storage:
        if not key.startswith(_PREFIX):
            raise InternalError("a replay must not change the job root", key=key, root=self.uri)
        return self.scratch
