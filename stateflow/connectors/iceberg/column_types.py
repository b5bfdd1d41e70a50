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
    FloatType,
    IcebergType,
    IntegerType,
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


_ARROW: dict[type[IcebergType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    DoubleType: pa.float64(),
    FloatType: pa.float32(),
    BooleanType: pa.bool_(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", tz="UTC"),
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


def file_schema(schema: RowSchema, table: Schema) -> Schema:
    """Returns the schema of a data file: the table's columns that the rows have, with the table's field ids.

    No column is required: Arrow refuses a required field of a struct that is null itself. `assign` checks nulls.
    """
    return Schema(*_chosen(schema.shape, table.as_struct()))


def _chosen(shape: Record, struct: StructType) -> Iterator[NestedField]:
    """Yields the fields of a struct in the order of a row class, which the files have."""
    found = {field.name: field for field in struct.fields}
    for name, part in zip(shape.names, shape.fields, strict=True):
        field = found[name]
        yield NestedField(field.field_id, name, _ordered(part, field.field_type), required=False)


def _ordered(shape: Shape, kind: IcebergType) -> IcebergType:
    if isinstance(shape, Record) and isinstance(kind, StructType):
        return StructType(*_chosen(shape, kind))
    if isinstance(shape, Items) and isinstance(kind, ListType):
        item = _ordered(shape.item, kind.element_type)
        return ListType(kind.element_id, item, element_required=False)
    if isinstance(shape, Entries) and isinstance(kind, MapType):
        value = _ordered(shape.value, kind.value_type)
        return MapType(kind.key_id, kind.key_type, kind.value_id, value, value_required=False)
    return kind


def arrow_field(field: NestedField) -> pa.Field:
    """Returns a field of a table in Arrow, for `assign`. Raises KeyError for a type of no row class."""
    return pa.field(field.name, _arrow_type(field.field_type), nullable=not field.required)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, ListType):
        return pa.list_(arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_type(kind.key_type), arrow_field(kind.value_field))
    if isinstance(kind, StructType):
        return pa.struct([arrow_field(field) for field in kind.fields])
    return pa.decimal128(kind.precision, kind.scale) if isinstance(kind, DecimalType) else _ARROW[type(kind)]


def target_schema(schema: RowSchema, table: Schema) -> pa.Schema:
    """Returns the columns of rows as a table stores them, for `assign`; one that it lacks may be null.

    Args:
        schema: the columns of the rows.
        table: the table, whose types fit.
    """
    fields = {field.name: field for field in (*table_schema(schema).fields, *table.fields)}
    return pa.schema([arrow_field(fields[name]) for name in schema.names])
