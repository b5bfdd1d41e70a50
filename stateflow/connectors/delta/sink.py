"""The Delta sink: tasks write Parquet files, and one commit per checkpoint makes them visible.

The table stores the last published checkpoint as the transaction version of the sink's application id: the token.
Reading the token and committing the next one is a compare-and-swap on the table's version, so two runs can never both
publish a checkpoint.

Delta relies on each writer to enforce a table's properties. A commit of finished files runs no query, so it cannot fill
in, check or translate a value; Delta would accept it, and the table would silently be wrong. So the checks of an
existing table are allow-lists: a feature or property that is not known to be harmless is rejected by name.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal

import msgspec
import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.datasets import Dataset, path_name
from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import (
    CatalogEntry,
    Sink,
    SinkContext,
    SinkRewind,
    SinkTable,
    SinkWriter,
    Successor,
    TableChanges,
    Writing,
)
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.connectors.column_policy import columns_to_add
from stateflow.connectors.data_files import FileName, ParquetWriter
from stateflow.connectors.delta.log import (
    CATALOG_FEATURES,
    CATALOG_MANAGED,
    LOG_FOLDER,
    TAKEN_OVER,
    Action,
    DeletionVectors,
    DeltaHead,
    Protocol,
    append_after,
    append_entry,
    create_overdue_checkpoint,
    entry_path,
    find_unreferenced_files,
    name_successor,
    open_logged_parquet,
    read_head,
    read_parquet,
    read_transactions,
)
from stateflow.connectors.delta.versions import (
    ENGINE,
    RESTORE,
    ActiveFiles,
    DeltaUpsert,
    FileChange,
    Rewinder,
    RewrittenFiles,
    remove_action,
    remove_files,
)
from stateflow.connectors.delta_types import (
    CHAR_VARCHAR,
    COLUMN_MAPPING,
    FEATURE_READER_VERSION,
    FEATURE_WRITER_VERSION,
    TIMESTAMPS_WITHOUT_ZONE,
    DeltaField,
    arrow_field,
    delta_field,
    delta_type,
    has_timestamps_without_zone,
    metadata_of_parts,
    stored_type,
    target_schema,
    type_text,
)
from stateflow.connectors.partitions import (
    PartitionedWriter,
    StoredRows,
    check_partition_columns,
    compare_partition_columns,
    parse_partition_folder,
    parse_partition_value,
    to_logged_path,
)
from stateflow.connectors.store_assignment import assign_rows, can_assign, nullable_schema
from stateflow.connectors.table_folder import TableFolder, open_table_folder, shadow_address
from stateflow.connectors.table_runs import TableRuns
from stateflow.connectors.upserts import UpsertSettings, names_of
from stateflow.errors import (
    ConfigError,
    DataError,
    EnvironmentUnsupported,
    InternalError,
    JobDefinitionError,
    SchemaMismatch,
    SinkDiverged,
    SinkRefused,
    StateflowError,
    StorageError,
)
from stateflow.helpers import check_choice
from stateflow.state.handles import Committable
from stateflow.types.decoders import json_decoder

SchemaEvolution = Literal["refuse", "add-columns"]
Mode = Literal["append", "upsert"]
_REFUSE: SchemaEvolution = "refuse"
_ADD_COLUMNS: SchemaEvolution = "add-columns"
_APPEND: Mode = "append"
_UPSERT: Mode = "upsert"
_TRIES = 20
_logger = logging.getLogger(__name__)
_clock = SystemClock()
_CHANGED_BY_READERS = re.compile(r"%[0-9A-Fa-f]{2}|\\")


class DeltaSink(Sink):
    """Appends a stream's rows to a Delta table, or upserts them by key, exactly once.

    The sink creates a missing table with one nullable column per field of the row class. An existing table must have
    these columns; where its types are narrower, such as INT, FLOAT, VARCHAR(10) or NOT NULL, a row with another value
    ends the batch. It may have further columns, which stay null, but no property that requires more of a writer than
    adding files: no constraints, defaults, column mapping and so on. The sink rejects such a table, and
    names the property, before the first batch and whenever the table changes.

    Args:
        table: a path or ``file:///path``, or ``s3://bucket/prefix``, ``az://container/prefix``,
            ``gs://bucket/prefix`` or ``webhdfs://namenode:9870/path``, with the credentials of a job root there.
        mode: ``"append"``, or ``"upsert"``: each row replaces the row of its key, all rows of a checkpoint at once.
            Data files with rows of these keys are written again, so the cost grows with their size; the driver holds
            the rows of a checkpoint in memory. The table must have exactly the columns of the rows.
        keys: for upserts, the columns that identify a row.
        order_by: for upserts, columns by which the last row of a key in a checkpoint wins; without them, the row that
            was emitted last, if one subtask emits all rows of a key.
        deletes: for upserts, a bool column that is true in rows that delete their key; the table does not have it.
        partition_by: columns by whose values the table is partitioned, neither float nor bytes nor nested. An
            existing table must be partitioned by the same columns. An empty text becomes null, as Delta demands.
        schema_evolution: what happens to columns that only the row class has: ``"refuse"`` ends the start of a run;
            ``"add-columns"`` adds them to the table, where they are null in existing rows. A column that seems to have
            been renamed is refused in any case. Columns are never removed, also not by a rewind.
        register_as: ``schema.table`` or ``catalog.schema.table``: a run on Spark registers the table under this name in
            the catalog of its session, before the first batch. A name of something else ends the start of the run.
            Nothing but the entry depends on the catalog. A run without Spark registers nothing, and logs a warning.

    Raises:
        JobDefinitionError: arguments of an upsert are missing, or given for an append.
        ConfigError: the address is not valid, or the path looks percent-encoded or has a backslash; or
            `schema_evolution` is not one of its values, or `register_as` is not such a name.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        mode: Mode = "append",
        keys: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        deletes: str = "",
        partition_by: str | Sequence[str] = (),
        schema_evolution: SchemaEvolution = "refuse",
        register_as: str = "",
    ) -> None:
        check_choice("schema_evolution", schema_evolution, (_REFUSE, _ADD_COLUMNS))
        check_choice("mode", mode, (_APPEND, _UPSERT))
        upsert = UpsertSettings(names_of(keys), names_of(order_by), deletes)
        if (mode == _UPSERT) != bool(upsert.keys) or (mode == _APPEND and upsert != UpsertSettings(())):
            raise JobDefinitionError(
                "the arguments of a Delta sink do not match its mode",
                hint='keys, order_by and deletes belong to mode="upsert", which needs keys',
                mode=mode,
                keys=list(upsert.keys),
            )
        self._root = _table_folder(os.fspath(table))
        self.table = self._root.address
        self.schema_evolution: SchemaEvolution = schema_evolution
        self._upsert = upsert if mode == _UPSERT else None
        self._partition_by = names_of(partition_by)
        self._entry = CatalogEntry.parse(register_as, "delta", self.table) if register_as else None
        self._files: dict[str, ActiveFiles] = {}
        self._heads: dict[str, DeltaHead] = {}
        self._target: pa.Schema | None = None

    @classmethod
    def _from_settings(
        cls,
        table: str,
        schema_evolution: SchemaEvolution,
        upsert: UpsertSettings | None,
        partition_by: tuple[str, ...],
        entry: CatalogEntry | None = None,
    ) -> DeltaSink:
        sink = cls(table, partition_by=partition_by, schema_evolution=schema_evolution)
        sink._upsert, sink._entry = upsert, entry
        return sink

    def __repr__(self) -> str:
        return f"DeltaSink({self.table!r})"

    def __reduce__(self) -> tuple[Callable[..., DeltaSink], tuple[object, ...], pa.Schema | None]:
        # Tasks need neither the cached heads nor the name in the catalog.
        return self._from_settings, (self.table, self.schema_evolution, self._upsert, self._partition_by), self._target

    def __setstate__(self, target: pa.Schema | None) -> None:
        self._target = target

    @property
    def ordering_key(self) -> tuple[str, ...]:
        return self._upsert.ordering_key if self._upsert else ()

    @property
    def required_columns(self) -> tuple[str, ...]:
        return self._upsert.keys if self._upsert else ()

    def for_changelog(self, changelog: Changelog) -> Sink:
        if self._upsert is None:
            return super().for_changelog(changelog)
        upsert = self._upsert.for_changelog(changelog)
        return self._from_settings(self.table, self.schema_evolution, upsert, self._partition_by, self._entry)

    @property
    def location(self) -> str:
        return self.table

    def datasets(self) -> Sequence[Dataset]:
        tables = (self._entry.identifier,) if self._entry else ()
        return (Dataset(*path_name(self.table), kind="TABLE", storage="delta", file_format="parquet", tables=tables),)

    @property
    def host_local(self) -> bool:
        return self._root.host_local

    @property
    def catalog_entry(self) -> CatalogEntry | None:
        return self._entry

    def check(self, context: SinkContext) -> str | None:
        _require_deltalake(self.table)
        head = self._head(context)
        if head is None:
            new_table("", self._schema(context), 0, self._partition_by)
            self._check_vacant()
            self._root.check_writable()
            return None
        self._check_table(context, head)
        self._root.check_writable(LOG_FOLDER)
        return head.metadata.id

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        head = self._head(context)
        if head is None:
            return frozenset()
        found = read_transactions(self._root) if head.transactions is None else head.transactions
        names = (name.partition("/") for name, token in found.items() if token and f"{name}{TAKEN_OVER}" not in found)
        return frozenset(job for job, _, uid in names if uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        self.check(context)
        head = self._head(context)
        if head is None or not head.token:
            self._root.check_put_if_absent()
        head = head or self._create(context)
        for _ in range(_TRIES):
            # Another process may have created the table, or changed it, meanwhile.
            added = self._check_table(context, head)
            if not added:
                return head.metadata.id
            if (
                append_after(
                    self._root, head, column_actions(self.table, head, added, epoch_milliseconds(_clock.now()))
                )
                is not None
            ):
                _logger.info("added columns: table=%s columns=%s", self.table, [column.name for column in added])
            head = self._existing_head(context)
        raise StorageError(
            "every attempt to add columns to the sink's table conflicted with another writer",
            table=self.table,
            tries=_TRIES,
        )

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        name = FileName.first(context, writing)
        rows = self._stored_rows(context)
        # The rows of an upsert go to partitions when it is published, with those that it keeps.
        if self._partition_by and self._upsert is None:
            return PartitionedWriter(self._root, name, rows)
        if self._upsert is None:
            return ParquetWriter(self._root, name, rows.file_schema, of=rows.of)
        return ParquetWriter(self._root, name, nullable_schema(rows.target), of=rows.of_upsert)

    def open_table(self, context: SinkContext) -> SinkTable:
        head = self._existing_head(context)
        # Output that is pending when a run starts is published before `prepare` adds columns.
        self._check_table(context, head)
        rows = self._stored_rows(context)
        if self._upsert is None:
            return DeltaSinkTable(self._root, context, head, rows)
        files = self._files.setdefault(context.application, ActiveFiles(self._root, context.application))
        return UpsertTable(self._root, context, head, rows, upsert=self._upsert, files=files)

    def begin_run(self, context: SinkContext, generation: int) -> None:
        self._runs(context).register(generation)

    def _runs(self, context: SinkContext) -> TableRuns:
        return TableRuns(self._root, context, len(self._partition_by))

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        head = self._head(context)
        if head is not None:
            create_overdue_checkpoint(self._root, head)
        # List the folder before reading the log: a file that is committed in between is then found in the log.
        own = (context.job_uuid, context.uid)
        runs = self._runs(context)
        names = filter(None, (FileName.parse(file.key) for file in runs.written()))
        files = (n for n in names if (n.job_uuid, n.uid) == own)
        possible = {str(n): n for n in files if is_leftover(n.writing.generation, n.writing.ordinal, n.path)}
        generations = {name: file.writing.generation for name, file in possible.items()}
        found = find_unreferenced_files(self._root, context.application, generations) if possible else ()
        leftovers = sorted(possible[name].path for name in found)
        self._root.delete(leftovers)
        self._root.remove_abandoned_files()
        runs.forget_swept()
        return leftovers

    def shadow(self) -> DeltaSink:
        return self._from_settings(shadow_address(self.table), self.schema_evolution, self._upsert, self._partition_by)

    def own_table(self, context: SinkContext) -> OwnTable:
        """Returns the table for its maintenance."""
        return OwnTable(self._root, context.job_uuid, context.uid, self._schema(context), self._partition_by)

    def _schema(self, context: SinkContext) -> RowSchema:
        """Returns the columns of the table. Raises JobDefinitionError if the rows cannot be written as declared."""
        schema = context.schema
        if self._upsert is not None:
            self._upsert.check(schema)
            schema = self._upsert.table_schema(schema)
        check_partition_columns(self._partition_by, schema)
        return schema

    def _check_table(self, context: SinkContext, head: DeltaHead) -> tuple[Column, ...]:
        """Checks the table, and returns the columns that have to be added to it."""
        schema = self._schema(context)
        adds = self.schema_evolution == _ADD_COLUMNS
        added = missing_columns(self.table, head.metadata.fields(), schema) if adds else ()
        check_table(self.table, head, schema, added=added, partition_by=self._partition_by)
        if self._upsert is not None:
            check_upserts(self.table, head, schema)
        self._target = target_schema(context.schema, head.metadata.fields())
        return added

    def _stored_rows(self, context: SinkContext) -> StoredRows:
        """Returns how the table stores rows. A task knows it from the driver, or reads the table's log.

        Without a table, as in a test harness, as a new one would. A run publishes nothing to a table that is gone.
        """
        head = self._head(context) if self._target is None else None
        if head is not None:
            self._check_table(context, head)
        target = target_schema(context.schema) if self._target is None else self._target
        return StoredRows(context.schema, target, context.uid, self._partition_by)

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
        now = epoch_milliseconds(_clock.now())
        actions = new_table(str(uuid.UUID(_clock.new_id())), self._schema(context), now, self._partition_by)
        info = {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": ENGINE}
        self._root.make_folder(LOG_FOLDER)
        append_entry(self._root, 0, [{"commitInfo": info}, *actions])
        head = self._head(context)
        if head is None:
            raise StorageError("the Delta table was created, but cannot be found", table=self.table)
        return head

    def _check_vacant(self) -> None:
        """Raises SinkRefused when a new table's folder has other files, which the first VACUUM would delete."""
        others = [n for n in self._root.names() if n[0] not in "._" and FileName.parse(n) is None]
        if others:
            raise SinkRefused(
                "the sink's folder is neither a Delta table nor empty",
                hint="choose another path",
                table=self.table,
                found=sorted(others)[:3],
            )


def _table_folder(address: str) -> TableFolder:
    """Returns the folder of a table. Raises ConfigError for an address that is not valid, or a path that is encoded."""
    folder = open_table_folder(address)
    if folder.host_local and _CHANGED_BY_READERS.search(folder.address):
        raise ConfigError(
            "a Delta table's path must neither look percent-encoded nor have a backslash: readers would change it",
            hint="choose a path without either",
            table=address,
        )
    return folder


def _require_deltalake(table: str) -> None:
    """Raises EnvironmentUnsupported without deltalake, which the driver needs; tasks only write Parquet files."""
    if find_spec("deltalake") is None:
        raise EnvironmentUnsupported(
            "a package for Delta tables is not installed",
            hint="pip install 'stateflow[delta]'",
            package="deltalake",
            table=table,
        )


COMPACTED = "compacted"
"""In place of the job's UUID in the names of files that combine others, so that no sink takes them for its own."""


@dataclass(frozen=True)
class OwnTable:
    """The table of a sink.

    Attributes:
        path: the table's folder.
        job_uuid: UUID of the job.
        uid: uid of the sink.
        schema: columns of the table that the sink writes.
        partition_by: the partition columns.
    """

    path: TableFolder
    job_uuid: str
    uid: str
    schema: RowSchema
    partition_by: tuple[str, ...]

    @property
    def application(self) -> str:
        """The name under which the table stores the sink's token."""
        return f"{self.job_uuid}/{self.uid}"

    def head(self, known: DeltaHead | None = None) -> DeltaHead:
        """Returns the newest version. Raises SinkDiverged if the table does not exist."""
        head = read_head(self.path, self.application, known)
        if head is None:
            raise SinkDiverged("the sink's table does not exist", hint="run the job first", table=self.path.address)
        return head


class DeltaSinkTable(SinkTable):
    """A table at the version of its head; a commit creates the next version, or fails."""

    def __init__(self, root: TableFolder, context: SinkContext, head: DeltaHead, stored: StoredRows) -> None:
        self.table_id = head.metadata.id
        self._stored = stored
        self.version = head.version
        self.token: int = head.token
        self.successor = successor_of(read_transactions(root), context.application) if head.is_taken_over else None
        self._root = root
        self._context = context
        self._head = head

    def missing(self, committables: list[Committable]) -> list[str]:
        for committable in committables:
            if FileName.parse(committable.path) is None:
                message = "a file to publish was not written by a sink"
                raise DataError(message, path=committable.path, table=self._root.address)
        sizes = self._root.sizes([c.path for c in committables])
        return [c.path for c, size in zip(committables, sizes, strict=True) if size != c.size]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        # One attempt: `sink_commit` opens the table again and retries after a concurrent commit.
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
                table=self._root.address,
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
        names = [name + end for name in former for end in (TAKEN_OVER, name_successor(by))]
        return append_after(self._root, self._head, self._rewind_actions(None, token, FileChange((), ()), names))

    def _is_stale(self) -> bool:
        """Whether the table has changed since the handle was made, so that a commit would fail."""
        found = self._root.sequence(entry_path, self.version)
        return len(found) != 1 or found[0].version != self._head.entry

    def _rewinder(self) -> Rewinder:
        return Rewinder(self._root, self._context.application, self._head)

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
            with open_logged_parquet(self._root, to_logged_path(committable.path)) as file:
                found = file.schema_arrow
            if found.types != columns.types:
                raise SchemaMismatch(
                    "files that are not published yet do not have the types of the table's columns",
                    hint="change the columns back to the types that they had when the rows were written",
                    table=self._root.address,
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
        values = parse_partition_folder(name.folder)
        for batch in read_parquet(self._root, to_logged_path(path)):
            whole = [
                pa.repeat(parse_partition_value(values[f.name], f.type), len(batch))
                if f.name in values
                else batch.column(f.name)
                for f in target
            ]
            assign_rows(pa.RecordBatch.from_arrays(whole, names=target.names), target, {"file": path})

    def _append_actions(self, token: int, committables: list[Committable]) -> list[Action]:
        now = epoch_milliseconds(_clock.now())
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
        now = epoch_milliseconds(_clock.now())
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
        root: TableFolder,
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
        actions = self._upsert_actions(token, rewrite)
        version = append_after(self._root, self._head, actions)
        if version is not None:
            self._files.apply(version, actions)
        # The emitted rows are in the new files now; or no version has the new files.
        useless = rewrite.added if version is None else committables
        remove_files(self._root, (file.path for file in useless))
        return version

    def _upsert(self, last: Committable) -> DeltaUpsert:
        emitted = FileName.parse(last.path)
        assert emitted is not None
        writing = replace(emitted.writing, subtask=0, attempt=f"u{_clock.new_id()}")
        name = FileName.first(self._context, writing)
        return DeltaUpsert(self._root, self._settings, self._stored, name)

    def _upsert_actions(self, token: int, rewrite: RewrittenFiles) -> list[Action]:
        now = epoch_milliseconds(_clock.now())
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
        "path": to_logged_path(file.path),
        "partitionValues": parse_partition_folder(name.folder) if name else {},
        "size": file.size,
        "modificationTime": now,
        "dataChange": True,
        "stats": file.stats or f'{{"numRecords":{file.rows}}}',
    }


# tests/connectors commits to a table with each of these and reads it through Spark. The last three require nothing of
# a writer unless a column or a property uses them, which is checked separately.
_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        TIMESTAMPS_WITHOUT_ZONE,
        "v2Checkpoint",
        "invariants",
        "checkConstraints",
        "generatedColumns",
    }
)


