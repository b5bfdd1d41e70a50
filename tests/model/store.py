"""Simulated storage: strongly consistent, each call one step; it reports every change to the invariants."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.errors import ConfigError, MissingFile, StorageError
from stateflow.storage import BlobInfo, PutResult, Storage
from stateflow.storage.paths import PROBE
from tests.model.plan import PUT, READ, WRITE
from tests.model.world import World

if TYPE_CHECKING:
    from tests.model.invariants import Checker


class SimStorage(Storage):
    """Objects by area (the first segment of a key), so that a listing reads only one area.

    Args:
        denied: how likely a deletion is refused.
    """

    observer: Checker

    def __init__(self, scheduler: World, rng: random.Random, uri: str = "sim://job", denied: float = 0.0) -> None:
        self.uri = uri
        self.scheduler = scheduler
        self._denied = denied
        self._areas: dict[str, dict[str, bytes]] = {}
        self._rng = rng
        self._listings: dict[str, list[BlobInfo]] = {}

    def put_new(self, key: str, data: bytes) -> PutResult:
        return self.scheduler.call(PUT, "put", key, lambda: self._create(key, data))

    def put_data(self, key: str, data: bytes) -> None:
        """Stores data under a unique name and retries as needed, as `put_file` does with a file."""
        self.scheduler.call(WRITE, "put file", key, lambda: self._create(key, data))

    def put_file(self, key: str, source: Path) -> None:
        raise AssertionError("the simulated storage has no files")

    def fetch(self, key: str, target: Path) -> None:
        raise AssertionError("the simulated storage has no files")

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        raise AssertionError("the simulated storage has no files")

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        """As in other storages, without files in between."""
        data = source.get(key)
        if self.put_new(to, data) is PutResult.CREATED:
            return
        if self.durable_size(to) is None or self.get(to) != data:
            raise StorageError("an object name was used twice, or a write has no answer", key=to)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self.scheduler.call(READ, "get", key, lambda: self._get(key))

    def size(self, key: str) -> int | None:
        return self.scheduler.call(READ, "size", key, lambda: self._size(key))

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        return self.scheduler.call(READ, "list", start_after or prefix, lambda: self._list(prefix, start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes in one step or one by one: a crash in between leaves the rest."""
        left = list(keys)
        self._refuse(left)
        while left:
            count = len(left) if self._rng.random() < 0.8 else 1
            chunk, left = left[:count], left[count:]
            self.scheduler.call(WRITE, f"delete {len(chunk)}", chunk[0], lambda chunk=chunk: self._delete(chunk))

    def _refuse(self, keys: list[str]) -> None:
        """A start refuses a storage whose probe cannot be deleted, so that is never denied."""
        if not self._denied or self.scheduler.quiet or not keys or keys[0].startswith(PROBE):
            return
        if self._rng.random() < self._denied:
            self.scheduler.stats["deletions refused"] += 1
            raise ConfigError("access to the storage was denied", reason="403 Forbidden", key=keys[0])

    # -- what the calls do, and what the invariants use ---------------------------------------------------------------

    def peek(self, key: str) -> bytes | None:
        """Returns an object without a call."""
        return self._areas.get(_area(key), {}).get(key)

    def keys(self) -> list[str]:
        """Returns the keys of all objects without a call."""
        return sorted(key for area in self._areas.values() for key in area)

    def _create(self, key: str, data: bytes) -> PutResult:
        area = self._areas.setdefault(_area(key), {})
        if key in area:
            return PutResult.EXISTS
        area[key] = data
        self._listings.pop(_area(key), None)
        self.scheduler.changed(key, created=True)
        self.observer.created(key, data)
        return PutResult.CREATED

    def _get(self, key: str) -> bytes:
        data = self.peek(key)
        if data is None:
            raise MissingFile("object does not exist", key=key)
        return data

    def _size(self, key: str) -> int | None:
        data = self.peek(key)
        return None if data is None else len(data)

    def _list(self, prefix: str, start_after: str) -> list[BlobInfo]:
        name = _area(prefix)
        infos = self._listings.get(name)
        if infos is None:
            area = self._areas.get(name, {})
            infos = self._listings[name] = [BlobInfo(key, len(area[key])) for key in sorted(area)]
        return [info for info in infos if info.key.startswith(prefix) and info.key > start_after]

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            area = self._areas.get(_area(key), {})
            if key in area:
                self.scheduler.changed(key, created=False)
                self.observer.deleted(key)
                del area[key]
                self._listings.pop(_area(key), None)
                self.scheduler.stats["deletions"] += 1


class SavepointStorage(SimStorage):
    """A folder of a simulated storage, opened as a storage of its own, which is only read."""

    def __init__(self, storage: SimStorage, folder: str) -> None:
        self.uri = f"{storage.uri}/{folder}"
        self._storage = storage
        self._folder = folder

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self._storage.get(f"{self._folder}/{key}")

    def size(self, key: str) -> int | None:
        return self._storage.size(f"{self._folder}/{key}")


def _area(key: str) -> str:
    return key.partition("/")[0]
