"""Serialization of values: msgpack, which msgspec encodes and decodes as exactly the declared type.

Stored data cannot select a class. Equal values that were made in the same way have the same bytes in every process: the
elements of a set are stored in the order of their bytes, because Python's order depends on a secret of the process. The
order of a dict is data, and stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_origin

import msgspec
from msgspec import inspect

from stateflow.errors import CorruptFile, EntryTooLarge, JobDefinitionError, StateError
from stateflow.types.custom_serializer import Serializer
from stateflow.types.declared_types import (
    SUPPORTED,
    describe_type,
    from_builtin,
    python_type,
    refuse_custom,
    to_builtin,
    types_within,
)
from stateflow.types.decoders import (
    ARRAYS,
    MAPS,
    MEMORY_LIMIT,
    PLAIN,
    TooMuchMemory,
    container_header,
    msgpack_decoder,
    type_memory,
    value_decoder,
)

T = TypeVar("T")

VALUE_FORMAT = b"\x01"
TIMESTAMP_FORMATS = {"processing": b"\x02", "event": b"\x03"}
"""First byte of values with a timestamp of a time domain, which follows; without one, `VALUE_FORMAT`."""
_TIMESTAMP_BYTES = 8
_ZERO = 1 << 63
_SCALARS = frozenset((type(None), bool, int, float, str, bytes))
_OF_SCALARS: Mapping[type, frozenset[str]] = dict.fromkeys(_SCALARS, frozenset())
_CLASSES = inspect.StructType | inspect.DataclassType | inspect.NamedTupleType
_SETS = inspect.SetType | inspect.FrozenSetType | inspect.AnyType
"""Types whose values may be sets."""
_encode = msgspec.msgpack.Encoder().encode
_ITEMS = msgpack_decoder(list[msgspec.Raw])


class ValueSerializer(Generic[T]):
    """Encoder and decoder of values of one declared type.

    Args:
        value_type: a type in `declared_types.SUPPORTED`.
        state: name of the state, for errors.

    Raises:
        JobDefinitionError: the type cannot be stored; the error lists the supported types.
    """

    custom: Serializer[T] | None = None

    def __init__(self, value_type: type[T] | object, state: str = "") -> None:
        self._of: dict[str, str] = {"state": state} if state else {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_builtin)
        try:
            self.value_type = python_type(value_type)
            self._decoder: msgspec.msgpack.Decoder[T] = value_decoder(self.value_type, from_builtin)
            refuse_custom(self.value_type)
            self._memory = type_memory(self.value_type)
            self._unchecked = self._memory.unchecked
            within = list(types_within(inspect.type_info(self.value_type)))
            self._has_sets = any(isinstance(info, inspect.SetType | inspect.FrozenSetType) for info in within)
            self._may_have_sets = any(isinstance(info, inspect.AnyType) for info in within)
            self._set_fields = _set_fields(within)
        except TypeError as e:
            raise JobDefinitionError(
                "a state's type cannot be stored", hint=SUPPORTED, type=repr(value_type), reason=str(e)
            ) from e

    @property
    def type_name(self) -> str:
        """How the type is recorded in manifests."""
        return describe_type(self.value_type)

    @property
    def unchecked_bytes(self) -> int:
        """Size of encoded values up to which decoding them does not take too much memory."""
        return self._unchecked

    def encode(self, value: T) -> bytes:
        """Returns the bytes of a value.

        Raises:
            StateError: it cannot be encoded, or is not of the declared type.
            EntryTooLarge: decoding it could take more memory than readers accept.
        """
        try:
            data = self._encoder.encode(value)
            if self._has_sets:
                data = with_sorted_sets(value, data, self._set_fields)
            if len(data) > self._unchecked:
                self._memory.check(data)
            # A checkpoint with a value that does not decode could never be restored.
            decoded = self._decoder.decode(data)
            if self._may_have_sets and not self._has_sets and decoded != value:
                # Without a declared type, a set is decoded as a list, which differs from it.
                data = with_sorted_sets(value, data, self._set_fields)
            return VALUE_FORMAT + data
        except TooMuchMemory as e:
            raise EntryTooLarge(
                "a value of state could take too much memory when it is read",
                hint="divide it into elements of a list or entries of a map, or remove what is old",
                size_bytes=len(data),
                memory_limit_bytes=MEMORY_LIMIT,
                **self._of,
            ) from e
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
            raise StateError(
                "a value cannot be stored",
                hint=f"the state is declared as {self.type_name}",
                value=repr(value)[:200],
                reason=str(e),
                **self._of,
            ) from e

    def decode(self, data: bytes) -> T:
        """Returns the value in `data`; raises CorruptFile for another type, or too much memory."""
        try:
            payload = data[1:] if data[:1] == VALUE_FORMAT else _payload(data)
            if len(payload) > self._unchecked:
                self._memory.check(payload)
            return self._decoder.decode(payload)
        except TooMuchMemory as e:
            hint = "if the type of the state was changed, read the value with its earlier type, and divide it"
            raise self._corrupt("a stored value takes too much memory", hint, e) from e
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
            hint = "check whether the type of the state was changed"
            raise self._corrupt("a stored value does not have the declared type", hint, e) from e

    def _corrupt(self, message: str, hint: str, cause: Exception) -> CorruptFile:
        return CorruptFile(message, hint=hint, declared=self.type_name, reason=str(cause), **self._of)


def _set_fields(types: Iterable[inspect.Type]) -> dict[type, frozenset[str]]:
    """Returns the fields of each class that may have sets in their values; `types` as of `types_within`."""
    found = dict(_OF_SCALARS)
    for info in types:
        if isinstance(info, _CLASSES):
            names = {f.name for f in info.fields if any(isinstance(part, _SETS) for part in types_within(f.type))}
            cls = get_origin(info.cls) or info.cls
            found[cls] = found.get(cls, frozenset()) | names
    return found


def with_sorted_sets(value: object, data: bytes, fields: Mapping[type, frozenset[str]] = _OF_SCALARS) -> bytes:
    """Returns encoded data with the elements of each set in the order of their bytes.

    Args:
        value: the value that msgspec has encoded as `data`: it visits sets in the order in which Python does here.
        fields: the fields that may have sets in their values, by class; values of other classes are searched.
    """
    if not data or data[0] not in ARRAYS + MAPS or _is_plain((type(value),), fields):
        return data
    header, size = container_header(data)
    if isinstance(value, set | frozenset) and _SCALARS.issuperset(map(type, value)):
        return data[:header] + b"".join(sorted(map(_encode, value)))
    if isinstance(value, list | tuple) and _is_plain(set(map(type, value)), fields):
        return data
    items = _ITEMS.decode(b"\xdd" + size.to_bytes(4, "big") + data[header:])
    given = zip(_items_of(value, items, fields), items, strict=True)
    parts = [with_sorted_sets(each, bytes(item), fields) for each, item in given]
    if isinstance(value, set | frozenset):
        parts.sort()
    return data[:header] + b"".join(parts)


def _is_plain(kinds: Iterable[type], fields: Mapping[type, frozenset[str]]) -> bool:
    """Returns whether values of classes have no sets."""
    return all(kind in fields and not fields[kind] for kind in kinds)


def _items_of(value: Any, items: Sequence[msgspec.Raw], fields: Mapping[type, frozenset[str]]) -> Iterable[object]:
    """Returns the objects that the items of an encoded container were made of; None for items without sets.

    Args:
        items: keys and values in turn for a dict or an object that is encoded as a map.
        fields: as for `with_sorted_sets`.
    """
    if isinstance(value, dict):
        return [part for entry in value.items() for part in entry]
    if isinstance(value, set | frozenset | list | tuple):
        return value
    searched = fields.get(type(value))
    names = getattr(type(value), "__struct_fields__", None)
    if names is not None and value.__struct_config__.array_like:
        own = [getattr(value, name) if searched is None or name in searched else None for name in names]
        return [None] * (len(items) - len(own)) + own  # a tag comes first
    attributes = dict(zip(type(value).__struct_encode_fields__, names, strict=True)) if names is not None else {}
    found: list[object] = []
    for key in items[::2]:
        encoded = msgspec.msgpack.decode(key)
        name = attributes.get(encoded, encoded)
        found += [None, getattr(value, name, None) if searched is None or name in searched else None]
    return found


class CustomValueSerializer(Generic[T]):
    """Encoder and decoder of values with a custom serializer, stored as a msgpack array of its version and its bytes.

    Args:
        custom: the serializer.
        value_type: the declared type, for schemas.
        state: name of the state, for errors.

    Raises:
        JobDefinitionError: the serializer has no name, or no version above zero.
    """

    def __init__(self, custom: Serializer[T], value_type: object, state: str = "") -> None:
        if not isinstance(custom, Serializer) or not _is_named(custom):
            raise JobDefinitionError(
                "a serializer must be a stateflow.Serializer with a name and a version above 0",
                hint="set both as attributes of its class",
                given=repr(custom)[:200],
            )
        self.custom = custom
        self.value_type = value_type
        self._of = {"state": state} if state else {}

    @property
    def type_name(self) -> str:
        """How the type is recorded in manifests."""
        return describe_type(self.value_type)

    def encode(self, value: T) -> bytes:
        """Returns the bytes of a value; raises StateError if the serializer raises or cannot decode its own bytes."""
        custom = self.custom
        try:
            data = custom.encode(value)
            if type(data) is not bytes:
                raise TypeError(f"encode returned {type(data).__name__}, not bytes")
            # A checkpoint with a value that does not decode could never be restored.
            custom.decode(data, custom.version)
        except Exception as e:
            raise StateError(
                "a value cannot be stored",
                hint="fix the state's serializer",
                serializer=custom.name,
                value=repr(value)[:200],
                reason=f"{type(e).__name__}: {e}",
                **self._of,
            ) from e
        return VALUE_FORMAT + msgspec.msgpack.encode((custom.version, data))

    def decode(self, data: bytes) -> T:
        """Returns the value in `data`; raises CorruptFile if the serializer raises or did not write it."""
        custom = self.custom
        try:
            version, stored = msgspec.msgpack.decode(_payload(data), type=tuple[int, bytes])
            return custom.decode(stored, version)
        except Exception as e:
            raise CorruptFile(
                "a stored value cannot be decoded by the state's serializer",
                hint="check that the serializer still decodes the versions that it wrote",
                serializer=custom.name,
                reason=f"{type(e).__name__}: {e}",
                **self._of,
            ) from e


Codec = ValueSerializer[Any] | CustomValueSerializer[Any]
"""A serializer of a state's values."""


