"""Reads the columns of a table as values of declared types: SQL expressions.

The fields of a class are taken by name; CAST of Spark takes those of a struct by position. Tables that have no type
for a time of day or a duration contain integers of microseconds, as `DeltaSink` writes them.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from stateflow.api.schema import RowSchema
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape, leaves_of, parts_of
from stateflow.types.spark_sql import literal, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_FROM_MICROS = {datetime.time: "time_from_micros({})", datetime.timedelta: "({} * INTERVAL '0.000001' SECOND)"}
"""Expressions of values that are stored as integers, by their declared type."""


def declared_columns(found: StructType, schema: RowSchema) -> list[str]:
    """Returns the expressions of the declared columns of a frame; a column that it lacks is null.

    Args:
        found: the columns of the frame, whose types fit the declared ones.
        schema: the declared columns.
    """
    types = {field.name.lower(): field.dataType for field in found.fields}
    return [f"{_value(c.shape, types.get(c.name.lower()), quoted(c.name))} AS {quoted(c.name)}" for c in schema.columns]


def with_times(found: StructType, schema: RowSchema) -> StructType:
    """Returns the columns of a frame, with the type of a declared time instead of the integer that stores it."""
    from pyspark.sql.types import StructField, StructType

    shapes = {column.name: column.shape for column in schema.columns}
    fields = [(field, shapes.get(field.name)) for field in found.fields]
    return StructType([f if s is None else StructField(f.name, _timed(s, f.dataType)) for f, s in fields])


def _timed(shape: Shape, found: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType

    if isinstance(shape, Leaf):
        is_stored = shape.kind is datetime.time and isinstance(found, LongType)
        return DataType.fromDDL(shape.spark) if is_stored else found
    if isinstance(shape, Items) and isinstance(found, ArrayType):
        return ArrayType(_timed(shape.item, found.elementType))
    if isinstance(shape, Entries) and isinstance(found, MapType):
        return MapType(_timed(shape.key, found.keyType), _timed(shape.value, found.valueType))
    if isinstance(shape, Record) and isinstance(found, StructType):
        parts = dict(zip(shape.names, shape.fields, strict=True))
        fields = [(f, parts.get(f.name)) for f in found.fields]
        return StructType([f if p is None else StructField(f.name, _timed(p, f.dataType)) for f, p in fields])
    return found


def _value(shape: Shape, found: DataType | None, value: str, depth: int = 0) -> str:
    """Returns the expression of a value of a declared type.

    Args:
        found: Spark's type of the value; None if there is none.
        value: the expression of the value.
        depth: number of lambda functions around the expression.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if found is None:
        return f"CAST(NULL AS {shape.spark})"
    item, key = f"_sf_item{depth}", f"_sf_key{depth}"
    if not _is_composed(shape):
        return f"CAST({value} AS {shape.spark})"
    if isinstance(shape, Leaf):
        return f"CAST({_scalar(shape, found, value)} AS {shape.spark})"
    if isinstance(shape, Items) and isinstance(found, ArrayType):
        return f"transform({value}, {item} -> {_value(shape.item, found.elementType, item, depth + 1)})"
    if isinstance(shape, Entries) and isinstance(found, MapType):
        values = _value(shape.value, found.valueType, item, depth + 1)
        keys = _value(shape.key, found.keyType, key, depth + 1)
        values_read = f"transform_values({value}, ({key}, {item}) -> {values})"
        return f"transform_keys({values_read}, ({key}, {item}) -> {keys})"
    assert isinstance(shape, Record) and isinstance(found, StructType)
    types = {field.name: field.dataType for field in found.fields}
    parts = zip(shape.names, shape.fields, strict=True)
    fields = (f"{literal(n)}, {_value(s, types.get(n), f'{value}.{quoted(n)}', depth)}" for n, s in parts)
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


def _scalar(shape: Leaf, found: DataType, value: str) -> str:
    from pyspark.sql.types import LongType

    return _FROM_MICROS[shape.kind].format(value) if isinstance(found, LongType) else value


def _is_composed(shape: Shape) -> bool:
    """Returns whether CAST does not return the declared value for each type that fits."""
    has_records = isinstance(shape, Record) or any(map(_is_composed, parts_of(shape)))
    return has_records or any(leaf.kind in _FROM_MICROS for leaf in leaves_of(shape))
