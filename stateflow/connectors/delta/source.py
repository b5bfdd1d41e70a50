"""The Delta source: a stream of Spark that has only positions, and what tasks read between two of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from stateflow.api.datasets import Dataset, path_name
from stateflow.api.schema import RowSchema
from stateflow.api.source import FROM_START, Backlog, InitialPosition, Source, StartKind, StartPosition
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.config.settings import SourceSettings
from stateflow.connectors.column_policy import ColumnPolicy, check_source_columns, with_times
from stateflow.connectors.delta.commits import Feed, Offset, TableLog, WaitingFile
from stateflow.connectors.delta.rows import DeltaFormat, FileRead, TableColumns
from stateflow.connectors.delta_types import DeltaField
from stateflow.connectors.partition_offsets import position_error
from stateflow.connectors.stream_reader import Position, StreamInput, ends_by_itself, load_stream
from stateflow.errors import ConfigError, JobDefinitionError
from stateflow.storage import check_address
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


_CHANGES: Mapping[str, tuple[str, str]] = {
    "change": ("_change_type", "string"),
    "version": ("_commit_version", "bigint"),
    "committed": ("_commit_timestamp", "timestamp"),
}
"""Column of Delta's change data feed and Spark type of the field that takes it, by name of the metadata."""
_MOST_FILES = 1000
"""Files of a batch without a limit, as Delta's own source has."""
_numbers = count(1)
_clock = SystemClock()


Start = str | int | datetime
"""``earliest``, ``latest``, a version or a time."""

_offset = json_decoder(Offset)


