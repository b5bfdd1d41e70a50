"""Serialization of keys and values.

Values are msgpack, encoded and decoded by msgspec as exactly the declared type; stored data cannot select a class.
Keys are an order-preserving encoding of tuples: equal keys have equal bytes, the entries of a key are adjacent, and map
keys are iterated in order. The key encoding follows FoundationDB's tuple layer,
https://github.com/apple/foundationdb/blob/main/design/tuple.md.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from stateflow.errors import CorruptFile, EntryTooLarge, JobDefinitionError, StateError
from stateflow.types.arrow_types import SUPPORTED, from_builtin, python_type, to_builtin
from stateflow.types.bounded_json import MEMORY_LIMIT, TooMuchMemory
from stateflow.types.declared_types import describe_type, refuse_custom
from stateflow.types.decoded_size import PLAIN, type_memory
from stateflow.types.decoders import value_decoder
from stateflow.types.descriptors import Serializer
from stateflow.types.hashing_cost import PLAIN_KEYS, STEPS_LIMIT, TooMuchHashing, hashing_cost

T = TypeVar("T")

_NONE, _BYTES, _STR, _INT, _FLOAT, _FALSE, _TRUE, _DATE, _DATETIME = (0, 1, 2, 0x15, 0x21, 0x26, 0x27, 0x30, 0x31)
VALUE_FORMAT = b"\x01"
_TIMESTAMP_FORMATS = {"processing": b"\x02", "event": b"\x03"}
_TIMESTAMP_BYTES = 8
_ZERO = 1 << 63
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - for datetimes without time zone
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_PLAIN_UNCHECKED = min(PLAIN.unchecked, PLAIN_KEYS.unchecked)


class ValueSerializer(Generic[T]):
    """Encoder and decoder of values of one declared type.

    Args:
        value_type: a type in `arrow_types.SUPPORTED`.
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
            self._memory, self._hashing = type_memory(self.value_type), hashing_cost(self.value_type)
            self._unchecked = min(self._memory.unchecked, self._hashing.unchecked)
        except TypeError as e:
            raise JobDefinitionError(
                "a state's type cannot be stored", hint=SUPPORTED, type=repr(value_type), reason=str(e)
            ) from e

    @property
    def type_name(self) -> str:
        """How the type is recorded in manifests."""
        return describe_type(self.value_type)

    def encode(self, value: T) -> bytes:
        """Returns the bytes of a value.

        Raises:
            StateError: it cannot be encoded, or is not of the declared type.
            EntryTooLarge: decoding it could take more memory or time than readers accept.
        """
        try:
            data = self._encoder.encode(value)
            if len(data) > self._unchecked:
                self._check(data)
            # A checkpoint with a value that does not decode could never be restored.
            self._decoder.decode(data)
            return VALUE_FORMAT + data
        except TooMuchMemory as e:
            raise EntryTooLarge(
                "a value of state could take too much memory when it is read",
                hint="divide it into elements of a list or entries of a map, or remove what is old",
                size=len(data),
                memory_limit=MEMORY_LIMIT,
                **self._of,
            ) from e
        except TooMuchHashing as e:
            raise EntryTooLarge(
                "a value of state could take too much time when it is read: its dicts and sets have too many keys",
                hint="keep them as entries of a map (MapState), or use texts as keys",
                size=len(data),
                steps_limit=STEPS_LIMIT,
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
        """Returns the value in `data`; raises CorruptFile for another type, or too much memory or time."""
        try:
            payload = data[1:] if data[:1] == VALUE_FORMAT else _payload(data)
            if len(payload) > self._unchecked:
                self._check(payload)
            return self._decoder.decode(payload)
        except TooMuchMemory as e:
            hint = "if the type of the state was changed, read the value with its earlier type, and divide it"
            raise self._corrupt("a stored value takes too much memory", hint, e) from e
        except TooMuchHashing as e:
            hint = "its keys may have been chosen by an attacker; restore another checkpoint or savepoint"
            raise self._corrupt("a dict or set in a stored value could take too long to decode", hint, e) from e
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
            hint = "check whether the type of the state was changed"
            raise self._corrupt("a stored value is not of the declared type", hint, e) from e

    def _check(self, data: bytes) -> None:
        self._memory.check(data)
        self._hashing.check(data)

    def _corrupt(self, message: str, hint: str, cause: Exception) -> CorruptFile:
        return CorruptFile(message, hint=hint, declared=self.type_name, reason=str(cause), **self._of)


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
    that could take too much memory or time.
    """
    try:
        payload = _payload(data)
        if len(payload) > _PLAIN_UNCHECKED:
            PLAIN.check(payload)
            PLAIN_KEYS.check(payload)
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
        raise CorruptFile("a stored value does not decode", reason=str(e)) from e


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
    if data[:1] != _TIMESTAMP_FORMATS[time]:
        return None
    _payload(data)
    timestamp: int = struct.unpack_from(">Q", data, 1)[0] - _ZERO
    return timestamp


def with_timestamp(data: bytes, timestamp: int, time: str) -> bytes:
    """Returns a stored value with another timestamp; `time` as for `timestamp_of`."""
    return _TIMESTAMP_FORMATS[time] + struct.pack(">Q", timestamp + _ZERO) + _payload(data)


def payload_start(data: bytes) -> int:
    """Returns the offset of the msgpack payload in a stored value; raises CorruptFile for an unknown format."""
    return len(data) - len(_payload(data))


def _payload(data: bytes) -> bytes:
    """Returns the msgpack payload of a stored value, as a copy, which is faster than a memoryview."""
    kind = data[:1]
    if kind == VALUE_FORMAT:
        return data[1:]
    if kind not in _TIMESTAMP_FORMATS.values() or len(data) <= _TIMESTAMP_BYTES:
        raise CorruptFile("a stored value has an unknown format", format=kind.hex())
    return data[1 + _TIMESTAMP_BYTES :]


def encode_key(parts: Sequence[object]) -> bytes:
    """Returns the encoded key: unique for the tuple of parts, with the same sort order.

    None < bytes < str < int < float < bool < date < datetime; 1, 1.0 and True are different keys.

    Raises:
        StateError: a part is of another type, an integer exceeds 64 bits, or a str has lone surrogates.
    """
    try:
        return b"".join([encode_key_part(part) for part in parts])
    except (UnicodeEncodeError, TypeError) as e:
        raise StateError("a value cannot be part of a key", value=repr(parts)[:200], reason=str(e)) from e


def decode_key(data: bytes) -> tuple[object, ...]:
    """Returns the parts of an encoded key; raises CorruptFile for invalid data."""
    parts: list[object] = []
    at = 0
    while at < len(data):
        more, at = decode_key_parts(data, at, 1)
        parts += more
    return tuple(parts)


def decode_key_parts(data: bytes, start: int, count: int) -> tuple[list[object], int]:
    """Returns the first `count` parts of the encoded key that begins at `start`, and the offset after them.

    Raises:
        CorruptFile: the data is not valid, or has fewer parts.
    """
    parts = []
    at = start
    try:
        for _ in range(count):
            part, at = _decode_part(data, at)
            parts.append(part)
    except (IndexError, struct.error, ValueError, OverflowError) as e:
        raise CorruptFile("a stored key does not decode", key=data.hex()[:200]) from e
    return parts, at


def encode_key_part(part: object) -> bytes:
    """Returns one encoded part of a key; raises as `encode_key`, but UnicodeEncodeError for lone surrogates."""
    encode = PART_ENCODERS.get(type(part))
    if encode is None:
        raise StateError(
            "a value of this type cannot be part of a key", value=repr(part)[:200], type=type(part).__name__
        )
    return encode(part)


def _encode_str(text: str) -> bytes:
    return b"\x02" + text.encode().replace(b"\0", b"\0\xff") + b"\0"


def _encode_datetime(value: datetime.datetime) -> bytes:
    since = (value - _EPOCH_UTC) if value.tzinfo else (value - _EPOCH)
    return (b"\x31\1" if value.tzinfo else b"\x31\0") + struct.pack(">Q", since // _MICROSECOND + (1 << 63))


def _escaped(data: bytes) -> bytes:
    """Returns the bytes with a terminator that sorts before every continuation; escapes NUL as 0x00 0xFF."""
    return data.replace(b"\0", b"\0\xff") + b"\0"


def _encode_int(number: int) -> bytes:
    try:
        return b"\x15" + struct.pack(">Q", number + (1 << 63))
    except struct.error as e:
        raise StateError("an integer that exceeds 64 bits cannot be part of a key", value=number) from e


def _float_bytes(number: float) -> bytes:
    """Returns IEEE 754 bits that sort like the numbers: all bits flipped for negatives, the sign bit for others."""
    number = number + 0.0 if number == number else float("nan")  # -0.0 becomes 0.0: they are one key
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    return struct.pack(">Q", bits ^ 0xFFFF_FFFF_FFFF_FFFF if bits >> 63 else bits | 1 << 63)


PART_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: _encode_str,
    int: _encode_int,
    bytes: lambda part: b"\x01" + _escaped(part),
    float: lambda part: b"\x21" + _float_bytes(part),
    type(None): lambda part: b"\x00",
    bool: lambda part: b"\x27" if part else b"\x26",
    datetime.date: lambda part: b"\x30" + struct.pack(">I", part.toordinal()),
    datetime.datetime: _encode_datetime,
}
"""Encoders by type of the part; a subclass of one of these types is not supported."""


def _decode_part(data: bytes, at: int) -> tuple[object, int]:
    tag = data[at]
    at += 1
    if tag in (_STR, _BYTES):
        raw, at = _decode_escaped(data, at)
        return (raw.decode() if tag == _STR else raw), at
    if tag == _INT:
        return struct.unpack_from(">Q", data, at)[0] - (1 << 63), at + 8
    if tag == _FLOAT:
        (bits,) = struct.unpack_from(">Q", data, at)
        bits = bits ^ 1 << 63 if bits >> 63 else bits ^ 0xFFFF_FFFF_FFFF_FFFF
        return struct.unpack(">d", struct.pack(">Q", bits))[0], at + 8
    if tag in (_FALSE, _TRUE):
        return tag == _TRUE, at
    if tag == _DATE:
        return datetime.date.fromordinal(struct.unpack_from(">I", data, at)[0]), at + 4
    if tag == _DATETIME:
        (micros,) = struct.unpack_from(">Q", data, at + 1)
        base = _EPOCH_UTC if data[at] else _EPOCH
        return base + (micros - (1 << 63)) * _MICROSECOND, at + 9
    if tag == _NONE:
        return None, at
    raise CorruptFile("a stored key has a part of an unknown type", tag=tag)


def _decode_escaped(data: bytes, at: int) -> tuple[bytes, int]:
    start = at
    while True:
        at = data.find(b"\0", at)
        if at < 0:
            raise IndexError("a string has no terminator")
        if data[at + 1 : at + 2] != b"\xff":
            return data[start:at].replace(b"\0\xff", b"\0"), at + 1
        at += 2
