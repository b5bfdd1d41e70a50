"""Map state: one map per key; with the operators and the encoding of user keys that it shares with broadcast state.

Values that are equal in Python may be different keys: 1, 1.0 and True are encoded differently. A value that is put
under a key of another type than the declared one would not be found under a key of the declared type.
"""

from __future__ import annotations

import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar, cast

import msgspec
import pyarrow as pa
from msgspec import inspect

from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.backends.base import map_key_too_large, value_too_large
from stateflow.state.column_serializer import ColumnSerializer, columns_of
from stateflow.state.kinds.key_context import ABSENT, Absent, KeyContext
from stateflow.state.kinds.ttl import Ttl
from stateflow.state.schema import TYPE_LIMITS, state_schema
from stateflow.state.stored_key import state_id
from stateflow.types.declared_types import NUMPY, describe_type, python_type
from stateflow.types.descriptors import MapStateDescriptor
from stateflow.types.key_encoding import PART_ENCODERS, decode_key
from stateflow.types.serializers import value_serializer

K = TypeVar("K")
V = TypeVar("V")


class MapAccess(ABC, Generic[K, V]):
    """Mix-in for map states: ``key in state``, ``state[key]``, ``del state[key]`` and ``for key in state``.

    As in PyFlink, ``state[key]`` is None for a key that the map does not have, and deleting such a key does nothing.
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Returns the value of `key`; None when the map does not have it."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Sets the value of `key`."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removes `key`; does nothing when the map does not have it."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Returns whether the map has `key`."""

    @abstractmethod
    def keys(self) -> Iterator[K]:
        """Returns the keys in order."""

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return self.keys()


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


_KINDS: dict[type, type] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.BytesType: bytes,
    inspect.DateType: datetime.date,
    inspect.DateTimeType: datetime.datetime,
    inspect.NoneType: type(None),
}
"""Python type of the keys by msgspec type; each has an entry in `PART_ENCODERS`."""


class MapKeys(Generic[K]):
    """Encoder and decoder of one map's keys.

    Args:
        declared: type of the keys, which may be a union, a literal, `Any`, or a NumPy or Arrow scalar type.
        state: name of the state, for errors.

    Attributes:
        is_limited: whether some values of the Python type are not valid keys.

    Raises:
        JobDefinitionError: the type cannot be that of a key.
    """

    def __init__(self, declared: object, state: str) -> None:
        self._declared = declared
        self._state = state
        try:
            self._type = python_type(declared)
            info = inspect.type_info(self._type)
            self._kinds = frozenset(_kinds_of(info))
            self._encoders = {kind: PART_ENCODERS[kind] for kind in self._kinds}
        except TypeError as e:
            raise JobDefinitionError(
                "a map's keys cannot have this type",
                hint="declare str, int, float, bool, bytes, date or datetime",
                state=state,
                type=repr(declared),
                reason=str(e),
            ) from e
        self.is_limited = _is_limited(info)

    def encode(self, key: K) -> bytes:
        """Returns the bytes of a key.

        Raises:
            StateError: the key is not of the declared type.
        """
        # Checking the exact type costs nothing extra: the encoder is looked up by it.
        encode = self._encoders.get(type(key))
        if encode is None or self.is_limited:
            encode = self._checked_encoder(key)
        try:
            return encode(key)
        except UnicodeEncodeError as e:
            raise StateError(
                "a value cannot be part of a key", state=self._state, value=repr(key)[:200], reason=str(e)
            ) from e

    def decode(self, data: bytes) -> K:
        """Returns the key in `data`; raises CorruptFile when there is none."""
        # Only keys that `encode` has checked are stored, so it is a K; a damaged one still is some key.
        return cast(K, decode_key(data)[0])

    def check_column(self, keys: pa.Array) -> None:
        """Raises StateError for a key beyond the declared type's limits, in a column of the declared Arrow type."""
        if self.is_limited:
            for key in keys.to_pylist():
                self._checked_encoder(key)

    def _checked_encoder(self, key: object) -> Callable[[object], bytes]:
        reason = "" if type(key) in self._kinds else f"it is of type {type(key).__name__}"
        if not reason and self.is_limited:
            try:
                msgspec.convert(key, self._type)
            except msgspec.ValidationError as e:
                reason = str(e)
        if reason:
            raise StateError(
                "a map's key does not have the declared type",
                hint="convert the key, or declare a state with another key type and a new name",
                state=self._state,
                declared=describe_type(self._declared),
                map_key=repr(key)[:200],
                reason=reason,
            )
        return self._encoders[type(key)]


def _kinds_of(info: inspect.Type) -> list[type]:
    """Returns the Python types of keys that a declared type allows; raises TypeError when it allows others."""
    if isinstance(info, inspect.UnionType):
        return [kind for part in info.types for kind in _kinds_of(part)]
    if isinstance(info, inspect.LiteralType):
        return [type(value) for value in info.values]
    if isinstance(info, inspect.AnyType) or getattr(info, "cls", None) is object:
        return list(PART_ENCODERS)
    if isinstance(info, inspect.CustomType) and info.cls in NUMPY:
        return [type(info.cls().item())]
    kind = _KINDS.get(type(info))
    if kind is None:
        raise TypeError(f"{type(info).__name__.removesuffix('Type')} has no order-preserving encoding")
    return [kind]


def _is_limited(info: inspect.Type) -> bool:
    if isinstance(info, inspect.UnionType):
        return any(map(_is_limited, info.types))
    return isinstance(info, inspect.LiteralType) or any(getattr(info, n, None) is not None for n in TYPE_LIMITS)
