"""A source that follows a Delta table from version to version, for enrichment by broadcast state."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyarrow import fs
from pyarrow.dataset import (
    FileSystemDataset,
    ParquetFileFormat,
    ParquetFileFragment,
    ParquetFragmentScanOptions,
    ParquetReadOptions,
)

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.schema import RowIdentity, RowSchema
from stateflow.api.source import InitialPosition, LocalSource, Slice, StartPosition
from stateflow.clock import Clock, SystemClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors.data_files import cast_read
from stateflow.connectors.delta.commits import refuse_features
from stateflow.connectors.delta.log import check_log, damaged_file, open_logged_file, plain_path
from stateflow.connectors.delta_types import COLUMN_MAPPING
from stateflow.connectors.partition_offsets import position_error
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    EnvironmentUnsupported,
    InputLost,
    JobDefinitionError,
    MissingFile,
    SchemaMismatch,
    StorageError,
)
from stateflow.types.columns.conversion import path_of_null, to_objects, with_nullable_parts, with_scalars
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from deltalake import DeltaTable

_OPEN_FILES = 64
_CHECKED = ParquetFragmentScanOptions(page_checksum_verification=True)
# Times of 96 bits have nanoseconds, which years after 2262 do not have in 64 bits.
_FORMAT = ParquetFileFormat(read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us"))
_NANOS = "timestamp[ns"
_LOST_HINT = (
    "set the source to earliest, and drop the state that its rows have made: --source UID=earliest --drop UID.STATE; "
    "VACUUM must keep files for longer than the time between two runs (delta.deletedFileRetentionDuration)"
)
_GONE = ("not found", "no such file", "logsegment", "log segment", "no table metadata", "not exist")
"""Texts of errors about files and log entries that were removed. deltalake has no class for them."""


class _Position(msgspec.Struct, frozen=True):
    """The id of the table, and the version whose rows were read."""

    table: str
    version: int


_position = json_decoder(_Position)


class BatchTable(LocalSource):
    """The rows of a Delta table, and then what each newer version removes and adds.

    The first batch has all rows of the newest version. Later ones have the rows that are no longer in the table, with
    True in the field `deleted`, and then those that are new; an update is both. A position is a version of the table,
    restored exactly. The driver holds the rows in memory: this is for tables whose rows each subtask can have.

    Args:
        table: path of the table, or a URI.
        schema: row class of the rows, with columns of the table and the field `deleted`.
        refresh: time between two looks for a newer version while a job runs; each run begins with one.
        deleted: the field of type bool that says whether a row is no longer in the table.
        clock: measures `refresh`.

    Raises:
        EnvironmentUnsupported: the package deltalake is not installed.
        JobDefinitionError: the row class has no such field, or the time is not positive.
    """

    may_use_spark = True

    def __init__(
        self,
        table: str | Path,
        *,
        schema: type[object],
        refresh: timedelta,
        deleted: str = "deleted",
        clock: Clock | None = None,
    ) -> None:
        if find_spec("deltalake") is None:
            raise EnvironmentUnsupported(
                "a Delta table cannot be read without deltalake", hint="pip install 'stateflow[delta]'"
            )
        self.schema = RowSchema.of(schema)
        self._table = os.fspath(table)
        self._deleted = deleted
        self._refresh = refresh.total_seconds()
        if self._refresh <= 0:
            raise JobDefinitionError(
                "refresh must be positive", hint="pass refresh=timedelta(minutes=5)", refresh=str(refresh)
            )
        column = self.schema.column(deleted)
        if column.spark_type != "boolean" or column.nullable:
            raise JobDefinitionError(
                "the field for removed rows is not a bool",
                hint="declare it as bool, or name another field: deleted=…",
                field=deleted,
                type=column.spark_type,
            )
        self._clock = clock or SystemClock()
        self._looked: float | None = None

    @property
    def description(self) -> str:
        return f"BatchTable[{self._table}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        return (Dataset(*path_name(self._table), kind="TABLE", storage="delta", file_format="parquet"),)

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        now = self._clock.monotonic()
        if position is not None and self._looked is not None and now - self._looked < self._refresh:
            return None
        self._looked = now
        newest = self._opened(None)
        end = _Position(str(newest.metadata().id), newest.version())
        if position is not None and self._parsed(position) == end:
            return None
        return Slice(self._changes(position, end, newest), msgspec.json.encode(end).decode())

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """See `LocalSource.between`: a later version than `end` may be the newest one now."""
        last = self._parsed(end)
        return self._changes(position, last, self._opened(last.version))

    def holds(self, position: str) -> bool | None:
        """Returns whether the table still has the files of a version; None if it cannot be read."""
        try:
            newest = self._opened(None)
            self._changes(position, _Position(str(newest.metadata().id), newest.version()), newest)
        except InputLost:
            return False
        except (StorageError, ConfigError, CorruptFile, MissingFile):
            return None
        return True

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`: a position such as ``{"table":"…id…","version":12}``."""
        self._parsed(start.position)
        return InitialPosition(start.position)

    def _changes(self, position: str | None, end: _Position, newest: DeltaTable) -> list[object]:
        """Returns the rows that a newer version removes and adds; without a position, all of its rows."""
        after = self._files(newest)
        if position is None:
            return list(self._rows(after, set(), deleted=False))
        start = self._parsed(position)
        if start.table != end.table:
            raise InputLost(
                "the Delta table was replaced by another one after it was read",
                hint=_LOST_HINT,
                source=self.description,
                version=start.version,
            )
        before = self._files(self._opened(start.version))
        common = before.paths & after.paths
        gone = [(self._identity.content(row), row) for row in self._rows(before, common, deleted=True)]
        added = [(self._identity.content(row), row) for row in self._rows(after, common, deleted=False)]
        # A row that is only in another file now, as after OPTIMIZE, has not changed.
        return [*_without(gone, added), *_without(added, gone)]

    @cached_property
    def _identity(self) -> RowIdentity:
        """The identity of a row: the same for two equal rows, whether they are removed or not."""
        return RowIdentity.of(column for column in self.schema.columns if column.name != self._deleted)

    def _files(self, table: DeltaTable) -> _Files:
        # Not the file system of deltalake, which calls Python from threads of Arrow.
        local = os.path.isdir(self._table)
        system = fs.SubTreeFileSystem(self._table, fs.LocalFileSystem()) if local else None
        with self._translate_errors(table.version()):
            for path in pa.table(table.get_add_actions()).column("path").to_pylist():
                plain_path(path)
            return _Files(table.version(), table.to_pyarrow_dataset(filesystem=system), self._table if local else "")

    def _rows(self, files: _Files, without: Set[str], *, deleted: bool) -> Sequence[object]:
        """Returns the rows of the files of a version, except some files."""
        names = [name for name in self.schema.names if name != self._deleted]
        missing = sorted(set(names) - set(files.dataset.schema.names))
        if missing:
            raise SchemaMismatch(
                "a Delta table has no such columns",
                hint="correct the row class, or the table",
                table=self._table,
                columns=missing,
            )
        with self._translate_errors(files.version):
            found = files.rows(names, without)
        return self._objects(found, deleted)

    def _objects(self, found: pa.Table, deleted: bool) -> Sequence[object]:
        flags = pa.repeat(pa.scalar(deleted), found.num_rows)
        whole = found.append_column(self._deleted, flags).select(list(self.schema.names))
        kinds = [pa.field(field.name, with_nullable_parts(field.type)) for field in self.schema.arrow]
        try:
            rows = pa.concat_arrays(
                whole.cast(pa.schema(kinds)).to_struct_array().chunks or [pa.array([], pa.struct(kinds))]
            )
            null = path_of_null(self.schema.shape, rows)
            if null is None:
                return to_objects(self.schema.shape, rows)
        except (pa.ArrowException, ValueError) as e:
            reason = str(e)
        else:
            reason = f"{null.lstrip('.')} is null"
        raise SchemaMismatch(
            "the rows of a Delta table do not match the row class",
            hint="declare the types that the table has, and … | None for columns with nulls",
            table=self._table,
            reason=reason[:500],
        )

    def _opened(self, version: int | None) -> DeltaTable:
        from deltalake import DeltaTable

        with self._translate_errors(version):
            if os.path.isdir(self._table):
                check_log(DiskFolder(Path(self._table)))
            opened = DeltaTable(self._table, version=version)
        # deltalake refuses other features of readers; it would read these columns by their names, which files lack.
        if opened.metadata().configuration.get(COLUMN_MAPPING, "none").lower() != "none":
            raise EnvironmentUnsupported(
                "a Delta table has features that this source cannot read",
                hint="remove the column mapping, or copy the table",
                table=self._table,
                property=COLUMN_MAPPING,
            )
        return opened

    @contextmanager
    def _translate_errors(self, version: int | None) -> Iterator[None]:
        """Translates errors of reading a version; None is the newest one, which must exist."""
        from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

        try:
            yield
        except DeltaProtocolError as e:
            raise EnvironmentUnsupported(
                "a Delta table has features that this source cannot read",
                hint="remove the features, such as deletion vectors, or copy the table",
                table=self._table,
                reason=str(e)[:500],
            ) from e
        except (DeltaError, OSError) as e:
            refuse_features(str(e), self._table)
            if version is None and isinstance(e, TableNotFoundError):
                raise ConfigError(
                    "the Delta table does not exist", hint="create it, or correct its path", table=self._table
                ) from e
            if isinstance(e, FileNotFoundError) and self._opened(None).version() == version:
                raise MissingFile(
                    "a data file of the newest version of a Delta table does not exist",
                    hint="restore the file from a copy, or delete its rows from the table",
                    table=self._table,
                    reason=str(e)[:500],
                ) from e
            if version is not None and any(word in str(e).lower() for word in _GONE):
                raise InputLost(
                    "a version of the Delta table that was read before no longer exists",
                    hint=_LOST_HINT,
                    source=self.description,
                    version=version,
                    reason=str(e)[:500],
                ) from e
            raise StorageError(
                "a Delta table cannot be read",
                hint="a new run continues from the last checkpoint",
                table=self._table,
                reason=str(e)[:500],
            ) from e

    def _parsed(self, position: str) -> _Position:
        try:
            return _position.decode(position)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
            hint = 'such as {"table":"…id…","version":12}'
            raise position_error("a batch table", hint, self.description, position, e) from e


