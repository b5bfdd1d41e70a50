"""Types of columns in Delta tables, whose data files are written here.

Delta has no type for a time of day and none for a duration: both are stored as ``long``, in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.store_assignment import LENGTH, PADDED
from stateflow.errors import SchemaMismatch
from stateflow.types.columns.conversion import first_time_out_of_range, with_scalars
from stateflow.types.columns.shapes import Entries, Items, Record, Shape, leaves_of
from stateflow.types.declared_types import SCALAR_TYPES, decimal_digits, parse_arrow_type

TIMESTAMPS_WITHOUT_ZONE = "timestampNtz"
"""The table feature of columns of this type."""
FEATURE_READER_VERSION, FEATURE_WRITER_VERSION = 3, 7
"""The protocol versions of tables that list their features."""
COLUMN_MAPPING = "delta.columnMapping.mode"
"""The property of tables whose data files have other names of columns than their schema."""
DeltaType = str | dict[str, Any]
"""A type in a table's schema: a name, or an object for a nested type."""

_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
"""Delta's names of types that have another name in Spark."""
_AS_LONG = {"time(6)", "interval day to second"}
_SPARK = {_NAMES.get(each.spark, each.spark): each.spark for each in SCALAR_TYPES if each.spark not in _AS_LONG}
"""Spark's names by Delta's."""
CHAR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_LENGTH = re.compile(r"(?P<kind>char|varchar)\((?P<length>[1-9]\d{0,9})\)")
_TYPE, _NAME, _FIELDS = "type", "name", "fields"
_ARRAY, _ELEMENT, _HAS_NULLS = "array", "elementType", "containsNull"
_MAP, _KEY, _VALUE, _VALUE_HAS_NULLS = "map", "keyType", "valueType", "valueContainsNull"
_STRUCT = "struct"


class DeltaField(msgspec.Struct, frozen=True):
    """A column in a table's schema; the type is a name, or an object for a nested type."""

    name: str
    type: DeltaType
    nullable: bool = True
    metadata: Mapping[str, object] | None = None


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
    return "long" if shape.spark in _AS_LONG else _NAMES.get(shape.spark, shape.spark)


def delta_field(name: str, shape: Shape) -> dict[str, Any]:
    """Returns a nullable field of a table's schema."""
    return {_NAME: name, _TYPE: delta_type(shape), "nullable": True, "metadata": {}}


def metadata_of_parts(path: str, kind: DeltaType) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yields the path and the metadata of each field within a type of a table's schema."""
    if not isinstance(kind, dict):
        return
    for field in kind.get(_FIELDS) or ():
        inner = f"{path}.{field.get(_NAME)}"
        yield inner, field.get("metadata") or {}
        yield from metadata_of_parts(inner, field.get(_TYPE))
    for part in (_ELEMENT, _KEY, _VALUE):
        yield from metadata_of_parts(path, kind.get(part, ""))


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


def arrow_field(
    name: str, kind: DeltaType, *, nullable: bool = True, metadata: Mapping[str, object] | None = None
) -> pa.Field:
    """Returns a field of a table in Arrow. Raises ValueError for a type that no column of a row class fits.

    Args:
        nullable: whether it may be null.
        metadata: of the field, which has the length of CHAR and VARCHAR.
    """
    text = (metadata or {}).get(CHAR_VARCHAR)
    if text is None:
        return pa.field(name, _arrow_type(kind), nullable=nullable)
    found = _LENGTH.fullmatch(str(text))
    if found is None or kind != "string":
        raise ValueError(f"the length of texts within {text} is not checked")
    padded = {PADDED: b""} if found["kind"] == "char" else {}
    return pa.field(name, pa.string(), nullable=nullable, metadata={LENGTH: found["length"].encode(), **padded})


def _arrow_type(kind: DeltaType) -> pa.DataType:
    if isinstance(kind, str):
        if kind in _SPARK or decimal_digits(kind):
            return parse_arrow_type(_SPARK.get(kind, kind))
        raise ValueError(f"a row class cannot have the type {kind[:100]}")
    name = kind.get(_TYPE)
    if name == _ARRAY:
        return pa.list_(arrow_field("element", kind[_ELEMENT], nullable=kind.get(_HAS_NULLS, True)))
    if name == _MAP:
        value = arrow_field("value", kind[_VALUE], nullable=kind.get(_VALUE_HAS_NULLS, True))
        return pa.map_(_arrow_type(kind[_KEY]), value)
    fields = kind.get(_FIELDS, ())
    return pa.struct([arrow_field(f[_NAME], f[_TYPE], nullable=f.get("nullable", True)) for f in fields])


def target_schema(schema: RowSchema, fields: Iterable[DeltaField] = ()) -> pa.Schema:
    """Returns the columns of rows as a table stores them: types, which parts are never null, and lengths.

    Args:
        schema: the columns of the rows.
        fields: the columns of the table, whose types fit; one that it lacks is nullable, with the type of the rows.
    """
    known = {field.name: field for field in fields}
    return pa.schema([_target(column, known.get(column.name)) for column in schema.columns])


def _target(column: Column, field: DeltaField | None) -> pa.Field:
    if field is None:
        return pa.field(column.name, stored_type(column.arrow_type))
    return arrow_field(field.name, field.type, nullable=field.nullable, metadata=field.metadata)


def has_timestamps_without_zone(columns: Iterable[Column]) -> bool:
    """Returns whether a table with the columns needs the table feature for them."""
    return any(leaf.spark == "timestamp_ntz" for column in columns for leaf in leaves_of(column.shape))


def check_rows(rows: pa.RecordBatch, schema: RowSchema, uid: str) -> None:
    """Raises SchemaMismatch if emitted rows do not have `schema`, or have a time that Python cannot read."""
    if rows.schema.names != schema.arrow.names or rows.schema.types != schema.arrow.types:
        raise SchemaMismatch(
            "rows do not match the sink's columns", uid=uid, expected=str(schema.arrow), found=str(rows.schema)
        )
    for column, values in zip(schema.columns, rows.columns, strict=True):
        at = first_time_out_of_range(values)
        if at is not None:
            raise SchemaMismatch(
                "a time is not in the years from 1 to 9999",
                hint="filter such rows, or correct the input",
                uid=uid,
                column=column.name,
                time=str(values[at].cast(pa.string())),
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
