"""Types of columns in Iceberg tables, and the Parquet columns of their data files.

Iceberg has no type for a duration: it is stored as ``long``, in microseconds, as in Delta tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from stateflow.api.schema import RowSchema
from stateflow.types.columns.conversion import with_scalars
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

_SCALARS: dict[pa.DataType, PrimitiveType] = {
    pa.int64(): LongType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.time64("ns"): TimeType(),
    pa.duration("us"): LongType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


class _Ids:
    """Field ids that are unique within a schema; the catalog replaces them."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


def iceberg_type(shape: Shape, ids: _Ids | None = None) -> IcebergType:
    """Returns the type of a column for values of a shape; all parts but keys of maps are optional."""
    ids = ids or _Ids()
    if isinstance(shape, Items):
        return ListType(ids.next(), iceberg_type(shape.item, ids), element_required=False)
    if isinstance(shape, Entries):
        key, value = ids.next(), ids.next()
        return MapType(key, iceberg_type(shape.key, ids), value, iceberg_type(shape.value, ids), value_required=False)
    if isinstance(shape, Record):
        return StructType(*_fields(shape, ids))
    return _scalar(shape)


def _fields(shape: Record, ids: _Ids) -> Iterator[NestedField]:
    for name, part in zip(shape.names, shape.fields, strict=True):
        yield NestedField(ids.next(), name, iceberg_type(part, ids), required=False)


def _scalar(leaf: Leaf) -> PrimitiveType:
    if pa.types.is_decimal(leaf.arrow):
        return DecimalType(leaf.arrow.precision, leaf.arrow.scale)
    return _SCALARS[leaf.arrow]


def table_schema(schema: RowSchema) -> Schema:
    """Returns the schema of a new table: one optional column for each field of the row class."""
    return Schema(*_fields(schema.shape, _Ids()))


def type_text(kind: IcebergType) -> str:
    """Returns a type in words, without field ids; equal for structs whose fields are in another order."""
    if isinstance(kind, ListType):
        return f"list<{type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)},{type_text(kind.value_type)}>"
    if isinstance(kind, StructType):
        fields = sorted(f"{field.name}:{type_text(field.field_type)}" for field in kind.fields)
        return f"struct<{','.join(fields)}>"
    return str(kind)


def required_part(kind: IcebergType) -> str | None:
    """Returns the path of a part of a nested type that must not be null; None without one."""
    parts: list[tuple[str, IcebergType, bool]] = []
    if isinstance(kind, ListType):
        parts = [("[]", kind.element_type, kind.element_required)]
    elif isinstance(kind, MapType):
        parts = [("[]", kind.value_type, kind.value_required)]
    elif isinstance(kind, StructType):
        parts = [(f".{field.name}", field.field_type, field.required) for field in kind.fields]
    for path, part, required in parts:
        inner = "" if required else required_part(part)
        if inner is not None:
            return path + inner
    return None


def file_schema(schema: RowSchema, table: Schema) -> Schema:
    """Returns the schema of a data file: the table's columns that the rows have, with the table's field ids."""
    return Schema(*_chosen(schema.shape, table.as_struct()))


def _chosen(shape: Record, struct: StructType) -> Iterator[NestedField]:
    """Yields the fields of a struct in the order of a row class, which the files have."""
    found = {field.name: field for field in struct.fields}
    for name, part in zip(shape.names, shape.fields, strict=True):
        field = found[name]
        yield NestedField(field.field_id, name, _ordered(part, field.field_type), required=field.required)


def _ordered(shape: Shape, kind: IcebergType) -> IcebergType:
    if isinstance(shape, Record) and isinstance(kind, StructType):
        return StructType(*_chosen(shape, kind))
    if isinstance(shape, Items) and isinstance(kind, ListType):
        return ListType(kind.element_id, _ordered(shape.item, kind.element_type), element_required=False)
    if isinstance(shape, Entries) and isinstance(kind, MapType):
        value = _ordered(shape.value, kind.value_type)
        return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=False)
    return kind


def to_stored(rows: pa.Table, target: pa.Schema) -> pa.Table:
    """Returns rows as data files contain them.

    Args:
        rows: rows of a sink's schema.
        target: the Arrow schema of the file, with field ids.
    """
    # Arrow refuses to lose nanoseconds of a time, which Spark rounds, and no row of Python has.
    micros = [_with_micros(column) for column in rows.columns]
    return pa.table(micros, names=rows.column_names).cast(target)


def _with_micros(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = with_scalars(column.type, lambda scalar: pa.time64("us") if pa.types.is_time(scalar) else scalar)
    return column if kind.equals(column.type) else column.cast(kind, safe=False)