_CONSTRAINT = "delta.constraints."
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"


# What a column's metadata requires of a writer. Other metadata, such as comments, is harmless.
_COLUMN_PROPERTIES = {
    "delta.generationExpression": "a generated column would be null",
    "delta.identity.": "an identity column would be null",
    "delta.invariants": "the column's invariant would not be checked",
    "delta.columnMapping.": "mapped columns would be null",
    "CURRENT_DEFAULT": "the column's default would not be filled in",
    "delta.": "this version does not know the requirements of the column's property",
    "__": "this version does not know the requirements of the column's property",
}


_OTHER_TABLE = "or let the sink write to another table"
_REFUSED_FOR_UPSERTS = {
    "delta.appendOnly": "its rows may not be replaced",
    "delta.enableChangeDataFeed": "its feed would list rows that were only written again",
}
"""Properties that are refused when they are true, each with the reason."""


@dataclass(frozen=True)
class _Refusal:
    """Why a table is rejected: what it has, what would go wrong, and how to change it.

    Attributes:
        facts: the property with its value or column, the feature, or the protocol versions.
    """

    facts: Mapping[str, object]
    reason: str
    hint: str


def check_table(
    table: str, head: DeltaHead, schema: RowSchema, *, added: Iterable[Column] = (), partition_by: Sequence[str] = ()
) -> None:
    """Checks that files with rows of `schema` can be committed to a table directly.

    Args:
        table: its path, for errors.
        added: columns of `schema` that the table may lack.
        partition_by: the columns that the sink partitions by.

    Raises:
        SinkRefused: such a commit would violate a property of the table.
        SchemaMismatch: columns are missing, or have other types or names.
    """
    refusals = list(_refusals(head, schema, partition_by))
    if refusals:
        first, *others = refusals
        also = {"also": [" ".join(map(str, r.facts.values())) for r in others]} if others else {}
        raise SinkRefused(
            f"the Delta table cannot be written to directly: {first.reason}",
            hint=first.hint,
            table=table,
            **first.facts,
            **also,
        )
    names = {column.name for column in added}
    expected = replace(schema, columns=tuple(c for c in schema.columns if c.name not in names))
    declared, found = _differences(head.metadata.fields(), expected)
    if declared:
        raise SchemaMismatch(
            "the sink's rows do not match the columns of the Delta table",
            hint="change the row class, or the table with ALTER TABLE; "
            'DeltaSink(…, schema_evolution="add-columns") adds columns that the table lacks',
            table=table,
            declared=declared,
            found=found,
        )


