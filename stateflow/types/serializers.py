"""Bytes for keys and values.

Values are msgpack, written and read by msgspec as the declared type and nothing else; nothing that is stored can
choose a class. Keys are an order-preserving encoding of tuples, so that equal keys have equal bytes, a key's entries
lie side by side, and map keys come back sorted. The idea of the key encoding is FoundationDB's tuple layer.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from stateflow.decoders import value_decoder
from stateflow.descriptors import Serializer
from stateflow.errors import CorruptFile, JobDefinitionError, StateError
from stateflow.scalars import NUMPY, SUPPORTED, from_builtin, python_type, to_builtin

T = TypeVar("T")

_NONE, _BYTES, _STR, _INT, _FLOAT, _FALSE, _TRUE, _DATE, _DATETIME = (
    0,
    1,
    2,
    0x15,
    0x21,
    0x26,
    0x27,
    0x30,
    0x31,
)
VALUE_FORMAT = b"\x01"
_MOMENT_FORMATS = {"processing": b"\x02", "event": b"\x03"}
_MOMENT_BYTES = 8
_ZERO = 1 << 63
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - for moments without a zone
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_REFUSED = (msgspec.inspect.CustomType, msgspec.inspect.ExtType, msgspec.inspect.RawType)
_MICROSECOND = datetime.timedelta(microseconds=1)


class ValueSerializer(Generic[T]):
    """Encodes and decodes values of one declared type.

    Args:
        value_type: any type of `scalars.SUPPORTED`.
        state: name of the state that the values belong to, for errors.

    Raises:
        JobDefinitionError: the type is none of these; the error has the list.
    """

    custom: Serializer[T] | None = None

    def __init__(self, value_type: type[T] | Any, state: str = "") -> None:
        self._of = {"state": state} if state else {}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_builtin)
        try:
            self.value_type = python_type(value_type)
            self._decoder: msgspec.msgpack.Decoder[T] = value_decoder(self.value_type, from_builtin)
            _refuse_custom(msgspec.inspect.type_info(self.value_type), set())
        except TypeError as e:
            raise JobDefinitionError("a state's type cannot be stored", hint=SUPPORTED, type=repr(value_type),
                                     reason=str(e)) from e  # fmt: skip

    @property
    def type_name(self) -> str:
        """How the type is recorded in manifests."""
        return describe_type(self.value_type)

    def encode(self, value: T) -> bytes:
        """The bytes of a value. Raises StateError when it cannot be encoded, or is not of the declared type."""
        try:
            data = self._encoder.encode(value)
            # A checkpoint with a value that does not decode could never be restored.
            self._decoder.decode(data)
            return VALUE_FORMAT + data
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as e:
            raise StateError("a value cannot be stored", hint=f"the state is declared as {self.type_name}",
                             value=repr(value)[:200], reason=str(e), **self._of) from e  # fmt: skip

    def decode(self, data: bytes) -> T:
        """The value in `data`. Raises CorruptFile when it is not of the declared type."""
        try:
            return self._decoder.decode(data[1:] if data[:1] == VALUE_FORMAT else _payload(data))
        except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
            raise CorruptFile("a stored value is not of the declared type", hint="was the type of the state changed?",
                              declared=self.type_name, reason=str(e), **self._of) from e  # fmt: skip


class CustomValueSerializer(Generic[T]):
    """Encodes and decodes with a job's own serializer. Stored is a msgpack array of its version and its bytes.

    Args:
        state: name of the state that the values belong to, for errors.

    Raises:
        JobDefinitionError: it has no name, or no version above zero.
    """

    def __init__(self, custom: Serializer[T], value_type: Any, state: str = "") -> None:
        if not isinstance(custom, Serializer) or not _is_named(custom):
            raise JobDefinitionError("a serializer must be a stateflow.Serializer with a name and a version above 0",
                                     hint="set both on its class", given=repr(custom)[:200])  # fmt: skip
        self.custom = custom
        self.value_type = value_type
        self._of = {"state": state} if state else {}

    @property
    def type_name(self) -> str:
        """How the type is recorded in manifests."""
        return describe_type(self.value_type)

    def encode(self, value: T) -> bytes:
        """The bytes of a value. Raises StateError when the serializer raises, or cannot decode what it made."""
        custom = self.custom
        try:
            data = custom.encode(value)
            if type(data) is not bytes:
                raise TypeError(f"encode returned {type(data).__name__}, not bytes")
            # A checkpoint with a value that does not decode could never be restored.
            custom.decode(data, custom.version)
        except Exception as e:
            raise StateError("a value cannot be stored", hint="mend the state's serializer", serializer=custom.name,
                             value=repr(value)[:200], reason=f"{type(e).__name__}: {e}", **self._of) from e  # fmt: skip
        return VALUE_FORMAT + msgspec.msgpack.encode((custom.version, data))

    def decode(self, data: bytes) -> T:
        """The value in `data`. Raises CorruptFile when the serializer raises, or did not write it."""
        custom = self.custom
        try:
            version, stored = msgspec.msgpack.decode(_payload(data), type=tuple[int, bytes])
            return custom.decode(stored, version)
        except Exception as e:
            raise CorruptFile("a stored value cannot be decoded by the state's serializer", hint="does it still read "
                              "what it wrote?", serializer=custom.name,
                              reason=f"{type(e).__name__}: {e}", **self._of) from e  # fmt: skip


Codec = ValueSerializer[Any] | CustomValueSerializer[Any]
"""What encodes and decodes a state's values."""


