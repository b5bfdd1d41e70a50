"""What PostgreSQL's catalog says about a sink's table."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.connectors.postgres.connection import Connection
from stateflow.connectors.postgres.settings import TableName

_TABLE = """
SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relhasrules, row_security_active(c.oid),
       ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p WHERE has_table_privilege(c.oid, p))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, attgenerated <> '', attidentity::text, atthasdef
FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_UNIQUE = """
SELECT ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
             JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.n <= i.indnkeyatts)
FROM pg_index i
WHERE indrelid = %s AND indisunique AND indimmediate AND indisvalid AND indpred IS NULL AND indexprs IS NULL
"""
_SCHEMA = """
SELECT has_schema_privilege(oid, 'USAGE'), has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s
"""


@dataclass(frozen=True)
class TableColumn:
    """A column.

    Attributes:
        type: as ``format_type`` names it.
        identity: ``a`` if its values are always generated, ``d`` by default, empty otherwise.
    """

    name: str
    type: str
    is_required: bool
    is_generated: bool
    identity: str
    has_default: bool

    @property
    def is_insertable(self) -> bool:
        """Whether an insert may give its value."""
        return not self.is_generated and self.identity != "a"

    @property
    def may_be_omitted(self) -> bool:
        """Whether an insert need not give its value."""
        return not self.is_required or self.is_generated or self.has_default or bool(self.identity)


@dataclass(frozen=True)
class Relation:
    """A table, or something else of its name.

    Attributes:
        oid: its number, which no other one gets.
        kind: ``r`` for a table, ``p`` for a partitioned one.
        persistence: ``p`` if it survives a crash of the server.
        has_rules: whether statements are rewritten.
        hides_rows: whether row security applies to the sink's user.
        privileges: those of the sink's user.
        columns: in order.
        unique: the columns of each index that permits upserts.
    """

    oid: int
    kind: str
    persistence: str
    has_rules: bool
    hides_rows: bool
    privileges: frozenset[str]
    columns: tuple[TableColumn, ...]
    unique: frozenset[frozenset[str]]

    def column(self, name: str) -> TableColumn | None:
        """Returns a column; None if there is none of that name."""
        return next((column for column in self.columns if column.name == name), None)


def read_relation(connection: Connection, name: TableName) -> Relation | None:
    """Returns what a name refers to; None for nothing."""
    found = connection.execute(_TABLE, (name.schema, name.table)).fetchone()
    if found is None:
        return None
    oid, kind, persistence, has_rules, hides_rows, privileges = found
    columns = connection.execute(_COLUMNS, (oid,)).fetchall()
    unique = connection.execute(_UNIQUE, (oid,)).fetchall()
    return Relation(
        oid=oid,
        kind=kind,
        persistence=persistence,
        has_rules=has_rules,
        hides_rows=hides_rows,
        privileges=frozenset(privileges),
        columns=tuple(TableColumn(*column) for column in columns),
        unique=frozenset(frozenset(names) for (names,) in unique),
    )


def schema_privileges(connection: Connection, schema: str) -> tuple[bool, bool] | None:
    """Returns whether the sink's user may use a schema, and create tables there; None if it does not exist."""
    found = connection.execute(_SCHEMA, (schema,)).fetchone()
    return None if found is None else (found[0], found[1])