def check_protocol(table: str, head: DeltaHead) -> None:
    """Raises SinkRefused if a table has features with unknown requirements, also of a VACUUM."""
    for refusal in _protocol_refusals(head.protocol):
        raise SinkRefused(
            "the Delta table has a feature that is not supported", hint=refusal.hint, table=table, **refusal.facts
        )


def check_upserts(table: str, head: DeltaHead, schema: RowSchema) -> None:
    """Checks that data files of a table can be written again without some of their rows.

    Args:
        table: its path, for errors.
        schema: all columns that the table may have.

    Raises:
        SinkRefused: that would violate a property of the table.
        SchemaMismatch: the table has further columns, whose values would be lost.
    """
    configuration = head.metadata.configuration or {}
    for name, reason in _REFUSED_FOR_UPSERTS.items():
        if (configuration.get(name) or "").lower() == "true":
            raise SinkRefused(
                f"the Delta table does not permit upserts: {reason}",
                hint=f"ALTER TABLE ... UNSET TBLPROPERTIES ('{name}'), {_OTHER_TABLE}",
                table=table,
                property=name,
            )
    known = {name.lower() for name in schema.names}
    others = [field.name for field in head.metadata.fields() if field.name.lower() not in known]
    if others:
        raise SchemaMismatch(
            "the Delta table has columns that the rows of an upsert do not have",
            hint="declare them in the row class: an upsert replaces whole rows",
            table=table,
            columns=others,
        )


