"""Transactions of a PostgreSQL sink, and the token that each of them writes.

A transaction is bounded in time, durable when committed, and has errors that users can act on. Tokens are in a table
next to the one that the sink writes to, and identify that table, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from stateflow import failpoints
from stateflow.connectors.postgres.target import TOKENS, UNDO, PostgresSettings
from stateflow.errors import SinkRefused, StateflowError, StorageError

Connection = psycopg.Connection[tuple[Any, ...]]


_CONNECT_SECONDS = 10
_LOCK_TIMEOUT, _IDLE_TIMEOUT = timedelta(seconds=60), timedelta(seconds=30)
"""A driver that hangs in a transaction loses it before the next one gives up waiting for its locks."""
_SECONDS_BEYOND_STATEMENT = 10
"""The server's own timeout comes first, whose error says more."""
_OPTIONS: dict[str, str | int] = {
    "connect_timeout": _CONNECT_SECONDS,
    "application_name": "stateflow",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "client_encoding": "utf8",
}
_SESSION = {
    # Texts of values must not depend on settings of the server or the user.
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    # So that the locks of a host that is gone are released.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
_CONFLICTS = frozenset({"40001", "40P01"})
"""SQLSTATE of a serialization failure, and of a deadlock."""
_TEMPORARY = ("08", "25P03", "40", "53", "55P03", "57", "58", "XX")
"""Beginnings of the SQLSTATE of errors that a retry may not have."""


class TransactionUnknown(Exception):
    """The transaction conflicted, or its connection was lost while it was committed: read the token again."""


@contextlib.contextmanager
def transaction(settings: PostgresSettings, read_only: bool = False) -> Iterator[Connection]:
    """Yields a connection in a transaction, which is committed at the end, or rolled back if the block raises.

    Raises:
        StorageError: the server cannot be reached, lost the connection, or was too slow.
        SinkRefused: the server refused a statement.
        TransactionUnknown: whether the transaction was committed is not known, or it conflicted with another one.
    """
    is_committing = False
    try:
        with _connected(settings) as connection, _deadline(connection, settings):
            connection.read_only = read_only
            connection.isolation_level = (
                psycopg.IsolationLevel.REPEATABLE_READ if read_only else psycopg.IsolationLevel.READ_COMMITTED
            )
            _begin(connection, settings.timeout)
            yield connection
            if not read_only:
                failpoints.hit("postgres.before-commit")
            is_committing = True
            connection.commit()
    except psycopg.Error as e:
        if not read_only and (e.sqlstate in _CONFLICTS or (is_committing and _is_temporary(e))):
            raise TransactionUnknown from e
        raise _translated(e, settings) from e


@contextlib.contextmanager
def _connected(settings: PostgresSettings) -> Iterator[Connection]:
    options = psycopg.conninfo.conninfo_to_dict(settings.conninfo)
    given: dict[str, str | int] = {name: value for name, value in _OPTIONS.items() if name not in options}
    if settings.password:
        given["password"] = settings.password
    if "PGCONNECT_TIMEOUT" in os.environ:
        given.pop("connect_timeout", None)
    # Not prepared: poolers may change the server's process between transactions.
    conninfo = psycopg.conninfo.make_conninfo(settings.conninfo, **given)
    connection = psycopg.connect(conninfo, prepare_threshold=None)
    try:
        yield connection
    finally:
        # Closing rolls back.
        connection.close()


@contextlib.contextmanager
def _deadline(connection: Connection, settings: PostgresSettings) -> Iterator[None]:
    """Cuts the connection if the server has not answered in time, also when its process hangs."""

    def cut() -> None:
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(settings.timeout.total_seconds() + _SECONDS_BEYOND_STATEMENT, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _begin(connection: Connection, timeout: timedelta) -> None:
    milliseconds = {
        "statement_timeout": timeout,
        "lock_timeout": min(timeout / 2, _LOCK_TIMEOUT),
        "idle_in_transaction_session_timeout": min(timeout, _IDLE_TIMEOUT),
    }
    # First, and by its full name: a function or an operator that others have made in a schema of the user's path would
    # otherwise run with the rights of the sink.
    connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)")
    values = _SESSION | {name: str(int(value.total_seconds() * 1000)) for name, value in milliseconds.items()}
    calls = sql.SQL(", ").join(sql.SQL("set_config({}, {}, true)").format(n, v) for n, v in values.items())
    connection.execute(sql.SQL("SELECT {}").format(calls))
    _require_durability(connection)


def _require_durability(connection: Connection) -> None:
    """Lets a COMMIT return when a crash of the server no longer undoes it: the job's log relies on it."""
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
    )