def value_serializer(value_type: object, custom: Serializer[Any] | None, state: str = "") -> Codec:
    """Returns the serializer for a state's values.

    Args:
        value_type: the declared type.
        custom: a custom serializer; None for msgpack.
        state: name of the state, for errors.

    Raises:
        JobDefinitionError: the type cannot be stored, or the custom serializer is invalid.
    """
    if custom is None:
        return ValueSerializer(value_type, state)
    return CustomValueSerializer(custom, value_type, state)


def _is_named(custom: Serializer[Any]) -> bool:
    name, version = getattr(custom, "name", None), custom.version
    return isinstance(name, str) and bool(name) and type(version) is int and version > 0


def decode_untyped(data: bytes, kind: Any = Any) -> Any:
    """Returns the value in `data` as plain dicts, lists, numbers and strings, without its declared type.

    For a custom serializer this is the list of its version and bytes. Raises CorruptFile for invalid data, and for data
    that could take too much memory.
    """
    try:
        payload = _payload(data)
        PLAIN.check(payload)
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
        raise CorruptFile("a stored value cannot be decoded", reason=str(e)) from e


def check_untyped(data: bytes) -> None:
    """Raises CorruptFile unless `data` has the structure of one value that readers without its type accept.

    It creates no objects.
    """
    decode_untyped(data, msgspec.Raw)


