"""Keys of queries: conversion to the recorded types, from JSON or from Python values, and their stored form."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Sequence

import msgspec

from stateflow.errors import StateError, StateflowError, WrongKeyType
from stateflow.serving.requests import Scalar
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

_EXACT = decimal.Context(prec=100)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


class _Unfit(Exception):
    """A value is not of the type; the message says why."""


def typed_key(given: Sequence[object], types: Sequence[str]) -> tuple[object, ...]:
    """Returns a key with the types of the key columns.

    Args:
        given: one value for each key column, as Python objects or as JSON has them: dates, times and Decimals as text,
            bytes in base64, and floats that are not finite as ``"NaN"`` or ``"Infinity"``.
        types: Spark's simple type name of each key column.

    Raises:
        WrongKeyType: a value is not of its type, or their number differs.
    """
    if len(given) != len(types):
        raise WrongKeyType(
            "a key does not have one value for each key column",
            hint="pass the values in the order of key_by",
            given=len(given),
            types=list(types),
        )
    return tuple(_typed(value, name) for value, name in zip(given, types, strict=True))


def typed_map_key(given: object, declared: str) -> object:
    """Returns the key of a map with its declared type; types other than one scalar are taken as they are.

    Args:
        given: as for `typed_key`.
        declared: the recorded key type of the state.

    Raises:
        WrongKeyType: the value is not of the type.
    """
    name = _MAP_KEYS.get(declared)
    if name is not None:
        return _typed(given, name)
    if declared == "datetime":
        text = _is_text_of_aware_datetime(given)
        return _typed(given, "timestamp" if text else "timestamp_ntz")
    return given


def plain_key(values: Sequence[object]) -> list[Scalar]:
    """Returns a typed key as values that JSON can represent, from which `typed_key` returns the same key."""
    return [_plain(value) for value in values]


def encoded(parts: Sequence[object]) -> bytes:
    """Returns typed parts of a key in their stored form; raises WrongKeyType for a value that no key can contain."""
    try:
        return encode_key(parts)
    except (StateError, UnicodeEncodeError) as e:
        raise _wrong(repr(parts), "", e.message if isinstance(e, StateflowError) else str(e)) from e


def group_of(key: Sequence[object], types: Sequence[str], max_parallelism: int) -> int:
    """Returns the key group of a typed key; raises WrongKeyType for a value that has none."""
    try:
        return key_group(key, types, max_parallelism)
    except (StateError, UnicodeEncodeError) as e:
        raise _wrong(repr(key), ", ".join(types), e.message if isinstance(e, StateflowError) else str(e)) from e


def _typed(value: object, name: str) -> object:
    convert = _CONVERTERS.get(name, _decimal_of(name))
    try:
        return convert(value)
    except (_Unfit, msgspec.ValidationError, ValueError, OverflowError, ArithmeticError, struct.error) as e:
        raise _wrong(repr(value), name, str(e)) from e


def _wrong(value: str, name: str, reason: str) -> WrongKeyType:
    return WrongKeyType(
        "a value of a key does not have the recorded type",
        hint="pass a value of this type; JSON has dates, times and decimals as text, and bytes in base64",
        value=value[:200],
        type=name,
        reason=reason[:200],
    )


def _plain(value: object) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | decimal.Decimal | datetime.date | datetime.time | datetime.timedelta):
        return str(msgspec.to_builtins(value))
    raise _wrong(repr(value), "", f"a key cannot be of type {type(value).__name__}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _Unfit(f"it is of type {type(value).__name__}")
    return value


def _binary(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as e:
        raise _Unfit(f"it is not base64: {e}") from e


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Unfit(f"it is of type {type(value).__name__}")
    return value


def _integer(bits: int) -> Callable[[object], int]:
    def convert(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _Unfit(f"it is of type {type(value).__name__}")
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise _Unfit(f"it exceeds {bits} bits")
        return int(value)

    return convert


def _double(value: object) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Unfit(f"it is of type {type(value).__name__}")
    return float(value)


def _float(value: object) -> float:
    # Spark has 32 bits of it: the key contains the value that these represent.
    (rounded,) = struct.unpack("<f", struct.pack("<f", _double(value)))
    return float(rounded)


def _date(value: object) -> datetime.date:
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    return msgspec.convert(_text(value), datetime.date)


def _datetime(value: object) -> datetime.datetime:
    return value if isinstance(value, datetime.datetime) else msgspec.convert(_text(value), datetime.datetime)


def _timestamp(value: object) -> datetime.datetime:
    found = _datetime(value)
    if found.tzinfo is None:
        raise _Unfit("it has no time zone")
    return found.astimezone(datetime.UTC)


def _timestamp_ntz(value: object) -> datetime.datetime:
    found = _datetime(value)
    if found.tzinfo is not None:
        raise _Unfit("it has a time zone")
    return found


def _is_text_of_aware_datetime(value: object) -> bool:
    try:
        return _datetime(value).tzinfo is not None
    except (_Unfit, msgspec.ValidationError):
        return False


def _time(value: object) -> datetime.time:
    found = value if isinstance(value, datetime.time) else msgspec.convert(_text(value), datetime.time)
    if found.tzinfo is not None:
        raise _Unfit("it has a time zone")
    return found


def _interval(value: object) -> datetime.timedelta:
    return value if isinstance(value, datetime.timedelta) else msgspec.convert(_text(value), datetime.timedelta)


def _decimal_of(name: str) -> Callable[[object], decimal.Decimal]:
    def convert(value: object) -> decimal.Decimal:
        if not isinstance(value, int | str | decimal.Decimal) or isinstance(value, bool):
            raise _Unfit(f"it is of type {type(value).__name__}")
        if not name.startswith("decimal("):
            raise _Unfit("keys of this type cannot be queried")
        precision, scale = (int(part) for part in name.removeprefix("decimal(").rstrip(")").split(","))
        given = decimal.Decimal(value[:100] if isinstance(value, str) else value)
        if not given.is_finite() or given.adjusted() >= precision - scale:
            raise _Unfit(f"it has more than {precision - scale} digits before the point")
        found = given.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)
        if found != given:
            raise _Unfit(f"it has more than {scale} digits after the point")
        return found

    return convert


_CONVERTERS: dict[str, Callable[[object], object]] = {
    "string": _text,
    "binary": _binary,
    "boolean": _boolean,
    **{name: _integer(bits) for name, bits in _BITS.items()},
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
    "time(6)": _time,
    "interval day to second": _interval,
}
_MAP_KEYS = {"str": "string", "int": "bigint", "float": "double", "bool": "boolean", "bytes": "binary", "date": "date"}
"""Type of key columns with the same Python type, by the declared type of a map's keys."""
