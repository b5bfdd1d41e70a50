"""Compares the declared columns of a source with those that Spark reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.connectors.columns.column_policy import ColumnPolicy, FoundColumns, check_found_columns
from stateflow.errors import SchemaMismatch
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
    # Parquet has no durations: Spark writes microseconds, as Arrow does.
    "interval day to second": {"bigint"},
}
"""Narrower types in files that Spark reads as the declared type."""


_INTEGERS = {"tinyint": 10, "smallint": 10, "int": 10}
"""The digits that a Decimal needs to contain an integer of a type, for Spark."""


def check_columns(
    found: StructType, schema: RowSchema, policy: ColumnPolicy, path: str, *, compares_types: bool = True
) -> None:
    """Compares declared columns with those of a source.

    Args:
        found: the columns of the source, as Spark reads them.
        path: path of the source, or its description, for errors.
        compares_types: as `FoundColumns.compares_types`.

    Raises:
        SchemaMismatch: a column is missing, has another type, or is not declared; names the column.
    """
    check_found_columns(
        FoundColumns(
            names=[field.name for field in found.fields],
            types=[field.dataType.simpleString() for field in found.fields],
            misfit=lambda column, at: _misfit(column.shape, found.fields[at].dataType),
            compares_types=compares_types,
        ),
        schema,
        policy,
        path,
    )


def check_header(found: Sequence[str], schema: RowSchema, file: str) -> None:
    """Compares the header of a CSV file with the declared columns, which Spark takes by position.

    Args:
        found: the names in the header.
        file: path of the file, for errors.

    Raises:
        SchemaMismatch: the names, or their order, differ by more than case.
    """
    if [name.lower() for name in found] == [name.lower() for name in schema.names]:
        return
    raise SchemaMismatch(
        "the header of a CSV file has other columns than declared, and Spark takes columns by position",
        hint="declare the fields in the order of the file, with its names; to take columns by position under other "
        'names, set the option enforceSchema="true"',
        declared=list(schema.names),
        found=list(found),
        path=file,
    )


def _misfit(shape: Shape, found: DataType) -> str | None:
    """Returns the path of the first part that Spark does not read as declared: empty for the whole, None without one.

    Spark finds the fields of a class by name: files may have more of them, and lack nullable ones.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(shape, Items) and isinstance(found, ArrayType):
        return _within("[]", _misfit(shape.item, found.elementType))
    if isinstance(shape, Entries) and isinstance(found, MapType):
        in_key = _misfit(shape.key, found.keyType)
        return in_key if in_key is not None else _within("[]", _misfit(shape.value, found.valueType))
    if isinstance(shape, Record) and isinstance(found, StructType):
        types = {field.name: field.dataType for field in found.fields}
        for name, part in zip(shape.names, shape.fields, strict=True):
            if name not in types and part.nullable:
                continue
            inner = _misfit(part, types[name]) if name in types else ""
            if inner is not None:
                return f".{name}{inner}"
        return None
    return None if isinstance(shape, Leaf) and _is_read_as(shape, found) else ""


def _within(prefix: str, path: str | None) -> str | None:
    return None if path is None else prefix + path


def _is_read_as(shape: Leaf, found: DataType) -> bool:
    """Returns whether Spark reads a Parquet column of one type as another."""
    from pyspark.sql.types import DecimalType

    name = found.simpleString()
    if name == shape.spark or name in _WIDER.get(shape.spark, ()):
        return True
    if not pa.types.is_decimal(shape.arrow):
        return False
    whole = shape.arrow.precision - shape.arrow.scale
    if isinstance(found, DecimalType):
        return bool(found.scale <= shape.arrow.scale and found.precision - found.scale <= whole)
    return bool(name in _INTEGERS and whole >= _INTEGERS[name])
