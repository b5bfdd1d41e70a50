"""A source that follows a Delta table from version to version, for enrichment by broadcast state."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pyarrow as pa

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.schema import RowIdentity, RowSchema
from stateflow.api.source import Backlog, InitialPosition, LocalSource, Slice, StartPosition, local_position
from stateflow.clock import Clock, SystemClock
from stateflow.config.settings import SourceSettings
from stateflow.connectors.delta.commits import TableLog
from stateflow.connectors.delta.log import Metadata
from stateflow.connectors.delta.rows import DeltaFormat, FileRead, LoggedFile, TableColumns
from stateflow.connectors.delta.versions import Content, Key
from stateflow.connectors.partition_offsets import position_error
from stateflow.errors import (
    ConfigError,
    DataError,
    EnvironmentUnsupported,
    InputLost,
    JobDefinitionError,
    MissingFile,
    SchemaMismatch,
    StorageError,
)
from stateflow.storage import check_address
from stateflow.types.columns.conversion import path_of_null, to_objects, with_nullable_parts
from stateflow.types.decoders import json_decoder

_LOST_HINT = (
    "set the source to earliest, and drop the state that its rows have made: --source UID=earliest --drop UID.STATE; "
    "VACUUM must keep files for longer than the time between two runs (delta.deletedFileRetentionDuration)"
)


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
        check_address(self._table)
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
        self._log = TableLog(self._table, self.description)

    @property
    def description(self) -> str:
        return f"BatchTable[{self._table}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        version, name = "", path_name(self._table)
        # Before the first batch, and of a source without Spark, it is not a position of Spark.
        with suppress(msgspec.MsgspecError):
            version = str(_position.decode(local_position(offset) or offset).version)
        added = frozenset({self._deleted})
        return (Dataset(*name, kind="TABLE", storage="delta", file_format="parquet", version=version, added=added),)

    def check_settings(self, limits: SourceSettings) -> None:
        """See `Source.check_settings`: a table that does not exist, or has features that cannot be read, is refused."""
        self._log.head()

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        now = self._clock.monotonic()
        if position is not None and self._looked is not None and now - self._looked < self._refresh:
            return None
        self._looked = now
        head = self._log.head()
        end = _Position(head.metadata.id, head.version)
        if position is not None and self._parsed(position) == end:
            return None
        return Slice(self._changes(position, end), msgspec.json.encode(end).decode())

    def between(self, position: str | None, end: str) -> Sequence[object] | None:
        """See `LocalSource.between`: a later version than `end` may be the newest one now."""
        return self._changes(position, self._parsed(end))

    def holds(self, position: str) -> bool | None:
        """Returns whether the table still has the files of a version; None if it cannot be read."""
        try:
            head = self._log.head()
            self._changes(position, _Position(head.metadata.id, head.version))
        except InputLost:
            return False
        except (StorageError, ConfigError, DataError):
            return None
        return True

    def has_new_input(self, position: str) -> bool:
        """See `Source.has_new_input`: whether the table has another version."""
        head = self._log.head()
        return self._parsed(position) != _Position(head.metadata.id, head.version)

    def backlog(self, position: str | None) -> Backlog:
        """See `Source.backlog`: the files that are in one of the newest version and the one at the position only."""
        log = self._log.for_thread()
        head, start = log.head(), None if position is None else self._parsed(position)
        if start is not None and start.table != head.metadata.id:
            return Backlog(unknown="the table was replaced since it was read")
        if start is not None and start.version == head.version:
            return Backlog(rows=0, size_bytes=0, files=0)
        after, before = log.content(head.version).files, {} if start is None else log.content(start.version).files
        changed = [
            msgspec.convert((after.get(key) or before[key]).action, LoggedFile) for key in after.keys() ^ before.keys()
        ]
        rows = [file.rows for file in changed]
        first = head.version if start is None else min(start.version + 1, head.version)
        written = min(log.entry_times(first).values(), default=None)
        return Backlog(
            None if None in rows else sum(each or 0 for each in rows),
            sum(file.size or 0 for file in changed),
            len(changed),
            None if written is None else datetime.fromtimestamp(written / 1000, UTC),
            # A file that was only rewritten has no row that has changed.
            exact=start is None,
            unknown="" if None not in rows else "the statistics of a file have no number of rows",
        )

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`: a position such as ``{"table":"…id…","version":12}``."""
        self._parsed(start.position)
        return InitialPosition(start.position)

    def _changes(self, position: str | None, end: _Position) -> list[object]:
        """Returns the rows that a newer version removes and adds; without a position, all of its rows."""
        after = self._version(end.version)
        if position is None:
            return list(self._rows(after, (), after.metadata, deleted=False))
        start = self._parsed(position)
        if start.table != end.table:
            raise InputLost(
                "the Delta table was replaced by another one after it was read",
                hint=_LOST_HINT,
                source=self.description,
                version=start.version,
            )
        before = self._version(start.version)
        common = before.files.keys() & after.files.keys()
        # Files of both versions have the columns as they are named now.
        gone, added = (
            [(self._identity.content(row), row) for row in self._rows(content, common, after.metadata, deleted=deleted)]
            for content, deleted in ((before, True), (after, False))
        )
        # A row that is only in another file now, as after OPTIMIZE, has not changed.
        return [*_without(gone, added), *_without(added, gone)]

    @cached_property
    def _identity(self) -> RowIdentity:
        """The identity of a row: the same for two equal rows, whether they are removed or not."""
        return RowIdentity.of(column for column in self.schema.columns if column.name != self._deleted)

    @cached_property
    def _read_schema(self) -> RowSchema:
        columns = [column for column in self.schema.columns if column.name != self._deleted]
        return RowSchema(self.schema.row_class, tuple(columns))

    def _version(self, version: int) -> Content:
        try:
            return self._log.content(version)
        except InputLost as e:
            raise self._lost(version, e) from e

    def _rows(self, content: Content, without: Collection[Key], table: Metadata, *, deleted: bool) -> Sequence[object]:
        """Returns the rows of the files of a version except some, in the order of their paths.

        Args:
            table: the metadata by which the files are read.
        """
        found = sorted((key, file.action) for key, file in content.files.items() if key not in without)
        files = [msgspec.convert(action, LoggedFile) for _, action in found]
        reads = [FileRead(file, content.version, without=file.deletionVector) for file in files]
        columns = TableColumns.of(table, {})
        missing = sorted(set(self._read_schema.names) - columns.fields.keys())
        if missing:
            raise SchemaMismatch(
                "a Delta table has no such columns",
                hint="correct the row class, or the table",
                table=self._table,
                columns=missing,
            )
        format = DeltaFormat(self._log.table, self.description, columns, tuple(reads))
        try:
            rows = format.read_all(self._read_schema)
        except InputLost as e:
            if self._log.head().version == content.version:
                raise MissingFile(
                    "a data file of the newest version of a Delta table does not exist",
                    hint="restore the file from a copy, or delete its rows from the table",
                    table=self._table,
                    file=str(e.facts.get("file")),
                ) from e
            raise self._lost(content.version, e) from e
        except SchemaMismatch as e:
            reason = f"{e.facts['column']} is {e.facts['found']} in the table, not {e.facts['declared']}"
            raise self._mismatch(reason) from e
        return self._objects(rows, deleted)

    def _lost(self, version: int, error: InputLost) -> InputLost:
        return InputLost(
            "a version of the Delta table that was read before no longer exists",
            hint=_LOST_HINT,
            source=self.description,
            version=version,
            reason=str(error)[:500],
        )

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
        raise self._mismatch(reason)

    def _mismatch(self, reason: str) -> SchemaMismatch:
        return SchemaMismatch(
            "the rows of a Delta table do not match the row class",
            hint="declare the types that the table has, and … | None for columns with nulls",
            table=self._table,
            reason=reason[:500],
        )

    def _parsed(self, position: str) -> _Position:
        try:
            return _position.decode(position)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
            hint = 'such as {"table":"…id…","version":12}'
            raise position_error("a batch table", hint, self.description, position, e) from e


def _without(rows: Sequence[tuple[bytes, object]], others: Sequence[tuple[bytes, object]]) -> Iterator[object]:
    """Yields the rows that occur more often than among the others, as many times."""
    matched = Counter(identity for identity, _ in others)
    for identity, row in rows:
        if matched[identity] > 0:
            matched[identity] -= 1
        else:
            yield row
