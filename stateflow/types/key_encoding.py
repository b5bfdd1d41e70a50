"""Encoding of keys: of tuples, in the order of their parts.

Equal keys have equal bytes, the entries of a key are adjacent, and map keys are iterated in order. The encoding follows
FoundationDB's tuple layer, https://github.com/apple/foundationdb/blob/main/design/tuple.md.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable, Sequence
from typing import Any

from stateflow.errors import CorruptFile, StateError
from stateflow.types.time_window import TimeWindow

_NONE, _BYTES, _STR, _INT, _FLOAT, _FALSE, _TRUE, _DATE, _DATETIME = (0, 1, 2, 0x15, 0x21, 0x26, 0x27, 0x30, 0x31)
_DECIMAL, _TIME, _TIMEDELTA = (0x32, 0x33, 0x34)
_WINDOW = 0x38
NULL_PART = bytes((_NONE,))
"""The encoding of None."""
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - for datetimes without time zone
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MOST_DIGITS = 38
_DECIMAL_BYTES = 16
_DECIMAL_ZERO = 1 << 127
_EXACT = decimal.Context(prec=100)


def encode_key(parts: Sequence[object]) -> bytes:
    """Returns the encoded key: unique for the tuple of parts, with the same sort order.

    None < bytes < str < int < float < bool < date < datetime < Decimal < time < timedelta < TimeWindow. 1, 1.0 and True
    are different keys, as are Decimals of different scale. A TimeWindow is a namespace; no key column has this type.

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
        raise CorruptFile("a stored key cannot be decoded", key=data.hex()[:200]) from e
    return parts, at


def ends_at(stored: bytes, end: int) -> bool:
    """Returns whether an encoded key ends at an offset, where one of its parts may end.

    A text ends with ``00``, and a NUL in a text is ``00 ff``. Nothing that follows a key begins with ``ff``.
    """
    return stored[end : end + 1] != b"\xff"


def has_key_at(stored: bytes, key: bytes, start: int) -> bool:
    """Returns whether stored bytes have an encoded key at an offset, and no longer key that begins with its bytes."""
    return stored.startswith(key, start) and ends_at(stored, start + len(key))


def encode_key_part(part: object) -> bytes:
    """Returns one encoded part of a key; raises as `encode_key`, but UnicodeEncodeError for lone surrogates."""
    encode = _ENCODERS.get(type(part))
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
    type(None): lambda part: NULL_PART,
    bool: lambda part: b"\x27" if part else b"\x26",
    datetime.date: lambda part: b"\x30" + struct.pack(">I", part.toordinal()),
    datetime.datetime: _encode_datetime,
}
"""Encoders by type of the part; a subclass of one of these types is not supported."""


def _encode_decimal(value: decimal.Decimal) -> bytes:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -_MOST_DIGITS <= exponent <= 0 or len(digits) > _MOST_DIGITS:
        raise StateError(
            f"a Decimal of more than {_MOST_DIGITS} digits cannot be part of a key", value=str(value)[:200]
        )
    unscaled = int(value.scaleb(-exponent, _EXACT)) + _DECIMAL_ZERO
    return bytes((_DECIMAL, -exponent)) + unscaled.to_bytes(_DECIMAL_BYTES, "big")


def _encode_time(value: datetime.time) -> bytes:
    if value.tzinfo is not None:
        raise StateError("a time with a time zone cannot be part of a key", value=str(value))
    since = datetime.datetime.combine(_EPOCH.date(), value) - _EPOCH
    return b"\x33" + struct.pack(">Q", since // _MICROSECOND)


def _encode_timedelta(value: datetime.timedelta) -> bytes:
    try:
        return b"\x34" + struct.pack(">Q", value // _MICROSECOND + (1 << 63))
    except struct.error as e:
        raise StateError("a duration that exceeds 64 bits of microseconds cannot be part of a key", value=value) from e


def _encode_window(window: TimeWindow) -> bytes:
    try:
        return b"\x38" + struct.pack(">QQ", window.start + (1 << 63), window.end + (1 << 63))
    except struct.error as e:
        raise StateError(
            "a window that exceeds 64 bits of milliseconds cannot be stored",
            hint="filter rows with such an event time, or convert the column: it is in milliseconds since 1970",
            window=repr(window),
        ) from e


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    **PART_ENCODERS,
    TimeWindow: _encode_window,
    decimal.Decimal: _encode_decimal,
    datetime.time: _encode_time,
    datetime.timedelta: _encode_timedelta,
}
"""Encoders of key columns. Decimals that are equal, but have different scales, have different bytes: a column has one
scale, but a map of Decimals would not."""


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
    return _decode_number(tag, data, at)


def _decode_number(tag: int, data: bytes, at: int) -> tuple[object, int]:
    if tag == _DECIMAL:
        end = at + 1 + _DECIMAL_BYTES
        if end > len(data):
            raise IndexError("a decimal is incomplete")
        unscaled = int.from_bytes(data[at + 1 : end], "big") - _DECIMAL_ZERO
        return decimal.Decimal(unscaled).scaleb(-data[at], _EXACT), end
    if tag == _TIME:
        return _decode_time(struct.unpack_from(">Q", data, at)[0]), at + 8
    if tag == _TIMEDELTA:
        return (struct.unpack_from(">Q", data, at)[0] - (1 << 63)) * _MICROSECOND, at + 8
    if tag == _WINDOW:
        start, end = struct.unpack_from(">QQ", data, at)
        return TimeWindow(start - (1 << 63), end - (1 << 63)), at + 16
    raise CorruptFile("a stored key has a part of an unknown type", tag=tag)


def _decode_time(micros: int) -> datetime.time:
    found = _EPOCH + micros * _MICROSECOND
    if found.date() != _EPOCH.date():
        raise ValueError("a time is not within a day")
    return found.time()


def _decode_escaped(data: bytes, at: int) -> tuple[bytes, int]:
    start = at
    while True:
        at = data.find(b"\0", at)
        if at < 0:
            raise IndexError("a string has no terminator")
        if data[at + 1 : at + 2] != b"\xff":
            return data[start:at].replace(b"\0\xff", b"\0"), at + 1
        at += 2
