"""Handles of a Delta table at one version: commits of appended files, and of upserts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from stateflow.api.sink import SinkContext, SinkRewind, SinkTable, Successor, TableChanges
from stateflow.clock import SystemClock
from stateflow.connectors.columns.store_assignment import assign
from stateflow.connectors.delta.active_files import ActiveFiles
from stateflow.connectors.delta.column_types import target_schema
from stateflow.connectors.delta.data_files import FileName
from stateflow.connectors.delta.log.deletion_vectors import DeletionVectors
from stateflow.connectors.delta.log.paths import open_logged_parquet, read_parquet, size_of
from stateflow.connectors.delta.log.table_log import (
    TAKEN_OVER,
    Action,
    DeltaHead,
    append_after,
    entry_path,
    is_current,
    read_transactions,
    taken_over_by,
)
from stateflow.connectors.delta.partitions.columns import StoredRows
from stateflow.connectors.delta.partitions.values import logged_path, scalar, values_of
from stateflow.connectors.delta.rewind.rewinder import FileChange, Rewinder, remove_action
from stateflow.connectors.delta.upsert import Rewrite, Upsert, remove_files
from stateflow.connectors.delta.versions import ENGINE, RESTORE
from stateflow.connectors.upserts import UpsertSettings
from stateflow.errors import DataError, InternalError, SchemaMismatch, StateflowError
from stateflow.state.handles import Committable

_clock = SystemClock()


def now_ms() -> int:
    """Returns the time in milliseconds since 1970."""
    return int(_clock.now().timestamp() * 1000)


class DeltaSinkTable(SinkTable):
    """A table at the version of its head; a commit creates the next version, or fails."""

    def __init__(self, root: Path, context: SinkContext, head: DeltaHead, stored: StoredRows) -> None:
        self.table_id = head.metadata.id
        self._stored = stored
        self.version = head.version
        self.token: int = head.token
        self.successor = successor_of(read_transactions(root), context.application) if head.is_taken_over else None
        self._root = root
        self._context = context
        self._head = head

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables if self._size(c.path) != c.size]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        self._check_distinct(token, committables)
        self._check_types(committables)
        return append_after(self._root, self._head, self._append_actions(token, committables))

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        return self._rewinder().plan(checkpoint_id)

    def changes_since(self, version: int) -> TableChanges:
        return self._rewinder().changes_since(version)

    def rewind(self, to_version: int | None, token: int) -> int | None:
        if token <= self.token or not (to_version is None or 0 <= to_version < self.version):
            raise InternalError(
                "a rewind needs an older version and a larger token",
                table=str(self._root),
                version=self.version,
                to_version=to_version,
                known=self.token,
                token=token,
            )
        # Checked first: a table that has changed may have lost the files that the rewind restores.
        if self._is_stale():
            return None
        change = FileChange((), ()) if to_version is None else self._rewinder().change(to_version)
        return append_after(self._root, self._head, self._rewind_actions(to_version, token, change))

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        # The handle's version had the tokens of the former applications that the caller has read, or is not the newest.
        names = [name + end for name in former for end in (TAKEN_OVER, taken_over_by(by))]
        return append_after(self._root, self._head, self._rewind_actions(None, token, FileChange((), ()), names))

    def _is_stale(self) -> bool:
        """Whether the table has changed since the handle was made, so that a commit would fail."""
        return not is_current(self._root, self._head) or entry_path(self._root, self.version + 1).exists()

    def _rewinder(self) -> Rewinder:
        return Rewinder(self._root, self._context.application, self._head)

    def _size(self, path: str) -> int | None:
        if FileName.parse(path) is None:
            raise DataError("a file to publish was not written by a sink", path=path, table=str(self._root))
        return size_of(self._root, logged_path(path))

    def _check_distinct(self, token: int, committables: list[Committable]) -> None:
        if len({c.path for c in committables}) < len(committables):
            application = self._context.application
            raise InternalError("a checkpoint has a file twice", application=application, token=token)

    def _check_types(self, committables: list[Committable]) -> None:
        """Raises SchemaMismatch if files do not have what a table demands that others have changed since."""
        columns = self._stored.file_schema
        wide = replace(self._stored, target=target_schema(self._stored.schema)).file_schema
        if columns.equals(wide, check_metadata=True):
            return  # Wider types than files have are read as well.
        for committable in committables:
            with open_logged_parquet(self._root, logged_path(committable.path)) as file:
                found = file.schema_arrow
            if found.types != columns.types:
                raise SchemaMismatch(
                    "files that are not published yet do not have the types of the table's columns",
                    hint="give the table the types back that it had when the rows were written",
                    table=str(self._root),
                    file=committable.path,
                    expected=str(columns),
                    found=str(found),
                )
            if not self._stored.were_written_for(found):
                self._check_values(committable.path)

    def _check_values(self, path: str) -> None:
        """Raises SchemaMismatch if the table cannot store a value of a file."""
        name, target = FileName.parse(path), self._stored.target
        assert name is not None
        values = values_of(name.folder)
        for batch in read_parquet(self._root, logged_path(path)):
            whole = [
                pa.repeat(scalar(values[f.name], f.type), len(batch)) if f.name in values else batch.column(f.name)
                for f in target
            ]
            assign(pa.RecordBatch.from_arrays(whole, names=target.names), target, {"file": path})

    def _append_actions(self, token: int, committables: list[Committable]) -> list[Action]:
        now = now_ms()
        info = {
            "timestamp": now,
            "operation": "STREAMING UPDATE",
            "operationParameters": {
                "outputMode": "Append",
                "queryId": self._context.application,
                "epochId": str(token),
            },
            "operationMetrics": {
                "numAddedFiles": str(len(committables)),
                "numRemovedFiles": "0",
                "numOutputRows": str(sum(c.rows for c in committables)),
                "numOutputBytes": str(sum(c.size for c in committables)),
            },
            "readVersion": self.version,
            # Avoids conflicts with concurrent MERGE, UPDATE and DELETE, which could not have read these rows.
            "isBlindAppend": True,
            "engineInfo": ENGINE,
        }
        added = [{"add": add_action(c, now)} for c in committables]
        return [{"commitInfo": info}, self._transaction(token, now), *added]

    def _rewind_actions(
        self, to_version: int | None, token: int, change: FileChange, taken_over: Iterable[str] = ()
    ) -> list[Action]:
        now = now_ms()
        parameters = {"queryId": self._context.application, "epochId": str(token)}
        result = "kept" if to_version is None else f"back to version {to_version}"
        info = {
            "timestamp": now,
            "operation": "STREAMING UPDATE" if to_version is None else RESTORE,
            "operationParameters": parameters if to_version is None else {"version": str(to_version), **parameters},
            "operationMetrics": {
                "numRestoredFiles": str(len(change.restored)),
                "numRemovedFiles": str(len(change.removed)),
                "restoredFilesSize": str(sum(f.size for f in change.restored)),
                "removedFilesSize": str(sum(f.size for f in change.removed)),
            },
            "readVersion": self.version,
            "isBlindAppend": False,
            "userMetadata": f"rewind of {self._context.application}: {result}, token {token}",
            "engineInfo": ENGINE,
        }
        # Tokens of several successors have no order.
        at = self.version + 1
        ends = [{"txn": {"appId": name, "version": at, "lastUpdated": now}} for name in taken_over]
        return [{"commitInfo": info}, self._transaction(token, now), *ends, *change.actions(now)]

    def _transaction(self, token: int, now: int) -> Action:
        return {"txn": {"appId": self._context.application, "version": token, "lastUpdated": now}}


class UpsertTable(DeltaSinkTable):
    """A table at the version of its head, whose commits replace rows by key.

    Args:
        upsert: how rows are matched.
        files: the files of the table.
    """

    def __init__(
        self,
        root: Path,
        context: SinkContext,
        head: DeltaHead,
        stored: StoredRows,
        *,
        upsert: UpsertSettings,
        files: ActiveFiles,
    ) -> None:
        super().__init__(root, context, head, stored)
        self._settings, self._files = upsert, files

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        self._check_distinct(token, committables)
        if not committables:
            return super().commit(token, [])
        # Before data files are written that no version would have.
        if self._is_stale():
            return None
        try:
            active = self._files.at(self._head)
            vectors = DeletionVectors(self._root, self.version, [file.vector for file in active if file.vector])
            rewrite = self._upsert(committables[-1]).apply(committables, active, vectors)
        except StateflowError:
            # A fenced run that has published the rows meanwhile removes the emitted files, and a vacuum those of an
            # older version.
            if self._is_stale():
                return None
            raise
        version = append_after(self._root, self._head, self._upsert_actions(token, rewrite))
        # The emitted rows are in the new files now; or no version has the new files.
        useless = rewrite.added if version is None else committables
        remove_files(self._root, (file.path for file in useless))
        return version

    def _upsert(self, last: Committable) -> Upsert:
        emitted = FileName.parse(last.path)
        assert emitted is not None
        writing = replace(emitted.writing, subtask=0, attempt=f"u{_clock.new_id()}")
        name = FileName.first(self._context, writing)
        return Upsert(self._root, self._settings, self._stored, name)

    def _upsert_actions(self, token: int, rewrite: Rewrite) -> list[Action]:
        now = now_ms()
        info = {
            "timestamp": now,
            "operation": "MERGE",
            "operationParameters": {
                "predicate": " AND ".join(f"target.{name} = source.{name}" for name in self._settings.keys),
                "queryId": self._context.application,
                "epochId": str(token),
            },
            "operationMetrics": {
                "numTargetFilesAdded": str(len(rewrite.added)),
                "numTargetFilesRemoved": str(len(rewrite.removed)),
                "numOutputRows": str(sum(c.rows for c in rewrite.added)),
            },
            "readVersion": self.version,
            "isBlindAppend": False,
            "engineInfo": ENGINE,
        }
        removed = [{"remove": remove_action(file, now)} for file in rewrite.removed]
        added = [{"add": add_action(file, now)} for file in rewrite.added]
        return [{"commitInfo": info}, self._transaction(token, now), *removed, *added]


def successor_of(transactions: Mapping[str, int], application: str) -> Successor | None:
    """Returns the last sink that has taken over a table from an application, by the transactions in its log."""
    start = f"{application}{TAKEN_OVER}-by "
    found = {version: name.removeprefix(start) for name, version in transactions.items() if name.startswith(start)}
    return Successor.parse(found[max(found)]) if found else None


def add_action(file: Committable, now: int) -> Action:
    """Returns the action that adds a file to the table at a time in milliseconds since 1970."""
    name = FileName.parse(file.path)
    return {
        "path": logged_path(file.path),
        "partitionValues": values_of(name.folder) if name else {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": file.stats or f'{{"numRecords":{file.rows}}}',
    }
