"""The token of each sink, in a table next to the one that it writes to; it identifies the table, too."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from stateflow.connectors.postgres.connection import Connection
from stateflow.connectors.postgres.settings import TOKENS, UNDO

_TAKEN_OVER = "#taken-over"
"""Ends the name in the row of an application that must no longer write; the row has its successor as id."""
_IDENTITY = ""
"""In place of an application: the row that has the id of the table."""
_CREATE = sql.SQL(
    """
CREATE TABLE IF NOT EXISTS {tokens} (
    table_oid bigint NOT NULL,
    application text NOT NULL,
    table_id text NOT NULL,
    token bigint NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (table_oid, application)
)"""
)
_CREATE_UNDO = sql.SQL(
    """
CREATE TABLE IF NOT EXISTS {undo} (
    table_oid bigint NOT NULL,
    application text NOT NULL,
    version bigint NOT NULL,
    token bigint NOT NULL,
    at timestamptz NOT NULL,
    key jsonb,
    former jsonb
)"""
)
_INDEX_UNDO = sql.SQL(
    """
CREATE INDEX IF NOT EXISTS {index} ON {undo} (table_oid, application, version)
"""
)
_INSERT = sql.SQL(
    "INSERT INTO {tokens} VALUES ({oid}, {application}, {table_id}, 0, 0) ON CONFLICT (table_oid, application) "
    "DO NOTHING"
)
_SELECT = sql.SQL("SELECT table_id, token, version FROM {tokens} WHERE table_oid = {oid} AND application = {name}")
_UPDATE = sql.SQL(
    "UPDATE {tokens} SET token = {token}, version = {version} WHERE table_oid = {oid} AND application = {name}"
)
_OTHERS = sql.SQL(
    "SELECT DISTINCT split_part(application, '/', 1) FROM {tokens} "
    "t WHERE table_oid = {oid} AND token > 0 AND substr(application, strpos(application, '/') + 1) = {uid} "
    "AND NOT EXISTS (SELECT FROM {tokens} u WHERE u.table_oid = {oid} AND u.application = t.application || {ended})"
)


@dataclass(frozen=True)
class Position:
    """What the token table has of a sink.

    Attributes:
        table_id: id of the table; empty if no sink has prepared it.
        token: the last published checkpoint.
        version: how often the sink has published or rewound.
        successor: the sink that has taken over the table; empty if none has.
    """

    table_id: str
    token: int
    version: int
    successor: str = ""


@dataclass(frozen=True)
class TokenTable:
    """The tokens of one table.

    Args:
        schema: of the table.
        oid: of the table.
    """

    schema: str
    oid: int

    @property
    def _name(self) -> sql.Identifier:
        return sql.Identifier(self.schema, TOKENS)

    def read(self, connection: Connection, application: str, lock: bool = False) -> Position:
        """Returns the position of an application.

        Args:
            lock: let no other transaction change it before the end of this one.
        """
        identity = self._row(connection, _IDENTITY, lock=False)
        found = self._row(connection, application, lock)
        # After the lock, which the transaction of a successor holds.
        successor = self._row(connection, application + _TAKEN_OVER, lock=False)
        return Position(identity.table_id, found.token, found.version, successor.table_id)

    def _row(self, connection: Connection, application: str, lock: bool) -> Position:
        query = _SELECT.format(tokens=self._name, oid=self.oid, name=application)
        row = connection.execute(query + sql.SQL(" FOR UPDATE") if lock else query).fetchone()
        return Position(*row) if row else Position("", 0, 0)

    def insert(self, connection: Connection, application: str, table_id: str) -> None:
        """Creates the row of an application, unless it exists."""
        connection.execute(_INSERT.format(tokens=self._name, oid=self.oid, application=application, table_id=table_id))

    def identify(self, connection: Connection, table_id: str) -> None:
        """Gives the table its id, unless it has one."""
        self.insert(connection, _IDENTITY, table_id)

    def set(self, connection: Connection, application: str, token: int, version: int) -> None:
        """Sets the token of an application."""
        query = _UPDATE.format(tokens=self._name, oid=self.oid, name=application, token=token, version=version)
        connection.execute(query)

    def end(self, connection: Connection, application: str, successor: str) -> None:
        """Records that another application has taken over the table from one whose row is locked."""
        self.insert(connection, application + _TAKEN_OVER, successor)

    def other_jobs(self, connection: Connection, uid: str) -> frozenset[str]:
        """Returns the ids of jobs whose sink of that uid has published, and still may."""
        query = _OTHERS.format(tokens=self._name, oid=self.oid, uid=uid, ended=_TAKEN_OVER)
        return frozenset(job for (job,) in connection.execute(query))


def create_own_tables(connection: Connection, schema: str, with_undo: bool) -> None:
    """Creates the tables that the sink needs in a schema, unless they exist."""
    connection.execute(_CREATE.format(tokens=sql.Identifier(schema, TOKENS)))
    if with_undo:
        connection.execute(_CREATE_UNDO.format(undo=sql.Identifier(schema, UNDO)))
        names = {"index": sql.Identifier(f"{UNDO}_version"), "undo": sql.Identifier(schema, UNDO)}
        connection.execute(_INDEX_UNDO.format(**names))


def own_tables_exist(connection: Connection, schema: str, with_undo: bool) -> bool:
    """Returns whether the tables that the sink needs exist."""
    names = [TOKENS, UNDO] if with_undo else [TOKENS]
    found = connection.execute(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = ANY(%s)",
        (schema, names),
    ).fetchone()
    return found is not None and found[0] == len(names)
