"""The Delta source, which reads a table's rows or changes through Delta's own source for Spark, and its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.input_files import file_uri, plain_path, unreadable_in
from stateflow.api.schema import ARRIVED, arrival, arrival_place
from stateflow.api.source import FROM_START, Backlog, InitialPosition, StartKind, StartPosition
from stateflow.clock import epoch_milliseconds
from stateflow.config.settings import SourceSettings
from stateflow.connectors.column_policy import ColumnPolicy, select_declared
from stateflow.connectors.delta.log import LOG_FOLDER, check_log, entry_path, list_log, log_lines, open_log_file
from stateflow.connectors.delta.versions import check_entry, check_file, read_content
from stateflow.connectors.partition_offsets import position_error
from stateflow.connectors.spark import SparkSource
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import (
    ConfigError,
    CorruptInput,
    DataError,
    EnvironmentUnsupported,
    InputLost,
    JobDefinitionError,
    SchemaMismatch,
    StateflowError,
)
from stateflow.types.declared_types import quote_name
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession


_CHANGES: Mapping[str, tuple[str, str]] = {
    "change": ("_change_type", "string"),
    "version": ("_commit_version", "bigint"),
    "committed": ("_commit_timestamp", "timestamp"),
}
"""Column of Delta's change data feed and Spark type of the field that takes it, by name of the metadata."""


Start = str | int | datetime
"""``earliest``, ``latest``, a version or a time."""


class _Offset(msgspec.Struct, kw_only=True):
    """An offset of Delta's source: the version that it reads next."""

    sourceVersion: int = 1
    reservoirId: str
    reservoirVersion: int
    index: int = -1
    isStartingVersion: bool = False

    @property
    def files_read(self) -> int:
        """How many files of the version were read: negative numbers are before its first one."""
        return max(self.index, -1) + 1


_offset = json_decoder(_Offset)


