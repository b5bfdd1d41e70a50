"""The file sink: Parquet, JSON or CSV files in a folder, of which readers see those that a log names.

The log has the format of Spark's own file sink. ``_spark_metadata/<n>`` lists the files that version n adds; each
tenth, ``<n>.compact``, lists all files of the table. Spark reads the newest of the latter, and what follows. An
entry is created only if its name is free, so versions are numbered without gaps, and one of two writers is refused.

The first line of an entry names no file, and Spark ignores it, because its name begins with ``_``. It has what Spark
does not store: table id, columns, and the token of each application.
"""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.schema import Column, RowSchema
from stateflow.api.sink import (
    OtherCommit,
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
from stateflow.connectors.data_files import FileName, ParquetWriter
from stateflow.connectors.delta_types import check_rows
from stateflow.connectors.json_rows import duration_text, encode, json_objects
from stateflow.connectors.partitions import NULL, data_columns, parse_partition_folder, split_by_partition
from stateflow.connectors.table_folder import (
    TableFolder,
    open_table_folder,
    read_each,
    shadow_address,
    translate_disk_errors,
)
from stateflow.connectors.table_runs import TableRuns
from stateflow.errors import (
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    SchemaMismatch,
    SinkDiverged,
    SinkRefused,
    StorageError,
)
from stateflow.helpers import check_choice
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import with_scalars
from stateflow.types.columns.shapes import Entries, Leaf, Shape, parts_of
from stateflow.types.declared_types import special_float

Format = Literal["parquet", "json", "csv"]
_clock = SystemClock()
_PARTITION_TYPES = frozenset({"bigint", "boolean", "string", "date"})


class FileSink(Sink):
    """Adds a stream's rows to a folder as Parquet, JSON or CSV files, exactly once.

    Files become visible through a log in ``_spark_metadata``, in the format of Spark's own file sink: Spark, and a
    `FileSource`, read exactly the files of committed checkpoints, at any time. *Other readers that list the folder also
    see files that are not committed*, and files that a restore has undone.

    Args:
        path: the folder, or ``file:///path``, on a POSIX file system that supports ``O_TMPFILE``; or
            ``s3://bucket/prefix``, ``az://container/prefix``, ``gs://bucket/prefix`` or
            ``webhdfs://namenode:9870/path``, with the credentials of a job root there.
        format: ``"parquet"``, ``"json"`` (one object per line, without nulls) or ``"csv"`` (with a header; quotes in
            values are doubled: read it with Spark's options ``header=True``, ``escape='"'`` and ``multiLine=True``,
            and with the partition columns last; it reads an empty text as null). JSON and CSV have columns of int,
            float, bool, str, date and datetime only.
        partition_by: columns by whose values files are put into folders ``column=value``: int, bool, str or date. An
            empty text becomes null, as in Spark.

    Raises:
        ConfigError: the address is not valid, or `format` is not one of its values.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, format: Format = "parquet", partition_by: str | Sequence[str] = ()
    ) -> None:
        check_choice("format", format, (PARQUET, JSON, CSV))
        self._root = open_table_folder(os.fspath(path))
        self.path = self._root.address
        self.format: Format = format
        self._partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

    def __repr__(self) -> str:
        return f"FileSink({self.path!r}, format={self.format!r})"

    @property
    def location(self) -> str:
        return self.path

    def datasets(self) -> Sequence[Dataset]:
        return (Dataset(*path_name(self.path), kind="FILE", file_format=self.format),)

    @property
    def host_local(self) -> bool:
        return self._root.host_local

    def check(self, context: SinkContext) -> str | None:
        head = self._head()
        if head is not None:
            self._check_layout(head.marker, context.schema)
        self._check_columns(context.schema)
        if head is not None:
            self._root.check_writable(LOG_FOLDER)
            return head.marker.table_id
        self._check_vacant()
        self._root.check_writable()
        return None

    def other_jobs(self, context: SinkContext) -> frozenset[str]:
        head = self._head()
        tokens, ended = (head.marker.tokens, head.marker.taken_over) if head else ({}, {})
        names = (name.partition("/") for name, token in tokens.items() if token and name not in ended)
        return frozenset(job for job, _, uid in names if uid == context.uid) - {context.job_uuid}

    def prepare(self, context: SinkContext) -> str:
        table_id = self.check(context)
        if table_id is None:
            self._root.check_put_if_absent()
            self._root.make_folder(LOG_FOLDER)
            columns = [(column.name, column.spark_type) for column in context.schema.columns]
            by = list(self._partition_by)
            marker = Marker(table_id=_clock.new_id(), format=self.format, columns=columns, partition_by=by)
            append(self._root, 0, marker, [], epoch_milliseconds(_clock.now()))
            table_id = self.check(context)
        if table_id is None:
            raise StorageError("the sink's folder was created, but cannot be found", path=self.path)
        return table_id

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        name = FileName.first(context, writing)
        return DataWriter(self._root, name, context.schema, format=self.format, partition_by=self._partition_by)

    def open_table(self, context: SinkContext) -> SinkTable:
        head = self._head()
        if head is None:
            raise SinkDiverged(
                "the sink's folder no longer exists", hint="restore it, or give the sink a new uid", path=self.path
            )
        self._check_layout(head.marker, context.schema)
        return FileSinkTable(self._root, context, head)

    def begin_run(self, context: SinkContext, generation: int) -> None:
        self._runs(context).register(generation)

    def _runs(self, context: SinkContext) -> TableRuns:
        return TableRuns(self._root, context, len(self._partition_by))

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        # List the folder before the log is read: a file that is published in between is then known.
        own = (context.job_uuid, context.uid)
        runs = self._runs(context)
        parsed = filter(None, (parse_path(file.key, self.format) for file in runs.written()))
        names = [n for n in parsed if (n.job_uuid, n.uid) == own]
        written = {file_path(name, self.format): name.writing for name in names}
        possible = {path for path, w in written.items() if is_leftover(w.generation, w.ordinal, path)}
        generations = {path: written[path].generation for path in possible}
        leftovers = sorted(find_unknown_files(self._root, context.application, generations))
        self._root.delete(leftovers)
        self._root.remove_abandoned_files()
        runs.forget_swept()
        return leftovers

    def shadow(self) -> FileSink:
        return FileSink(shadow_address(self.path), format=self.format, partition_by=self._partition_by)

    def _head(self) -> VersionEntry | None:
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
        others = sorted(name for name in self._root.names() if name != LOG_FOLDER)
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


_HINT = "choose a newer checkpoint, or keep the table as it is and correct its rows yourself"


class FileSinkTable:
    """The files of a folder at one version; a commit creates the next version, or fails.

    Args:
        root: the folder.
        context: the sink.
        head: the newest entry of the log.
    """

    def __init__(self, root: TableFolder, context: SinkContext, head: VersionEntry) -> None:
        self.table_id = head.marker.table_id
        self.version = head.version
        self.token: int | None = head.marker.tokens.get(context.application, 0)
        successor = head.marker.taken_over.get(context.application)
        self.successor = Successor.parse(successor) if successor else None
        self._root = root
        self._application = context.application
        self._marker = head.marker

    def missing(self, committables: list[Committable]) -> list[str]:
        """As `SinkTable.missing`."""
        sizes = self._sizes([c.path for c in committables])
        return [c.path for c, size in zip(committables, sizes, strict=True) if size != c.size]

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """As `SinkTable.commit`."""
        if len({c.path for c in committables}) < len(committables):
            raise InternalError("a checkpoint has a file twice", application=self._application, token=token)
        version, now = self.version + 1, epoch_milliseconds(_clock.now())
        facts = ((c, FileFacts(version=version, rows=c.rows)) for c in committables)
        lines = [file_line(self._root, c.path, c.size, fact, now) for c, fact in facts]
        return self._append(version, self._next_marker(token), lines)

    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """As `SinkTable.plan_rewind`."""
        if (self.token or 0) <= checkpoint_id:
            return SinkRewind(self.version, None, 0, 0, ())
        entries = self._entries(0)
        later = (v for v, e in entries.items() if self._is_ours(e) and self._token(e) > checkpoint_id)
        to_version = next(later) - 1
        now, then = self._contents(to_version)
        removed, returned = now.keys() - then.keys(), then.keys() - now.keys()
        return SinkRewind(
            self.version,
            to_version,
            _rows(now[path] for path in removed),
            _rows(then[path] for path in returned),
            tuple(self._others(entries, {path: now[path] for path in removed})),
        )

    def changes_since(self, version: int) -> TableChanges:
        """As `SinkTable.changes_since`."""
        entries = self._entries(version + 1)
        others = [
            self._commit_of(e, e.added) for e in entries.values() if e.marker.application and not self._is_ours(e)
        ]
        if version + 1 <= self.version and version + 1 not in entries:
            text = f"version {version + 1}: its log entry no longer exists"
            others.insert(0, OtherCommit(version + 1, frozenset(), text))
        published = any(self._is_ours(e) for e in entries.values())
        return TableChanges(
            self._root.address, published, tuple(o for o in others if o.files or o.operation or o.rows is None)
        )

    def rewind(self, to_version: int | None, token: int) -> int | None:
        """As `SinkTable.rewind`.

        An entry can only remove files by listing all others, which Spark expects in each tenth one. The versions up to
        there are filled with entries that change nothing; if the driver dies in between, nothing has changed.
        """
        if to_version is None:
            return self._append(self.version + 1, self._next_marker(token), [])
        if not self._is_newest():
            return None
        _, then = self._contents(to_version)
        version = self.version + 1
        unchanged = msgspec.structs.replace(self._marker, application="", back_to=None)
        while not is_compact(version):
            if not append(self._root, version, unchanged, [], epoch_milliseconds(_clock.now())):
                return None
            version += 1
        marker = msgspec.structs.replace(self._next_marker(token), back_to=to_version)
        return (
            version
            if append(self._root, version, marker, list(then.values()), epoch_milliseconds(_clock.now()))
            else None
        )

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        """As `SinkTable.take_over`."""
        marker = self._next_marker(token)
        taken_over = {**marker.taken_over, **dict.fromkeys(former, by.text)}
        return self._append(self.version + 1, msgspec.structs.replace(marker, taken_over=taken_over), [])

    def _append(self, version: int, marker: Marker, lines: Sequence[SinkFileStatus]) -> int | None:
        if not is_compact(version):
            return version if append(self._root, version, marker, lines, epoch_milliseconds(_clock.now())) else None
        before = content(self._root, self.version)
        if before is None:
            if not self._is_newest():
                # A newer run has removed the entries.
                return None
            raise self._too_old(self.version)
        if not append(self._root, version, marker, [*before.values(), *lines], epoch_milliseconds(_clock.now())):
            return None
        remove_old_entries(self._root, version)
        return version

    def _next_marker(self, token: int) -> Marker:
        tokens = {**self._marker.tokens, self._application: token}
        return msgspec.structs.replace(self._marker, tokens=tokens, application=self._application, back_to=None)

    def _is_newest(self) -> bool:
        return versions(self._root)[-1] == self.version

    def _is_ours(self, entry: VersionEntry) -> bool:
        return entry.marker.application == self._application

    def _token(self, entry: VersionEntry) -> int:
        return entry.marker.tokens.get(self._application, 0)

    def _entries(self, first: int) -> dict[int, VersionEntry]:
        found = ((v, read_entry(self._root, v)) for v in versions(self._root) if first <= v <= self.version)
        return {version: entry for version, entry in found if entry}

    def _contents(self, to_version: int) -> tuple[Mapping[str, SinkFileStatus], Mapping[str, SinkFileStatus]]:
        """Returns the current content and an older version's, after checking that its files exist."""
        now, then = content(self._root, self.version), content(self._root, to_version)
        if now is None or then is None:
            raise self._too_old(to_version)
        returned = sorted(then.keys() - now.keys())
        sizes = self._sizes(returned)
        missing = [path for path, size in zip(returned, sizes, strict=True) if size != then[path].size]
        if missing:
            raise SinkDiverged(
                "the folder cannot be rewound: files of that version no longer exist",
                hint=_HINT,
                table=self._root.address,
                version=to_version,
                files=missing[:3],
            )
        return now, then

    def _too_old(self, version: int) -> SinkDiverged:
        return SinkDiverged(
            "the folder cannot be rewound: its log no longer has that version",
            hint=_HINT,
            table=self._root.address,
            version=version,
        )

    def _others(
        self, entries: Mapping[int, VersionEntry], removed: Mapping[str, SinkFileStatus]
    ) -> Iterator[OtherCommit]:
        """Yields the commits of other applications that added files of `removed`."""
        for entry in entries.values():
            files = {path: file for path, file in entry.added.items() if path in removed}
            if files and not self._is_ours(entry):
                yield self._commit_of(entry, files)

    def _commit_of(self, entry: VersionEntry, files: Mapping[str, SinkFileStatus]) -> OtherCommit:
        who, rows = entry.marker.application, _rows(files.values())
        back_to = entry.marker.back_to
        what = f"{rows} rows added" if back_to is None else f"version {back_to} restored"
        operation = "" if back_to is None else "RESTORE"
        text = f"version {entry.version}: {what} by {who}"
        return OtherCommit(entry.version, frozenset({who}), text, tuple(files), operation, rows)

    def _sizes(self, paths: Sequence[str]) -> list[int | None]:
        for path in paths:
            if parse_path(path, self._marker.format) is None:
                raise DataError("a file to publish was not written by a sink", path=path, table=self._root.address)
        return self._root.sizes(paths)


def _rows(files: Iterable[SinkFileStatus]) -> int:
    return sum(file.stateflow.rows for file in files if isinstance(file.stateflow, FileFacts))


PARQUET, JSON, CSV = "parquet", "json", "csv"
_PARQUET_ENDING = ".zstd.parquet"
_ENDINGS = {PARQUET: _PARQUET_ENDING, JSON: ".json", CSV: ".csv"}
_ESCAPED = re.compile(r'[\x00-\x1f"#%\'*/:=?\\\x7f{}\[\]^]')
"""The characters that Spark escapes in names of folders."""
_FOLDERS = re.compile(r"(?:[^/=]+=[^/]*/)*")
_BUFFERED_BYTES = 64 << 20


def file_path(name: FileName, kind: str) -> str:
    """Returns the path of a file in one of the formats, relative to the table."""
    return name.path.removesuffix(_PARQUET_ENDING) + _ENDINGS[kind]


def parse_path(path: str, kind: str) -> FileName | None:
    """Parses a path relative to the table; returns None for a file that stateflow did not write in this format."""
    folders, _, file = path.rpartition("/")
    if not file.endswith(_ENDINGS[kind]) or not _FOLDERS.fullmatch(f"{folders}/" if folders else ""):
        return None
    name = FileName.parse(file.removesuffix(_ENDINGS[kind]) + _PARQUET_ENDING)
    return None if name is None or name.folder else dataclasses.replace(name, folder=folders)


class DataWriter(SinkWriter):
    """Writes the rows of one attempt; a file for each partition, or several if there are many rows.

    Args:
        root: folder of the table.
        name: name of the files, which differ in their parts.
        schema: columns of the rows.
        format: ``parquet``, ``json`` or ``csv``.
        partition_by: the partition columns.
    """

    def __init__(
        self, root: TableFolder, name: FileName, schema: RowSchema, *, format: str, partition_by: Sequence[str]
    ) -> None:
        self._root = root
        self._name = name
        self._schema = schema
        self._kind = format
        self._partition_by = partition_by
        self._stored = data_columns(_parquet_schema(schema), partition_by)
        self._rows: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._done: list[Committable] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        check_rows(rows, self._schema, self._name.uid)
        if self._kind == PARQUET:
            rows = pa.RecordBatch.from_arrays(
                [c.cast(_parquet_type(c.type)) for c in rows.columns], schema=_parquet_schema(self._schema)
            )
        for folder, part in split_by_partition(rows, self._partition_by) if self._partition_by else [("", rows)]:
            self._rows.setdefault(_spark_folder(folder), []).append(part)
            self._bytes += part.nbytes
        if self._bytes >= _BUFFERED_BYTES:
            self._write_files()

    def close(self) -> list[Committable]:
        self._write_files()
        return self._done

    def _write_files(self) -> None:
        for folder, batches in self._rows.items():
            name = dataclasses.replace(self._name, folder=folder, part=len(self._done))
            self._done += self._write_parquet(name, batches) if self._kind == PARQUET else [self._text(name, batches)]
        self._rows, self._bytes = {}, 0

    def _write_parquet(self, name: FileName, batches: list[pa.RecordBatch]) -> list[Committable]:
        # Distinct attempts, because this writer counts its own parts.
        attempt = f"{name.writing.attempt}p{name.part}"
        first = dataclasses.replace(name, part=0, writing=dataclasses.replace(name.writing, attempt=attempt))
        writer = ParquetWriter(self._root, first, self._stored)
        for batch in batches:
            writer.write_stored(batch)
        return writer.close()

    def _text(self, name: FileName, batches: list[pa.RecordBatch]) -> Committable:
        path = file_path(name, self._kind)
        table = pa.Table.from_batches(batches)
        with translate_disk_errors(self._root.address), self._root.new_file() as file:
            file.write(_json(table) if self._kind == JSON else _csv(table))
            if not file.publish(path):
                raise StorageError("a sink's file exists already", name=path)
            return Committable(path=path, size=file.size, rows=table.num_rows)


def _parquet_schema(schema: RowSchema) -> pa.Schema:
    """Returns the columns of Parquet files, which have times of day, and not integers as Delta tables do."""
    return pa.schema([pa.field(c.name, _parquet_type(c.arrow_type)) for c in schema.columns])


def _parquet_type(kind: pa.DataType) -> pa.DataType:
    """Returns the Arrow type of a column in Parquet files. Spark reads a duration from an integer of microseconds."""
    return with_scalars(kind, _parquet_scalar)


def _parquet_scalar(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.int64() if pa.types.is_duration(kind) else kind


def _spark_folder(folder: str) -> str:
    """Returns the folders of a partition as Spark names them: it decodes bytes that are encoded, not characters."""
    return "/".join(
        f"{_escaped(column)}={NULL if value is None else _escaped(value)}"
        for column, value in parse_partition_folder(folder).items()
    )


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _json(table: pa.Table) -> bytes:
    """Returns a line for each row. A null is left out."""
    objects = json_objects(table)
    lines = (encode({name: value for name, value in row.items() if value is not None}) for row in objects)
    return b"".join(line + b"\n" for line in lines)


def _csv(table: pa.Table) -> bytes:
    for at, column in enumerate(table.schema):
        text_of = _text_form(column.type)
        if text_of is not None:
            texts = [None if value is None else text_of(value) for value in table.column(at).to_pylist()]
            table = table.set_column(at, column.name, pa.array(texts, pa.string()))
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(table.column(at))).as_py():
            table = table.set_column(
                at, column.name, pa.array(list(map(_csv_number, table.column(at).to_pylist())), pa.string())
            )
    buffer = io.BytesIO()
    csv.write_csv(table, buffer)
    return buffer.getvalue()


def _text_form(kind: pa.DataType) -> Callable[..., str] | None:
    """Returns the function for the text of a value that Spark would not read as Arrow writes it."""
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return _iso_text
    if pa.types.is_decimal(kind):
        return _digits
    return duration_text if pa.types.is_duration(kind) else None


def _iso_text(value: datetime | time) -> str:
    return value.isoformat()


def _digits(value: Decimal) -> str:
    return f"{value:f}"


def _csv_number(value: float | None) -> str | None:
    if value is None or math.isfinite(value):
        return None if value is None else repr(value)
    return special_float(value).replace("inity", "")


LOG_FOLDER = "_spark_metadata"
COMPACT_INTERVAL = 10
"""Spark's default: readers derive it from the names of the entries."""
_KEPT_VERSIONS = 1000
_NAME = re.compile(r"(\d{1,18})(\.compact)?")
_VERSION_LINE = b"v1"
_MARKER = "_stateflow"
_LARGEST = 4 << 30


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an entry about its version of the table."""

    table_id: str
    format: str
    columns: list[tuple[str, str]]
    """Names and Spark's types."""
    partition_by: list[str] = []
    tokens: dict[str, int] = {}
    """The last published checkpoint of each application."""
    taken_over: dict[str, str] = {}
    """The successor of each application that must no longer write."""
    application: str = ""
    """The application that made the version; empty for a version that changes nothing."""
    back_to: int | None = None
    """The version whose content this one restores."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of an entry about a file that Spark does not store."""

    version: int
    """The version that added it."""
    rows: int


class SinkFileStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A line of an entry, with the fields of Spark's ``SinkFileStatus``."""

    path: str
    size: int
    is_dir: bool = False
    modification_time: int
    block_replication: int = 1
    block_size: int = 33554432
    action: str = "add"
    stateflow: FileFacts | Marker | None = None


class _MarkerLine(SinkFileStatus, frozen=True, kw_only=True, rename="camel"):
    stateflow: Marker | None = None


class _FileLine(SinkFileStatus, frozen=True, kw_only=True, rename="camel"):
    stateflow: FileFacts | None = None


class VersionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the table as its entry states it.

    For a compact entry, `files` are all files of the table; otherwise those that the version adds.
    """

    version: int
    marker: Marker
    files: dict[str, _FileLine]
    """By path relative to the table."""

    @property
    def added(self) -> dict[str, _FileLine]:
        """The files that this version adds."""
        return {p: f for p, f in self.files.items() if f.stateflow and f.stateflow.version == self.version}


def is_compact(version: int) -> bool:
    """Returns whether the entry of a version lists all files of the table."""
    return (version + 1) % COMPACT_INTERVAL == 0


def file_line(root: TableFolder, path: str, size: int, facts: FileFacts, now: int) -> SinkFileStatus:
    """Returns the line for a file, at a time in milliseconds since 1970."""
    return SinkFileStatus(path=_uri(root, path), size=size, modification_time=now, stateflow=facts)


def versions(root: TableFolder) -> list[int]:
    """Returns the versions that have an entry, oldest first; none if the table does not exist."""
    names = (file.key.removeprefix(f"{LOG_FOLDER}/") for file in root.files(LOG_FOLDER))
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def read_entry(root: TableFolder, version: int) -> VersionEntry | None:
    """Returns the entry of a version; None if it does not exist, or if another program wrote it.

    Raises:
        CorruptFile: the entry is damaged.
    """
    path = f"{LOG_FOLDER}/{_name(version)}"
    try:
        with root.open(path) as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    if len(data) > _LARGEST:
        raise CorruptFile("an entry of a folder's log is too large", file=f"{root}/{path}", limit_bytes=_LARGEST)
    lines = data.splitlines()
    try:
        marker = msgspec.json.decode(lines[1], type=_MarkerLine).stateflow if len(lines) > 1 else None
        if lines[:1] != [_VERSION_LINE] or marker is None:
            return None
        found = [msgspec.json.decode(line, type=_FileLine) for line in lines[2:]]
        return VersionEntry(version=version, marker=marker, files={_relative(root, f.path): f for f in found})
    except (msgspec.DecodeError, ValueError) as e:
        raise CorruptFile("an entry of a folder's log is damaged", file=f"{root}/{path}", reason=str(e)) from e


def append(root: TableFolder, version: int, marker: Marker, files: Sequence[SinkFileStatus], now: int) -> bool:
    """Creates the entry of a version, durably; returns False if it exists."""
    first = SinkFileStatus(path=_uri(root, _MARKER), size=0, modification_time=now, stateflow=marker)
    lines = [_VERSION_LINE, *map(msgspec.json.encode, (first, *files))]
    return root.create(f"{LOG_FOLDER}/{_name(version)}", b"\n".join(lines))


def content(root: TableFolder, version: int) -> dict[str, _FileLine] | None:
    """Returns all files of a version by path; None if the log no longer has what is needed."""
    files: dict[str, _FileLine] = {}
    for number in range(version - (version + 1) % COMPACT_INTERVAL, version + 1):
        entry = read_entry(root, number) if number >= 0 else None
        if entry is None and number >= 0:
            return None
        files |= entry.files if entry else {}
    return files


def remove_old_entries(root: TableFolder, newest: int) -> None:
    """Deletes entries that are more than 1,000 versions old; the oldest that remains lists all files of the table."""
    oldest = newest - _KEPT_VERSIONS - (newest - _KEPT_VERSIONS + 1) % COMPACT_INTERVAL
    root.delete(f"{LOG_FOLDER}/{_name(version)}" for version in versions(root) if version < oldest)


def find_unknown_files(root: TableFolder, application: str, files: Mapping[str, int]) -> set[str]:
    """Returns the `files` that no version of the log has.

    The log is read from its newest entry back to entries that are older than the files. The versions of a generation
    have tokens above its number, or, in at-least-once mode, the newest token below it.

    Args:
        root: the folder.
        application: the application whose versions may have the files.
        files: paths, each with the generation that wrote it.
    """
    unknown = set(files)
    oldest = min(files.values(), default=0)
    newest_below: int | None = None
    newest_first = versions(root)[::-1] if unknown else []
    for entry in read_each(lambda version: read_entry(root, version), newest_first):
        if entry is None:
            continue
        unknown -= entry.files.keys()
        token = entry.marker.tokens.get(application)
        # Each entry has the tokens of all applications: before the first of this one, it has no files.
        if not unknown or token is None or (newest_below is not None and token < newest_below):
            break
        newest_below = token if token < oldest else None
    return unknown


def has_foreign_entries(root: TableFolder, found: Iterable[int]) -> bool:
    """Returns whether the newest entry was written by another program, such as Spark's own sink."""
    newest = max(found, default=None)
    return newest is not None and read_entry(root, newest) is None


def _name(version: int) -> str:
    return f"{version}.compact" if is_compact(version) else str(version)


def _uri(root: TableFolder, path: str) -> str:
    """Returns the URI of a file as Spark's log has it."""
    return f"{root.address}/{quote(path)}" if "://" in root.address else Path(root.address, path).as_uri()


def _relative(root: TableFolder, uri: str) -> str:
    """Returns a path of the log relative to the table. Raises ValueError for one that is elsewhere."""
    base = f"{_uri(root, '').rstrip('/')}/"
    path = unquote(uri.removeprefix(base))
    if not uri.startswith(base) or "\0" in path or any(name in ("", ".", "..") for name in path.split("/")):
        raise ValueError(f"a file outside of the folder: {uri[:500]}")
    return path
