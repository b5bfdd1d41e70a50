"""Declared types of values: the table of scalar types, descriptions, members and fields, and names in Spark SQL.

Every format takes its names and types from the table. It has a table of its own only of what differs, next to the code
that reads or writes it, with the reason.

NumPy scalars and Arrow types are stored as the Python type that represents them.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import inspect


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


def parse_arrow_type(name: str) -> pa.DataType:
    """Returns the Arrow type of a column by Spark's name of its type.

    Raises:
        ValueError: the scalar type does not exist.
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


_REFUSED = (inspect.CustomType, inspect.ExtType, inspect.MemoryViewType, inspect.RawType)


def describe_type(value_type: object) -> str:
    """Returns a stable, readable description of a type: its name, and its fields with their types."""
    try:
        info = inspect.type_info(python_type(value_type))
    except TypeError:
        return repr(value_type)
    return _describe(info, ())


def _describe(info: inspect.Type, enclosing: tuple[object, ...]) -> str:
    fields = getattr(info, "fields", None)
    if fields is not None:
        cls = getattr(info, "cls", type(info))
        if cls in enclosing:  # a recursive class
            return str(cls.__name__)
        inner = ", ".join(f"{f.name}: {_describe(f.type, (*enclosing, cls))}" for f in fields)
        return f"{cls.__name__}({inner})"
    if isinstance(info, inspect.Metadata):
        return _describe(info.type, enclosing)
    if isinstance(info, inspect.CustomType):
        return NUMPY.get(info.cls, "custom")
    name = kind_of(info)
    parts = member_types(info)
    return f"{name}[{', '.join(_describe(p, enclosing) for p in parts)}]" if parts else name


def kind_of(info: inspect.Type) -> str:
    """Returns the kind of a type, as recorded schemas name it."""
    return type(info).__name__.removesuffix("Type").lower()


def member_types(info: object) -> list[inspect.Type]:
    """Returns the member types of a container or union."""
    named = [getattr(info, a) for a in ("key_type", "value_type", "item_type") if hasattr(info, a)]
    return named + list(getattr(info, "item_types", None) or getattr(info, "types", None) or ())


def all_types(value_type: object) -> Iterator[inspect.Type]:
    """Yields a type and all types of its members and fields, each class once; raises TypeError as `type_info` does."""
    return types_within(inspect.type_info(value_type))


def types_within(whole: inspect.Type) -> Iterator[inspect.Type]:
    """Yields a type and all types of its members and fields, each class once."""
    found, classes = [whole], set()
    while found:
        info = found.pop()
        cls = getattr(info, "cls", None)
        if isinstance(info, inspect.Metadata):
            found.append(info.type)
        elif cls is None or cls not in classes:
            classes.add(cls)
            found += [*(field.type for field in getattr(info, "fields", ())), *member_types(info)]
            yield info


def refuse_custom(value_type: object) -> None:
    """Raises TypeError for a type with a class that msgspec accepts although its values cannot be stored."""
    for info in all_types(value_type):
        cls = getattr(info, "cls", None)
        if isinstance(info, _REFUSED) and cls not in NUMPY:
            raise TypeError(f"values of {cls or type(info).__name__} cannot be stored")


NUMPY: dict[type, str] = {
    kind: f"numpy.{np.dtype(kind).name}"
    for kind in (
        np.bool_,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint16,
        np.uint32,
        np.uint64,
        np.float32,
        np.float64,
    )
}
"""The NumPy scalar types that can be stored, with their names in schemas."""


SUPPORTED = (
    "declare a msgspec.Struct, a dataclass, a NamedTuple or a TypedDict; bool, int, float, str, bytes, date, time, "
    "datetime, timedelta, UUID, Decimal, an Enum or a Literal; a list, tuple, set, frozenset or dict; a union; a "
    "scalar of numpy (bool_, int8 to int64, uint8 to uint64, float32, float64); or a type of Arrow (bool, int8 to "
    "int64, uint8 to uint64, float64, string, binary, date32, timestamp in s, ms or us, without a zone or in UTC, "
    "duration in s, ms or us, time64 in us, decimal128, a list of these). Anything else needs a Serializer"
)
"""The types that can be declared, as text for hints."""


_ARROW: dict[pa.DataType, Any] = {
    **{each.arrow: each.python for each in DECLARED.values()},
    pa.large_string(): str,
    pa.large_binary(): bytes,
    **{pa.duration(unit): datetime.timedelta for unit in ("s", "ms", "us")},
    **{pa.timestamp(unit): Annotated[datetime.datetime, msgspec.Meta(tz=False)] for unit in ("s", "ms", "us")},
    **{pa.timestamp(unit, "UTC"): Annotated[datetime.datetime, msgspec.Meta(tz=True)] for unit in ("s", "ms", "us")},
}


def python_type(declared: object) -> Any:
    """Returns the Python type for a declared Arrow type; any other type is returned unchanged.

    Raises:
        TypeError: the Arrow type cannot be stored.
    """
    if not isinstance(declared, pa.DataType):
        return declared
    if pa.types.is_integer(declared):
        return _whole(declared)
    if pa.types.is_decimal128(declared):
        return decimal.Decimal
    if pa.types.is_list(declared) or pa.types.is_large_list(declared):
        return types.GenericAlias(list, (python_type(declared.value_type),))
    found = _ARROW.get(declared)
    if found is None:
        raise TypeError(f"the Arrow type {declared} cannot be stored")
    return found


def _whole(declared: pa.DataType) -> Any:
    if declared in (pa.int64(), pa.uint64()):
        # msgpack integers have at most 64 bits, and msgspec's limits must fit into signed 64 bits.
        return int if declared == pa.int64() else Annotated[int, msgspec.Meta(ge=0)]
    signed = pa.types.is_signed_integer(declared)
    bits = declared.bit_width - signed
    return Annotated[int, msgspec.Meta(ge=-(1 << bits) if signed else 0, le=(1 << bits) - 1)]


def to_builtin(value: Any) -> object:
    """Returns the Python value to store for a scalar; raises TypeError for other values."""
    if type(value) in NUMPY:
        return value.item()
    if isinstance(value, pa.Scalar):
        return value.as_py()
    raise TypeError(f"a value of {type(value).__name__} cannot be stored")


def from_builtin(kind: Any, stored: object) -> object:
    """Returns the NumPy scalar for a stored value.

    Args:
        kind: the NumPy scalar type.
        stored: the decoded Python value.

    Raises:
        TypeError: `kind` is not a NumPy scalar type that can be stored.
        ValueError: the value is of another type, or out of range.
    """
    wanted = _STORED_AS.get(kind)
    if wanted is None:
        raise TypeError(f"values of type {kind!r} cannot be stored")
    if type(stored) not in wanted:
        raise ValueError(f"expected {NUMPY[kind]}, got {type(stored).__name__}")
    with np.errstate(over="ignore"):
        scalar = kind(stored)
    if type(stored) is float and math.isfinite(stored) and not np.isfinite(scalar):
        raise ValueError(f"{stored} is out of the range of {NUMPY[kind]}")
    return scalar


_STORED_AS: dict[Any, tuple[type, ...]] = {
    kind: (bool,) if name == "numpy.bool" else (int, float) if "float" in name else (int,)
    for kind, name in NUMPY.items()
}


_CONTROLS = re.compile(r"[\x00-\x1f\x7f$]")


def quote_name(name: str) -> str:
    """Returns a quoted column name."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Returns a string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    # Before it parses a text, Spark replaces ${env:NAME}, also in a literal.
    return f"'{_CONTROLS.sub(_escaped, escaped)}'"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
