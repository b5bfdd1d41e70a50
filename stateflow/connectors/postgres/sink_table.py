"""A handle of a PostgreSQL table at one version of the sink: publishes and rewinds in one transaction each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa

from stateflow import failpoints
from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.connectors.columns.store_assignment import assign, nullable
from stateflow.connectors.postgres.catalog import Relation, read_relation
from stateflow.connectors.postgres.checks import target_schema
from stateflow.connectors.postgres.connection import Connection, TransactionUnknown, transaction
from stateflow.connectors.postgres.settings import PostgresSettings
from stateflow.connectors.postgres.statements import Upsert, copy_rows, lock_table, table_name
from stateflow.connectors.postgres.tokens import Position, TokenTable, own_tables_exist
from stateflow.connectors.postgres.undo import Undo
from stateflow.connectors.staged_output import StagedTable, as_declared
from stateflow.connectors.upserts import winning_rows
from stateflow.errors import InternalError, SinkRefused
from stateflow.state.handles import Committable
from stateflow.storage.paths import parse_data

Change = Callable[[Connection], None]
"""Changes the table within a transaction."""


class PostgresTable(StagedTable):
    """A table at one version of the sink.

    Args:
        settings: of the sink.
        context: the sink.
        relation: the table in the catalog.
        position: of the sink.
    """

    def __init__(
        self, settings: PostgresSettings, context: SinkContext, relation: Relation, position: Position
    ) -> None:
        super().__init__(context)
        self.table_id = position.table_id
        self.version = position.version
        self.token = position.token
        self.successor = Successor.parse(position.successor) if position.successor else None
        self._settings = settings
        self._relation = relation
        self._target = target_schema(relation, context.schema)
        self._position = position
        self._tokens = TokenTable(settings.name.schema, relation.oid)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        batches = self._staged(committables)
        if self._settings.upsert is None:
            return self._change(token, lambda connection: self._append(connection, batches))
        rows = pa.Table.from_batches(batches, nullable(self._target))
        return self._change(token, lambda connection: self._upsert(connection, rows, token))

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        if self._position.token <= checkpoint_id:
            return SinkRewind(self.version, None, 0, 0, ())
        undo = self._undo()
        with transaction(self._settings, read_only=True) as connection:
            own_tables_exist(connection, self._settings, self._relation.oid, with_undo=True)
            return undo.plan(connection, self._position, checkpoint_id)

    def changes_since(self, version: int) -> TableChanges:
        # Commits of other writers are not recorded anywhere.
        return TableChanges(self._settings.location, self.version > version, ())

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if token <= self._position.token or not (to_version is None or 0 <= to_version < self.version):
            raise InternalError(
                "a rewind needs an older version and a larger token",
                table=self._settings.location,
                version=self.version,
                to_version=to_version,
                known=self.token,
                token=token,
            )
        if to_version is None:
            return self._change(token, lambda connection: None)
        undo, version, position = self._undo(), to_version, replace(self._position, token=token)
        return self._change(token, lambda c: undo.restore(c, self._relation, version, position))

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        return self._change(token, lambda connection: None, former, by)

    def _change(
        self, token: int, change: Change, former: Mapping[str, int] = MappingProxyType({}), by: Successor | None = None
    ) -> int | None:
        """Changes the table and sets the token in one transaction; returns the new version.

        Returns None if the sink has another position by then, or if the answer to the COMMIT was lost. The next handle
        shows which: it waits for the row of the token while the transaction is not decided.
        """
        version, application = self.version + 1, self.context.application
        try:
            with transaction(self._settings) as connection:
                if not (self._is_current(connection) and self._end(connection, former, by)):
                    connection.rollback()
                    return None
                change(connection)
                failpoints.hit("postgres.written")
                self._tokens.set(connection, application, token, version)
                if self._settings.undo is not None:
                    undo = self._undo()
                    undo.mark(connection, version, token)
                    undo.prune(connection, self._settings.undo)
        except TransactionUnknown:
            return None
        return version

    def _is_current(self, connection: Connection) -> bool:
        """Locks the table and the token, and returns whether they are those of the handle."""
        lock_table(connection, self._settings.name, excludes_writers=self._settings.undo is not None)
        # By its name, which may be that of another table now.
        relation = read_relation(connection, self._settings.name)
        if relation is None or relation.oid != self._relation.oid:
            return False
        # In this transaction again, which is the one that uses them.
        if not own_tables_exist(connection, self._settings, relation.oid, self._settings.undo is not None):
            return False
        application = self.context.application
        if not self._position.token:
            # Two new job roots have rows of their own to lock: without this lock, both would find that no other one has
            # published. Before the row of the application, so that two transactions do not wait for each other.
            self._tokens.lock_first(connection)
        self._tokens.insert(connection, application, self.table_id)
        return self._tokens.read(connection, application, lock=True) == self._position

    def _end(self, connection: Connection, former: Mapping[str, int], by: Successor | None) -> bool:
        """Ends former applications, and returns whether they have the given tokens."""
        # In one order, so that two transactions do not wait for each other.
        for application in sorted(former):
            self._tokens.insert(connection, application, self.table_id)
            if self._tokens.read(connection, application, lock=True).token != former[application]:
                return False
            self._tokens.end(connection, application, by.text if by else "")
        return True

    def _append(self, connection: Connection, batches: Iterator[pa.RecordBatch]) -> None:
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        copy_rows(connection, table_name(self._settings.name), tables, self.context.schema.names)

    def _upsert(self, connection: Connection, rows: pa.Table, token: int) -> None:
        assert self._settings.upsert is not None
        upsert = Upsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
        if not len(rows):
            return
        upsert.stage(connection, winning_rows(rows, upsert.settings))
        if self._settings.undo is not None:
            self._undo().record(connection, self.version + 1, token)
        upsert.apply(connection)

    def _undo(self) -> Undo:
        """Returns the former rows. Raises SinkRefused if the sink stores none."""
        if self._settings.undo is None or self._settings.upsert is None:
            raise SinkRefused(
                "the table in PostgreSQL cannot be rewound: the sink does not store former rows",
                hint='keep the table with --keep-table UID; PostgresSink(…, mode="upsert", undo=timedelta(days=7)) '
                "stores the rows that later checkpoints replace",
                table=self._settings.location,
            )
        upsert = Upsert(self._settings.name, self._settings.upsert, self.context.schema, self._relation)
        return Undo(upsert, self._relation.oid, self.context.application, self._settings.location)

    def _staged(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        """Yields the staged rows, barrier by barrier, with the columns that the sink has now, as the table has them."""
        schema, facts = self.context.schema, {"table": self._settings.location}
        for batch in self.staged_rows(sorted(committables, key=_order)):
            yield assign(as_declared(batch, schema, self._settings.location), self._target, facts)


def _order(committable: Committable) -> tuple[int, int, str]:
    key = parse_data(committable.path)
    return (key.generation, key.ordinal, key.name) if key else (0, 0, "")
