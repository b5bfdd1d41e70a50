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
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import CatalogEntry, Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.arguments import check_choice
from stateflow.connectors.columns.store_assignment import nullable
from stateflow.connectors.delta.active_files import ActiveFiles
from stateflow.connectors.delta.added_columns import column_actions, missing_columns
from stateflow.connectors.delta.checks import check_table, check_upserts, new_table
from stateflow.connectors.delta.column_types import target_schema
from stateflow.connectors.delta.data_files import (
    FileName,
    ParquetWriter,
    check_writable,
    disk_error,
    list_own_files,
    make_log_folder,
    remove_leftovers,
)
from stateflow.connectors.delta.log.listing import LOG_FOLDER
from stateflow.connectors.delta.log.table_log import (
    TAKEN_OVER,
    DeltaHead,
    append_after,
    append_entry,
    create_overdue_checkpoint,
    read_head,
    read_transactions,
    unreferenced_files,
)
from stateflow.connectors.delta.maintenance.own_table import OwnTable
from stateflow.connectors.delta.partitions.columns import StoredRows, check_columns
from stateflow.connectors.delta.partitions.writer import PartitionedWriter
from stateflow.connectors.delta.sink_table import DeltaSinkTable, UpsertTable, now_ms
from stateflow.connectors.delta.versions import ENGINE
from stateflow.connectors.upserts import UpsertSettings, names_of
from stateflow.errors import (
    ConfigError,
    EnvironmentUnsupported,
    JobDefinitionError,
    SinkDiverged,
    SinkRefused,
    StorageError,
)
from stateflow.storage import open_storage

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
        table: a path, or ``file:///path``.
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
        ConfigError: the path is not on a POSIX file system, looks percent-encoded or has a backslash; or
            `schema_evolution` is not one of its values, or `register_as` is no such name.
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
                "mode and key of a Delta sink do not fit",
                hint='keys, order_by and deletes belong to mode="upsert", which needs keys',
                mode=mode,
                keys=list(upsert.keys),
            )
        self._root = _table_folder(os.fspath(table))
        self.table = str(self._root)
        self.schema_evolution: SchemaEvolution = schema_evolution
        self._upsert = upsert if mode == _UPSERT else None
        self._partition_by = names_of(partition_by)
        self._entry = CatalogEntry.parse(register_as, "delta", self.table) if register_as else None
        self._files: dict[str, ActiveFiles] = {}
        self._heads: dict[str, DeltaHead] = {}
        self._target: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({self.table!r})"

    def __reduce__(self) -> tuple[Callable[..., DeltaSink], tuple[object, ...], pa.Schema | None]:
        # Tasks need neither the cached heads nor the name in the catalog.
        return _sink, (self.table, self.schema_evolution, self._upsert, self._partition_by), self._target

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
        return _sink(self.table, self.schema_evolution, upsert, self._partition_by, self._entry)

    def with_upsert(self, upsert: UpsertSettings | None, entry: CatalogEntry | None) -> DeltaSink:
        """Returns this sink with other settings of upserts and another name in the catalog."""
        self._upsert, self._entry = upsert, entry
        return self

    @property
    def location(self) -> str:
        return self.table

    @property
    def host_local(self) -> bool:
        return True

    @property
    def catalog_entry(self) -> CatalogEntry | None:
        return self._entry

    def check(self, context: SinkContext) -> str | None:
        _require_deltalake(self.table)
        if self._root.exists() and not self._root.is_dir():
            raise ConfigError("the Delta table's path is not a folder", hint="choose another", table=self.table)
        head = self._head(context)
        if head is None:
            new_table("", self._schema(context), 0, self._partition_by)
            self._check_vacant()
            check_writable(self._root)
            return None
        self._check_table(context, head)
        check_writable(self._root, self._root / LOG_FOLDER)
        return head.metadata.id

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        if self._head(context) is None:
            return frozenset()
        found = read_transactions(self._root)
        names = (name.partition("/") for name, token in found.items() if token and f"{name}{TAKEN_OVER}" not in found)
        return frozenset(job for job, _, uid in names if uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        self.check(context)
        head = self._head(context) or self._create(context)
        for _ in range(_TRIES):
            # Another process may have created the table, or changed it, meanwhile.
            added = self._check_table(context, head)
            if not added:
                return head.metadata.id
            if append_after(self._root, head, column_actions(self.table, head, added, now_ms())) is not None:
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
        return ParquetWriter(self._root, name, nullable(rows.target), of=rows.of_upsert)

    def open_table(self, context: SinkContext) -> SinkTable:
        head = self._existing_head(context)
        # Output that is pending when a run starts is published before `prepare` adds columns.
        self._check_table(context, head)
        rows = self._stored_rows(context)
        if self._upsert is None:
            return DeltaSinkTable(self._root, context, head, rows)
        files = self._files.setdefault(context.application, ActiveFiles(self._root, context.application))
        return UpsertTable(self._root, context, head, rows, upsert=self._upsert, files=files)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        head = self._head(context)
        if head is not None:
            create_overdue_checkpoint(self._root, head)
        # List the folder before reading the log: a file that is committed in between is then found in the log.
        own = (context.job_uuid, context.uid)
        files = (n for n in list_own_files(self._root, len(self._partition_by)) if (n.job_uuid, n.uid) == own)
        possible = {str(n): n for n in files if is_leftover(n.writing.generation, n.writing.ordinal, n.path)}
        generations = {name: file.writing.generation for name, file in possible.items()}
        found = unreferenced_files(self._root, context.application, generations) if possible else ()
        leftovers = sorted(possible[name].path for name in found)
        remove_leftovers(self._root, leftovers)
        return leftovers

    def shadow(self) -> DeltaSink:
        return _sink(f"{self.table}_shadow", self.schema_evolution, self._upsert, self._partition_by)

    def own_table(self, context: SinkContext) -> OwnTable:
        """Returns the table for its maintenance."""
        return OwnTable(self._root, context.job_uuid, context.uid, self._schema(context), self._partition_by)

    def _schema(self, context: SinkContext) -> RowSchema:
        """Returns the columns of the table. Raises JobDefinitionError if the rows cannot be written as declared."""
        schema = context.schema
        if self._upsert is not None:
            self._upsert.check(schema)
            schema = self._upsert.table_schema(schema)
        check_columns(self._partition_by, schema)
        return schema

    def _check_table(self, context: SinkContext, head: DeltaHead) -> tuple[Column, ...]:
        """Checks the table, and returns the columns that have to be added to it."""
        schema = self._schema(context)
        adds = self.schema_evolution == _ADD_COLUMNS
        added = missing_columns(self.table, head.metadata.fields(), schema) if adds else ()
        check_table(self.table, head, schema, (added, self._partition_by))
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
        now = now_ms()
        actions = new_table(str(uuid.UUID(_clock.new_id())), self._schema(context), now, self._partition_by)
        info = {"timestamp": now, "operation": "CREATE TABLE", "engineInfo": ENGINE}
        make_log_folder(self._root / LOG_FOLDER)
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


def _sink(
    table: str,
    schema_evolution: SchemaEvolution,
    upsert: UpsertSettings | None,
    partition_by: tuple[str, ...],
    entry: CatalogEntry | None = None,
) -> DeltaSink:
    sink = DeltaSink(table, partition_by=partition_by, schema_evolution=schema_evolution)
    return sink.with_upsert(upsert, entry)


def _table_folder(address: str) -> Path:
    """Returns the folder of a table. Raises ConfigError unless it is on a POSIX file system, under a plain path."""
    log = open_storage(address).local_path(LOG_FOLDER)
    if log is None:
        raise ConfigError(
            "a Delta table must be on a POSIX file system", hint="use a path or file:///path", table=address
        )
    if _CHANGED_BY_READERS.search(str(log)):
        raise ConfigError(
            "a Delta table's path must neither look percent-encoded nor have a backslash: readers would change it",
            hint="choose a path without either",
            table=address,
        )
    return log.parent


def _require_deltalake(table: str) -> None:
    """Raises EnvironmentUnsupported without deltalake, which the driver needs; tasks only write Parquet files."""
    if find_spec("deltalake") is None:
        raise EnvironmentUnsupported(
            "a package for Delta tables is not installed",
            hint="pip install 'stateflow[delta]'",
            package="deltalake",
            table=table,
        )
