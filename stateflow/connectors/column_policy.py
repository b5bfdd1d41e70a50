"""Compares the declared columns of a source or sink with the columns of the table, file or topic. Imports no Spark.

`ColumnPolicy` says what happens when they differ, `check_source_columns` compares the columns of a source with those
that Spark reads, and `select_declared` reads them as values of the declared types, in SQL expressions. These take the
fields of a class by name; CAST of Spark takes those of a struct by position. Tables that have no type for a time of
day or a duration contain integers of microseconds, as `DeltaSink` writes them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape, leaves_of, parts_of
from stateflow.types.declared_types import decimal_holds, literal, quote_name

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True)
class ColumnPolicy:
    """How a source handles columns that differ from the row class.

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


@dataclass(frozen=True)
class FoundColumns:
    """The columns of a source.

    Attributes:
        names: their names, in order.
        types: their types as text, for errors.
        misfit: returns the path of the first part of a found column that cannot be read as the declared column: empty
            for the whole, None without one. It takes the declared column, and the position of the found one.
        compares_types: whether a misfit is refused; otherwise it only distinguishes a renamed column from another one.
    """

    names: Sequence[str]
    types: Sequence[str]
    misfit: Callable[[Column, int], str | None]
    compares_types: bool = True


def check_found_columns(found: FoundColumns, schema: RowSchema, policy: ColumnPolicy, path: str) -> None:
    """Compares declared columns with the columns of a source. Pure.

    Args:
        path: path of the source, or its description, for errors.

    Raises:
        SchemaMismatch: a column is missing, has another type, or is not declared; names the column.
    """
    added = sorted(set(found.names) - set(schema.names))
    if added and policy.added == "refuse":
        raise SchemaMismatch(
            "the source has columns that are not declared",
            hint="declare them in the row class, or ignore them with ColumnPolicy(added='ignore')",
            columns=added,
            path=path,
        )
    _refuse_renames(found, schema, path)
    positions = {name: at for at, name in enumerate(found.names)}
    for column in schema.columns:
        if column.name in positions:
            if found.compares_types:
                _check_type(column, positions[column.name], found, path)
        elif not column.nullable or policy.missing == "refuse":
            raise SchemaMismatch(
                "the source lacks a declared column",
                hint="correct the row class or the data; ColumnPolicy(missing='null') reads a nullable column as null",
                column=column.name,
                found=sorted(found.names),
                path=path,
            )


def _refuse_renames(found: FoundColumns, schema: RowSchema, path: str) -> None:
    """Raises SchemaMismatch for a column that seems to be one of the source under another name.

    Under a policy that reads missing columns as null, it would be null in all rows.
    """
    for at, column in schema.possible_renames(found.names):
        if found.misfit(column, at) is None:
            name = found.names[at]
            raise SchemaMismatch(
                "a column of the source seems to have been renamed in the row class",
                hint=f"name the field {name}, and rename it in a map; or declare {name} as well",
                column=name,
                renamed_to=column.name,
                position=at + 1,
                path=path,
            )


def _check_type(column: Column, at: int, found: FoundColumns, path: str) -> None:
    part = found.misfit(column, at)
    if part is not None:
        raise SchemaMismatch(
            "a column of the source has another type than declared",
            hint="correct the row class",
            column=column.name + part,
            declared=column.dtype,
            found=found.types[at],
            path=path,
        )


def columns_to_add(
    table: str, existing: Sequence[str], schema: RowSchema, has_type: Callable[[Column, int], bool]
) -> tuple[Column, ...]:
    """Returns the columns that the table of a sink lacks, in the order of the row class. Pure.

    Args:
        table: its name or path, for errors.
        existing: the names of its columns, in order.
        schema: the row class.
        has_type: returns whether the table's column at a position has the type of a declared one.

    Raises:
        SchemaMismatch: a column seems to have been renamed: the row class has another column of the same type in the
            place of a column of the table, which would be null from then on.
    """
    for at, column in schema.possible_renames(existing):
        if has_type(column, at):
            name = existing[at]
            raise SchemaMismatch(
                "a column of the sink's table seems to have been renamed in the row class",
                hint=f"keep the name {name}; or, to add {column.name} as a further column, declare both: "
                f"{name} as … | None = None",
                table=table,
                column=name,
                renamed_to=column.name,
                position=at + 1,
            )
    known = {name.lower() for name in existing}
    return tuple(column for column in schema.columns if column.name.lower() not in known)


_WIDER = {
    "bigint": {"int", "smallint", "tinyint"},
    "double": {"float", "int", "smallint", "tinyint"},
    # Parquet has no durations: Spark writes microseconds, as Arrow does.
    "interval day to second": {"bigint"},
}
"""Narrower types in files that Spark reads as the declared type."""


_INTEGERS = {"tinyint": 10, "smallint": 10, "int": 10}
"""The digits that a Decimal needs to contain an integer of a type, for Spark."""


def check_source_columns(
    found: StructType, schema: RowSchema, policy: ColumnPolicy, path: str, *, compares_types: bool = True
) -> None:
    """Compares declared columns with the columns of a source.

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
    if isinstance(found, DecimalType):
        return decimal_holds(shape.arrow, found)
    return bool(name in _INTEGERS and shape.arrow.precision - shape.arrow.scale >= _INTEGERS[name])


_FROM_MICROS = {datetime.time: "time_from_micros({})", datetime.timedelta: "({} * INTERVAL '0.000001' SECOND)"}
"""Expressions of values that are stored as integers, by their declared type."""


def select_declared(found: StructType, schema: RowSchema) -> list[str]:
    """Returns the expressions of the declared columns of a frame; a column that it lacks is null.

    Args:
        found: the columns of the frame, whose types fit the declared ones.
        schema: the declared columns.
    """
    types = {field.name.lower(): field.dataType for field in found.fields}
    return [
        f"{_value(c.shape, types.get(c.name.lower()), quote_name(c.name))} AS {quote_name(c.name)}"
        for c in schema.columns
    ]


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
    fields = (f"{literal(n)}, {_value(s, types.get(n), f'{value}.{quote_name(n)}', depth)}" for n, s in parts)
    return f"CASE WHEN {value} IS NOT NULL THEN named_struct({', '.join(fields)}) END"


def _scalar(shape: Leaf, found: DataType, value: str) -> str:
    from pyspark.sql.types import LongType

    return _FROM_MICROS[shape.kind].format(value) if isinstance(found, LongType) else value


def _is_composed(shape: Shape) -> bool:
    """Returns whether CAST does not return the declared value for each type that fits."""
    has_records = isinstance(shape, Record) or any(map(_is_composed, parts_of(shape)))
    return has_records or any(leaf.kind in _FROM_MICROS for leaf in leaves_of(shape))