def new_table(table_id: str, schema: RowSchema, created_ms: int, partition_by: Sequence[str] = ()) -> list[Action]:
    """Returns the actions that create an empty table for rows of `schema`, with nullable columns.

    Args:
        created_ms: time of creation, in milliseconds since 1970.
        partition_by: the partition columns.

    Raises:
        JobDefinitionError: the row class has no columns, or two whose names differ only by case.
    """
    lower = [name.lower() for name in schema.names]
    if not lower or len(set(lower)) < len(lower):
        raise JobDefinitionError(
            "a Delta table needs at least one column, and column names that differ by more than case",
            row_class=schema.row_class.__name__,
            columns=list(schema.names),
        )
    fields = [delta_field(column.name, column.shape) for column in schema.columns]
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode({"type": "struct", "fields": fields}).decode(),
        "partitionColumns": list(partition_by),
        "configuration": {},
        "createdTime": created_ms,
    }
    return [{"protocol": _lowest_protocol(schema)}, {"metaData": metadata}]


def _lowest_protocol(schema: RowSchema) -> Action:
    if not has_timestamps_without_zone(schema.columns):
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    # As Spark creates it: a table that lists features must also list those that writer version 2 implies.
    return {
        "minReaderVersion": FEATURE_READER_VERSION,
        "minWriterVersion": FEATURE_WRITER_VERSION,
        "readerFeatures": [TIMESTAMPS_WITHOUT_ZONE],
        "writerFeatures": [TIMESTAMPS_WITHOUT_ZONE, "appendOnly", "invariants"],
    }


