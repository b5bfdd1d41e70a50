"""The state of the current key: registration, prefetching, and writing back.

Rows come sorted by key, so a key is current once per stretch of rows. `KeyedState.switch` makes one current; each
state then loads its value at most once, and gives it back when the next key comes. Between `begin_stretch` and
`end_stretch` nothing is written to the backend that a later key could read, so one multi-get answers all of them.

A stored key is ``key group (2 bytes) | state id (4) | key | 0 | user key``. The state id is a hash of the state's
name: two subtasks agree on it without talking, and it stays when other states come or go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import xxhash

from stateflow.descriptors import MapStateDescriptor, ValueStateDescriptor
from stateflow.errors import StateError
from stateflow.serializers import ValueSerializer, decode_key, describe_type, encode_key
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import StateSchema

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_VOID_NAMESPACE = b"\x00"
_ABSENT: Any = object()


def state_id(name: str) -> bytes:
    """Four bytes that stand for a state's name in stored keys."""
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


class KeyedState:
    """All states of one operator's subtask, for one key at a time.

    Args:
        known: the states that the base was written with; declaring one of them as something else is refused, because
            its bytes would be taken for what they are not.
    """

    def __init__(self, backend: KeyedStateBackend, known: Iterable[StateSchema] = ()) -> None:
        self.backend = backend
        self._known = {schema.name: schema for schema in known}
        self._states: dict[str, ValueState[Any] | MapState[Any, Any]] = {}
        self._values: list[ValueState[Any]] = []
        self.pending: dict[bytes, bytes | None] = {}
        """Changes of this stretch, by stored key; None removes."""
        self.current: tuple[bytes, bytes] | None = None

    def value_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """The state that `descriptor` declares; the same object when it is asked for again.

        Raises StateError when the name is taken by a state of another kind or type.
        """
        wanted = ValueState(self, descriptor)
        found: ValueState[T] = self._register(wanted)
        if found is wanted:
            self._values.append(wanted)
        return found

    def map_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """As `value_state`, for a map."""
        found: MapState[K, V] = self._register(MapState(self, descriptor))
        return found

    @property
    def schemas(self) -> list[StateSchema]:
        """What is declared, in order of names."""
        return [self._states[name].schema for name in sorted(self._states)]

    def switch(self, group: bytes, key: bytes) -> None:
        """Makes a key current.

        Args:
            group: its key group, 2 bytes.
            key: the key as `encode_key` encodes it.
        """
        self.leave()
        self.current = (group, key)

    def leave(self) -> None:
        """Takes back what the current key's states hold; no key is current then."""
        if self.current is not None:
            for state in self._states.values():
                state.give_back()
            self.current = None

    def begin_stretch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the value states of many (group, key) pairs at once."""
        for state in self._values:
            state.prefetch(keys)

    def end_stretch(self) -> None:
        """Writes back what was changed since the last stretch."""
        self.leave()
        self.write_through()
        for state in self._values:
            state.forget_prefetched()

    def write_through(self) -> None:
        """Hands collected changes to the backend."""
        self.backend.write(self.pending)
        self.pending.clear()

    def read(self, stored_key: bytes) -> bytes | None:
        """The bytes of an entry, changes of this stretch included."""
        data = self.pending.get(stored_key, _ABSENT)
        return self.backend.get(stored_key) if data is _ABSENT else data

    def stored_key(self, state: bytes) -> bytes:
        """The current key's entry, or prefix of entries, of one state. Raises StateError without a key."""
        if self.current is None:
            raise StateError("state was used without a key", hint="state belongs to a key: use it in "
                             "process_element, not in open or close")  # fmt: skip
        group, key = self.current
        return group + state + key + _VOID_NAMESPACE

    def _register(self, wanted: Any) -> Any:
        schema = wanted.schema
        found = self._states.get(schema.name)
        if found is not None:
            if found.schema != schema:
                raise StateError("a state name is used for two different states", hint="use another name",
                                 name=schema.name, first=found.schema.value_type, second=schema.value_type)  # fmt: skip
            return found
        stored = self._known.get(schema.name, schema)
        if stored != schema:
            raise StateError("a state is declared as something else than what is stored", hint="give the new "
                             "state a new name", name=schema.name, stored=_describe(stored),
                             declared=_describe(schema))  # fmt: skip
        for other in self._states.values():
            if other.id == wanted.id:
                raise StateError("two state names have the same id", hint="rename one of them", first=schema.name,
                                 second=other.schema.name)  # fmt: skip
        self._states[schema.name] = wanted
        return wanted


def _describe(schema: StateSchema) -> str:
    return f"{schema.kind} {schema.key_type}{' -> ' if schema.key_type else ''}{schema.value_type}"


class ValueState(Generic[T]):
    """One value for the current key."""

    def __init__(self, owner: KeyedState, descriptor: ValueStateDescriptor[T]) -> None:
        self._owner = owner
        self._serializer = ValueSerializer(descriptor.value_type)
        self.id = state_id(descriptor.name)
        self.schema = StateSchema(name=descriptor.name, kind="value", value_type=self._serializer.type_name)
        self._prefetched: dict[bytes, bytes | None] = {}
        self._value: T | None = None
        self._stored_key: bytes | None = None
        self._changed = False

    def value(self) -> T | None:
        """The current key's value; None when it has none. Change it by `update`, not in place."""
        if self._stored_key is None:
            self._load()
        return self._value

    def update(self, value: T | None) -> None:
        """Sets the current key's value; None clears it."""
        if self._stored_key is None:
            self._stored_key = self._owner.stored_key(self.id)
        self._value = value
        self._changed = True

    def clear(self) -> None:
        """Removes the current key's value."""
        self.update(None)

    def prefetch(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        """Reads the values of many keys at once."""
        stored = [group + self.id + key + _VOID_NAMESPACE for group, key in keys]
        self._prefetched = dict(zip(stored, self._owner.backend.multi_get(stored), strict=True))

    def give_back(self) -> None:
        """Hands the current key's change to the owner, and forgets the key."""
        if self._stored_key is None:
            return
        if self._changed:
            value = self._value
            self._owner.pending[self._stored_key] = None if value is None else self._serializer.encode(value)
            # A key that comes back later must see this change, not what was prefetched before it.
            self._prefetched.pop(self._stored_key, None)
            self._changed = False
        self._stored_key = None
        self._value = None

    def forget_prefetched(self) -> None:
        """Drops what `prefetch` read."""
        self._prefetched = {}

    def _load(self) -> None:
        key = self._owner.stored_key(self.id)
        data = self._prefetched.get(key, _ABSENT)
        if data is _ABSENT:
            data = self._owner.read(key)
        self._value = None if data is None else self._serializer.decode(data)
        self._stored_key = key


class MapState(Generic[K, V]):
    """A map for the current key; it is never loaded as a whole."""

    def __init__(self, owner: KeyedState, descriptor: MapStateDescriptor[K, V]) -> None:
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