@dataclass(frozen=True)
class _Files:
    """The files of a version.

    A file that two versions have, has the same rows in both: tables with deletion vectors are refused.
    """

    version: int
    dataset: FileSystemDataset
    folder: str
    """Of the table, if it is on a file system of this host."""

    @cached_property
    def paths(self) -> Set[str]:
        return {fragment.path for fragment in self.dataset.get_fragments()}

    def rows(self, names: Sequence[str], without: Set[str]) -> pa.Table:
        """Returns the rows of all files except some, in the order of the paths.

        Raises:
            CorruptFile: a file is damaged, or has a text that is not UTF-8.
        """
        system = self.dataset.filesystem
        fragments = [
            _FORMAT.make_fragment(each.path, system, each.partition_expression)
            for each in sorted(self.dataset.get_fragments(), key=attrgetter("path"))
            if each.path not in without
        ]
        parts = [self._checked(fragments[at : at + _OPEN_FILES], names) for at in range(0, len(fragments), _OPEN_FILES)]
        return pa.concat_tables([self._read([], names, system), *parts])

    def _checked(self, fragments: Sequence[ParquetFileFragment], names: Sequence[str]) -> pa.Table:
        try:
            if self.folder:
                return self._opened(fragments, names)
            return self._read(fragments, names, self.dataset.filesystem)
        except (pa.ArrowInvalid, CorruptFile) as e:
            if len(fragments) > 1:  # Arrow does not name the file.
                return pa.concat_tables([self._checked([each], names) for each in fragments])
            if isinstance(e, CorruptFile):
                raise
            raise damaged_file(DiskFolder(Path(self.folder)), fragments[0].path, e) from e

    def _opened(self, fragments: Sequence[ParquetFileFragment], names: Sequence[str]) -> pa.Table:
        """Returns the rows of files below the table's folder, which Arrow gets as open files: it would follow links."""
        with ExitStack() as stack:
            folder = DiskFolder(Path(self.folder))
            files = [stack.enter_context(open_logged_file(folder, quote(each.path))) for each in fragments]
            opened = [
                _FORMAT.make_fragment(f"/proc/self/fd/{file.fileno()}", fs.LocalFileSystem(), each.partition_expression)
                for each, file in zip(fragments, files, strict=True)
            ]
            return self._read(opened, names, fs.LocalFileSystem())

    def _read(self, fragments: Sequence[ParquetFileFragment], names: Sequence[str], system: fs.FileSystem) -> pa.Table:
        nanos = {f.name for each in fragments for f in each.physical_schema if _NANOS in str(f.type)}
        schema = self.dataset.schema
        read_as = pa.schema([f.with_type(with_scalars(f.type, _with_nanos)) if f.name in nanos else f for f in schema])
        found = FileSystemDataset(fragments, read_as, _FORMAT, system).to_table(
            columns=list(names), fragment_scan_options=_CHECKED
        )
        # Arrow does not look at the bytes of texts.
        found.validate(full=True)
        return pa.table({name: cast_read(found[name], schema.field(name).type) for name in names})


def _with_nanos(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else kind


def _without(rows: Sequence[tuple[bytes, object]], others: Sequence[tuple[bytes, object]]) -> Iterator[object]:
    """Yields the rows that occur more often than among the others, as many times."""
    matched = Counter(identity for identity, _ in others)
    for identity, row in rows:
        if matched[identity] > 0:
            matched[identity] -= 1
        else:
            yield row