def _refusals(head: DeltaHead, schema: RowSchema, partition_by: Sequence[str]) -> Iterator[_Refusal]:
    yield from _protocol_refusals(head.protocol)
    yield from _configuration_refusals(head.metadata.configuration or {})
    existing = head.metadata.partition_columns
    for column, reason in compare_partition_columns(partition_by, existing):
        hint = f"DeltaSink(…, partition_by={existing!r}), {_OTHER_TABLE}"
        yield _Refusal({"property": "PARTITIONED BY", "column": column}, reason, hint)
    declared = {name.lower() for name in schema.names}
    for field in head.metadata.fields():
        yield from _column_refusals(field, is_declared=field.name.lower() in declared)


def _protocol_refusals(protocol: Protocol) -> Iterator[_Refusal]:
    if protocol.min_reader_version > FEATURE_READER_VERSION or protocol.min_writer_version > FEATURE_WRITER_VERSION:
        facts = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
        reason = f"this version supports protocols up to ({FEATURE_READER_VERSION}, {FEATURE_WRITER_VERSION})"
        yield _Refusal(facts, reason, f"use a newer stateflow, {_OTHER_TABLE}")
    named = {*(protocol.reader_features or []), *(protocol.writer_features or [])}
    for feature in sorted(named - _FEATURES):
        dropped = (
            "a direct commit would violate the requirements of the feature",
            f"ALTER TABLE ... DROP FEATURE {feature}",
        )
        reason, hint = CATALOG_MANAGED if feature in CATALOG_FEATURES else dropped
        yield _Refusal({"feature": feature}, reason, f"{hint}, {_OTHER_TABLE}")


