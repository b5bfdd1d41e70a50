"""A map per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

from stateflow.descriptors import MapStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import value_serializer
from stateflow.state.changes import ABSENT
from stateflow.state.columns import ColumnSerializer, columns_of
from stateflow.state.current import CurrentKey, state_id
from stateflow.state.map_access import MapAccess
from stateflow.state.map_keys import MapKeys
from stateflow.state.ttl import Ttl
from stateflow.state.typeschema import state_schema

K = TypeVar("K")
V = TypeVar("V")


class MapState(MapAccess[K, V]):
    """A map for the current key; it is never loaded as a whole."""

    def __init__(
        self, entries: CurrentKey, descriptor: MapStateDescriptor[K, V], ttl: Ttl | None = None
    ) -> None:
        self.id = state_id(descriptor.name)
        self.codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        self.schema = state_schema(descriptor, "map", descriptor.value_type, descriptor.key_type)
        self.ttl = ttl
        self._entries = entries
        self.user_keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
        self._key_type = descriptor.key_type
        self._changes: dict[bytes, V | None] = {}

    @cached_property
    def columns(self) -> ColumnSerializer:
        """For the values of many keys at once. Raises JobDefinitionError when the type has no columns."""
        return columns_of(self.codec)

    @cached_property
    def key_columns(self) -> ColumnSerializer:
        """For user keys, as `columns` is for values."""
        return ColumnSerializer(self._key_type)

    def get(self, key: K) -> V | None:
        """The value of `key`; None when the map does not have it."""
        stored = self._stored(key)
        if stored in self._changes:
            return self._changes[stored]
        data = self._entries.read(stored)
        if data is None or (self.ttl is not None and not self.ttl.admit(stored, data)):
            return None
        value: V = self.codec.decode(data)
        return value

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`. Raises StateError for None: use `remove`; and for a key of another type than the
        declared one, as every method with a key does."""
        if value is None:
            raise StateError("a map's value cannot be None", hint="use remove", state=self.schema.name)
        self._changes[self._stored(key)] = value

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Sets many values."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Removes `key`; nothing happens when the map does not have it."""
        self._changes[self._stored(key)] = None

    def contains(self, key: K) -> bool:
        """Whether the map has `key`."""
        return self.get(key) is not None

    def items(self) -> Iterator[tuple[K, V]]:
        """The entries in order of keys, as they are now: changes made while iterating are not seen."""
        prefix = self._entries.stored_key(self.id)
        found = self._scan(prefix)
        return (
            (self.user_keys.decode(k[len(prefix) :]), self.codec.decode(v))
            for k, v in found
            if self.ttl is None or self.ttl.admit_scanned(k, v)
        )

    def keys(self) -> Iterator[K]:
        """The keys in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """The values in order of their keys."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether the map has no entry."""
        return next(self.items(), None) is None

    def clear(self) -> None:
        """Removes every entry."""
        for stored, data in self._scan(self._entries.stored_key(self.id)):
            self._write(stored, None, data)
            self._entries.write_some()

    def give_back(self) -> None:
        """Hands the current key's changes over, and forgets the key."""
        for stored, value in self._changes.items():
            self._write(stored, value, self._entries.pending.get(stored, ABSENT))
        self._changes.clear()

    def drop(self) -> None:
        """Forgets the current key, and its changes."""
        self._changes.clear()

    def _stored(self, key: K) -> bytes:
        return self._entries.stored_key(self.id) + self.user_keys.encode(key)

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.give_back()
        return self._entries.scan(prefix)

    def _write(self, stored: bytes, value: V | None, old: Any) -> None:
        data = None if value is None else self.codec.encode(value)
        if self.ttl is None:
            self._entries.pending[stored] = data
        elif data is None:
            self.ttl.remove(stored, old)
        else:
            self.ttl.write(stored, data, old)
