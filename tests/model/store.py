"""Simulated storage: strongly consistent, each call one step, with an observer that sees every change."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from stateflow.errors import ConfigError, MissingFile, StorageError
from stateflow.storage import BlobInfo, PutResult, Storage
from stateflow.storage.paths import PROBE
from tests.model.plan import PUT, READ, WRITE
from tests.model.world import World


class Observer(Protocol):
    """Learns of every change at the moment that it happens."""

    def created(self, key: str, data: bytes) -> None:
        """`key` now exists."""

    def deleted(self, key: str) -> None:
        """`key` is about to be removed."""


class SimStorage(Storage):
    """Objects by area (the first segment of a key), so that listing one does not walk the others."""

    def __init__(self, world: World, rng: random.Random, uri: str = "sim://job", denied: float = 0.0) -> None:
        self.uri = uri
        self._denied = denied
        self.areas: dict[str, dict[str, bytes]] = {}
        self.observer: Observer | None = None
        self._world = world
        self._rng = rng
        self._listings: dict[str, list[BlobInfo]] = {}

    def put_new(self, key: str, data: bytes) -> PutResult:
        return self._world.call(PUT, "put", key, lambda: self._create(key, data))

    def put_data(self, key: str, data: bytes) -> None:
        """What `put_file` does, without a file: stores under a name that nobody else uses, asking again if need be."""
        self._world.call(WRITE, "put file", key, lambda: self._create(key, data))

    def put_file(self, key: str, source: Path) -> None:
        raise AssertionError("the simulated storage does without files")

    def fetch(self, key: str, target: Path) -> None:
        raise AssertionError("the simulated storage does without files")

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        raise AssertionError("the simulated storage does without files")

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        """As in other storages, without files on the way."""
        data = source.get(key)
        if self.put_new(to, data) is PutResult.CREATED:
            return
        if self.durable_size(to) is None or self.get(to) != data:
            raise StorageError("an object name was used twice, or a write has no answer", key=to)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self._world.call(READ, "get", key, lambda: self._get(key))

    def size(self, key: str) -> int | None:
        return self._world.call(READ, "size", key, lambda: self._size(key))

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        return self._world.call(READ, "list", start_after or prefix, lambda: self._list(prefix, start_after))

    def delete(self, keys: Iterable[str]) -> None:
        """A backend deletes one by one: sometimes others come in between, and a crash leaves the rest."""
        left = list(keys)
        self._refuse(left)
        while left:
            count = len(left) if self._rng.random() < 0.8 else 1
            chunk, left = left[:count], left[count:]
            self._world.call(WRITE, f"delete {len(chunk)}", chunk[0], lambda chunk=chunk: self._delete(chunk))

    def _refuse(self, keys: list[str]) -> None:
        """A start refuses a storage whose probe cannot be deleted, so that is never denied."""
        if not self._denied or self._world.quiet or not keys or keys[0].startswith(PROBE):
            return
        if self._rng.random() < self._denied:
            self._world.stats["deletions refused"] += 1
            raise ConfigError("access to the storage was denied", reason="403 Forbidden", key=keys[0])

    def intent(self) -> None:
        """A restore begins to change tables; from the invariants."""
        self._world.intent()

    @property
    def actor(self) -> str:
        """The process that is at work; for the invariants."""
        return self._world.actor

    # -- what the calls do, at one moment -----------------------------------------------------------------------------

    def peek(self, key: str) -> bytes | None:
        """The object's bytes without a call; for the invariants."""
        return self.areas.get(_area(key), {}).get(key)

    def keys(self) -> list[str]:
        """Everything that is stored; for the invariants."""
        return sorted(key for area in self.areas.values() for key in area)

    def _create(self, key: str, data: bytes) -> PutResult:
        area = self.areas.setdefault(_area(key), {})
        if key in area:
            return PutResult.EXISTS
        area[key] = data
        self._listings.pop(_area(key), None)
        self._world.changed(key, created=True)
        if self.observer:
            self.observer.created(key, data)
        return PutResult.CREATED

    def _get(self, key: str) -> bytes:
        data = self.peek(key)
        if data is None:
            raise MissingFile("object is not there", key=key)
        return data

    def _size(self, key: str) -> int | None:
        data = self.peek(key)
        return None if data is None else len(data)

    def _list(self, prefix: str, start_after: str) -> list[BlobInfo]:
        name = _area(prefix)
        infos = self._listings.get(name)
        if infos is None:
            area = self.areas.get(name, {})
            infos = self._listings[name] = [BlobInfo(key, len(area[key])) for key in sorted(area)]
        if start_after:
            infos = [info for info in infos if info.key > start_after]
        if len(prefix) > len(name) + 1:
            infos = [info for info in infos if info.key.startswith(prefix)]
        return list(infos)

    def _delete(self, keys: list[str]) -> None:
        for key in keys:
            area = self.areas.get(_area(key), {})
            if key in area:
                self._world.changed(key, created=False)
                if self.observer:
                    self.observer.deleted(key)
                del area[key]
                self._listings.pop(_area(key), None)
                self._world.stats["deletions"] += 1


class Below(Storage):
    """A folder of a simulated storage, opened as a storage of its own."""

    def __init__(self, storage: SimStorage, folder: str) -> None:
        self.uri = f"{storage.uri}/{folder}"
        self._storage = storage
        self._folder = f"{folder}/"

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        return self._storage.get(self._folder + key)

    def size(self, key: str) -> int | None:
        return self._storage.size(self._folder + key)

    def put_new(self, key: str, data: bytes) -> PutResult:
        raise AssertionError("a savepoint is only read")

    def put_file(self, key: str, source: Path) -> None:
        raise AssertionError("a savepoint is only read")

    def fetch(self, key: str, target: Path) -> None:
        raise AssertionError("the simulated storage does without files")

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        raise AssertionError("the simulated storage does without files")

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        raise AssertionError("nobody lists a savepoint")

    def delete(self, keys: Iterable[str]) -> None:
        raise AssertionError("a savepoint is only read")


def _area(key: str) -> str:
    return key.partition("/")[0]