def _configuration_refusals(configuration: Mapping[str, str | None]) -> Iterator[_Refusal]:
    for name in sorted(configuration):
        if name.startswith(_CONSTRAINT):
            hint = f"ALTER TABLE ... DROP CONSTRAINT {name.removeprefix(_CONSTRAINT)}, {_OTHER_TABLE}"
            yield _Refusal({"property": name}, "the CHECK constraint would not be checked", hint)
    if (configuration.get(COLUMN_MAPPING) or "none").lower() != "none":
        hint = f"ALTER TABLE ... SET TBLPROPERTIES ('{COLUMN_MAPPING}' = 'none'), {_OTHER_TABLE}"
        yield _Refusal({"property": COLUMN_MAPPING}, "mapped columns would be null", hint)
    if configuration.get(_TRANSACTION_RETENTION):
        hint = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_TRANSACTION_RETENTION}')"
        reason = "the table would drop the sink's transaction, and its output would be committed twice"
        yield _Refusal({"property": _TRANSACTION_RETENTION}, reason, hint)


def _column_refusals(field: DeltaField, *, is_declared: bool) -> Iterator[_Refusal]:
    name = field.name
    if not field.nullable and not is_declared:
        hint = f"declare the column, or ALTER TABLE ... ALTER COLUMN {name} DROP NOT NULL, {_OTHER_TABLE}"
        yield _Refusal({"property": "NOT NULL", "column": name}, "a required column is not in the rows", hint)
    for path, metadata in ((name, field.metadata or {}), *metadata_of_parts(name, field.type)):
        for key in sorted(metadata.keys() - {CHAR_VARCHAR}):
            for prefix, reason in _COLUMN_PROPERTIES.items():
                if key.startswith(prefix):
                    facts = {"property": key, "column": path}
                    yield _Refusal(facts, reason, f"remove the property from the column, {_OTHER_TABLE}")
                    break