class DeltaSource(Source):
    """Rows that are added to a Delta table, or all of its changes.

    Positions are versions of the table, as offsets of Delta's own source for Spark, restored exactly. As long as the
    table keeps its log and its files (``delta.logRetentionDuration``, VACUUM), a batch can be read again.

    Args:
        table: path of the table, or a URI such as ``s3://bucket/table``.
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
        check_address(str(table))
        self.path = str(table) if "://" in str(table) else os.path.abspath(table)
        self.schema = RowSchema.of(schema)
        self.columns = columns or ColumnPolicy()
        self._metadata = dict(metadata or {})
        self._changes = changes
        self._skips_changes = skip_changes
        self._start = _checked_start(start)
        self._first: Offset | None = None
        self._name = f"stateflow_delta_source_{next(_numbers)}"
        self._log = TableLog(self.path, self.description)
        self._compared: set[str] = set()
        if (self._metadata or skip_changes) and changes == skip_changes:
            raise JobDefinitionError(
                "the arguments of a Delta source contradict each other",
                hint="metadata needs changes=True, and skip_changes is for a source without changes",
                changes=changes,
                skip_changes=skip_changes,
                metadata=sorted(self._metadata),
            )
        self._check_metadata()

    def __repr__(self) -> str:
        return self.description

    @property
    def description(self) -> str:
        return f"DeltaSource[{'changes' if self._changes else 'rows'}:{self.path}]"

    @property
    def ends_by_itself(self) -> bool:
        return ends_by_itself()

    def can_keep(self, description: str) -> bool:
        return description == self.description

    def datasets(self, offset: str) -> Sequence[Dataset]:
        version, name = self._parsed(offset).newest_read if offset else -1, path_name(self.path)
        read, added = str(version) if version >= 0 else "", frozenset(self._metadata)
        return (Dataset(*name, kind="TABLE", storage="delta", file_format="parquet", version=read, added=added),)

    def check_settings(self, limits: SourceSettings) -> None:
        """See `Source.check_settings`: a table that does not exist, or has features that cannot be read, is refused."""
        self._log.head()

    def check(self, spark: SparkSession) -> None:
        """Raises ConfigError for a table that cannot be read, and SchemaMismatch for other columns than declared."""
        from pyspark.sql.types import StructType

        about = self._log.head().metadata
        own = [each for each in self.schema.columns if each.name not in self._metadata]
        found = StructType([_spark_field(field) for field in about.fields() if field.name not in self._metadata])
        declared = RowSchema(self.schema.row_class, tuple(own))
        check_source_columns(with_times(found, declared), declared, self.columns, self.description)

    def stream(self, spark: SparkSession, limits: SourceSettings) -> DataFrame:
        # Looked at before the query begins: what is added in between must not be lost. A time is looked up when Spark
        # asks for it, which it does in a new job only: the log may have thousands of entries.
        self._first = None if isinstance(self._start, datetime) else self._first_offset()
        return load_stream(spark, self._name, self.schema.ddl, self._positions(limits))

    def _positions(self, limits: SourceSettings) -> _Positions:
        most = _MOST_FILES if limits.max_files_per_batch is None else limits.max_files_per_batch
        return _Positions(self._feed.without_state(), self._first or self._start, most)

    @property
    def _feed(self) -> Feed:
        return Feed(self._log, self.description, changes=self._changes, skips_changes=self._skips_changes)

    def files_between(self, start: str, end: str) -> DeltaFormat:
        """See `Source.files_between`: by version, then in the order of the actions in the version's log entry.

        The table as it was at the start is read in the order of modification times.
        """
        last = self._parsed(end)
        first = self._start_of_first_batch(last) if start == FROM_START else self._parsed(start)
        about = self._feed.check_table(last).metadata
        reads = self._feed.reads(first, last, times="committed" in self._metadata.values())
        if self._changes:
            self._feed.check_feed(first, last)
        return DeltaFormat(self._log.table, self.description, TableColumns.of(about, self._metadata), tuple(reads))

    def _start_of_first_batch(self, end: Offset) -> Offset:
        """Returns the position before a first batch, which Spark does not store."""
        if self._start != StartKind.EARLIEST:
            first = self._first or self._first_offset()
            if first.place > end.place:
                raise self._log.lost(f"versions before {end.reservoirVersion}")
            return first
        # A batch that reads the table as it was at the start ends with it.
        version = end.reservoirVersion - (0 if end.isStartingVersion else 1)
        return Offset(reservoirId=end.reservoirId, reservoirVersion=version, isStartingVersion=True)

    @property
    def is_table(self) -> bool:
        return not self._changes

    def read_now(self, spark: SparkSession) -> DataFrame:
        """See `Source.read_now`: all rows of the newest version."""
        self.check(spark)
        version = self._log.snapshot(self._log.head().version)
        reads = tuple(FileRead(file, version.version, without=file.deletionVector) for file in version.files)
        format = DeltaFormat(self._log.table, self.description, TableColumns.of(version.metadata, {}), reads)
        return spark.createDataFrame(format.read_all(self.schema), self.schema.ddl)

    def first_offset(self, logs: Mapping[str, bytes]) -> str:
        """See `Source.first_offset`: the version after the newest one when the query started, or since a time."""
        if isinstance(self._start, datetime):
            return _text(self._first_offset())
        return _text(self._first) if self._start == StartKind.LATEST and self._first is not None else ""

    def check_position(self, offset: str) -> None:
        """Raises InputLost if the table was replaced, or its log no longer has the versions after a position."""
        position = self._parsed(offset)
        newest = self._feed.check_table(position).version
        if position.isStartingVersion or position.reservoirVersion > newest:
            return
        found = self._log.first_entry(position.reservoirVersion)
        # The first version of a table is 0.
        first = newest + 1 if found is None else found
        if first > position.reservoirVersion:
            raise self._log.lost(f"versions [{position.reservoirVersion}, {first})")
        if self._changes and not self._log.records_changes(position.reservoirVersion):
            raise self._feed.not_recorded(position.reservoirVersion)

    def has_new_input(self, offset: str, logs: Sequence[bytes]) -> bool | None:
        """See `Source.has_new_input`: compares the position with the newest version of the table.

        The position is the version after the newest one when all was read, whatever that version has changed. Other
        positions are within a version, or in the table as it was at the start.
        """
        position, head = self._parsed(offset), self._log.head()
        is_after_a_version = position == Offset(
            reservoirId=position.reservoirId, reservoirVersion=position.reservoirVersion
        )
        unread = head.version + 1 - position.reservoirVersion
        if not is_after_a_version or unread < 0 or head.metadata.id != position.reservoirId:
            return None
        return unread > 0

    def backlog(self, offset: str, logs: Sequence[bytes]) -> Backlog:
        """See `Source.backlog`: adds up what the log says about the files after the position."""
        # In a thread of its own, perhaps next to a batch.
        feed = self._feed.for_thread()
        position = _first_offset(feed.log, self._start) if offset == FROM_START else self._parsed(offset)
        if position.reservoirId != feed.log.head().metadata.id:
            return Backlog(unknown="the table was replaced since it was read")
        found = list(feed.waiting(position))
        rows = [each.file.rows for each in found]
        known = None if None in rows else _estimate(zip(rows, found, strict=True))
        oldest = min((each.added for each in found), default=None)
        return Backlog(
            known,
            _estimate((each.file.size, each) for each in found),
            _estimate((1, each) for each in found),
            None if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC),
            exact=not self._changes and all(each.weight == 1 for each in found),
            unknown="" if known is not None else "files of the table have no statistics about their rows",
        )

    def initial_position(self, start: StartPosition) -> InitialPosition:
        """See `Source.initial_position`. A position may be the number of a version."""
        if start.kind is StartKind.LATEST:
            return self._position(self._offset_at(self._log.head().version + 1))
        if start.kind is StartKind.TIMESTAMP:
            assert start.timestamp is not None
            return self._position(self._offset_at(_first_version_since(self._log, start.timestamp)))
        if start.position.isdecimal() and start.position.isascii():
            return self._position(self._offset_at(int(start.position)))
        return self._position(self._parsed(start.position))

    def earliest_position(self) -> InitialPosition:
        """See `Source.earliest_position`. Raises ConfigError if a new job begins elsewhere."""
        if self._start == StartKind.EARLIEST:
            return super().earliest_position()
        raise ConfigError(
            "a Delta source that begins elsewhere cannot be set to its earliest position",
            hint='declare start="earliest" in the job, or give position:VERSION',
            source=self.description,
            start=str(self._start),
        )

    def _first_offset(self) -> Offset:
        """Returns the position at which a new job begins."""
        return _first_offset(self._log, self._start)

    def _offset_at(self, version: int) -> Offset:
        return Offset(reservoirId=self._log.head().metadata.id, reservoirVersion=version)

    def _position(self, offset: Offset) -> InitialPosition:
        return InitialPosition(_text(offset), text=f"version {offset.reservoirVersion}")

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

    def _parsed(self, offset: str) -> Offset:
        try:
            return _offset.decode(offset)
        except (msgspec.DecodeError, RecursionError) as e:
            hint = "give the number of a version, or earliest, latest or timestamp:TIME"
            raise position_error("a Delta source", hint, self.description, offset, e) from e


def _checked_start(start: Start) -> Start:
    is_version = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not is_version and not isinstance(start, datetime) and start not in (StartKind.EARLIEST, StartKind.LATEST):
        raise JobDefinitionError(
            "the value of start is not supported",
            hint='use "earliest", "latest", the number of a version, or a datetime',
            given=repr(start),
        )
    return start


def _first_offset(log: TableLog, start: Start) -> Offset:
    """Returns the position at which a new job begins."""
    head = log.head()
    if start == StartKind.EARLIEST:
        return Offset(reservoirId=head.metadata.id, reservoirVersion=head.version, isStartingVersion=True)
    if isinstance(start, datetime):
        version = _first_version_since(log, start)
    else:
        version = start if isinstance(start, int) else head.version + 1
    return Offset(reservoirId=head.metadata.id, reservoirVersion=version)


def _first_version_since(log: TableLog, time: datetime) -> int:
    """Returns the first version that was committed at a time or later; the next version if there is none.

    Raises ConfigError for a time in the future: versions that are committed before would belong to the input.
    """
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    if zoned > _clock.now():
        raise ConfigError(
            "a Delta source cannot begin at a time in the future",
            hint='begin at "latest", or start the job at that time',
            table=log.address,
            time=zoned.isoformat(),
        )
    return log.first_version_since(epoch_milliseconds(zoned))


def _estimate(found: Iterable[tuple[int | None, WaitingFile]]) -> int:
    return round(sum((number or 0) * each.weight for number, each in found))


def _text(offset: Offset) -> str:
    return msgspec.json.encode(offset).decode()


def _spark_field(field: DeltaField) -> StructField:
    """Returns a column of a table; one of a type that Spark does not know has the type of nulls."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import NullType, StructField

    try:
        return StructField.fromJson({"name": field.name, "type": field.type, "nullable": field.nullable})
    except (PySparkException, ValueError, KeyError, TypeError):
        return StructField(field.name, NullType())


@dataclass
class _Positions(StreamInput):
    """The positions of a source for Spark's streams.

    Attributes:
        feed: the input.
        first: where a new job begins; a version or a time that was not looked up yet.
        most: most files of a batch.
        until: the position at which a query ends by itself.
    """

    feed: Feed
    first: Offset | Start
    most: int
    until: Offset | None = None

    @property
    def description(self) -> str:
        return self.feed.source

    def first_position(self) -> Position:
        first = self.first if isinstance(self.first, Offset) else _first_offset(self.feed.log, self.first)
        self.feed.check_start(first)
        return msgspec.structs.asdict(first)

    def end_with_present_input(self) -> None:
        newest = self.feed.log.head()
        self.until = Offset(reservoirId=newest.metadata.id, reservoirVersion=newest.version + 1)

    def next_position(self, start: Position) -> Position:
        at = msgspec.convert(dict(start), Offset)
        return msgspec.structs.asdict(self.feed.next_offset(at, self.most, self.until))
