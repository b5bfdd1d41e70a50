"""A map per key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from stateflow.descriptors import MapStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import ValueSerializer, decode_key, describe_type, encode_key
from stateflow.state.current import CurrentKey, state_id
from stateflow.state.handles import StateSchema

K = TypeVar("K")
V = TypeVar("V")


class MapState(Generic[K, V]):
    """A map for the current key; it is never loaded as a whole."""

    def __init__(self, owner: CurrentKey, descriptor: MapStateDescriptor[K, V]) -> None:
        self._owner = owner
        self._serializer = ValueSerializer(descriptor.value_type)
        self.id = state_id(descriptor.name)
        self.schema = StateSchema(
            name=descriptor.name, kind="map", value_type=self._serializer.type_name,
            key_type=describe_type(descriptor.key_type),
        )  # fmt: skip
        self._changes: dict[bytes, V | None] = {}

    def get(self, key: K) -> V | None:
        """The value of `key`; None when the map does not have it."""
        stored = self._stored(key)
        if stored in self._changes:
            return self._changes[stored]
        data = self._owner.read(stored)
        return None if data is None else self._serializer.decode(data)

    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`. Raises StateError for None: use `remove`."""
        if value is None:
            raise StateError("a map's value cannot be None", hint="use remove", state=self.schema.name)
        self._changes[self._stored(key)] = value

    def put_all(self, entries: dict[K, V]) -> None:
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
        prefix = self._owner.stored_key(self.id)
        self._flush()
        found = self._owner.backend.scan(prefix)
        return ((decode_key(k[len(prefix) :])[0], self._serializer.decode(v)) for k, v in found)  # type: ignore[misc]

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
        prefix = self._owner.stored_key(self.id)
        self._flush()
        for stored, _ in self._owner.backend.scan(prefix):
            self._changes[stored] = None

    def give_back(self) -> None:
        """Hands the current key's changes to the owner, and forgets the key."""
        for stored, value in self._changes.items():
            self._owner.pending[stored] = None if value is None else self._serializer.encode(value)
        self._changes.clear()

    def _stored(self, key: K) -> bytes:
        return self._owner.stored_key(self.id) + encode_key((key,))

    def _flush(self) -> None:
        self.give_back()
        self._owner.write_through()
