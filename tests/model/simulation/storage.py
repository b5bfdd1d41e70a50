"""Simulated storage: strongly consistent, each call one step; it reports every change to the invariants."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stateflow.errors import ConfigError, StorageError
from stateflow.storage import BlobInfo, PutResult, Storage
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.paths import PROBE
from tests.model.simulation.plan import PUT, READ, WRITE
from tests.model.simulation.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.model.invariants.log import Checker


class SimStorage(MemoryStorage):
    """Storage in memory whose calls are scheduled.

    Args:
        denied: how likely a deletion is refused.
    """

    observer: Checker

    def __init__(self, scheduler: Scheduler, rng: random.Random, uri: str = "sim://job", denied: float = 0.0) -> None:
        super().__init__(uri)
        self.scheduler = scheduler
        self._denied = denied
        self._rng = rng

    def put_new(self, key: str, data: bytes) -> PutResult:
        return self.scheduler.call(PUT, "put", key, lambda: self._create(key, data))

    def put_data(self, key: str, data: bytes) -> None:
        """Stores data under a unique name and retries as needed, as `put_file` does with a file."""
        self.scheduler.call(WRITE, "put file", key, lambda: self._create(key, data))

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        """As in other storages, without files in between."""
        data = source.get(key)
        if self.put_new(to, data) is PutResult.CREATED:
            return
        if self.durable_size(to) is None or self.get(to) != data:
            raise StorageError("an object name was used twice, or a write has no answer", key=to)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self.scheduler.call(READ, "get", key, lambda: MemoryStorage.get(self, key, limit))

    def size(self, key: str) -> int | None:
        return self.scheduler.call(READ, "size", key, lambda: MemoryStorage.size(self, key))

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        key = start_after or prefix
        return self.scheduler.call(READ, "list", key, lambda: MemoryStorage.list(self, prefix, start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """Deletes in one step or one by one: a crash in between leaves the rest."""
        left = list(keys)
        self._refuse(left)
        while left:
            count = len(left) if self._rng.random() < 0.8 else 1
            chunk, left = left[:count], left[count:]
            self.scheduler.call(WRITE, f"delete {len(chunk)}", chunk[0], partial(self._delete, chunk))

    def _refuse(self, keys: Sequence[str]) -> None:
        """A start refuses a storage whose probe cannot be deleted, so that is never denied."""
        if not self._denied or self.scheduler.is_unscheduled or not keys or keys[0].startswith(PROBE):
            return
        if self._rng.random() < self._denied:
            self.scheduler.stats["deletions refused"] += 1
            raise ConfigError("access to the storage was denied", reason="403 Forbidden", key=keys[0])

    def peek(self, key: str) -> bytes | None:
        """Returns an object without a call."""
        return self._objects.get(key)

    def keys(self) -> Sequence[str]:
        """Returns the keys of all objects without a call."""
        return sorted(self._objects)

    def _create(self, key: str, data: bytes) -> PutResult:
        result = MemoryStorage.put_new(self, key, data)
        if result is PutResult.CREATED:
            self.scheduler.changed(key, created=True)
            self.observer.created(key, data)
        return result

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self._objects:
                self.scheduler.changed(key, created=False)
                self.observer.deleted(key)
                MemoryStorage.delete(self, [key])
                self.scheduler.stats["deletions"] += 1


class SavepointStorage(SimStorage):
    """A folder of a simulated storage, opened as a storage of its own: it is read, and claimed."""

    def __init__(self, storage: SimStorage, folder: str) -> None:
        self.uri = f"{storage.uri}/{folder}"
        self._storage = storage
        self._folder = folder

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self._storage.get(f"{self._folder}/{key}", limit)

    def size(self, key: str) -> int | None:
        return self._storage.size(f"{self._folder}/{key}")

    def put_new(self, key: str, data: bytes) -> PutResult:
        return self._storage.put_new(f"{self._folder}/{key}", data)

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        found = self._storage.list(f"{self._folder}/{prefix}", start_after and f"{self._folder}/{start_after}")
        return [BlobInfo(blob.key.removeprefix(f"{self._folder}/"), blob.size) for blob in found]

    def delete(self, keys: Iterable[str]) -> None:
        self._storage.delete([f"{self._folder}/{key}" for key in keys])
