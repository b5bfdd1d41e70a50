"""Types of columns in Delta tables, whose data files are written here.

Delta has no type for a time of day and none for a duration: both are stored as ``long``, in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import SchemaMismatch
from stateflow.types.columns.conversion import with_scalars
from stateflow.types.columns.shapes import Entries, Items, Record, Shape, leaves_of

TIMESTAMPS_WITHOUT_ZONE = "timestampNtz"
"""The table feature of columns of this type."""
FEATURE_READER_VERSION, FEATURE_WRITER_VERSION = 3, 7
"""The protocol versions of tables that list their features."""
DeltaType = str | dict[str, Any]
"""A type in a table's schema: a name, or an object for a nested type."""

_NAMES = {"bigint": "long", "time(6)": "long", "interval day to second": "long"}
"""Delta's names of types that have another name in Spark."""
_TYPE, _NAME, _FIELDS = "type", "name", "fields"
_ARRAY, _ELEMENT, _HAS_NULLS = "array", "elementType", "containsNull"
_MAP, _KEY, _VALUE, _VALUE_HAS_NULLS = "map", "keyType", "valueType", "valueContainsNull"
_STRUCT = "struct"


def delta_type(shape: Shape) -> DeltaType:
    """Returns the type of a column for values of a shape; all parts are nullable."""
    if isinstance(shape, Items):
        return {_TYPE: _ARRAY, _ELEMENT: delta_type(shape.item), _HAS_NULLS: True}
    if isinstance(shape, Entries):
        key, value = delta_type(shape.key), delta_type(shape.value)
        return {_TYPE: _MAP, _KEY: key, _VALUE: value, _VALUE_HAS_NULLS: True}
    if isinstance(shape, Record):
        named = zip(shape.names, shape.fields, strict=True)
        return {_TYPE: _STRUCT, _FIELDS: [delta_field(name, part) for name, part in named]}
    return _NAMES.get(shape.spark, shape.spark)


def delta_field(name: str, shape: Shape) -> dict[str, Any]:
    """Returns a nullable field of a table's schema."""
    return {_NAME: name, _TYPE: delta_type(shape), "nullable": True, "metadata": {}}


def type_text(kind: DeltaType) -> str:
    """Returns a type in words, without nullability; equal for types whose fields are in another order."""
    if isinstance(kind, str):
        return kind
    name = kind.get(_TYPE)
    if name == _ARRAY:
        return f"array<{type_text(kind[_ELEMENT])}>"
    if name == _MAP:
        return f"map<{type_text(kind[_KEY])},{type_text(kind[_VALUE])}>"
    fields = sorted(f"{field[_NAME]}:{type_text(field[_TYPE])}" for field in kind.get(_FIELDS, ()))
    return f"{name}<{','.join(fields)}>"


def required_part(kind: DeltaType) -> str | None:
    """Returns the path of a part of a nested type that must not be null; None without one."""
    if isinstance(kind, str):
        return None
    parts = [(f".{f[_NAME]}", f[_TYPE], f.get("nullable", True)) for f in kind.get(_FIELDS, ())]
    if kind.get(_TYPE) == _ARRAY:
        parts = [("[]", kind[_ELEMENT], kind.get(_HAS_NULLS, True))]
    if kind.get(_TYPE) == _MAP:
        parts = [("[]", kind[_VALUE], kind.get(_VALUE_HAS_NULLS, True))]
    for path, part, nullable in parts:
        inner = "" if not nullable else required_part(part)
        if inner is not None:
            return path + inner
    return None


def has_timestamps_without_zone(columns: Iterable[Column]) -> bool:
    """Returns whether a table with the columns needs the table feature for them."""
    return any(leaf.spark == "timestamp_ntz" for column in columns for leaf in leaves_of(column.shape))


def check_rows(rows: pa.RecordBatch, schema: RowSchema, uid: str) -> None:
    """Raises SchemaMismatch if emitted rows are not those of `schema`."""
    if rows.schema.names != schema.arrow.names or rows.schema.types != schema.arrow.types:
        raise SchemaMismatch(
            "rows do not match the sink's columns", uid=uid, expected=str(schema.arrow), found=str(rows.schema)
        )


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type of a column in data files."""
    return with_scalars(kind, lambda scalar: pa.int64() if _is_stored_as_long(scalar) else scalar)


def to_stored(column: pa.Array) -> pa.Array:
    """Returns a column as data files contain it."""
    stored = stored_type(column.type)
    if stored.equals(column.type):
        return column
    # Arrow casts a time to the integer of its unit.
    micros = with_scalars(column.type, lambda scalar: pa.time64("us") if pa.types.is_time(scalar) else scalar)
    return column.cast(micros).cast(stored)


def _is_stored_as_long(scalar: pa.DataType) -> bool:
    return bool(pa.types.is_time(scalar) or pa.types.is_duration(scalar))
