"""The statements that publish staged rows: a copy, and an upsert from a temporary table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from psycopg import sql

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.postgres.catalog import Relation
from stateflow.connectors.postgres.column_types import postgres_type, to_csv
from stateflow.connectors.postgres.connection import Connection
from stateflow.connectors.postgres.settings import TableName
from stateflow.connectors.upserts import UpsertSettings
from stateflow.types.columns.row_kind import RETRACTIONS
from stateflow.types.columns.shapes import Leaf

# Aliases begin as no field of a row class does: `t` would otherwise be a column of that name.
STAGED = sql.Identifier("pg_temp", "_sf_staged")
"""The temporary table with the rows of a checkpoint that change the table."""
_COPY = sql.SQL("COPY {table} ({columns}) FROM STDIN (FORMAT csv)")
_STAGE = sql.SQL("CREATE TEMPORARY TABLE _sf_staged ({columns}) ON COMMIT DROP")
_DELETE = sql.SQL("DELETE FROM {table} _sf_t USING {staged} _sf_s WHERE {same_key} AND {deleted}")
# In the order of keys, as other writers of many rows do it, so that fewer transactions deadlock.
_INSERT = sql.SQL(
    "INSERT INTO {table} AS _sf_t ({columns}) SELECT {columns} FROM {staged} _sf_s WHERE {kept} ORDER BY {keys} "
    "ON CONFLICT ({keys}) DO {action}"
)


def columns_of(names: Iterable[str]) -> sql.Composed:
    """Returns quoted names, with commas."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def same_key(keys: Iterable[str], left: str = "_sf_t", right: str = "_sf_s") -> sql.Composed:
    """Returns the condition that rows of two tables have the same key."""
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in keys
    )


def table_name(name: TableName) -> sql.Identifier:
    """Returns the quoted name of a table."""
    return sql.Identifier(name.schema, name.table)


def lock_table(connection: Connection, name: TableName, excludes_writers: bool) -> None:
    """Locks a table until the end of the transaction, so that it is not dropped or altered.

    Args:
        excludes_writers: whether other writers wait, too.
    """
    mode = sql.SQL("SHARE ROW EXCLUSIVE" if excludes_writers else "ROW EXCLUSIVE")
    connection.execute(sql.SQL("LOCK TABLE {} IN {} MODE").format(table_name(name), mode))


def copy_rows(connection: Connection, into: sql.Composable, rows: Iterable[pa.Table], names: Iterable[str]) -> None:
    """Copies rows into a table."""
    query = _COPY.format(table=into, columns=columns_of(names))
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        for part in rows:
            for data in to_csv(part):
                copy.write(data)


@dataclass(frozen=True)
class Upsert:
    """Replaces and deletes rows by key.

    Attributes:
        name: the table.
        settings: how rows are matched.
        schema: columns of the staged rows, with the one that marks deletes.
        relation: the table in the catalog.
    """

    name: TableName
    settings: UpsertSettings
    schema: RowSchema
    relation: Relation

    @property
    def table(self) -> sql.Identifier:
        """The quoted name of the table."""
        return table_name(self.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the sink writes."""
        return self.settings.table_schema(self.schema).names

    def stage(self, connection: Connection, winners: pa.Table) -> None:
        """Creates the temporary table."""
        columns = (
            sql.SQL("{} {}").format(sql.Identifier(column.name), _type(self._staged_type(column)))
            for column in self.schema.columns
        )
        connection.execute(_STAGE.format(columns=sql.SQL(", ").join(columns)))
        copy_rows(connection, STAGED, [winners], self.schema.names)
        # Without it, the planner knows nothing of the temporary table.
        connection.execute(sql.SQL("ANALYZE {}").format(STAGED))

    def apply(self, connection: Connection) -> None:
        """Changes the table as the temporary table says."""
        keys, deleted = self.settings.keys, self._deleted
        kept: sql.Composable = sql.SQL("true")
        if deleted is not None:
            kept = sql.SQL("({}) IS NOT TRUE").format(deleted)
            if self.settings.by_content:
                deleted = sql.SQL(" AND ").join([deleted, *map(_equal, self._other_columns)])
            marked = {"same_key": same_key(keys), "deleted": deleted}
            connection.execute(_DELETE.format(table=self.table, staged=STAGED, **marked))
        parts = {"table": self.table, "staged": STAGED, "columns": columns_of(self.columns), "kept": kept}
        connection.execute(_INSERT.format(**parts, keys=columns_of(keys), action=self._action))

    def _staged_type(self, column: Column) -> str:
        """Returns the type of a column of the temporary table: the type in the table if a value may differ from it."""
        found, own = self.relation.column(column.name), postgres_type(column.shape)
        # The sink knows no other types: `check_relation` has compared them.
        return found.type if found and isinstance(column.shape, Leaf) and own not in ("uuid", "text") else own

    @property
    def _deleted(self) -> sql.Composable | None:
        """The condition that a staged row deletes its key; None if no row does."""
        if self.settings.row_kind:
            kinds = sql.SQL(", ").join(sql.Literal(kind.value) for kind in RETRACTIONS)
            return sql.SQL("_sf_s.{} IN ({})").format(sql.Identifier(self.settings.row_kind), kinds)
        return sql.SQL("_sf_s.{}").format(sql.Identifier(self.settings.deletes)) if self.settings.deletes else None

    @property
    def _action(self) -> sql.Composable:
        others = self._other_columns
        if not others:
            return sql.SQL("NOTHING")
        changes = (sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column.name)) for column in others)
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(changes))

    @property
    def _other_columns(self) -> list[Column]:
        """The columns that the sink writes and that are not part of the key."""
        columns = self.settings.table_schema(self.schema).columns
        return [column for column in columns if column.name not in self.settings.keys]


def create_table(connection: Connection, name: TableName, schema: RowSchema, keys: Iterable[str]) -> None:
    """Creates a table for rows of `schema`, with a primary key of the `keys`."""
    keys = tuple(keys)
    columns = [
        sql.SQL("{} {}").format(sql.Identifier(column.name), _type(postgres_type(column.shape)))
        for column in schema.columns
    ]
    if keys:
        columns.append(sql.SQL("PRIMARY KEY ({})").format(columns_of(keys)))
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table_name(name), sql.SQL(", ").join(columns)))


def _equal(column: Column) -> sql.Composable:
    """Returns the condition that a column of the table has the value of the staged row."""
    own, staged = (sql.Identifier(side, column.name) for side in ("_sf_t", "_sf_s"))
    # An existing column may be json or text, which have no comparison with the type of the staged column.
    kind = {"jsonb": "::jsonb", "uuid": "::text"}.get(postgres_type(column.shape), "")
    equal = sql.SQL("{own}{kind} IS NOT DISTINCT FROM {staged}{kind}").format(own=own, staged=staged, kind=_type(kind))
    if column.nullable:
        return equal
    # The row may be older than the column.
    return sql.SQL("({} OR {} IS NULL)").format(equal, own)


def _type(name: str) -> sql.SQL:
    # Not an identifier: names of types have digits and several words. They come from this package.
    return sql.SQL(name)
