"""The Delta sink: tasks write Parquet files, and one commit per checkpoint makes them visible.

The table stores the last published checkpoint as the transaction version of the sink's application id: the token.
Reading the token and committing the next one is a compare-and-swap on the table's version, so two runs can never both
publish a checkpoint.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from stateflow.api.schema import Column
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, SinkWriter, TableChanges, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.delta.added_columns import column_actions, columns_to_add
from stateflow.connectors.delta.checks import check_table, new_table
from stateflow.connectors.delta.data_files import FileName, ParquetWriter, UnnamedFile, disk_error, sync_folder
from stateflow.connectors.delta.log.listing import LOG_FOLDER
from stateflow.connectors.delta.log.table_log import (
    Action,
    DeltaHead,
    append_after,
    append_entry,
    create_overdue_checkpoint,
    entry_path,
    is_current,
    read_head,
    unreferenced_files,
)
from stateflow.connectors.delta.rewind import FileChange, Rewinder
from stateflow.connectors.delta.versions import ENGINE, RESTORE
from stateflow.errors import (
    ConfigError,
    DataError,
    EnvironmentUnsupported,
    InternalError,
    SinkDiverged,
    SinkRefused,
    StorageError,
)
from stateflow.state.handles import Committable
from stateflow.storage import open_storage

SchemaEvolution = Literal["refuse", "add-columns"]
_REFUSE, _ADD_COLUMNS = "refuse", "add-columns"
_TRIES = 20
_logger = logging.getLogger(__name__)
_clock = SystemClock()
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


class DeltaSink(Sink):
    """Appends a stream's rows to a Delta table, each row exactly once.

    The sink creates a missing table with one nullable column per field of the row class. An existing table must have
    these columns. It may have further columns, which stay null, but no property that requires more of a writer than
    adding files: no partitions, constraints, defaults, column mapping and so on. The sink rejects such a table, and
    names the property, before the first batch and whenever the table changes.

    Args:
        table: a path, or ``file:///path``.
        schema_evolution: what happens to columns that only the row class has: ``"refuse"`` ends the start of a run;
            ``"add-columns"`` adds them to the table, where they are null in existing rows. A column that seems to have
            been renamed is refused in any case. Columns are never removed, also not by a rewind.

    Raises:
        ConfigError: the path is not on a POSIX file system, or looks percent-encoded; or `schema_evolution` is not one
            of its values.
    """

    def __init__(self, table: str | os.PathLike[str], *, schema_evolution: SchemaEvolution = "refuse") -> None:
        if schema_evolution not in (_REFUSE, _ADD_COLUMNS):
            raise ConfigError(
                "the value of schema_evolution is not supported",
                hint=f'use "{_REFUSE}" or "{_ADD_COLUMNS}"',
                given=schema_evolution,
            )
        address = os.fspath(table)
        log = open_storage(address).local_path(LOG_FOLDER)
        if log is None:
            raise ConfigError(
                "a Delta table must be on a POSIX file system", hint="use a path or file:///path", table=address
            )
        if _ESCAPE.search(str(log)):
            raise ConfigError(
                "a Delta table's path must not look percent-encoded: readers would decode it",
                hint="choose a path without '%'",
                table=address,
            )
        self.table = str(log.parent)
        self.schema_evolution: SchemaEvolution = schema_evolution
        self._root = log.parent
        self._heads: dict[str, DeltaHead] = {}

    def __repr__(self) -> str:
        return f"DeltaSink({self.table!r})"

    def __reduce__(self) -> tuple[Callable[[str, SchemaEvolution], DeltaSink], tuple[str, SchemaEvolution]]:
        # Tasks do not need the cached heads.
        return _sink, (self.table, self.schema_evolution)

    @property
    def location(self) -> str:
        return self.table

    @property
    def host_local(self) -> bool:
        return True

    def check(self, context: SinkContext) -> str | None:
        _require_deltalake(self.table)
        if self._root.exists() and not self._root.is_dir():
            raise ConfigError("the Delta table's path is not a folder", hint="choose another", table=self.table)
        head = self._head(context)
        if head is None:
            new_table("", context.schema, 0)
            self._check_vacant()
            existing = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
            _check_writable(existing)
            return None
        self._check_table(context, head)
        _check_writable(self._root, self._root / LOG_FOLDER)
        return head.metadata.id

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        return frozenset(name.job_uuid for name in self._data_files() if name.uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        self.check(context)
        head = self._head(context) or self._create(context)
        for _ in range(_TRIES):
            # Another process may have created the table, or changed it, meanwhile.
            added = self._check_table(context, head)
            if not added:
                return head.metadata.id
            if append_after(self._root, head, column_actions(self.table, head, added, _now_ms())) is not None:
                _logger.info("added columns: table=%s columns=%s", self.table, [column.name for column in added])
            head = self._existing_head(context)
        raise StorageError(
            "every attempt to add columns to the sink's table conflicted with another writer",
            table=self.table,
            tries=_TRIES,
        )

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return ParquetWriter(self._root, FileName.first(context, writing), context.schema)

    def open_table(self, context: SinkContext) -> SinkTable:
        head = self._existing_head(context)
        # Output that is pending when a run starts is published before `prepare` adds columns.
        self._check_table(context, head)
        return DeltaSinkTable(self._root, context, head)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        head = self._head(context)
        if head is not None:
            create_overdue_checkpoint(self._root, head)
        # List the folder before reading the log: a file that is committed in between is then found in the log.
        own = (context.job_uuid, context.uid)
        written = {str(name): name.writing for name in self._data_files() if (name.job_uuid, name.uid) == own}
        possible = {name: w.generation for name, w in written.items() if is_leftover(w.generation, w.ordinal, name)}
        leftovers = sorted(unreferenced_files(self._root, context.application, possible)) if possible else []
        for path in leftovers:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError as e:
                raise disk_error(e, self._root / path) from e
        return leftovers

    def shadow(self) -> DeltaSink:
        return _sink(f"{self.table}_shadow", self.schema_evolution)

    def _check_table(self, context: SinkContext, head: DeltaHead) -> tuple[Column, ...]:
        """Checks the table, and returns the columns that have to be added to it."""
        adds = self.schema_evolution == _ADD_COLUMNS
        added = columns_to_add(self.table, head.metadata.fields(), context.schema) if adds else ()
        check_table(self.table, head, context.schema, added)
        return added

    def _existing_head(self, context: SinkContext) -> DeltaHead:
        head = self._head(context)
        if head is None:
            raise SinkDiverged(
                "the sink's table no longer exists", hint="restore it, or give the sink a new uid", table=self.table
            )
        return head

    def _head(self, context: SinkContext) -> DeltaHead | None:
        head = read_head(self._root, context.application, self._heads.get(context.application))
        if head is not None:
            self._heads[context.application] = head
        return head

    def _create(self, context: SinkContext) -> DeltaHead:
        """Creates the table, unless another process creates it first."""
        now = _now_ms()
        actions = new_table(str(uuid.UUID(_clock.new_id())), context.schema, now)
        info = {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": ENGINE}
        self._make_folders()
        append_entry(self._root, 0, [{"commitInfo": info}, *actions])
        head = self._head(context)
        if head is None:
            raise StorageError("the Delta table was created, but cannot be found", table=self.table)
        return head

    def _check_vacant(self) -> None:
        """Raises SinkRefused when a new table's folder has other files, which the first VACUUM would delete."""
        try:
            others = [n for n in os.listdir(self._root) if n[0] not in "._" and FileName.parse(n) is None]
        except FileNotFoundError:
            return
        except OSError as e:
            raise disk_error(e, self._root) from e
        if others:
            raise SinkRefused(
                "the sink's folder is neither a Delta table nor empty",
                hint="choose another path",
                table=self.table,
                found=sorted(others)[:3],
            )

    def _make_folders(self) -> None:
        folder = self._root / LOG_FOLDER
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        try:
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                sync_folder(path.parent)
        except OSError as e:
            raise disk_error(e, folder) from e

    def _data_files(self) -> Iterator[FileName]:
        """Yields the names of all data files that sinks wrote, of any job."""
        try:
            found = [FileName.parse(name) for name in os.listdir(self._root)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as e:
            raise disk_error(e, self._root) from e
        yield from filter(None, found)


def _sink(table: str, schema_evolution: SchemaEvolution) -> DeltaSink:
    return DeltaSink(table, schema_evolution=schema_evolution)


def _require_deltalake(table: str) -> None:
    """Raises EnvironmentUnsupported without deltalake, which the driver needs; tasks only write Parquet files."""
    if find_spec("deltalake") is None:
        raise EnvironmentUnsupported(
            "a package for Delta tables is not installed",
            hint="pip install 'stateflow[delta]'",
            package="deltalake",
            table=table,
        )


def _check_writable(*folders: Path) -> None:
    for folder in folders:
        try:
            UnnamedFile.create(folder).close()
        except OSError as e:
            raise disk_error(e, folder) from e


class DeltaSinkTable(SinkTable):
    """A table at the version of its head; a commit creates the next version, or fails."""

    def __init__(self, root: Path, context: SinkContext, head: DeltaHead) -> None:
        self.table_id = head.metadata.id
        self.version = head.version
        self.token: int = head.token
        self._root = root
        self._context = context
        self._head = head

    def missing(self, committables: list[Committable]) -> list[str]:
        return [c.path for c in committables if self._size(c.path) != c.size]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        return append_after(self._root, self._head, self._actions(token, committables))

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
        if not is_current(self._root, self._head) or entry_path(self._root, self.version + 1).exists():
            return None
        change = FileChange((), ()) if to_version is None else self._rewinder().change(to_version)
        return append_after(self._root, self._head, self._rewind_actions(to_version, token, change))

    def _rewinder(self) -> Rewinder:
        return Rewinder(self._root, self._context.application, self._head)

    def _size(self, path: str) -> int | None:
        if FileName.parse(path) is None:
            raise DataError("a file to publish was not written by a sink", path=path, table=str(self._root))
        try:
            return (self._root / path).lstat().st_size
        except FileNotFoundError:
            return None
        except OSError as e:
            raise disk_error(e, self._root / path) from e

    def _actions(self, token: int, committables: list[Committable]) -> list[Action]:
        if len({c.path for c in committables}) < len(committables):
            application = self._context.application
            raise InternalError("a checkpoint has a file twice", application=application, token=token)
        now = _now_ms()
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
        added = [{"add": _add(c, now)} for c in committables]
        return [{"commitInfo": info}, self._transaction(token, now), *added]

    def _rewind_actions(self, to_version: int | None, token: int, change: FileChange) -> list[Action]:
        now = _now_ms()
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
        return [{"commitInfo": info}, self._transaction(token, now), *change.actions(now)]

    def _transaction(self, token: int, now: int) -> Action:
        return {"txn": {"appId": self._context.application, "version": token, "lastUpdated": now}}


def _now_ms() -> int:
    return int(_clock.now().timestamp() * 1000)


def _add(file: Committable, now: int) -> Action:
    return {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": file.stats or f'{{"numRecords":{file.rows}}}',
    }
