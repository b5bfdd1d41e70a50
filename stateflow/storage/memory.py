"""Storage in this process's memory, for tests and for jobs whose state may be lost with the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.errors import DataError
from stateflow.private_files import write_private
from stateflow.storage.base import (
    TRAFFIC,
    BlobInfo,
    PutResult,
    Storage,
    check_limit,
    check_same_content,
    key_parts,
    missing_object,
)

_clock = SystemClock()


class MemoryStorage(Storage):
    """Objects in a dictionary that is protected by a lock."""

    part_gap = 0
    lists_from_names = True

    def __init__(self, uri: str = "memory://") -> None:
        self.uri = uri
        self._objects: dict[str, bytes] = {}
        self._infos: dict[str, BlobInfo] = {}
        self._created = 0
        self._lock = threading.Lock()

    def put_new(self, key: str, data: bytes) -> PutResult:
        key_parts(key, self.uri)
        TRAFFIC.add(1, written=len(data))
        with self._lock:
            if key in self._objects:
                return PutResult.EXISTS
            self._created += 1
            now = epoch_milliseconds(_clock.now())
            self._infos[key] = BlobInfo(key, len(data), now, str(self._created))
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
            raise DataError("object exceeds the size limit", key=key, size_bytes=len(data), limit_bytes=limit)
        TRAFFIC.add(1, read=len(data))
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

    def info(self, key: str) -> BlobInfo | None:
        key_parts(key, self.uri)
        return self._infos.get(key)

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        with self._lock:
            found = [blob for key, blob in self._infos.items() if key.startswith(prefix) and key > start_after]
        return sorted(found, key=lambda blob: blob.key)

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                key_parts(key, self.uri)
                self._objects.pop(key, None)
                self._infos.pop(key, None)
