"""Creates a sink's Iceberg table, adds columns to it, checks it, and opens it."""

from __future__ import annotations

import logging

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, TableProperties

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.connectors.iceberg.checks import FORMAT_VERSION, check_columns, check_table
from stateflow.connectors.iceberg.column_types import iceberg_type, table_schema
from stateflow.connectors.iceberg.commits import Change, Commit
from stateflow.connectors.iceberg.connection import Connection
from stateflow.connectors.iceberg.history import version_of
from stateflow.connectors.iceberg.partitions import new_spec
from stateflow.connectors.iceberg.tokens import SnapshotToken, current_token
from stateflow.errors import SinkDiverged, SinkRefused, StorageError

_TRIES = 20
_NEW_TABLE = {
    TableProperties.FORMAT_VERSION: str(FORMAT_VERSION),
    # Each commit writes a metadata file and a manifest: both must not become more without end.
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
}
_logger = logging.getLogger(__name__)


def check(connection: Connection, schema: RowSchema) -> Table | None:
    """Returns the table if it exists; changes nothing.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used, or not be created.
        StorageError: the catalog failed.
    """
    check_columns(connection.settings, schema)
    table = connection.find_table()
    if table is not None:
        check_table(connection.settings, table, schema)
        return table
    if not connection.has_namespace():
        raise SinkRefused(
            "the namespace of an Iceberg table does not exist",
            hint="create it in the catalog, or correct the name of the table",
            table=connection.settings.location,
        )
    return None


def prepare(connection: Connection, context: SinkContext) -> str:
    """Creates the table, its first snapshot and missing columns, after `check`; returns the id of the table."""
    for _ in range(_TRIES):
        table = connection.find_table()
        if table is None:
            schema = table_schema(context.schema)
            spec = new_spec(connection.settings.partition_by, schema, context.schema)
            connection.create_table(schema, spec, _NEW_TABLE)
        elif add_columns(connection, table, context.schema) and _add_snapshot(connection, table, context.application):
            return str(table.metadata.table_uuid)
    raise StorageError(
        "every attempt to prepare the Iceberg table conflicted with another writer",
        table=connection.settings.location,
        tries=_TRIES,
    )


def open_table(connection: Connection, schema: RowSchema) -> Table:
    """Returns the table as it is now, with all columns of the rows or some that the sink may add.

    Raises:
        SinkRefused, SchemaMismatch: the table cannot be used.
        SinkDiverged: the table does not exist.
    """
    table = connection.find_table()
    if table is None:
        raise SinkDiverged(
            "the sink's table no longer exists",
            hint="restore it, or give the sink a new uid",
            table=connection.settings.location,
        )
    check_table(connection.settings, table, schema)
    return table


def add_columns(connection: Connection, table: Table, schema: RowSchema) -> bool:
    """Adds missing columns to the table; returns whether it had all of them. Raises as `check`."""
    added = check_table(connection.settings, table, schema)
    if not added:
        return True
    with connection.errors():
        try:
            with table.update_schema() as update:
                for column in added:
                    update.add_column(column.name, iceberg_type(column.shape))
        except CommitFailedException:
            return False
    names = [column.name for column in added]
    _logger.info("added columns: table=%s columns=%s", connection.settings.location, names)
    return False


def _add_snapshot(connection: Connection, table: Table, application: str) -> bool:
    """Makes a first snapshot without rows, to which a rewind can go back; returns whether the table has one.

    A table that had format version 1 has snapshots without numbers, of which none would be found again.
    """
    head = table.metadata.current_snapshot()
    if head is not None and version_of(head) > 0:
        return True
    token = current_token(table.metadata, application)
    with connection.errors():
        commit = Commit(
            connection, table, Change(SnapshotToken(application, token, token, head.snapshot_id if head else None))
        )
    return commit.make() is not None
