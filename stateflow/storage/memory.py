"""Storage in this process's memory, for tests and for jobs whose state may be lost with the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from stateflow.errors import DataError
from stateflow.private_files import write_private
from stateflow.storage.base import (
    BlobInfo,
    PutResult,
    Storage,
    check_limit,
    check_same_content,
    key_parts,
    missing_object,
)


class MemoryStorage(Storage):
    """Objects in a dictionary that is protected by a lock."""

    part_gap = 0

    def __init__(self, uri: str = "memory://") -> None:
        self.uri = uri
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put_new(self, key: str, data: bytes) -> PutResult:
        key_parts(key, self.uri)
        with self._lock:
            if key in self._objects:
                return PutResult.EXISTS
            self._objects[key] = bytes(data)
            return PutResult.CREATED

    def put_file(self, key: str, source: Path) -> None:
        if self.put_new(key, source.read_bytes()) is not PutResult.CREATED:
            with source.open("rb") as file:
                check_same_content(self, key, file)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        key_parts(key, self.uri)
        data = self._objects.get(key)
        if data is None:
            raise missing_object(self, key)
        if len(data) > limit:
            raise DataError("object exceeds the size limit", key=key, size=len(data), limit=limit)
        return data

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        data = self.get(key)
        check_limit(key, len(data), limit)
        write_private(target, data)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        write_private(target, self.get(key)[offset : offset + size])

    @contextlib.contextmanager
    def open_parts(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        yield lambda offset, size: self.get(key)[offset : offset + size]

    def size(self, key: str) -> int | None:
        key_parts(key, self.uri)
        data = self._objects.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        with self._lock:
            found = [(k, len(v)) for k, v in self._objects.items() if k.startswith(prefix) and k > start_after]
        return [BlobInfo(key, size) for key, size in sorted(found)]

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                key_parts(key, self.uri)
                self._objects.pop(key, None)