def value_serializer(value_type: Any, custom: Serializer[Any] | None, state: str = "") -> Codec:
    """Returns what encodes and decodes the values of the state of this name. Raises JobDefinitionError."""
    if custom is None:
        return ValueSerializer(value_type, state)
    return CustomValueSerializer(custom, value_type, state)


def _is_named(custom: Serializer[Any]) -> bool:
    name, version = getattr(custom, "name", None), custom.version
    return isinstance(name, str) and bool(name) and type(version) is int and version > 0


def decode_untyped(data: bytes) -> Any:
    """The value in `data` as plain dictionaries, lists, numbers and texts; of a job's own serializer, its version and
    bytes. Raises CorruptFile."""
    try:
        return msgspec.msgpack.decode(_payload(data))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as e:
        raise CorruptFile("a stored value does not decode", reason=str(e)) from e


def moment_of(data: bytes, time: str) -> int | None:
    """The moment that a stored value lives from, in milliseconds since 1970; None when it has none in the kind of time
    that is asked for, ``processing`` or ``event``. Raises CorruptFile."""
    if data[:1] != _MOMENT_FORMATS[time]:
        return None
    _payload(data)
    moment: int = struct.unpack_from(">Q", data, 1)[0] - _ZERO
    return moment


def with_moment(data: bytes, moment: int, time: str) -> bytes:
    """A stored value that lives from `moment` on, whichever moment it had; `time` as for `moment_of`."""
    return _MOMENT_FORMATS[time] + struct.pack(">Q", moment + _ZERO) + _payload(data)


def payload_start(data: bytes) -> int:
    """Where the msgpack in a stored value begins. Raises CorruptFile."""
    return len(data) - len(_payload(data))


def _payload(data: bytes) -> bytes:
    """The msgpack in a stored value, behind its format and its moment; a copy, which costs less than a memoryview."""
    kind = data[:1]
    if kind == VALUE_FORMAT:
        return data[1:]
    if kind not in _MOMENT_FORMATS.values() or len(data) <= _MOMENT_BYTES:
        raise CorruptFile("a stored value has an unknown format", format=kind.hex())
    return data[1 + _MOMENT_BYTES :]


def describe_type(value_type: Any) -> str:
    """A stable, readable description of a type: name, and fields with their types where it has any."""
    try:
        info = msgspec.inspect.type_info(python_type(value_type))
    except TypeError:
        return repr(value_type)
    return _describe(info, ())


