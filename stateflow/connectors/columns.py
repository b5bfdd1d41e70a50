"""Compares the declared columns of a source with those that Spark reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape

_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
    # Parquet has no durations: Spark writes microseconds, as Arrow does.
    "interval day to second": {"bigint"},
}
"""Narrower types in files that Spark reads as the declared type."""


_INTEGERS = {"tinyint": 10, "smallint": 10, "int": 10}
"""The digits that a Decimal needs to contain an integer of a type, for Spark."""


@dataclass(frozen=True)
class ColumnPolicy:
    """How the start of a run handles Parquet files whose columns differ from those of the row class.

    Args:
        added: the policy for columns that only the files have: ignore them, or refuse to start.
        missing: the policy for columns that only the row class has: refuse to start, or read them as null. A column
            that must not be null is always refused.

    Raises:
        ConfigError: a value is not one of these.
    """

    added: Literal["ignore", "refuse"] = "ignore"
    missing: Literal["refuse", "null"] = "refuse"

    def __post_init__(self) -> None:
        if self.added not in ("ignore", "refuse") or self.missing not in ("refuse", "null"):
            raise ConfigError(
                "a value of ColumnPolicy is not supported",
                hint="added: ignore or refuse; missing: refuse or null",
                added=self.added,
                missing=self.missing,
            )


def check_columns(found: StructType, schema: RowSchema, policy: ColumnPolicy, path: str) -> None:
    """Compares declared columns with those of a source.

    Args:
        found: the columns of the source, as Spark reads them.
        path: path of the source, or its description, for errors.

    Raises:
        SchemaMismatch: a column is missing, has another type, or is not declared; names the column.
    """
    types = {field.name: field.dataType for field in found.fields}
    added = sorted(types.keys() - set(schema.names))
    if added and policy.added == "refuse":
        raise SchemaMismatch(
            "the source has columns that are not declared",
            hint="declare them in the row class, or ignore them with ColumnPolicy(added='ignore')",
            columns=added,
            path=path,
        )
    _refuse_renames(found, schema, path)
    for column in schema.columns:
        if column.name in types:
            _check_type(column, types[column.name], path)
        elif not column.nullable or policy.missing == "refuse":
            raise SchemaMismatch(
                "the source lacks a declared column",
                hint="correct the row class or the data; ColumnPolicy(missing='null') reads a nullable column as null",
                column=column.name,
                found=sorted(types),
                path=path,
            )


def _refuse_renames(found: StructType, schema: RowSchema, path: str) -> None:
    """Raises SchemaMismatch for a column that seems to be one of the source under another name.

    Under a policy that reads missing columns as null, it would be null in all rows.
    """
    for at, column in schema.possible_renames(found.names):
        field = found.fields[at]
        if _misfit(column.shape, field.dataType) is None:
            raise SchemaMismatch(
                "a column of the source seems to have been renamed in the row class",
                hint=f"name the field {field.name}, and rename it in a map; or declare {field.name} as well",
                column=field.name,
                renamed_to=column.name,
                position=at + 1,
                path=path,
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


def _check_type(column: Column, found: DataType, path: str) -> None:
    part = _misfit(column.shape, found)
    if part is not None:
        raise SchemaMismatch(
            "a column of the source has another type than declared",
            hint="correct the row class",
            column=column.name + part,
            declared=column.dtype,
            found=found.simpleString(),
            path=path,
        )


def _misfit(shape: Shape, found: DataType) -> str | None:
    """Returns the path of the first part that Spark does not read as declared: empty for the whole, None without one.

    Spark finds the fields of a class by name: files may have more of them, and lack nullable ones.
    """
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
    name = found.simpleString()
    if name == shape.spark or name in _WIDER.get(shape.spark, ()):
        return True
    if not pa.types.is_decimal(shape.arrow):
        return False
    whole = shape.arrow.precision - shape.arrow.scale
    if isinstance(found, DecimalType):
        return bool(found.scale <= shape.arrow.scale and found.precision - found.scale <= whole)
    return bool(name in _INTEGERS and whole >= _INTEGERS[name])
