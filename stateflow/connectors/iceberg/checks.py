"""Checks that an Iceberg table can have all rows of a sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.columns.column_policy import columns_to_add
from stateflow.connectors.columns.store_assignment import fits
from stateflow.connectors.iceberg.column_types import arrow_field, iceberg_type, table_schema, type_text
from stateflow.connectors.iceberg.connection import refusal_of
from stateflow.connectors.iceberg.partitions import new_spec, unknown_partition
from stateflow.connectors.iceberg.settings import ADD_COLUMNS, IcebergSettings
from stateflow.errors import JobDefinitionError, SchemaMismatch, SinkRefused

FORMAT_VERSION = 2


@dataclass(frozen=True)
class _Refusal:
    """Why a table is refused, and what changes that."""

    reason: str
    hint: str
    facts: dict[str, object]


def check_columns(settings: IcebergSettings, schema: RowSchema) -> None:
    """Raises JobDefinitionError for rows without columns, of which no file can be made, and for unusable partitions."""
    if not schema.names:
        raise JobDefinitionError("a table needs at least one column", row_class=schema.row_class.__name__)
    new_spec(settings.partition_by, table_schema(schema), schema)


def check_table(settings: IcebergSettings, table: Table, schema: RowSchema) -> tuple[Column, ...]:
    """Checks a table; returns the columns that have to be added to it.

    Args:
        schema: the columns of the rows.

    Raises:
        SinkRefused: a property of the table would make commits fail or readers fail.
        SchemaMismatch: columns are missing or have other types.
    """
    for refusal in _refusals(table, schema):
        raise SinkRefused(
            f"the Iceberg table cannot be written to: {refusal.reason}",
            hint=refusal.hint,
            table=settings.location,
            **refusal.facts,
        )
    fields = {field.name: field for field in table.schema().fields}
    added = _columns_to_add(settings, table.schema(), schema) if settings.schema_evolution == ADD_COLUMNS else ()
    expected = [column for column in schema.columns if column not in added]
    misfits = [c.name for c in expected if c.name not in fields or not _may_store(fields[c.name], c)]
    if misfits:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the Iceberg table",
            hint='change the row class or the table; schema_evolution="add-columns" adds missing columns',
            table=settings.location,
            declared={name: _type_of(schema.column(name)) for name in misfits},
            found={name: type_text(fields[name].field_type) if name in fields else None for name in misfits},
        )
    return added


def _columns_to_add(settings: IcebergSettings, table: Schema, schema: RowSchema) -> tuple[Column, ...]:
    fields = table.fields
    names = [field.name for field in fields]
    return columns_to_add(settings.location, names, schema, lambda column, at: _has_type(fields[at], column))


def _type_of(column: Column) -> str:
    return type_text(iceberg_type(column.shape))


def _has_type(field: NestedField, column: Column) -> bool:
    return type_text(field.field_type) == _type_of(column)


def _may_store(field: NestedField, column: Column) -> bool:
    try:
        return fits(column.arrow_type, arrow_field(field).type)
    except KeyError:
        return False


def _refusals(table: Table, schema: RowSchema) -> Iterator[_Refusal]:
    if table.format_version != FORMAT_VERSION:
        hint = f"ALTER TABLE … SET TBLPROPERTIES ('format-version' = '{FORMAT_VERSION}'), or use another table"
        yield _Refusal("its format has another version", hint, {"format_version": table.format_version})
    if (refusal := refusal_of(table)) is not None:
        hint = "remove the property, or correct the location; data files are always below the location of the table"
        yield _Refusal(refusal[0], hint, {"property": refusal[1]})
    unknown = unknown_partition(table.spec())
    if unknown is not None:
        hint = "replace the partition field, or use a newer version of pyiceberg"
        yield _Refusal("the values of a partition field cannot be computed", hint, {"partition": unknown})
    declared = {column.name: column for column in schema.columns}
    for field in table.schema().fields:
        facts: dict[str, object] = {"column": field.name}
        column = declared.get(field.name)
        if column is None and field.required:
            yield _Refusal("a required column is not in the rows", "declare it, or make it optional", facts)
