"""Map state: one map per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from stateflow.errors import StateError
from stateflow.state.columnar.column_serializer import ColumnSerializer, columns_of
from stateflow.state.entry_limits import map_key_too_large, value_too_large
from stateflow.state.kinds.key_context import KeyContext, state_id
from stateflow.state.kinds.maps.map_access import MapAccess
from stateflow.state.kinds.maps.map_keys import MapKeys
from stateflow.state.kinds.ttl.entry_ttl import Ttl
from stateflow.state.kinds.write_buffer import ABSENT, Absent
from stateflow.state.schema.describe import state_schema
from stateflow.types.descriptors import MapStateDescriptor
from stateflow.types.serializers import value_serializer

K = TypeVar("K")
V = TypeVar("V")


class MapState(MapAccess[K, V]):
    """A map for the current key; it is never loaded as a whole."""

    def __init__(self, context: KeyContext, descriptor: MapStateDescriptor[K, V], ttl: Ttl | None = None) -> None:
        self.id = state_id(descriptor.name)
        self.codec = value_serializer(descriptor.value_type, descriptor.serializer, descriptor.name)
        self.schema = state_schema(descriptor, "map", descriptor.value_type, descriptor.key_type)
        self.ttl = ttl
        self._context = context
        self._limits = context.limits
        self._largest_key, self._largest_value = context.limits.map_key_bytes, context.limits.value_bytes
        self.user_keys: MapKeys[K] = MapKeys(descriptor.key_type, descriptor.name)
        self._key_type = descriptor.key_type
        self._changes: dict[bytes, V | None] = {}

    @cached_property
    def columns(self) -> ColumnSerializer:
        """The serializer for values of many keys. Raises JobDefinitionError when the type has no columns."""
        return columns_of(self.codec)

    @cached_property
    def key_columns(self) -> ColumnSerializer:
        """The serializer for columns of user keys. Raises JobDefinitionError when the type has no columns."""
        return ColumnSerializer(self._key_type)

    def get(self, key: K) -> V | None:
        """Returns the value of `key`; None when the map does not have it."""
        stored = self._stored_key(key)
        if stored in self._changes:
            return self._changes[stored]
        data = self._context.read(stored)
        if data is None or (self.ttl is not None and not self.ttl.on_read(stored, data)):
            return None
        value: V = self.codec.decode(data)
        return value

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`.

        Raises:
            StateError: the value is None (use `remove`), or the key is not of the declared type. Every method with a
                key raises the latter.
            EntryTooLarge: the encoded key is larger than ``state.max_map_key_bytes``.
        """
        if value is None:
            raise StateError("a map's value cannot be None", hint="use remove", state=self.schema.name)
        encoded = self.user_keys.encode(key)
        if len(encoded) > self._largest_key:
            raise map_key_too_large(self.schema.name, len(encoded), self._limits)
        self._changes[self._context.stored_key(self.id) + encoded] = value

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Sets the values of many keys; raises as `put` does."""
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Removes `key`; does nothing when the map does not have it."""
        self._changes[self._stored_key(key)] = None

    def contains(self, key: K) -> bool:
        """Returns whether the map has `key`."""
        return self.get(key) is not None

    def items(self) -> Iterator[tuple[K, V]]:
        """Returns the entries in order of keys, as of now: changes made while iterating are not seen."""
        prefix = self._context.stored_key(self.id)
        found = self._scan(prefix)
        return (
            (self.user_keys.decode(k[len(prefix) :]), self.codec.decode(v))
            for k, v in found
            if self.ttl is None or self.ttl.on_scan(k, v)
        )

    def keys(self) -> Iterator[K]:
        """Returns the keys in order."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """Returns the values in order of their keys."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Returns whether the map has no entry."""
        return next(self.items(), None) is None

    def clear(self) -> None:
        """Removes every entry."""
        for stored, data in self._scan(self._context.stored_key(self.id)):
            self._write(stored, None, data)
            self._context.write_through_if_many()

    def flush(self) -> None:
        """Adds the current key's changes to the pending changes."""
        stored = list(self._changes)
        before: Sequence[bytes | Absent | None]
        if self.ttl is not None and self.ttl.clock is not None:
            before = self._context.read_many(stored) if stored else []
        else:
            before = [self._context.pending.get(key, ABSENT) for key in stored]
        for key, old in zip(stored, before, strict=True):
            self._write(key, self._changes[key], old)
        self._changes.clear()

    def discard(self) -> None:
        """Drops the current key's changes."""
        self._changes.clear()

    def _stored_key(self, key: K) -> bytes:
        return self._context.stored_key(self.id) + self.user_keys.encode(key)

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.flush()
        return self._context.scan(prefix)

    def _write(self, stored: bytes, value: V | None, old: bytes | Absent | None) -> None:
        data = None if value is None else self.codec.encode(value)
        if data is not None and len(data) > self._largest_value:
            raise value_too_large(self.schema.name, len(data), self._limits)
        if self.ttl is None:
            self._context.pending[stored] = data
        elif data is None:
            self.ttl.remove(stored, old)
        else:
            self.ttl.write(stored, data, old)
