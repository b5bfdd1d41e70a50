"""The table of scalar types, from which every format takes its names and types. Pure data, and reading of names.

A format has a table of its own only of what differs, next to the code that reads or writes it, with the reason.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ScalarType:
    """A scalar type.

    Attributes:
        spark: Spark's simple name of it.
        python: type of its values in Python.
        arrow: type of a column.
        kind: the declared type that it is the column of, as recorded schemas and msgspec name it; empty if it is
            declared with a limit, or only key columns have it.
        example: a value, for hints.
    """

    spark: str
    python: type
    arrow: pa.DataType
    kind: str = ""
    example: str = ""


SCALAR_TYPES = (
    ScalarType(spark="boolean", python=bool, arrow=pa.bool_(), kind="bool", example="true"),
    ScalarType(spark="tinyint", python=int, arrow=pa.int8()),
    ScalarType(spark="smallint", python=int, arrow=pa.int16()),
    ScalarType(spark="int", python=int, arrow=pa.int32()),
    ScalarType(spark="bigint", python=int, arrow=pa.int64(), kind="int"),
    ScalarType(spark="float", python=float, arrow=pa.float32()),
    ScalarType(spark="double", python=float, arrow=pa.float64(), kind="float"),
    ScalarType(spark="string", python=str, arrow=pa.string(), kind="str"),
    ScalarType(spark="binary", python=bytes, arrow=pa.binary(), kind="bytes", example='Base64, "AAEC"'),
    ScalarType(spark="date", python=datetime.date, arrow=pa.date32(), kind="date", example='"2026-01-31"'),
    # Declared with a time zone, which is a limit of the kind datetime.
    ScalarType(
        spark="timestamp", python=datetime.datetime, arrow=pa.timestamp("us", "UTC"), example='"2026-01-31T03:00:00Z"'
    ),
    ScalarType(
        spark="timestamp_ntz",
        python=datetime.datetime,
        arrow=pa.timestamp("us"),
        kind="datetime",
        example='"2026-01-31T03:00:00"',
    ),
    ScalarType(spark="time(6)", python=datetime.time, arrow=pa.time64("us"), kind="time", example='"03:00:00"'),
    ScalarType(
        spark="interval day to second",
        python=datetime.timedelta,
        arrow=pa.duration("us"),
        kind="timedelta",
        example='"PT1.5S"',
    ),
)
"""All scalar types except decimals, which have digits."""
BY_NAME = {each.spark: each for each in SCALAR_TYPES}
"""The types by Spark's names."""
DECLARED = {each.kind: each for each in SCALAR_TYPES if each.kind}
"""The types of columns by the kinds of declared types."""
NUMBERS = tuple(tuple(each.spark for each in SCALAR_TYPES if each.python is kind) for kind in (int, float))
"""Spark's names of integers and of floats: key columns of one family have the same bytes for the same value."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The floats that JSON does not have, by their texts."""
_DECIMAL = re.compile(r"decimal\((\d{1,2}), *(\d{1,2})\)")
_VARIANTS: dict[type, tuple[pa.DataType, ...]] = {
    int: (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    float: (pa.float16(),),
    str: (pa.large_string(), pa.string_view()),
    bytes: (pa.large_binary(), pa.binary_view(), pa.binary(1)),
    datetime.date: (pa.date64(),),
    datetime.time: (pa.time32("s"),),
    decimal.Decimal: (pa.decimal32(1), pa.decimal64(1), pa.decimal128(1), pa.decimal256(1)),
}
"""Types of Arrow that are not in the table, which values of a Python type may have, too."""
_PYTHON: dict[int, type] = {each.arrow.id: each.python for each in SCALAR_TYPES} | {
    arrow.id: python for python, variants in _VARIANTS.items() for arrow in variants
}


def scalar_of(kind: str) -> ScalarType | None:
    """Returns the type of the column for a recorded kind, NumPy's numbers included; None for kinds without one."""
    if kind.startswith("numpy."):
        kind = kind.removeprefix("numpy.").rstrip("0123456789").removeprefix("u")
    return DECLARED.get(kind)


def python_type_of(arrow: pa.DataType) -> type | None:
    """Returns the Python type of the values of a scalar Arrow type, whatever its size or unit; None for other types."""
    return _PYTHON.get(arrow.id)


def special_float(number: float) -> str:
    """Returns the text of a float that is not finite."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def decimal_digits(name: str) -> tuple[int, int] | None:
    """Returns precision and scale of Spark's name of a decimal type; None for another type."""
    found = _DECIMAL.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def arrow_type_named(name: str) -> pa.DataType:
    """Returns the Arrow type of a column by Spark's name of its type.

    Raises:
        ValueError: there is no such scalar type.
    """
    if name in BY_NAME:
        return BY_NAME[name].arrow
    digits = decimal_digits(name)
    if digits is None:
        raise ValueError(f"{name[:100]} is not a scalar type")
    return pa.decimal128(*digits)


def decimal_holds(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Returns whether a decimal type has all values of another one."""
    whole = given.precision - given.scale
    return bool(given.scale <= wanted.scale and whole <= wanted.precision - wanted.scale)
