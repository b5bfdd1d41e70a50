"""Keys that users give: conversion to the recorded types of the key columns, from JSON, Python values or texts.

The values 1 and "1" are different keys in different key groups, so a value of another type is refused: a look-up with
it would find nothing.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeVar

import msgspec

from stateflow.errors import StateError, StateflowError, WrongKeyType
from stateflow.types.declared_types import BY_NAME, DECLARED, NOT_FINITE, decimal_digits, special_float
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

T = TypeVar("T")
Scalar = str | int | float | bool | None
"""A value of a key in JSON."""

NULL_KEY = "[null]"
"""The key of one column that is null, on a command line."""
_MOST_CHARACTERS = 100
_EXACT = decimal.Context(prec=100)
_WHOLE = re.compile("[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?[0-9]{0,400}\.?[0-9]{1,400}([eE][+-]?[0-9]{1,9})?|[+-]?[0-9]{1,400}\.")


class _Unfit(Exception):
    """A value is not of the type; the message says why."""


_UNFIT = (_Unfit, msgspec.ValidationError, ValueError, OverflowError, ArithmeticError, struct.error)
"""Errors of conversions of a value that does not have the type."""


def convert_key(given: Sequence[object], types: Sequence[str], names: Sequence[str] = ()) -> tuple[object, ...]:
    """Returns a key with the types of the key columns.

    Args:
        given: one value for each key column, None for null, as Python objects or as JSON has them: dates, times,
            durations and Decimals as text, bytes in Base64, and floats that are not finite as ``"NaN"`` or
            ``"Infinity"``.
        types: Spark's simple type name of each key column.
        names: names of the key columns, for errors; empty if they are not known.

    Raises:
        WrongKeyType: a value is not of its type, or their number differs.
    """
    if len(given) != len(types):
        raise _wrong_number(len(given), types, names)
    try:
        pairs = zip(given, types, strict=True)
        return tuple(None if value is None else _converter(name)(value) for value, name in pairs)
    except _UNFIT:
        # Again, with the column of the value.
        columns = names if len(names) == len(types) else [""] * len(types)
        return tuple(_typed(*column) for column in zip(given, types, columns, strict=True))


def parse_key(texts: Sequence[str], columns: Mapping[str, str]) -> tuple[object, ...]:
    """Returns a key with the types of the key columns, from texts of a command line.

    Args:
        texts: the value of each key column in its order, as `convert_key` takes it, with numbers in decimal, and
            ``true`` or ``false``; for several columns also one text, a JSON array of the values or an object with the
            names; ``[null]`` for the null of one column.
        columns: Spark's simple type name of each key column, by its name.

    Raises:
        WrongKeyType: a value is not of its type, or their number differs.
    """
    types, names = list(columns.values()), list(columns)
    if len(texts) == 1 and len(columns) > 1:
        return convert_key(_json_values(texts[0], columns), types, names)
    if list(texts) == [NULL_KEY]:
        return (None,)
    if len(texts) != len(columns):
        raise _wrong_number(len(texts), types, names)
    given = [_value_of(text, kind, name) for text, kind, name in zip(texts, types, names, strict=True)]
    return convert_key(given, types, names)


def convert_map_key(given: object, declared: str) -> object:
    """Returns the key of a map with its declared type; types other than one scalar are taken as they are.

    Args:
        given: as for `convert_key`.
        declared: the recorded key type of the state.

    Raises:
        WrongKeyType: the value is not of the type.
    """
    if declared == "datetime":
        text = _is_text_of_aware_datetime(given)
        return _typed(given, "timestamp" if text else "timestamp_ntz")
    return _typed(given, DECLARED[declared].spark) if declared in DECLARED else given


def plain_key(values: Sequence[object]) -> list[Scalar]:
    """Returns a typed key as values that JSON can represent, from which `convert_key` returns the same key."""
    return [_plain(value) for value in values]


def encode_typed_key(parts: Sequence[object]) -> bytes:
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


def _typed(value: object, name: str, column: str = "") -> object:
    try:
        return None if value is None else _converter(name)(value)
    except _UNFIT as e:
        raise _wrong(repr(value), name, str(e), column) from e


def _wrong(value: str, name: str, reason: str, column: str = "") -> WrongKeyType:
    facts = {"column": column} if column else {}
    return WrongKeyType(
        "a value of a key does not have the recorded type",
        hint=_hint(name),
        **facts,
        value=value[:200],
        type=name,
        reason=reason[:200],
    )


def _hint(name: str) -> str:
    example = BY_NAME[name].example if name in BY_NAME else '"1.50"' if decimal_digits(name) else ""
    return "pass a value of this type" + (f", such as {example}" if example else "")


def _wrong_number(given: int, types: Sequence[str], names: Sequence[str]) -> WrongKeyType:
    return WrongKeyType(
        "a key does not have one value for each key column",
        hint="pass the values in the order of the key columns",
        given=given,
        types=list(types),
        **({"columns": list(names)} if names else {}),
    )


def _json_values(text: str, columns: Mapping[str, str]) -> Sequence[object]:
    """Returns the values of key columns that a JSON array or object has; raises WrongKeyType."""
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        values = None
    if isinstance(values, dict) and values.keys() == columns.keys():
        return [values[name] for name in columns]
    if isinstance(values, list):
        return values
    raise WrongKeyType(
        "the key is not JSON with a value for each key column",
        hint="""pass an array of the values in this order, or an object, such as '["a", 7]'""",
        value=text[:200],
        columns=list(columns),
        types=list(columns.values()),
    )


def _value_of(text: str, name: str, column: str) -> object:
    """Returns the value that a text of a command line has: a number or truth value, or the text for other types."""
    kind = BY_NAME[name].python if name in BY_NAME else None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int and _WHOLE.fullmatch(text):
        return int(text)
    if kind is float and _NUMBER.fullmatch(text):
        return float(text)
    return text


def _plain(value: object) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        return special_float(value)
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


def _read(kind: type[T], value: object) -> T:
    """Returns a value of a type, or the one that a text in ISO 8601 denotes."""
    return value if isinstance(value, kind) else msgspec.convert(_text(value), kind)


def _integer(name: str) -> Callable[[object], int]:
    bits = BY_NAME[name].arrow.bit_width

    def convert(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _Unfit(f"it is of type {type(value).__name__}")
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise _Unfit(f"it exceeds {bits} bits")
        return int(value)

    return convert


def _double(value: object) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return NOT_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _Unfit(f"it is of type {type(value).__name__}")
    return float(value)


def _float(value: object) -> float:
    # Spark has 32 bits of it: the key contains the value that these represent.
    (rounded,) = struct.unpack("<f", struct.pack("<f", _double(value)))
    return float(rounded)


def _date(value: object) -> datetime.date:
    # A datetime is a date, too.
    return _read(datetime.date, _text(value) if isinstance(value, datetime.datetime) else value)


def _timestamp(value: object) -> datetime.datetime:
    found = _read(datetime.datetime, value)
    if found.tzinfo is None:
        raise _Unfit("it has no time zone")
    return found.astimezone(datetime.UTC)


def _without_zone(kind: type[datetime.datetime] | type[datetime.time], value: object) -> object:
    found = _read(kind, value)
    if found.tzinfo is not None:
        raise _Unfit("it has a time zone")
    return found


def _is_text_of_aware_datetime(value: object) -> bool:
    try:
        return _read(datetime.datetime, value).tzinfo is not None
    except (_Unfit, msgspec.ValidationError):
        return False


def _decimal_of(name: str) -> Callable[[object], decimal.Decimal]:
    digits = decimal_digits(name)

    def convert(value: object) -> decimal.Decimal:
        if not isinstance(value, int | str | decimal.Decimal) or isinstance(value, bool):
            raise _Unfit(f"it is of type {type(value).__name__}")
        if digits is None:
            raise _Unfit("keys of this type cannot be queried")
        if isinstance(value, str) and (len(value) > _MOST_CHARACTERS or not _NUMBER.fullmatch(value)):
            raise _Unfit("it is not a number")
        precision, scale = digits
        given = decimal.Decimal(value)
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
    **{name: _integer(name) for name, each in BY_NAME.items() if each.python is int},
    "float": _float,
    "double": _double,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": partial(_without_zone, datetime.datetime),
    "time(6)": partial(_without_zone, datetime.time),
    "interval day to second": partial(_read, datetime.timedelta),
}


@lru_cache(1000)
def _converter(name: str) -> Callable[[object], object]:
    return _CONVERTERS.get(name) or _decimal_of(name)