class DeltaSource(SparkSource):
    """Rows that are added to a Delta table, or all of its changes.

    Delta's JARs must be given to the session. Positions are versions of the table, restored exactly. As long as the
    table keeps its log and its files (``delta.logRetentionDuration``, VACUUM), a batch can be read again.

    Args:
        table: path of the table, or a URI.
        schema: row class of the rows.
        start: where a job begins that has no position yet: ``"earliest"`` for all rows of the table and then what is
            added, ``"latest"`` for what is added from now on, a version, or a time (UTC, unless it has a time zone). A
            version is read from its first change on.
        changes: whether the source reads Delta's change data feed, which the table must have enabled, instead of rows
            that are added. Then `metadata` has the kind of each change.
        metadata: with `changes`, fields that take ``change`` (``insert``, ``update_preimage``, ``update_postimage`` or
            ``delete``), ``version`` or ``committed`` of a change.
        skip_changes: without `changes`, whether commits that update or delete rows are skipped. Otherwise such a commit
            ends the run: its rows are not additions.
        columns: how a start handles columns that were added to or removed from the table.

    Raises:
        JobDefinitionError: the arguments do not fit each other.
    """

    start_kinds = frozenset(StartKind)
    limited_by = frozenset({"max_files_per_batch"})
    package = "io.delta:delta-spark_4.2_2.13:4.4.0"

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        schema: type[object],
        start: Start = StartKind.EARLIEST,
        changes: bool = False,
        metadata: Mapping[str, str] | None = None,
        skip_changes: bool = False,
        columns: ColumnPolicy | None = None,
    ) -> None:
        path = str(table) if "://" in str(table) else os.path.abspath(table)
        options = {"readChangeFeed": "true"} if changes else {"skipChangeCommits": "true"} if skip_changes else {}
        super().__init__("delta", schema=schema, path=path, columns=columns, options=options)
        self._metadata = dict(metadata or {})
        self._changes = changes
        self._start = _checked_start(start)
        self._next: _Offset | None = None
        self._first_version: int | None = None
        self._checked: set[int] = set()
        self._snapshot: tuple[int, list[str]] | None = None
        if (self._metadata or skip_changes) and changes == skip_changes:
            raise JobDefinitionError(
                "the arguments of a Delta source contradict each other",
                hint="metadata needs changes=True, and skip_changes is for a source without changes",
                changes=changes,
                skip_changes=skip_changes,
                metadata=sorted(self._metadata),
            )
        self._check_metadata()

    @property
    def description(self) -> str:
        return f"DeltaSource[{'changes' if self._changes else 'rows'}:{self.path}]"

    def datasets(self, offset: str) -> Sequence[Dataset]:
        return (Dataset(*path_name(self.path), kind="TABLE", storage="delta", file_format="parquet"),)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        if self._start == StartKind.LATEST:
            # Read before Spark reads the table: what is added in between must not be lost.
            self._next = self._after_newest()
        if "://" not in self.path:
            self._first_version = self._table().version()
        more = {**_start_options(self._start), **self._limits(limits)}
        changed = ("_commit_version", "_change_type NOT IN ('delete', 'update_preimage')") if self._changes else ()
        frame = self._frame(spark, more, arrival(*changed))
        return frame.selectExpr(*select_declared(frame.schema, self.schema), ARRIVED)

    def file_order(self, spark: SparkSession, start: str, end: str) -> Sequence[str]:
        """See `Source.file_order`: by version, then in the order of the actions in the version's log entry.

        Delta reads the table as it was at the start in the order of modification times.
        """
        first, last = None if start == FROM_START else self._parsed(start), self._parsed(end)
        from_all = self._start == StartKind.EARLIEST if first is None else first.isStartingVersion
        version = self._from_version if first is None else first.reservoirVersion
        begin, stop = 0 if first is None else first.files_read, last.files_read
        files: list[str] = []
        if from_all:
            # A first batch ends before the version after the table as it was then, or within it.
            at = last.reservoirVersion if last.isStartingVersion else last.reservoirVersion - 1
            at = at if first is None else version
            found = self._files_at(at)[begin : stop if last.isStartingVersion else None]
            files = [arrival_place(file, at if self._changes else None, late=True) for file in found]
            version, begin = at + 1, 0
        until = last.reservoirVersion if stop else last.reservoirVersion - 1
        for number, lines in _entries(spark, self.path, version, until):
            is_last = number == last.reservoirVersion
            part = slice(begin if number == version else 0, stop if is_last else None)
            files += self._logged_files(number, lines, part)
        return list(dict.fromkeys(files))

    def _logged_files(self, version: int, lines: Iterable[bytes], part: slice) -> list[str]:
        """Returns the files that a log entry names, as `file_order` does.

        Args:
            version: the version of the entry.
            lines: the lines of the entry.
            part: the part of the version's files that the batch has.
        """
        actions = list(map(_log_line.decode, lines))
        if not self._changes:
            added = [action.add for action in actions if action.add is not None and action.add.dataChange]
            return [arrival_place(_uri(self.path, file.path)) for file in added[part]]
        # Delta computes changes from additions and removals only in a version without files of changes.
        changed = [action for action in actions if action.cdc] or [a for a in actions if a.changes_rows]
        kinds = {(action.add is None, action.cdc is None) for action in changed}
        # How Delta numbers additions next to removals is not specified.
        read = changed[part] if len(kinds) == 1 else changed
        early = [(action, False) for action in read if action.add is None]
        late = [(action, True) for action in read if action.remove is None]
        return [arrival_place(_uri(self.path, a.path), version, late=is_late) for a, is_late in (*early, *late)]

    def first_offset(self, logs: Mapping[str, bytes]) -> str:
        """See `Source.first_offset`: the version after the newest one when the query started."""
        return "" if self._next is None else msgspec.json.encode(self._next).decode()

    def check_position(self, offset: str) -> None:
        """Raises InputLost if the table was replaced, or its log no longer has the versions after a position."""
        position, table = self._parsed(offset), self._table()
        if str(table.metadata().id) != position.reservoirId:
            raise InputLost(
                "a Delta table was replaced since it was read",
                hint="restore with --source UID=earliest to read the new table",
                source=self.description,
                before=position.reservoirId,
                now=str(table.metadata().id),
            )
        if "://" in self.path or position.isStartingVersion or position.reservoirVersion > table.version():
            return  # of a table elsewhere, Spark reports the same
        entries = [
            version for version in list_log(DiskFolder(Path(self.path))).entries if version >= position.reservoirVersion
        ]
        earliest = min(entries, default=table.version() + 1)
        if earliest > position.reservoirVersion:
            raise InputLost(
                "a Delta table no longer has the log of versions that were not read",
                hint="restore with --source UID=earliest or position:VERSION; to keep the log longer, set "
                "delta.logRetentionDuration of the table",
                source=self.description,
                lost=f"versions [{position.reservoirVersion}, {earliest})",
            )

    def check_batch(self, before: str, after: str) -> None:
        """See `Source.check_batch`: Spark reads whatever file the log of a table names.

        A table that is not on a file system of this host is not checked.
        """
        if "://" in self.path:
            return
        table, end = DiskFolder(Path(self.path)), self._parsed(after).reservoirVersion
        start = self._parsed(before) if before else None
        # The first batches read the whole table, and of several, each a part.
        snapshot = self._first_version if start is None else start.reservoirVersion if start.isStartingVersion else None
        if snapshot is not None and snapshot not in self._checked:
            content = read_content(table, snapshot, "")
            for file in content.files.values() if content else ():
                check_file(table, file)
            self._checked.add(snapshot)
        for version in sorted(list_log(table).entries):
            if version not in self._checked and (start is None or start.reservoirVersion <= version) and version <= end:
                check_entry(table, version)
                self._checked.add(version)

    def explain_failure(self, reason: str) -> StateflowError | None:
        """See `Source.explain_failure`."""
        return stream_error(reason, self.description, self.path)

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """See `Source.has_new_input`: compares the position with the newest version of the table.

        Spark's position is the version after the newest one when it has read all, whatever that version has changed.
        Other positions are within a version, or in the table as it was at the start.
        """
        position, table = self._parsed(offset), self._table()
        is_after_a_version = position == _Offset(
            reservoirId=position.reservoirId, reservoirVersion=position.reservoirVersion
        )
        unread = table.version() + 1 - position.reservoirVersion
        if not is_after_a_version or unread < 0 or str(table.metadata().id) != position.reservoirId:
            return None
        return unread > 0

    def backlog(self, offset: str, logs: Sequence[bytes]) -> Backlog:
        """See `Source.backlog`: adds up what the log entries after the position say about their files."""
        table = self._table()
        position = self._first_offset_of(table) if offset == FROM_START else self._parsed(offset)
        if position.reservoirId != str(table.metadata().id):
            return Backlog(unknown="the table was replaced since it was read")
        first, skipped, found = position.reservoirVersion, position.files_read, list[_Added]()
        if position.isStartingVersion:
            found, first, skipped = self._added_at(first)[skipped:], first + 1, 0
        later = self._added_since(first)
        if later is None:
            return Backlog(unknown="the table is not on a file system of this host")
        for version, added in later:
            found += added[skipped if version == first else 0 :]
        rows = [each.rows for each in found]
        known = None if None in rows else sum(each or 0 for each in rows)
        return Backlog(
            known,
            sum(each.bytes for each in found),
            len(found),
            min((each.at for each in found), default=None),
            exact=not self._changes,
            unknown="" if known is not None else "files of the table have no statistics about their rows",
        )

    def _first_offset_of(self, table: DeltaTable) -> _Offset:
        """Returns the offset at which a new job begins, as of now."""
        if self._start == StartKind.EARLIEST:
            whole = _at_version(table, table.version())
            return msgspec.structs.replace(whole, isStartingVersion=True)
        if isinstance(self._start, datetime):
            return _at_version(table, _first_version_since(table, self._start))
        return _at_version(table, self._start if isinstance(self._start, int) else table.version() + 1)

    def _added_at(self, version: int) -> list[_Added]:
        """Returns the files of the table at a version, in the order in which they are read."""
        found = pa.table(self._table(version).get_add_actions()).to_pylist()
        ordered = sorted(found, key=lambda each: (each["modification_time"], each["path"]))
        return [
            _Added(
                each.get("num_records"),
                each["size_bytes"],
                datetime.fromtimestamp(each["modification_time"] / 1000, UTC),
            )
            for each in ordered
        ]

    def _added_since(self, first: int) -> Iterator[tuple[int, list[_Added]]] | None:
        """Returns the files with rows for the source in each log entry from a version on; None if none can be read."""
        if "://" in self.path:
            return None
        return self._added_locally(first)

    def _added_locally(self, first: int) -> Iterator[tuple[int, list[_Added]]]:
        folder = DiskFolder(Path(self.path))
        listing = list_log(folder, first)
        for version in sorted(v for v in listing.entries if v >= first):
            path = entry_path(version)
            with open_log_file(folder, path) as file:
                actions = list(map(_sized_line.decode, log_lines(file, path)))
            at = datetime.fromtimestamp(listing.files[path.rpartition("/")[2]].modified_ms / 1000, UTC)
            yield version, list(self._added_in(actions, at))

    def _added_in(self, actions: Sequence[_SizedLine], at: datetime) -> Iterator[_Added]:
        """Yields the files of one log entry that the source reads."""
        changed = [action.cdc for action in actions if action.cdc is not None] if self._changes else []
        kept = [each for a in actions for each in (a.add, a.remove if self._changes else None) if each is not None]
        skips = not self._changes and any(a.remove is not None and a.remove.dataChange for a in actions)
        for each in [] if skips else changed or [each for each in kept if each.dataChange]:
            yield _Added(each.rows, each.size or 0, at)

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`. A position may be the number of a version."""
        if start.kind is StartKind.LATEST:
            return self._at(self._after_newest())
        if start.kind is StartKind.TIMESTAMP:
            assert start.timestamp is not None
            table = self._table()
            return self._at(_at_version(table, _first_version_since(table, start.timestamp)))
        if start.position.isdecimal() and start.position.isascii():
            return self._at(_at_version(self._table(), int(start.position)))
        return self._at(self._parsed(start.position))

    def earliest_position(self) -> InitialPosition:
        """See `Source.earliest_position`. Raises ConfigError if a new job begins elsewhere: only Delta finds it."""
        if self._start == StartKind.EARLIEST:
            return super().earliest_position()
        raise ConfigError(
            "a Delta source that begins elsewhere cannot be set to its earliest position",
            hint='declare start="earliest" in the job, or give position:VERSION',
            source=self.description,
            start=str(self._start),
        )

    @property
    def _from_version(self) -> int:
        """A version that is not after the first one that a new job reads."""
        if self._next is not None:
            return self._next.reservoirVersion
        return self._start if isinstance(self._start, int) else 0

    def _files_at(self, version: int) -> list[str]:
        """Returns the files of the table at a version, as Delta's source reads them."""
        if self._snapshot is None or self._snapshot[0] != version:
            found = pa.table(self._table(version).get_add_actions()).select(["path", "modification_time"]).to_pylist()
            ordered = sorted(found, key=lambda each: (each["modification_time"], each["path"]))
            # Kept, because the batches of a first read divide the same files.
            self._snapshot = version, [_uri(self.path, each["path"]) for each in ordered]
        return self._snapshot[1]

    def _limits(self, limits: SourceSettings) -> dict[str, str]:
        files = limits.max_files_per_batch
        return {} if files is None else {"maxFilesPerTrigger": str(files)}

    def _frame(self, spark: SparkSession, more: Mapping[str, str], *also: str) -> DataFrame:
        """Returns the frame of Spark's source, with metadata under the names of the fields that take them.

        Args:
            also: further columns.
        """
        frame = super()._frame(spark, more)
        added = [f"{_CHANGES[name][0]} AS {quote_name(field)}" for field, name in self._metadata.items()]
        hidden = {column for column, _ in _CHANGES.values()}
        kept = [quote_name(name) for name in frame.columns if name not in hidden and name not in self._metadata]
        return frame.selectExpr(*kept, *added, *also)

    def _check_metadata(self) -> None:
        for field, name in self._metadata.items():
            column = self.schema.column(field)
            if name not in _CHANGES or column.spark_type != _CHANGES[name][1]:
                raise JobDefinitionError(
                    "a field cannot take the metadata of a change",
                    hint="change is a str, version an int, committed an Annotated[datetime, msgspec.Meta(tz=True)]",
                    field=field,
                    metadata=name,
                    type=column.spark_type,
                )

    def _parsed(self, offset: str) -> _Offset:
        try:
            return _offset.decode(offset)
        except (msgspec.DecodeError, RecursionError) as e:
            hint = "give the number of a version, or earliest, latest or timestamp:TIME"
            raise position_error("a Delta source", hint, self.description, offset, e) from e

    def _after_newest(self) -> _Offset:
        table = self._table()
        return _at_version(table, table.version() + 1)

    def _table(self, version: int | None = None) -> DeltaTable:
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError
        except ImportError as e:
            raise EnvironmentUnsupported(
                "versions of a Delta table cannot be read without deltalake", hint="pip install 'stateflow[delta]'"
            ) from e
        if "://" not in self.path:
            check_log(DiskFolder(Path(self.path)))
        try:
            return DeltaTable(self.path, version=version)
        except (DeltaError, OSError) as e:
            raise ConfigError(
                "the source's Delta table cannot be read",
                hint="create it, or correct the path",
                source=self.description,
                reason=str(e)[:500],
            ) from e

    def _at(self, offset: _Offset) -> InitialPosition:
        return InitialPosition(msgspec.json.encode(offset).decode(), text=f"version {offset.reservoirVersion}")


def _checked_start(start: Start) -> Start:
    is_version = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not is_version and not isinstance(start, datetime) and start not in (StartKind.EARLIEST, StartKind.LATEST):
        raise JobDefinitionError(
            "the value of start is not supported",
            hint='use "earliest", "latest", the number of a version, or a datetime',
            given=repr(start),
        )
    return start


def _start_options(start: Start) -> dict[str, str]:
    """Returns the options of Delta's source for where it begins without a position."""
    if isinstance(start, datetime):
        zoned = start.astimezone(UTC) if start.tzinfo else start
        # Delta takes a time of the session's zone unless the text has one.
        return {"startingTimestamp": zoned.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return {} if start == StartKind.EARLIEST else {"startingVersion": str(start)}


def _at_version(table: DeltaTable, version: int) -> _Offset:
    return _Offset(reservoirId=str(table.metadata().id), reservoirVersion=version)


def _first_version_since(table: DeltaTable, time: datetime) -> int:
    """Returns the first version that was committed at a time or later; the next version if there is none."""
    millis = epoch_milliseconds(time)
    later = [int(commit["version"]) for commit in table.history() if int(commit["timestamp"]) >= millis]
    return min(later, default=table.version() + 1)


class _LoggedFile(msgspec.Struct):
    path: str
    dataChange: bool = True


class _LogLine(msgspec.Struct):
    """An action of a log entry: only files, in order."""

    add: _LoggedFile | None = None
    remove: _LoggedFile | None = None
    cdc: _LoggedFile | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether it adds or removes a file, and with it rows."""
        file = self.add or self.remove
        return file is not None and file.dataChange

    @property
    def path(self) -> str:
        """The path of its file; empty without one."""
        file = self.add or self.remove or self.cdc
        return "" if file is None else file.path


_log_line = json_decoder(_LogLine)


@dataclass(frozen=True)
class _Added:
    """A file that a source reads: its number of rows, if it is known, its size, and when it was committed."""

    rows: int | None
    bytes: int
    at: datetime


class _Rows(msgspec.Struct):
    numRecords: int | None = None


class _SizedFile(msgspec.Struct):
    size: int | None = None
    dataChange: bool = True
    stats: str | None = None

    @property
    def rows(self) -> int | None:
        """The number of rows that its statistics have; None without them, or if they cannot be decoded."""
        try:
            return _rows.decode(self.stats).numRecords if self.stats else None
        except (msgspec.DecodeError, RecursionError):
            return None


class _SizedLine(msgspec.Struct):
    """An action of a log entry: only files, with their sizes."""

    add: _SizedFile | None = None
    remove: _SizedFile | None = None
    cdc: _SizedFile | None = None


_rows, _sized_line = json_decoder(_Rows), json_decoder(_SizedLine)


def _entries(spark: SparkSession, table: str, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the numbers and lines of log entries, in order; entries that are gone are left out.

    Args:
        table: path or URI.
        first: the first version.
        last: the last version.
    """
    if first > last:
        return
    if "://" not in table:
        folder = DiskFolder(Path(table))
        for version in sorted(v for v in list_log(folder, first).entries if first <= v <= last):
            path = entry_path(version)
            with suppress(FileNotFoundError), open_log_file(folder, path) as file:
                yield version, list(log_lines(file, path))
        return
    # Only Hadoop has the credentials; a pattern, because not all of them need to exist.
    entries = spark.read.format("binaryFile").load(f"{table.rstrip('/')}/{LOG_FOLDER}/*[0-9].json")
    numbered = entries.selectExpr("CAST(regexp_extract(path, '([0-9]+)[.]json$') AS BIGINT) AS version", "content")
    for version, content in numbered.where(f"version BETWEEN {first} AND {last}").sort("version").collect():
        yield version, [line for line in bytes(content).splitlines() if line.strip()]


def _uri(table: str, path: str) -> str:
    """Returns the percent-encoded URI of a file of a table, as Spark names it."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path):
        return path
    return f"{table.rstrip('/')}/{path}" if "://" in table else file_uri(Path(table) / unquote(path))


_CONDITION = re.compile(r"\[(DELTA_[A-Z_]+)(?:\.[A-Z_]+)?\]\s*([^\n]*)")
_VERSION = re.compile(r"\bversions? \[?(\d+)\]?")
_SHOWN = 500


@dataclass(frozen=True)
class _Failure:
    """The error for one of Delta's error conditions."""

    error: type[StateflowError]
    message: str
    hint: str


_CHANGED = _Failure(
    DataError,
    "a commit of a Delta table updates or deletes rows, and a source without changes reads only rows that are added",
    "skip such commits with DeltaSource(…, skip_changes=True), or read them with changes=True; to continue after it, "
    "restore with --source UID=position:VERSION",
)
_OTHER_COLUMNS = _Failure(
    SchemaMismatch,
    "columns of a Delta table were renamed, removed or changed their type after the position of its source",
    "restore with --source UID=position:VERSION, with a version after the change, or with UID=earliest",
)
_LOG_GONE = _Failure(
    InputLost,
    "a Delta table no longer has the log of versions that were not read",
    "restore with --source UID=earliest or position:VERSION; to keep the log longer, set delta.logRetentionDuration "
    "of the table",
)
_FILE_GONE = _Failure(
    InputLost,
    "a Delta table no longer has a file that was not read",
    "restore the file from a copy, or the job with --source UID=earliest or position:VERSION; VACUUM must keep files "
    "for longer than the time between two runs (delta.deletedFileRetentionDuration)",
)
_FAILURES = {
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": _CHANGED,
    "DELTA_SOURCE_IGNORE_DELETE": _CHANGED,
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": _OTHER_COLUMNS,
    "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG": _OTHER_COLUMNS,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_DATA_SCHEMA": _OTHER_COLUMNS,
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE_SCHEMA_CHANGE": _OTHER_COLUMNS,
    "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE": _LOG_GONE,
    "DELTA_MISSING_CHANGE_DATA": _Failure(
        DataError,
        "a Delta table has not recorded its changes in versions that were not read",
        "set delta.enableChangeDataFeed=true of the table, and restore with --source UID=position:VERSION, with a "
        "version since then",
    ),
}


def stream_error(reason: str, source: str, table: str) -> StateflowError | None:
    """Returns the error that ended a stream of a Delta table; None if it is unknown, or another try may solve it.

    Args:
        reason: text of Spark's error.
        source: description of the source.
        table: path of its table. An error that names another path is one of another source.
    """
    for condition, text in _CONDITION.findall(reason):
        failure = _FAILURES.get(condition)
        if failure is not None and not _names_another(unquote(text), table):
            version = _VERSION.search(text)
            facts = {"version": int(version[1])} if version else {}
            return failure.error(failure.message, hint=failure.hint, source=source, **facts, reason=_first_part(text))
    return _error_of_file(reason, source, plain_path(table))


def _error_of_file(reason: str, source: str, table: str) -> StateflowError | None:
    """Returns the error of a data file of a table; None if the error is another one, or a retry may read the file."""
    found = unreadable_in(reason)
    if found is None or not found.path.startswith(f"{table.rstrip('/')}/"):
        return None
    if found.was_deleted:
        return InputLost(_FILE_GONE.message, hint=_FILE_GONE.hint, source=source, file=found.path)
    if not found.is_corrupt:
        return None
    return CorruptInput(
        "a data file of a Delta table cannot be read",
        hint="restore the file from a copy, or delete its rows from the table",
        source=source,
        file=found.path,
        reason=found.reason,
    )


def _names_another(text: str, table: str) -> bool:
    """Returns whether a message has the path of another table, which may begin or end with this one's path."""
    path = re.escape(table.removeprefix("file://"))
    named = rf" at path (file:(//)?)?{path}/?\.?(\s+SQLSTATE|$)"
    return " at path " in text and not re.search(named, text)


def _first_part(text: str) -> str:
    """Returns Delta's message without its advice, which is about options of Spark."""
    return text.partition(" This is currently not supported")[0][:_SHOWN]