def timestamp_of(data: bytes, time: str) -> int | None:
    """Returns the timestamp that a stored value's TTL counts from, in milliseconds since 1970.

    Args:
        data: the stored value.
        time: the time domain, ``processing`` or ``event``.

    Returns:
        The timestamp; None without one in this time domain.

    Raises:
        CorruptFile: the value has a truncated timestamp.
    """
    if data[:1] != TIMESTAMP_FORMATS[time]:
        return None
    _payload(data)
    timestamp: int = struct.unpack_from(">Q", data, 1)[0] - _ZERO
    return timestamp


def with_timestamp(data: bytes, timestamp: int, time: str) -> bytes:
    """Returns a stored value with another timestamp; `time` as for `timestamp_of`."""
    return TIMESTAMP_FORMATS[time] + struct.pack(">Q", timestamp + _ZERO) + _payload(data)


def payload_start(data: bytes) -> int:
    """Returns the offset of the msgpack payload in a stored value; raises CorruptFile for an unknown format."""
    return len(data) - len(_payload(data))


def _payload(data: bytes) -> bytes:
    """Returns the msgpack payload of a stored value, as a copy, which is faster than a memoryview."""
    kind = data[:1]
    if kind == VALUE_FORMAT:
        return data[1:]
    if kind not in TIMESTAMP_FORMATS.values() or len(data) <= _TIMESTAMP_BYTES:
        raise CorruptFile("a stored value has an unknown format", format=kind.hex())
    return data[1 + _TIMESTAMP_BYTES :]
