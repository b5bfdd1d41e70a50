"""Checks whether a sink can write to an existing table so that the table has exactly its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.postgres.catalog import Relation
from stateflow.connectors.postgres.column_types import postgres_type, target_field
from stateflow.connectors.postgres.settings import PostgresSettings
from stateflow.errors import SchemaMismatch, SinkRefused
from stateflow.types.columns.shapes import Shape

_TABLES = ("r", "p")
_PERMANENT = "p"


@dataclass(frozen=True)
class _Refusal:
    """Why a table is refused, and what changes that."""

    reason: str
    hint: str
    facts: dict[str, object]


def check_relation(settings: PostgresSettings, relation: Relation, schema: RowSchema) -> None:
    """Checks a table.

    Args:
        schema: the columns that the sink writes.

    Raises:
        SinkRefused: a property of the table would change, hide or lose rows, or make each insert fail.
        SchemaMismatch: columns are missing, or cannot have all values of the rows.
    """
    for refusal in _refusals(settings, relation, schema):
        raise SinkRefused(
            f"the table in PostgreSQL cannot be written to: {refusal.reason}",
            hint=refusal.hint,
            table=settings.location,
            **refusal.facts,
        )
    misfits = [column.name for column in schema.columns if _target(relation, column) is None]
    if misfits:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the table in PostgreSQL",
            hint="change the row class, or the table with ALTER TABLE",
            table=settings.location,
            declared={name: postgres_type(_shape(schema, name)) for name in misfits},
            found={name: column.type if (column := relation.column(name)) else None for name in misfits},
        )


def target_schema(relation: Relation, schema: RowSchema) -> pa.Schema:
    """Returns the columns of rows as a table stores them, for `assign`; one that it lacks may be null."""
    own = {field.name: field.with_nullable(True) for field in schema.arrow}
    return pa.schema([_target(relation, column) or own[column.name] for column in schema.columns])


def _target(relation: Relation, column: Column) -> pa.Field | None:
    found = relation.column(column.name)
    return None if found is None else target_field(column, found.type, found.is_required)


def _shape(schema: RowSchema, name: str) -> Shape:
    return schema.column(name).shape


def _refusals(settings: PostgresSettings, relation: Relation, schema: RowSchema) -> Iterator[_Refusal]:
    yield from _kind_refusals(settings, relation)
    yield from _column_refusals(relation, schema)
    if settings.upsert is not None and frozenset(settings.upsert.keys) not in relation.unique:
        keys = list(settings.upsert.keys)
        hint = f"ALTER TABLE {settings.name} ADD PRIMARY KEY ({', '.join(keys)})"
        yield _Refusal("no unique index has exactly the keys of the upsert", hint, {"keys": keys})


def _kind_refusals(settings: PostgresSettings, relation: Relation) -> Iterator[_Refusal]:
    name = settings.name
    if relation.kind not in _TABLES:
        yield _Refusal("it is a view, a foreign table or the like", "use a table", {"relkind": relation.kind})
    if relation.persistence != _PERMANENT:
        reason = "a crash of the server would empty it, but not the sink's token"
        yield _Refusal(reason, f"ALTER TABLE {name} SET LOGGED", {"property": "UNLOGGED"})
    if relation.has_rules:
        yield _Refusal("a rule may rewrite statements", "use a trigger instead of the rule", {"property": "RULE"})
    if settings.upsert is not None and relation.hides_rows:
        hint = f"ALTER TABLE {name} DISABLE ROW LEVEL SECURITY, or use a role with BYPASSRLS"
        yield _Refusal("row security may hide rows of a key", hint, {"property": "ROW LEVEL SECURITY"})
    needed = {"SELECT", "INSERT", "UPDATE", "DELETE"} if settings.upsert else {"INSERT"}
    if missing := sorted(needed - relation.privileges):
        hint = f"GRANT {', '.join(missing)} ON {name} TO the sink's user"
        yield _Refusal("privileges are missing", hint, {"privileges": missing})


def _column_refusals(relation: Relation, schema: RowSchema) -> Iterator[_Refusal]:
    declared = {column.name: column for column in schema.columns}
    for column in relation.columns:
        facts: dict[str, object] = {"column": column.name}
        ours = declared.get(column.name)
        if ours is None and not column.may_be_omitted:
            yield _Refusal("a required column is not in the rows", "give it a default, or declare it", facts)
        if ours is not None and not column.is_insertable:
            reason = "the values of a column of the rows are generated"
            yield _Refusal(reason, "remove the column from the row class", facts)