def _is_temporary(error: psycopg.Error) -> bool:
    return error.sqlstate is None or error.sqlstate.startswith(_TEMPORARY)


def _translated(error: psycopg.Error, settings: PostgresSettings) -> StateflowError:
    """Returns the error of stateflow. Messages of the server have no password."""
    diagnostics = error.diag
    facts = {
        "table": settings.location,
        "reason": (diagnostics.message_primary or str(error).strip())[:500],
        "sqlstate": error.sqlstate or "",
        "detail": (diagnostics.message_detail or "")[:500],
        "constraint": diagnostics.constraint_name or "",
        "column": diagnostics.column_name or "",
        "context": (diagnostics.context or "")[:500],
    }
    named = {name: value for name, value in facts.items() if value}
    if _is_temporary(error):
        return StorageError(
            "the PostgreSQL server failed or did not respond",
            hint="check the server, the address, and the password in the environment or the password file",
            **named,
        )
    return SinkRefused(
        "PostgreSQL refused a statement of the sink",
        hint="correct the table, its constraints or privileges; the next run publishes the same rows again",
        **named,
    )


_TAKEN_OVER = "#taken-over"
"""Ends the name in the row of an application that must no longer write; the row has its successor as id."""
_IDENTITY = ""
"""In place of an application: the row that has the id of the table."""
_COLUMNS = {
    TOKENS: (
        "table_oid bigint NOT NULL",
        "application text NOT NULL",
        "table_id text NOT NULL",
        "token bigint NOT NULL",
        "version bigint NOT NULL",
    ),
    UNDO: (
        "table_oid bigint NOT NULL",
        "application text NOT NULL",
        "version bigint NOT NULL",
        "token bigint NOT NULL",
        "at timestamp with time zone NOT NULL",
        "key jsonb",
        "former jsonb",
    ),
}
"""The columns of the sink's own tables, as PostgreSQL names their types."""
_CREATE = sql.SQL("CREATE TABLE IF NOT EXISTS {table} ({columns}{constraint})")
_PRIMARY_KEY = sql.SQL(", PRIMARY KEY (table_oid, application)")
# Whatever runs code or hides rows when the sink uses the table, if another role has made it: the code would have the
# rights of the sink. A trusted owner is the only one who can add such a thing later.
_FOUND = """
SELECT c.relname::text,
       ARRAY(SELECT concat(attname, ' ', format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN ' NOT NULL' END)
             FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
       pg_get_userbyid(c.relowner)::text,
       array_remove(ARRAY[
           CASE WHEN c.relkind <> 'r' OR c.relpersistence <> 'p' THEN 'no permanent table' END,
           CASE WHEN NOT (c.relowner = me.oid OR o.rolsuper OR (NOT me.rolsuper AND pg_has_role(c.relowner, 'MEMBER'))
                          OR c.relowner IN (SELECT relowner FROM pg_class WHERE oid = %(oid)s)) THEN 'owner' END,
           CASE WHEN EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid) THEN 'trigger' END,
           CASE WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid) THEN 'rule' END,
           CASE WHEN c.relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = c.oid) THEN 'row security' END,
           CASE WHEN EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)) THEN 'inheritance' END,
           CASE WHEN EXISTS (SELECT FROM pg_attrdef WHERE adrelid = c.oid) THEN 'default' END,
           CASE WHEN EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attidentity <> '') THEN 'identity' END,
           CASE WHEN EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype NOT IN ('p', 'n'))
                THEN 'constraint' END,
           CASE WHEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND num_nulls(indexprs, indpred) < 2)
                THEN 'index' END
       ], NULL)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles o ON o.oid = c.relowner
JOIN pg_roles me ON me.rolname = current_user
WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
"""
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
_END = sql.SQL(
    "INSERT INTO {tokens} VALUES ({oid}, {application}, {successor}, 0, 0) ON CONFLICT (table_oid, application) "
    "DO UPDATE SET table_id = excluded.table_id"
)
_UPDATE = sql.SQL(
    "UPDATE {tokens} SET token = {token}, version = {version} WHERE table_oid = {oid} AND application = {name}"
)
_OTHERS = sql.SQL(
    "SELECT DISTINCT split_part(application, '/', 1) FROM {tokens} "
    "t WHERE table_oid = {oid} AND token > 0 AND substr(application, strpos(application, '/') + 1) = {uid} "
    "AND NOT EXISTS (SELECT FROM {tokens} u WHERE u.table_oid = {oid} AND u.application = t.application || {ended})"
)


