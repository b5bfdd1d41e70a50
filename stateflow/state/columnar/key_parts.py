"""Columns of parts of keys of any type: namespaces, and the keys of maps that have several types.

A part is a struct of its ``type``, as Python names it, and its ``value`` as text. So the number 7 and the text 7
differ, as they do in stored keys. None is null.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import DataError, SchemaMismatch
from stateflow.types.time_window import TimeWindow

KEY_PART = pa.struct([pa.field("type", pa.string()), pa.field("value", pa.string())])
"""Its fields are nullable: Arrow checks them also where the struct is null."""

_TYPES: dict[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "bytes": bytes,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "decimal": decimal.Decimal,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "window": TimeWindow,
}
_ARROW = {("int",): pa.int64(), ("str",): pa.string()}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def parts_column(parts: Iterable[object], kind: pa.DataType) -> pa.Array:
    """Returns decoded parts of keys as a column: of `KEY_PART`, or of the one type that all of them have.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: a part has another type.
    """
    return pa.array(map(_as_struct, parts) if kind.equals(KEY_PART) else parts, kind)


def parts_of_column(column: pa.Array, name: str) -> list[Any]:
    """Returns the parts of keys in a column: structs of their types and values, or values of one type.

    Args:
        column: the column.
        name: its name, for errors.

    Raises:
        SchemaMismatch: it has structs of other fields.
        DataError: a type or value is not valid.
    """
    if not pa.types.is_struct(column.type):
        return list(column.to_pylist())
    if not _is_of_parts(column.type):
        raise SchemaMismatch(
            "a column of parts of keys has structs of other fields",
            hint="pass type and value, both texts, or a column of one type",
            column=name,
            given=str(column.type),
        )
    return [None if part is None else _from_struct(part, name) for part in column.to_pylist()]


def as_plain_column(column: pa.Array) -> pa.Array:
    """Returns structs of integers only, or of texts only, as a column of these; any other column as it is."""
    if column.null_count or not _is_of_parts(column.type):
        return column
    kind = _ARROW.get(tuple(pc.unique(column.field("type")).to_pylist()))
    if kind is None or column.field("value").null_count:
        return column
    try:
        return column.field("value").cast(kind)
    except pa.ArrowInvalid:
        # The error names the value that is no integer.
        return column


def _is_of_parts(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {field.name for field in kind} == {"type", "value"}


def _as_struct(part: object) -> dict[str, str] | None:
    if part is None:
        return None
    return {"type": _NAMES[type(part)], "value": part_text(part)}


def part_text(part: object) -> str:
    """Returns a part of a key as text: a time in ISO 8601, a window as an interval of it, bytes in base64."""
    if isinstance(part, TimeWindow):
        return str(part)
    return str(part).lower() if isinstance(part, bool | int | float) else str(msgspec.to_builtins(part))


def _from_struct(part: dict[str, str | None], name: str) -> object:
    kind = _TYPES.get(part["type"] or "")
    try:
        if kind is None:
            raise ValueError("its type is unknown")
        if part["value"] is None:
            raise ValueError("its value is null")
        return _from_text(part["value"], kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as e:
        raise DataError(
            "a namespace or the key of a map is not valid",
            hint=f"types are {', '.join(_TYPES)}; values have the form of stateflow.read_state",
            column=name,
            part=repr(part)[:200],
            reason=str(e)[:200],
        ) from e


def _from_text(text: str, kind: type) -> object:
    if kind is TimeWindow:
        return TimeWindow.parse(text)
    return float(text) if kind is float else msgspec.convert(text, kind, strict=False)
