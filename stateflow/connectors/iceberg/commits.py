"""Commits of an Iceberg table: one request to the catalog, on condition that the current snapshot is still the same.

PyIceberg builds the snapshot, but does not commit it: after a conflict, its transactions append the same files to the
table as it then is, whatever its token. They also delete the files of a commit that is reported as conflicting, which
may nevertheless have been made, if a proxy repeated the request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.utils.properties import property_as_bool

from stateflow import failpoints
from stateflow.connectors.iceberg.connection import Connection
from stateflow.connectors.iceberg.tokens import SnapshotToken
from stateflow.errors import StorageError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """A new snapshot.

    Attributes:
        token: the entries of its summary about the sink.
        files: the data files that it adds.
        base: id of the snapshot whose content it has otherwise; None for the current content.
    """

    token: SnapshotToken
    files: Sequence[DataFile] = ()
    base: int | None = None


class Commit:
    """A change of a table, which is made once or not at all.

    Args:
        connection: the catalog.
        table: the table as it was read; another current snapshot is a conflict.
        change: the change.
    """

    def __init__(self, connection: Connection, table: Table, change: Change) -> None:
        self._connection = connection
        self._table = table
        transaction = _Transaction(_with_merges(table))
        if change.base is not None:
            # The first condition of a transaction counts: that the current snapshot is the one that was read.
            ManageSnapshots(transaction).set_current_snapshot(change.base)
        producer = transaction.update_snapshot(snapshot_properties=change.token.summary()).merge_append()
        for file in change.files:
            producer.append_data_file(file)
        producer.commit()
        transaction.set_properties(change.token.properties())
        self._snapshot_id = producer.snapshot_id
        self._written = transaction.table_metadata.snapshot_by_id(self._snapshot_id)
        self._updates = tuple(_with_retention(update, table.metadata) for update in transaction.updates)
        self._requirements = (*transaction.requirements, AssertTableUUID(uuid=table.metadata.table_uuid))

    def make(self) -> int | None:
        """Sends the commit. Returns the version of the new snapshot; None if the table has changed.

        Raises:
            StorageError: the commit was not made, as far as the catalog has answered.
        """
        failpoints.hit("iceberg.before-commit")
        try:
            with self._connection.errors():
                return self._send()
        except StorageError:
            # The answer may have been lost.
            version = self._version_in(self._connection.find_table())
            if version is None:
                raise
            return version

    def _send(self) -> int | None:
        try:
            response = self._table.catalog.commit_table(self._table, self._requirements, self._updates)
        except (CommitFailedException, NoSuchTableError):
            return self._after_conflict()
        _remove_old_metadata(self._table, response.metadata)
        return self._version_of(response.metadata)

    def _after_conflict(self) -> int | None:
        found = self._connection.find_table()
        version = self._version_in(found)
        if version is None and found is not None and head_of(found.metadata) != head_of(self._table.metadata):
            # The condition no longer holds, so that no request can still succeed.
            self._remove_manifests()
        return version

    def _remove_manifests(self) -> None:
        assert self._written is not None
        manifests = self._written.manifests(self._table.io)
        own = [m.manifest_path for m in manifests if m.added_snapshot_id == self._snapshot_id]
        remove_files(self._table.io, [*own, self._written.manifest_list])

    def _version_in(self, table: Table | None) -> int | None:
        return self._version_of(table.metadata) if table else None

    def _version_of(self, metadata: TableMetadata) -> int | None:
        snapshot = metadata.snapshot_by_id(self._snapshot_id)
        return snapshot.sequence_number if snapshot else None


class _Transaction(Transaction):
    """A transaction whose updates are not committed by itself."""

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        return self._updates

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        return self._requirements


def head_of(metadata: TableMetadata) -> int | None:
    """Returns the id of the current snapshot; None without one."""
    snapshot: Snapshot | None = metadata.current_snapshot()
    return snapshot.snapshot_id if snapshot else None


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Deletes files that nothing refers to; one that cannot be deleted is logged."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            pass
        except Exception as e:
            # Of any class: each storage has errors of its own.
            _logger.warning("a file that no snapshot has cannot be deleted: file=%s reason=%s", path, e)


def _with_merges(table: Table) -> Table:
    """Returns the table with the default of Iceberg's other writers, which merge small manifests."""
    properties = {TableProperties.MANIFEST_MERGE_ENABLED: "true", **table.properties}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)


def _with_retention(update: TableUpdate, metadata: TableMetadata) -> TableUpdate:
    """Returns an update that keeps the retention settings of the branch, which PyIceberg removes."""
    branch = metadata.refs.get(update.ref_name) if isinstance(update, SetSnapshotRefUpdate) else None
    if branch is None:
        return update
    names = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
    return update.model_copy(update={name: getattr(branch, name) for name in names})


def _remove_old_metadata(table: Table, now: TableMetadata) -> None:
    """Deletes metadata files that the commit has dropped from the table's log, if the table's properties say so."""
    name = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
    if property_as_bool(now.properties, name, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED_DEFAULT):
        kept = {entry.metadata_file for entry in now.metadata_log}
        old = {entry.metadata_file for entry in table.metadata.metadata_log} - kept
        # The log is part of the table's metadata, which could name any file.
        folder = table.metadata_location.rpartition("/")[0]
        remove_files(table.io, (file for file in sorted(old) if file.rpartition("/")[0] == folder))