@dataclass(frozen=True)
class TokenRow:
    """The row of a sink in the token table.

    Attributes:
        table_id: id of the table; empty if no sink has prepared it.
        token: the last published checkpoint.
        version: how often the sink has published or rewound.
        successor: the sink that has taken over the table; empty if none has.
        others: before the sink's first publication, the jobs whose sink of the same uid has published.
    """

    table_id: str
    token: int
    version: int
    successor: str = ""
    others: frozenset[str] = frozenset()


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

    def read(self, connection: Connection, application: str, lock: bool = False) -> TokenRow:
        """Returns the position of an application.

        Args:
            lock: let no other transaction change it before the end of this one.
        """
        identity = self._row(connection, _IDENTITY, lock=False)
        found = self._row(connection, application, lock)
        # After the lock, which the transaction of a successor holds.
        successor = self._row(connection, application + _TAKEN_OVER, lock=False)
        others = frozenset() if found.token else self.other_jobs(connection, application.partition("/")[2])
        return TokenRow(identity.table_id, found.token, found.version, successor.table_id, others)

    def _row(self, connection: Connection, application: str, lock: bool) -> TokenRow:
        query = _SELECT.format(tokens=self._name, oid=self.oid, name=application)
        row = connection.execute(query + sql.SQL(" FOR UPDATE") if lock else query).fetchone()
        return TokenRow(*row) if row else TokenRow("", 0, 0)

    def insert(self, connection: Connection, application: str, table_id: str) -> None:
        """Creates the row of an application, unless it exists."""
        connection.execute(_INSERT.format(tokens=self._name, oid=self.oid, application=application, table_id=table_id))

    def identify(self, connection: Connection, table_id: str) -> None:
        """Gives the table its id, unless it has one."""
        self.insert(connection, _IDENTITY, table_id)

    def lock_first(self, connection: Connection) -> None:
        """Lets no other application publish for the first time before the end of this transaction."""
        self._row(connection, _IDENTITY, lock=True)

    def set(self, connection: Connection, application: str, token: int, version: int) -> None:
        """Sets the token of an application."""
        query = _UPDATE.format(tokens=self._name, oid=self.oid, name=application, token=token, version=version)
        connection.execute(query)

    def end(self, connection: Connection, application: str, successor: str) -> None:
        """Records that another application has taken over the table from one whose row is locked."""
        name = application + _TAKEN_OVER
        # The newest successor, which may have taken over from the one before as well.
        query = _END.format(tokens=self._name, oid=self.oid, application=name, successor=successor)
        connection.execute(query)

    def other_jobs(self, connection: Connection, uid: str) -> frozenset[str]:
        """Returns the ids of jobs whose sink of that uid has published, and still may."""
        query = _OTHERS.format(tokens=self._name, oid=self.oid, uid=uid, ended=_TAKEN_OVER)
        return frozenset(job for (job,) in connection.execute(query))


def create_own_tables(connection: Connection, schema: str, with_undo: bool) -> None:
    """Creates the tables that the sink needs in a schema, unless they exist."""
    for name in (TOKENS, UNDO) if with_undo else (TOKENS,):
        # Not identifiers: the columns come from this module.
        columns = sql.SQL(", ".join(_COLUMNS[name]))
        constraint = _PRIMARY_KEY if name == TOKENS else sql.SQL("")
        table = sql.Identifier(schema, name)
        connection.execute(_CREATE.format(table=table, columns=columns, constraint=constraint))
    if with_undo:
        names = {"index": sql.Identifier(f"{UNDO}_version"), "undo": sql.Identifier(schema, UNDO)}
        connection.execute(_INDEX_UNDO.format(**names))


def own_tables_exist(connection: Connection, settings: PostgresSettings, oid: int | None, with_undo: bool) -> bool:
    """Returns whether the tables that the sink needs exist; to be called in each transaction that uses them.

    Args:
        oid: of the sink's table, whose owner may own them; None for no such table.
        with_undo: whether the table of former rows is needed.

    Raises:
        SinkRefused: a table of such a name is not as the sink creates it, or belongs to a role that the sink's role is
            not a member of.
    """
    names = [TOKENS, UNDO] if with_undo else [TOKENS]
    parameters = {"schema": settings.name.schema, "names": names, "oid": oid}
    found = connection.execute(_FOUND, parameters).fetchall()
    for name, columns, owner, differences in found:
        if differences or tuple(columns) != _COLUMNS[name]:
            raise SinkRefused(
                "a table of a PostgreSQL sink differs from its definition, and may run another role's code",
                hint=f"look at it, and drop it if you do not know it; let the sink's role create and own {name}",
                table=settings.location,
                found=f"{settings.name.schema}.{name}",
                owner=owner,
                properties=differences or ["columns"],
            )
    return len(found) == len(names)
