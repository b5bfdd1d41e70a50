"""The file sink: Parquet, JSON or CSV files in a folder, of which readers see what is committed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal

from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.clock import SystemClock
from stateflow.connectors.arguments import check_choice
from stateflow.connectors.delta.data_files import (
    FileName,
    check_writable,
    disk_error,
    make_log_folder,
    remove_leftovers,
)
from stateflow.connectors.files.data_writer import CSV, JSON, PARQUET, DataWriter, file_path, list_files
from stateflow.connectors.files.metadata_log import (
    LOG_FOLDER,
    Entry,
    Marker,
    append,
    has_foreign_entries,
    known_files,
    read_entry,
    versions,
)
from stateflow.connectors.files.sink_table import FileSinkTable, now_ms
from stateflow.errors import ConfigError, JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused, StorageError
from stateflow.storage import open_storage
from stateflow.types.columns.shapes import Entries, Leaf, Shape, parts_of

Format = Literal["parquet", "json", "csv"]
_clock = SystemClock()
_PARTITION_TYPES = frozenset({"bigint", "boolean", "string", "date"})


class FileSink(Sink):
    """Adds a stream's rows to a folder as Parquet, JSON or CSV files, exactly once.

    Files become visible through a log in ``_spark_metadata``, in the format of Spark's own file sink: Spark, and a
    `FileSource`, read exactly the files of committed checkpoints, at any time. *Other readers that list the folder also
    see files that are not committed*, and files that a restore has undone.

    Args:
        path: the folder, or ``file:///path``; a POSIX file system that supports ``O_TMPFILE``.
        format: ``"parquet"``, ``"json"`` (one object per line, without nulls) or ``"csv"`` (with a header; quotes in
            values are doubled: read it with Spark's options ``header=True``, ``escape='"'`` and ``multiLine=True``,
            and with the partition columns last; it reads an empty text as null). JSON and CSV have columns of int,
            float, bool, str, date and datetime only.
        partition_by: columns by whose values files are put into folders ``column=value``: int, bool, str or date. An
            empty text becomes null, as in Spark.

    Raises:
        ConfigError: the folder is not on a POSIX file system, or `format` is not one of its values.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, format: Format = "parquet", partition_by: str | Sequence[str] = ()
    ) -> None:
        check_choice("format", format, (PARQUET, JSON, CSV))
        address = os.fspath(path)
        log = open_storage(address).local_path(LOG_FOLDER)
        if log is None:
            raise ConfigError("a sink's folder must be on a POSIX file system", hint="use a path", path=address)
        self.path = str(log.parent)
        self.format: Format = format
        self._root = log.parent
        self._partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, format={self.format!r})"

    @property
    def location(self) -> str:
        return self.path

    @property
    def host_local(self) -> bool:
        return True

    def check(self, context: SinkContext) -> str | None:
        head = self._head()
        if head is not None:
            self._check_layout(head.marker, context.schema)
        self._check_columns(context.schema)
        if head is not None:
            return head.marker.table_id
        self._check_vacant()
        check_writable(self._root)
        return None

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        head = self._head()
        tokens, ended = (head.marker.tokens, head.marker.taken_over) if head else ({}, {})
        names = (name.partition("/") for name, token in tokens.items() if token and name not in ended)
        return frozenset(job for job, _, uid in names if uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        table_id = self.check(context)
        if table_id is None:
            make_log_folder(self._root / LOG_FOLDER)
            columns = [(column.name, column.spark_type) for column in context.schema.columns]
            by = list(self._partition_by)
            marker = Marker(table_id=_clock.new_id(), format=self.format, columns=columns, partition_by=by)
            append(self._root, 0, marker, [], now_ms())
            table_id = self.check(context)
        if table_id is None:
            raise StorageError("the sink's folder was created, but cannot be found", path=self.path)
        return table_id

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        name = FileName.first(context, writing)
        return DataWriter(self._root, name, context.schema, (self.format, self._partition_by))

    def open_table(self, context: SinkContext) -> SinkTable:
        head = self._head()
        if head is None:
            raise SinkDiverged(
                "the sink's folder no longer exists", hint="restore it, or give the sink a new uid", path=self.path
            )
        self._check_layout(head.marker, context.schema)
        return FileSinkTable(self._root, context, head)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        # List the folder before the log is read: a file that is published in between is then known.
        own = (context.job_uuid, context.uid)
        names = [n for n in list_files(self._root, self.format, len(self._partition_by)) if (n.job_uuid, n.uid) == own]
        written = {file_path(name, self.format): name.writing for name in names}
        possible = {path for path, w in written.items() if is_leftover(w.generation, w.ordinal, path)}
        leftovers = sorted(possible.difference(known_files(self._root))) if possible else []
        remove_leftovers(self._root, leftovers)
        return leftovers

    def shadow(self) -> FileSink:
        return FileSink(f"{self.path}_shadow", format=self.format, partition_by=self._partition_by)

    def _head(self) -> Entry | None:
        found = versions(self._root)
        if has_foreign_entries(self._root, found):
            raise SinkRefused(
                "a log in the sink's folder was written by another program, such as Spark's own file sink",
                hint="choose another folder",
                path=self.path,
            )
        return read_entry(self._root, found[-1]) if found else None

    def _check_columns(self, schema: RowSchema) -> None:
        by = set(self._partition_by)
        unknown = sorted(by - set(schema.names))
        refused = [c.name for c in schema.columns if not self._fits(c)]
        if unknown or refused or len(by) != len(self._partition_by) or not set(schema.names) - by:
            raise JobDefinitionError(
                "columns of a file sink do not fit its format or its partitions",
                hint='format="parquet" has all types, "json" all but dicts whose keys are not texts, and "csv" scalars '
                "except bytes; partition by int, bool, str or date columns, and not by all",
                columns=[*unknown, *refused],
                format=self.format,
                partition_by=list(self._partition_by),
            )

    def _fits(self, column: Column) -> bool:
        """Returns whether Spark reads a column of files as it was."""
        if column.name in self._partition_by:
            return column.spark_type in _PARTITION_TYPES
        if self.format == CSV:
            return isinstance(column.shape, Leaf) and column.spark_type != "binary"
        return self.format == PARQUET or not _has_other_keys(column.shape)

    def _check_layout(self, marker: Marker, schema: RowSchema) -> None:
        """Raises SchemaMismatch or SinkRefused if the existing files are not like the sink's."""
        columns = [(column.name, column.spark_type) for column in schema.columns]
        facts = {"path": self.path}
        if marker.columns != columns:
            raise SchemaMismatch(
                "the sink's folder has other columns",
                hint="use another folder",
                found=marker.columns,
                expected=columns,
                **facts,
            )
        if (marker.format, marker.partition_by) != (self.format, list(self._partition_by)):
            raise SinkRefused(
                "files in the sink's folder have another format or other partitions",
                hint="use another folder",
                format=marker.format,
                partition_by=marker.partition_by,
                **facts,
            )

    def _check_vacant(self) -> None:
        """Raises SinkRefused for a folder with other files: Spark would no longer see them."""
        try:
            others = sorted(name for name in os.listdir(self._root) if name != LOG_FOLDER)
        except FileNotFoundError:
            return
        except OSError as e:
            raise disk_error(e, self._root) from e
        if others:
            raise SinkRefused(
                "the sink's folder has other files, which readers would no longer see",
                hint="choose an empty folder",
                path=self.path,
                found=others[:3],
            )


def _has_other_keys(shape: Shape) -> bool:
    """Returns whether a value contains dicts whose keys are not texts, as all keys of JSON are."""
    is_other = isinstance(shape, Entries) and shape.key.spark != "string"
    return is_other or any(map(_has_other_keys, parts_of(shape)))