def _differences(fields: list[DeltaField], schema: RowSchema) -> tuple[dict[str, str], dict[str, str | None]]:
    """Returns the columns of rows that the table lacks, and what it has instead: types by name, None for no column.

    The table may have further columns, which are null, and its columns may be in any order. A narrower type, or one
    with a length, is accepted: values are checked when they are written.
    """
    fields_by_name = {f.name: f for f in fields}
    types = {f.name: f.type for f in fields}
    names_in_lower_case = {name.lower(): name for name in types}
    declared: dict[str, str] = {}
    found: dict[str, str | None] = {}
    for column in schema.columns:
        name = column.name
        if name not in types:
            name = names_in_lower_case.get(name.lower(), name)
        kind = types.get(name)
        if name != column.name or kind is None or not _may_store(fields_by_name[name], column):
            declared[column.name], found[name] = (
                type_text(delta_type(column.shape)),
                None if kind is None else type_text(kind),
            )
    return declared, found


def _may_store(field: DeltaField, column: Column) -> bool:
    try:
        found = arrow_field(field.name, field.type, metadata=field.metadata)
    except (ValueError, LookupError, TypeError, AttributeError):  # the last three: of a malformed nested type
        return False
    return can_assign(stored_type(column.arrow_type), found.type)


_IMPLIED = {
    1: (),
    2: ("appendOnly", "invariants"),
    3: ("appendOnly", "invariants", "checkConstraints"),
    4: ("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}
"""The features that a writer version without a list of features has, which a list must contain."""


def missing_columns(table: str, fields: Sequence[DeltaField], schema: RowSchema) -> tuple[Column, ...]:
    """Returns the columns that a table lacks; arguments and errors as of `columns_to_add`, with the table's fields."""
    types = [type_text(field.type) for field in fields]
    return columns_to_add(
        table,
        [field.name for field in fields],
        schema,
        lambda column, at: types[at] == type_text(delta_type(column.shape)),
    )


def column_actions(table: str, head: DeltaHead, columns: Sequence[Column], now: int) -> list[Action]:
    """Returns the actions of a commit that adds nullable columns to a table.

    Args:
        table: its path, for errors.
        head: the table's newest version.
        now: time of the commit, in milliseconds since 1970.

    Raises:
        SinkRefused: the table's protocol would have to be replaced for a column.
    """
    added = [delta_field(column.name, column.shape) for column in columns]
    about = head.metadata
    metadata = {
        "id": about.id,
        "name": about.name,
        "description": about.description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _with_fields(about.schema_string, added),
        "partitionColumns": about.partition_columns,
        "configuration": about.configuration or {},
        "createdTime": about.created_time,
    }
    info = {
        "timestamp": now,
        "operation": "ADD COLUMNS",
        "operationParameters": {"columns": msgspec.json.encode(added).decode()},
        "readVersion": head.version,
        "isBlindAppend": False,
        "engineInfo": ENGINE,
    }
    protocol = _protocol(table, head.protocol, columns)
    actions: list[Action] = [{"commitInfo": info}, *([{"protocol": protocol}] if protocol else [])]
    return [*actions, {"metaData": {name: value for name, value in metadata.items() if value is not None}}]


def _with_fields(schema_string: str, added: list[dict[str, object]]) -> str:
    schema = json_decoder(dict[str, object]).decode(schema_string)
    fields = schema["fields"]
    assert isinstance(fields, list)
    return msgspec.json.encode({**schema, "fields": [*fields, *added]}).decode()


def _protocol(table: str, before: Protocol, columns: Sequence[Column]) -> Action | None:
    """Returns the protocol that the columns need; None if the table has it."""
    readers, writers = before.reader_features or [], before.writer_features or []
    if TIMESTAMPS_WITHOUT_ZONE in writers or not has_timestamps_without_zone(columns):
        return None
    if before.min_writer_version < FEATURE_WRITER_VERSION:
        if before.min_writer_version not in _IMPLIED or before.min_reader_version > 1:
            raise SinkRefused(
                "a column cannot be added, because the table's protocol does not have timestamps without zone",
                hint=f"ALTER TABLE ... SET TBLPROPERTIES ('delta.feature.{TIMESTAMPS_WITHOUT_ZONE}' = 'supported')",
                table=table,
                minReaderVersion=before.min_reader_version,
                minWriterVersion=before.min_writer_version,
            )
        writers = list(_IMPLIED[before.min_writer_version])
    return {
        "minReaderVersion": FEATURE_READER_VERSION,
        "minWriterVersion": FEATURE_WRITER_VERSION,
        "readerFeatures": [*readers, TIMESTAMPS_WITHOUT_ZONE],
        "writerFeatures": [*writers, TIMESTAMPS_WITHOUT_ZONE],
    }
