"""Creates a sink's table and the tables that the sink keeps next to it, checks them, and reads the sink's position."""

from __future__ import annotations

from psycopg import sql

from stateflow.api.schema import RowSchema
from stateflow.clock import SystemClock
from stateflow.connectors.postgres.catalog import Relation, read_relation, schema_privileges
from stateflow.connectors.postgres.checks import check_relation
from stateflow.connectors.postgres.connection import Connection, TransactionUnknown, transaction
from stateflow.connectors.postgres.settings import LONGEST_NAME, PostgresSettings
from stateflow.connectors.postgres.statements import create_table
from stateflow.connectors.postgres.tokens import Position, TokenTable, create_own_tables, own_tables_exist
from stateflow.errors import JobDefinitionError, SinkDiverged, SinkRefused, StorageError

_LOCK = 0x5F5F_73F1
"""Number of the advisory lock under which tables are created: concurrent ones would fail."""
_TRIES = 5
_clock = SystemClock()


def check_table(settings: PostgresSettings, schema: RowSchema) -> tuple[Relation | None, str | None]:
    """Returns the table, None if it does not exist, and its id, None if it has none. Changes nothing.

    Raises:
        JobDefinitionError: a name of a column is too long.
        SinkRefused, SchemaMismatch: the table cannot be used, or not be created.
        StorageError: the server cannot be reached.
    """
    if not schema.names:
        raise JobDefinitionError("a table needs at least one column", row_class=schema.row_class.__name__)
    if cut := [name for name in schema.names if len(name.encode()) > LONGEST_NAME]:
        raise JobDefinitionError(
            "a column has a longer name than PostgreSQL keeps",
            hint="use a shorter name",
            columns=cut,
            limit=LONGEST_NAME,
        )
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        has_own = own_tables_exist(connection, settings, relation.oid if relation else None, settings.undo is not None)
        if relation is None or not has_own:
            _check_may_create(settings, connection)
        if relation is None:
            return None, None
        check_relation(settings, relation, schema)
        if not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            return relation, None
        return relation, TokenTable(settings.name.schema, relation.oid).read(connection, "").table_id or None


def prepare_table(settings: PostgresSettings, schema: RowSchema, application: str) -> str:
    """Creates what does not exist, after `check_table`; returns the id of the table. Raises as that does."""
    for _ in range(_TRIES):
        try:
            with transaction(settings) as connection:
                return _prepare(settings, connection, schema, application)
        except TransactionUnknown:
            # Whatever was created exists, or is created now.
            continue
    raise StorageError("the table in PostgreSQL could not be prepared", table=settings.location, tries=_TRIES)


def open_relation(settings: PostgresSettings, schema: RowSchema, application: str) -> tuple[Relation, Position]:
    """Returns the table and the position of the sink, both of one instant.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used.
        SinkDiverged: the table does not exist, or is another one.
    """
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        if relation is None:
            raise _diverged(settings, "the sink's table no longer exists")
        check_relation(settings, relation, schema)
        # Former rows do not matter for the position, and `undo` may be new.
        if not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            raise _diverged(settings, "the table with the sink's token no longer exists")
        position = TokenTable(settings.name.schema, relation.oid).read(connection, application)
        if not position.table_id:
            raise _diverged(settings, "the sink's table was replaced by another table")
        return relation, position


def other_jobs(settings: PostgresSettings, uid: str) -> frozenset[str]:
    """Returns the ids of all jobs whose sink of that uid has published to the table."""
    with transaction(settings, read_only=True) as connection:
        relation = read_relation(connection, settings.name)
        if relation is None or not own_tables_exist(connection, settings, relation.oid, with_undo=False):
            return frozenset()
        return TokenTable(settings.name.schema, relation.oid).other_jobs(connection, uid)


def _prepare(settings: PostgresSettings, connection: Connection, schema: RowSchema, application: str) -> str:
    relation = read_relation(connection, settings.name)
    has_own = own_tables_exist(connection, settings, relation.oid if relation else None, settings.undo is not None)
    if relation is None or not has_own:
        connection.execute(sql.SQL("SELECT pg_advisory_xact_lock({})").format(_LOCK))
        create_own_tables(connection, settings.name.schema, settings.undo is not None)
        relation = read_relation(connection, settings.name)
        if relation is None:
            create_table(connection, settings.name, schema, settings.upsert.keys if settings.upsert else ())
            relation = read_relation(connection, settings.name)
    if relation is None:
        raise StorageError("the table was created in PostgreSQL, but cannot be found", table=settings.location)
    check_relation(settings, relation, schema)
    # Another process may have created them meanwhile.
    if not own_tables_exist(connection, settings, relation.oid, settings.undo is not None):
        raise StorageError(
            "the sink's own tables were created in PostgreSQL, but cannot be found", table=settings.location
        )
    tokens = TokenTable(settings.name.schema, relation.oid)
    tokens.identify(connection, f"{relation.oid}-{_clock.new_id()}")
    table_id = tokens.read(connection, application).table_id
    tokens.insert(connection, application, table_id)
    return table_id


def _check_may_create(settings: PostgresSettings, connection: Connection) -> None:
    schema = settings.name.schema
    privileges = schema_privileges(connection, schema)
    if privileges is None or not all(privileges):
        raise SinkRefused(
            "the sink's tables cannot be created in PostgreSQL: "
            + ("the schema does not exist" if privileges is None else "privileges for the schema are missing"),
            hint=f"CREATE SCHEMA {schema}" if privileges is None else f"GRANT USAGE, CREATE ON SCHEMA {schema} TO …",
            table=settings.location,
            schema=schema,
        )


def _diverged(settings: PostgresSettings, message: str) -> SinkDiverged:
    return SinkDiverged(message, hint="restore it, or give the sink a new uid", table=settings.location)
