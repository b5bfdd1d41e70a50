"""A handle of an Iceberg table at one snapshot: publishes and rewinds in one commit each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from stateflow.api.sink import SinkContext, SinkRewind, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.iceberg.column_types import file_schema, target_schema
from stateflow.connectors.iceberg.commits import Change, Commit, head_of
from stateflow.connectors.iceberg.connection import Connection
from stateflow.connectors.iceberg.data_files import DataFiles
from stateflow.connectors.iceberg.history import History, version_of
from stateflow.connectors.iceberg.preparation import add_columns
from stateflow.connectors.iceberg.tokens import SnapshotToken, current_token, successor_of
from stateflow.connectors.staged_output import StagedTable, as_declared
from stateflow.errors import InternalError
from stateflow.state.handles import Committable

_clock = SystemClock()


class IcebergTable(StagedTable):
    """A table at one snapshot.

    Args:
        connection: the catalog.
        context: the sink.
        table: the table as it was read.
    """

    def __init__(self, connection: Connection, context: SinkContext, table: Table) -> None:
        super().__init__(context)
        self._connection = connection
        self._table = table
        self._location = connection.settings.location
        self._history = History(self._location, table.metadata, context.application)
        head = table.metadata.current_snapshot()
        self.table_id = str(table.metadata.table_uuid)
        self.version = version_of(head) if head else 0
        self.token = self._last_token = current_token(table.metadata, context.application)
        self.successor = successor_of(table.metadata, context.application)

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        # Before data files are written that no snapshot would have.
        if self._is_stale() or not add_columns(self._connection, self._table, self.context.schema):
            return None
        name = f"stateflow-{self.context.application.replace('/', '-')}-{token}-{_clock.new_id()}"
        schema, stored = self.context.schema, self._table.schema()
        files = DataFiles(self._table, file_schema(schema, stored), name, target_schema(schema, stored))
        try:
            with self._connection.errors():
                commit = self._commit(token, files.write(self._rows(committables)))
        except Exception:
            files.remove()
            raise
        version = commit.make()
        if version is None:
            files.remove()
        return version

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        with self._connection.errors():
            return self._history.plan(checkpoint_id, self._table.io)

    def changes_since(self, version: int) -> TableChanges:
        return self._history.changes_since(version)

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if token <= self._last_token or to_version == self.version:
            raise InternalError(
                "a rewind needs another version and a larger token",
                table=self._location,
                version=self.version,
                to_version=to_version,
                known=self.token,
                token=token,
            )
        # Checked first: the snapshot of the rewind may have expired since the handle was made.
        if self._is_stale():
            return None
        base = None if to_version is None else self._history.at(to_version).snapshot_id
        with self._connection.errors():
            commit = self._commit(token, base=base)
        return commit.make()

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        if self._is_stale():
            return None
        with self._connection.errors():
            # A snapshot without rows: the former applications' commits require the one before it.
            commit = self._commit(token, taken_over=tuple((name, by.text) for name in former))
        return commit.make()

    def _commit(
        self,
        token: int,
        files: Sequence[DataFile] = (),
        base: int | None = None,
        taken_over: tuple[tuple[str, str], ...] = (),
    ) -> Commit:
        head = head_of(self._table.metadata)
        summary = SnapshotToken(self.context.application, token, self._last_token, head, taken_over)
        return Commit(self._connection, self._table, Change(summary, files, base))

    def _is_stale(self) -> bool:
        """Returns whether the table has changed since the handle was made, so that a commit would fail."""
        found = self._connection.find_table()
        if found is None or found.metadata.table_uuid != self._table.metadata.table_uuid:
            return True
        return head_of(found.metadata) != head_of(self._table.metadata)

    def _rows(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        for batch in self.staged_rows(committables):
            yield as_declared(batch, self.context.schema, self._location)
