"""The NumPy scalars and Arrow types that can be stored, and their representation in Python and msgpack."""

from __future__ import annotations

import datetime
import decimal
import math
import types
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

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

KEY_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time(6)": pa.time64("us"),
    "interval day to second": pa.duration("us"),
}
"""Arrow types of key columns by Spark's names; those of Decimals have parameters."""

SUPPORTED = (
    "declare a msgspec.Struct, a dataclass, a NamedTuple or a TypedDict; bool, int, float, str, bytes, date, time, "
    "datetime, timedelta, UUID, Decimal, an Enum or a Literal; a list, tuple, set, frozenset or dict; a union; a "
    "scalar of numpy (bool_, int8 to int64, uint8 to uint64, float32, float64); or a type of Arrow (bool, int8 to "
    "int64, uint8 to uint64, float64, string, binary, date32, timestamp in s, ms or us, without a zone or in UTC, "
    "duration in s, ms or us, time64 in us, decimal128, a list of these). Anything else needs a Serializer"
)
"""The types that can be declared, as text for hints."""

_ARROW: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.float64(): float,
    pa.string(): str,
    pa.large_string(): str,
    pa.binary(): bytes,
    pa.large_binary(): bytes,
    pa.date32(): datetime.date,
    pa.time64("us"): datetime.time,
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
