"""Transactions of a PostgreSQL sink: bounded in time, durable when committed, with errors that users can act on."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from stateflow import failpoints
from stateflow.connectors.postgres.settings import PostgresSettings
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
        "a statement of the sink was refused by PostgreSQL",
        hint="correct the table, its constraints or privileges; the next run publishes the same rows again",
        **named,
    )