def _describe(info: Any, around: tuple[object, ...]) -> str:
    fields = getattr(info, "fields", None)
    if fields is not None:
        cls = getattr(info, "cls", type(info))
        if cls in around:  # a class whose fields lead back to it
            return str(cls.__name__)
        inner = ", ".join(f"{f.name}: {_describe(f.type, (*around, cls))}" for f in fields)
        return f"{cls.__name__}({inner})"
    if isinstance(info, msgspec.inspect.CustomType):
        return NUMPY.get(info.cls, "custom")
    name = type(info).__name__.removesuffix("Type").lower()
    parts = _parts(info)
    return f"{name}[{', '.join(_describe(p, around) for p in parts)}]" if parts else name


def _parts(info: Any) -> list[Any]:
    """The types that a container or union is made of."""
    named = [getattr(info, a) for a in ("key_type", "value_type", "item_type") if hasattr(info, a)]
    return named + list(getattr(info, "item_types", None) or getattr(info, "types", None) or ())


def _refuse_custom(info: Any, seen: set[object]) -> None:
    """Raises TypeError for a class that msgspec would only take to refuse its values later."""
    cls = getattr(info, "cls", None)
    if isinstance(info, _REFUSED) and cls not in NUMPY:
        raise TypeError(f"{cls or type(info).__name__} is not a type that can be stored")
    if cls is None or cls not in seen:
        seen.add(cls)
        for part in [*(f.type for f in getattr(info, "fields", ())), *_parts(info)]:
            _refuse_custom(part, seen)


def encode_key(parts: Sequence[object]) -> bytes:
    """Bytes that sort as the tuples do, and that no other tuple has.

    None < bytes < str < int < float < bool < date < datetime; 1, 1.0 and True are different keys. Raises StateError for
    a part of another type, for a whole number beyond 64 bits, and for a text that is no Unicode.
    """
    try:
        return b"".join([encode_key_part(part) for part in parts])
    except (UnicodeEncodeError, TypeError) as e:
        raise StateError("a value cannot be part of a key", value=repr(parts)[:200], reason=str(e)) from e


def decode_key(data: bytes) -> tuple[object, ...]:
    """The tuple that `encode_key` encoded. Raises CorruptFile."""
    parts = []
    at = 0
    try:
        while at < len(data):
            part, at = _decode_part(data, at)
            parts.append(part)
    except (IndexError, struct.error, ValueError, OverflowError) as e:
        raise CorruptFile("a stored key does not decode", key=data.hex()[:200]) from e
    return tuple(parts)


def encode_key_part(part: Any) -> bytes:
    """What `encode_key` makes of one part. Raises as it does, and UnicodeEncodeError for a text that is no Unicode."""
    encode = PART_ENCODERS.get(type(part))
    if encode is None:
        raise StateError("a value of this type cannot be part of a key", value=repr(part)[:200],
                         type=type(part).__name__)  # fmt: skip
    return encode(part)


def _encode_str(text: str) -> bytes:
    return b"\x02" + text.encode().replace(b"\0", b"\0\xff") + b"\0"


def _encode_datetime(moment: datetime.datetime) -> bytes:
    since = (moment - _EPOCH_UTC) if moment.tzinfo else (moment - _EPOCH)
    return (b"\x31\1" if moment.tzinfo else b"\x31\0") + struct.pack(">Q", since // _MICROSECOND + (1 << 63))


def _escaped(data: bytes) -> bytes:
    """The bytes with an end that sorts before every continuation: a NUL inside is followed by 0xFF."""
    return data.replace(b"\0", b"\0\xff") + b"\0"


def _encode_int(number: int) -> bytes:
    try:
        return b"\x15" + struct.pack(">Q", number + (1 << 63))
    except struct.error as e:
        raise StateError("a whole number beyond 64 bits cannot be part of a key", value=number) from e


def _float_bytes(number: float) -> bytes:
    """IEEE bits with all of them flipped for negatives and the sign flipped for others: they sort as numbers do."""
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
"""The types that parts of a key can have, exactly these, and what encodes them."""


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
    raise CorruptFile("a stored key has a part of an unknown kind", tag=tag)


def _decode_escaped(data: bytes, at: int) -> tuple[bytes, int]:
    start = at
    while True:
        at = data.find(b"\0", at)
        if at < 0:
            raise IndexError("no end of a text")
        if data[at + 1 : at + 2] != b"\xff":
            return data[start:at].replace(b"\0\xff", b"\0"), at + 1
        at += 2
