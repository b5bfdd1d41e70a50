"""Reads data files of a Delta table in tasks: the declared columns, partition values, deletion vectors, and changes.

A file has the columns of the table by their physical names (or numbers, in tables with column mapping by id), lacks
those that were added later, and may have narrower types than the table has now. What cannot be read as declared ends
the run: nothing is cast that could change a value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stateflow.api.input_files import FileShare
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barriers import message_with
from stateflow.connectors.delta.log import Metadata, decode_z85, open_logged_file, vector_path
from stateflow.connectors.delta_types import COLUMN_MAPPING, DeltaField, DeltaType, stored_type
from stateflow.connectors.parquet_batches import middle_of_group, read_batches
from stateflow.connectors.partitions import parse_partition_value
from stateflow.connectors.table_folder import TableFolder
from stateflow.errors import CorruptFile, CorruptInput, DataError, InputLost, SchemaMismatch, StateflowError
from stateflow.types.decoders import json_decoder

_ROWS_AT_ONCE = 1 << 14
_FILES_AT_ONCE = 8
_CHANGE_TYPE = "_change_type"
_PHYSICAL_NAME, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_OWN_COLUMNS = (_CHANGE_TYPE, "_row-id-col-", "_row-commit-version-col-")
"""Beginnings of names of columns that Delta adds to files."""
_FIELD_ID = b"PARQUET:field_id"
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_WRITER = b"org.apache.spark.version"
_FIRST_DATE, _FIRST_TIME = -141_427, -2_208_988_800_000_000
"""Days and microseconds since 1970 from which on the Julian calendar, or a time zone of then, makes no difference."""
VACUUMED = (
    "restore the file from a copy, or the job with --source UID=earliest or position:VERSION; VACUUM must keep files "
    "for longer than the time between two runs (delta.deletedFileRetentionDuration)"
)


class Vector(msgspec.Struct, frozen=True):
    """A deletion vector, as in the log."""

    storageType: str
    pathOrInlineDv: str
    sizeInBytes: int = 0
    cardinality: int = 0
    offset: int | None = None


class LoggedFile(msgspec.Struct, frozen=True):
    """The used fields of an ``add``, ``remove`` or ``cdc``."""

    path: str
    partitionValues: dict[str, str | None] | None = None
    size: int | None = None
    dataChange: bool = True
    deletionVector: Vector | None = None
    modificationTime: int = 0
    stats: str | None = None

    @property
    def rows(self) -> int | None:
        """The number of rows, without deleted ones; None if its statistics do not have it, or cannot be decoded."""
        try:
            found = _statistics.decode(self.stats).numRecords if self.stats else None
        except (msgspec.DecodeError, RecursionError):
            return None
        return found if found is None or self.deletionVector is None else found - self.deletionVector.cardinality


class _Statistics(msgspec.Struct):
    numRecords: int | None = None


_statistics = json_decoder(_Statistics)


@dataclass(frozen=True)
class FileRead:
    """The rows of a data file that a batch reads.

    Attributes:
        version: the version of the commit; for rows of the table as it was at the start, the table's version.
        change: the kind of change that each row is; empty if the file has it.
        kinds: for a file of changes, the kinds of changes to read.
        only: the rows to read; None for all.
        without: the rows to leave out.
        committed: time of the commit in milliseconds since 1970, if it is needed.
    """

    file: LoggedFile
    version: int
    change: str = ""
    kinds: frozenset[str] = frozenset()
    only: Vector | None = None
    without: Vector | None = None
    committed: int | None = None


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, as a source reads them.

    Attributes:
        fields: the fields of the table's schema, by name.
        partitioned_by: names of the partition columns.
        is_mapped: whether data files have names of their own for columns, which stay when a column is renamed.
        by_id: whether data files have numbers of columns.
        metadata: the kind of metadata of a change, by name of the declared column that takes it.
    """

    fields: Mapping[str, DeltaField]
    partitioned_by: frozenset[str]
    is_mapped: bool
    by_id: bool
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, table: Metadata, metadata: Mapping[str, str]) -> TableColumns:
        """Returns the columns of a table at the version that has this metadata."""
        mode = ((table.configuration or {}).get(COLUMN_MAPPING) or "none").lower()
        fields = {each.name: each for each in table.fields()}
        return cls(fields, frozenset(table.partition_columns), mode != "none", mode == "id", dict(metadata))


@dataclass(frozen=True)
class DeltaFormat:
    """Reads files of a table; the path of a share is the number of the file.

    Attributes:
        table: folder of the table.
        source: description of the source, for errors.
        columns: the columns of the table.
        reads: the files, in order.
    """

    table: TableFolder
    source: str
    columns: TableColumns
    reads: tuple[FileRead, ...]
    splits = True

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """The paths and sizes of shares, in order."""
        return [(str(number), max(1, read.file.size or 1)) for number, read in enumerate(self.reads)]

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat.row_starts`."""
        return positions

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`. Raises RuntimeError with an encoded error: Spark forwards only messages."""
        try:
            yield from self.batches(share, schema)
        except StateflowError as e:
            raise RuntimeError(message_with(e)) from e

    def batches(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a share as `read` does. Raises InputLost, CorruptInput, SchemaMismatch or StorageError."""
        read = self.reads[int(share.path)]
        with self._opened(read) as (source, file):
            yield from _FileRows(self, read, file, schema).batches(source, share)

    def read_all(self, schema: RowSchema) -> pa.Table:
        """Returns the rows of all files, in order. Raises as `batches`."""

        def batches(file: tuple[str, int]) -> list[pa.RecordBatch]:
            path, size = file
            return list(self.batches(FileShare(path, 0, size, size), schema))

        # Objects of a bucket take a request or two each.
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            found = [batch for each in pool.map(batches, self.sizes) for batch in each]
        return pa.Table.from_batches(found, schema.arrow)

    @contextmanager
    def _opened(self, read: FileRead) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
        try:
            with self.open(read.file.path) as source:
                options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
                with pq.ParquetFile(source, **options) as file:
                    yield source, file
        except FileNotFoundError as e:
            message = "a Delta table no longer has a file that was not read"
            raise InputLost(message, hint=VACUUMED, source=self.source, file=self.name_of(read.file.path)) from e
        except CorruptFile as e:
            # Of the content, not of a path that leads out of the table.
            if "reason" not in e.facts:
                raise
            raise self.corrupt(read, str(e.facts["reason"])) from e
        except pa.ArrowException as e:
            raise self.corrupt(read, str(e)) from e

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Opens a file that the log names."""
        return open_logged_file(self.table, path)

    def name_of(self, path: str) -> str:
        """Returns the address of a file, for errors."""
        return f"{self.table}/{path}"

    def corrupt(self, read: FileRead, reason: str) -> CorruptInput:
        """Returns the error about a file that cannot be read."""
        return CorruptInput(
            "a data file of a Delta table cannot be read",
            hint="restore the file from a copy, or delete its rows from the table",
            source=self.source,
            file=self.name_of(read.file.path),
            reason=reason[:500],
        )

    def positions(self, vector: Vector, read: FileRead, rows: int) -> NDArray[np.int64]:
        """Returns the numbers of the rows of a file that a deletion vector has, in order.

        Raises:
            CorruptInput: it is damaged.
            InputLost: it no longer exists.
        """
        described = msgspec.structs.asdict(vector)
        path = vector_path(described)
        try:
            if path is None:
                return vector_positions(decode_z85(vector.pathOrInlineDv), rows)
            with self.open(path) as file:
                file.seek(vector.offset or 0)
                (size,) = struct.unpack(">i", file.read(4))
                if not 0 <= size <= _LARGEST_VECTOR:
                    raise ValueError(f"it has {size} bytes")
                return vector_positions(file.read(size), rows)
        except FileNotFoundError as e:
            message = "a Delta table no longer has a deletion vector of a file that was not read"
            raise InputLost(message, hint=VACUUMED, source=self.source, file=self.name_of(path or "")) from e
        except (ValueError, struct.error) as e:
            raise self.corrupt(read, f"its deletion vector is damaged: {e}") from e


class _FileRows:
    """The rows of one file.

    Args:
        format: how the table is read.
        read: what is read of the file.
        file: the open file.
        schema: the declared columns.
    """

    def __init__(self, format: DeltaFormat, read: FileRead, file: pq.ParquetFile, schema: RowSchema) -> None:
        self._format = format
        self._read = read
        self._file = file
        self._schema = schema
        self._known = file.metadata.metadata or {}
        self._stored = file.schema_arrow
        self._at = {name: self._place(name) for name in schema.names}

    def _place(self, column: str) -> int | None:
        """Returns the position of a declared column in the file; None if it is not there."""
        columns = self._format.columns
        found = columns.fields.get(column)
        if column in columns.metadata or found is None or column in columns.partitioned_by:
            return None
        at = find_field(list(self._stored), found, by_id=columns.by_id)
        if at is None and not columns.is_mapped:
            # The file has a column that the table has no more: it may be this one, before it was renamed.
            own = {name.lower() for name in columns.fields}
            others = [n for n in self._stored.names if n.lower() not in own and not n.startswith(_OWN_COLUMNS)]
            if others:
                raise self._misfit(column, f"the columns {', '.join(others)}", "a column of this name")
        return at

    def batches(self, source: BinaryIO, share: FileShare) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the row groups whose middle is in a share."""
        names = [self._stored.names[at] for at in self._at.values() if at is not None]
        if self._read.kinds:
            names.append(_CHANGE_TYPE)
        names = list(dict.fromkeys(names))
        first = 0
        keep = self._keep()
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if share.begin <= middle_of_group(self._file, group, share.size) < share.end:
                at = first
                for batch in self._of_group(source, group, names):
                    rows = self._filtered(batch, keep, at)
                    at += len(batch)
                    if len(rows):
                        yield self._declared(rows)
            first += count

    def _of_group(self, source: BinaryIO, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if names:
            yield from read_batches(source, self._file, names, groups=[group], rows=_ROWS_AT_ONCE)
            return
        left = self._file.metadata.row_group(group).num_rows
        while left > 0:
            count = min(left, _ROWS_AT_ONCE)
            # A batch without columns has no number of rows.
            yield pa.RecordBatch.from_pydict({"": pa.nulls(count)})
            left -= count

    def _keep(self) -> Callable[[int, int], NDArray[np.bool_]] | None:
        """Returns the function that tells which of the rows from a number on are read; None if all are."""
        rows = self._file.metadata.num_rows
        only, without = (
            None if vector is None else self._format.positions(vector, self._read, rows)
            for vector in (self._read.only, self._read.without)
        )
        if only is None and without is None:
            return None

        def keep(first: int, count: int) -> NDArray[np.bool_]:
            mask = np.ones(count, bool) if only is None else _within(only, first, count)
            return mask if without is None else mask & ~_within(without, first, count)

        return keep

    def _filtered(
        self, batch: pa.RecordBatch, keep: Callable[[int, int], NDArray[np.bool_]] | None, first: int
    ) -> pa.RecordBatch:
        if keep is not None:
            batch = batch.filter(pa.array(keep(first, len(batch))))
        if not self._read.kinds:
            return batch
        kinds = batch.column(_CHANGE_TYPE).cast(pa.string())
        return batch.filter(pc.is_in(kinds, value_set=pa.array(sorted(self._read.kinds), pa.string())))

    def _declared(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with the declared columns."""
        columns = [self._column(column.name, column.arrow_type, batch) for column in self._schema.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)

    def _column(self, name: str, kind: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
        columns, at = self._format.columns, self._at[name]
        if name in columns.metadata:
            return self._metadata(columns.metadata[name], batch).cast(kind)
        if name in columns.partitioned_by:
            return pa.repeat(self._partition_value(name, kind), len(batch))
        if at is None:
            # The column was added later, or is not in the table: as the policy of the source permits.
            return pa.nulls(len(batch), kind)
        values = batch.column(self._stored.names[at])
        reading = Reading(by_id=columns.by_id, is_int96=self._is_int96(at))
        try:
            values.validate(full=True)
            found = reading.convert(values, kind, columns.fields[name].type)
        except NotDeclared as e:
            raise self._misfit(name, e.found, e.declared) from e
        except pa.ArrowException as e:
            raise self._format.corrupt(self._read, f"the column {name}: {e}") from e
        self._check_calendar(name, found)
        return found

    def _metadata(self, kind: str, batch: pa.RecordBatch) -> pa.Array:
        if kind == "change":
            of_file = not self._read.change
            return batch.column(_CHANGE_TYPE) if of_file else pa.repeat(pa.scalar(self._read.change), len(batch))
        if kind == "version":
            return pa.repeat(pa.scalar(self._read.version, pa.int64()), len(batch))
        time = None if self._read.committed is None else self._read.committed * 1000
        return pa.repeat(pa.scalar(time, pa.timestamp("us", "UTC")), len(batch))

    def _partition_value(self, name: str, kind: pa.DataType) -> pa.Scalar:
        values, physical = self._read.file.partitionValues, physical_name(self._format.columns.fields[name])
        if values is None:
            raise DataError(
                "the log of a Delta table does not have the partition of a file that was removed",
                hint="restore with --source UID=position:VERSION, with a version after it",
                source=self._format.source,
                version=self._read.version,
                file=self._read.file.path,
            )
        columns = self._format.columns
        known = {physical_name(columns.fields[each]) for each in columns.partitioned_by}
        # Spark leaves out values that are null.
        if physical not in values and values.keys() - known:
            raise self._misfit(name, f"the partition columns {', '.join(values)}", "a partition column of this name")
        try:
            return partition_scalar(values.get(physical), kind)
        except ValueError as e:
            raise self._format.corrupt(self._read, f"the partition column {name}: {e}") from e

    def _is_int96(self, at: int) -> bool:
        """Returns whether times in a column are of 96 bits, which are in UTC, but are not marked so."""
        top = self._stored.names[at]
        leaves = (self._file.schema.column(number) for number in range(len(self._file.schema)))
        return any(leaf.physical_type == "INT96" for leaf in leaves if leaf.path.split(".")[0] == top.split(".")[0])

    def _check_calendar(self, name: str, values: pa.Array) -> None:
        """Raises CorruptInput for a date or time that older writers have stored in another calendar or time zone."""
        if not any(key in self._known for key in _OLD_CALENDAR) and self._known.get(_WRITER, b"4") >= b"3":
            return
        kinds = pa.types
        while kinds.is_list(values.type):
            values = values.flatten()
        limit = _FIRST_DATE if kinds.is_date32(values.type) else _FIRST_TIME
        if not (kinds.is_date32(values.type) or kinds.is_timestamp(values.type)):
            return
        least = pc.min(values).cast(pa.int64() if kinds.is_timestamp(values.type) else pa.int32()).as_py()
        if least is not None and least < limit:
            reason = f"the column {name} has dates of the Julian calendar, or times before 1900 of an old writer"
            raise self._format.corrupt(self._read, reason)

    def _misfit(self, column: str, found: str, declared: str) -> SchemaMismatch:
        return SchemaMismatch(
            "columns of a Delta table were renamed, removed or changed their type after the position of its source",
            hint="restore with --source UID=position:VERSION, with a version after the change, or with UID=earliest",
            source=self._format.source,
            version=self._read.version,
            file=self._format.name_of(self._read.file.path),
            column=column,
            found=found,
            declared=declared,
        )


class NotDeclared(Exception):
    """A file has values of another type than declared."""

    def __init__(self, found: pa.DataType, declared: pa.DataType) -> None:
        super().__init__(f"{found}, and {declared} is declared")
        self.found, self.declared = str(found), str(declared)


def physical_name(field: DeltaField) -> str:
    """Returns the name of a column in data files and partition values."""
    return str((field.metadata or {}).get(_PHYSICAL_NAME) or field.name)


def find_field(stored: Sequence[pa.Field], wanted: DeltaField, *, by_id: bool) -> int | None:
    """Returns the position of a column among fields of a data file; None without it."""
    if by_id:
        number = str((wanted.metadata or {}).get(_ID, "")).encode()
        numbers = [(each.metadata or {}).get(_FIELD_ID) for each in stored]
        # Files from before the table has numbers have none, and the names of the columns.
        if any(each is not None for each in numbers):
            return numbers.index(number) if number in numbers else None
    name = physical_name(wanted)
    names = [each.name for each in stored]
    if name in names:
        return names.index(name)
    lower = [each.lower() for each in names]
    return lower.index(name.lower()) if lower.count(name.lower()) == 1 else None


@dataclass(frozen=True)
class Reading:
    """Reads the values of one column of a file.

    Attributes:
        by_id: as of `TableColumns`.
        is_int96: whether its times have 96 bits.
    """

    by_id: bool = False
    is_int96: bool = False

    def convert(self, values: pa.Array, kind: pa.DataType, of_table: DeltaType) -> pa.Array:
        """Returns values with a declared type.

        Args:
            of_table: the type that the table has.

        Raises:
            NotDeclared: they have another type, which is not narrower.
            pyarrow.ArrowException: a value is not valid.
        """
        kinds = pa.types
        if not kinds.is_nested(kind):
            return self._scalars(values, kind)
        parts = of_table if isinstance(of_table, dict) else {}
        if values.offset:
            values = values.take(pa.array(np.arange(len(values))))
        mask = values.is_null() if values.null_count else None
        if kinds.is_struct(kind) and kinds.is_struct(values.type):
            children = [self._child(values, each, parts) for each in kind]
            return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
        if kinds.is_map(kind) and kinds.is_map(values.type):
            keys = self.convert(values.keys, kind.key_type, parts.get("keyType", ""))
            items = self.convert(values.items, kind.item_type, parts.get("valueType", ""))
            return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=mask)
        if kinds.is_list(kind) and (kinds.is_large_list(values.type) or kinds.is_fixed_size_list(values.type)):
            values = values.cast(pa.list_(values.type.value_field))
        if kinds.is_list(kind) and kinds.is_list(values.type):
            items = self.convert(values.values, kind.value_type, parts.get("elementType", ""))
            return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=mask)
        raise NotDeclared(values.type, kind)

    def _child(self, values: pa.StructArray, wanted: pa.Field, parts: Mapping[str, object]) -> pa.Array:
        declared = parts.get("fields")
        known = [msgspec.convert(each, DeltaField) for each in (declared if isinstance(declared, list) else [])]
        found = next((each for each in known if each.name == wanted.name), None)
        at = None if found is None else find_field(list(values.type), found, by_id=self.by_id)
        if found is None or at is None:
            return pa.nulls(len(values), wanted.type)
        return self.convert(values.field(at), wanted.type, found.type)

    def _scalars(self, values: pa.Array, kind: pa.DataType) -> pa.Array:
        kinds = pa.types
        if kinds.is_dictionary(values.type):
            values = values.dictionary_decode()
        given = values.type
        if given.equals(kind):
            return values
        if kinds.is_null(given):
            return pa.nulls(len(values), kind)
        if kinds.is_timestamp(given) and kinds.is_timestamp(kind):
            return self._times(values, kind)
        if not _is_read_as(given, kind):
            raise NotDeclared(given, kind)
        return values.cast(kind)

    def _times(self, values: pa.Array, kind: pa.DataType) -> pa.Array:
        zoned = values.type.tz is not None or self.is_int96
        if zoned != (kind.tz is not None):
            raise NotDeclared(values.type, kind)
        # Other writers store nanoseconds, which the table does not have.
        return values.cast(pa.timestamp("us", values.type.tz), safe=values.type.unit != "ns").cast(kind)


def _is_read_as(given: pa.DataType, kind: pa.DataType) -> bool:
    """Returns whether values of a type in a file are values of a declared type, perhaps a wider one."""
    kinds = pa.types
    is_text = kinds.is_string(given) or kinds.is_large_string(given) or kinds.is_string_view(given)
    is_bytes = kinds.is_binary(given) or kinds.is_large_binary(given) or kinds.is_binary_view(given)
    if kinds.is_string(kind):
        return bool(is_text or is_bytes)
    if kinds.is_binary(kind):
        return bool(is_bytes or kinds.is_fixed_size_binary(given))
    if kinds.is_integer(kind):
        return bool(kinds.is_integer(given))
    if kinds.is_floating(kind):
        return bool(kinds.is_floating(given) or (kinds.is_integer(given) and given.bit_width <= 32))
    if kinds.is_decimal(kind):
        return bool(kinds.is_decimal(given) or kinds.is_integer(given))
    if kinds.is_timestamp(kind):
        return bool(kinds.is_date32(given) and kind.tz is None)
    # A time of day and a duration are stored as integers of microseconds.
    return bool(kinds.is_int64(given) and stored_type(kind) == given)


def partition_scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Returns a value of the log with the declared type. Raises ValueError."""
    kinds = pa.types
    if text and kinds.is_floating(kind):
        return pa.scalar(float(text), kind)
    if text and kinds.is_timestamp(kind) and kind.tz:
        # Without a zone, the text is in the zone of the writer's session. Spark takes the reader's, which is UTC.
        moment = datetime.fromisoformat(text)
        return pa.scalar(moment if moment.tzinfo else moment.replace(tzinfo=UTC), kind)
    stored = stored_type(kind)
    found = parse_partition_value(text, stored)
    return found if stored.equals(kind) else found.cast(kind)


_MAGIC = 1681511377
_LARGEST_VECTOR = 1 << 30
_WITH_RUNS, _WITHOUT_RUNS = 12347, 12346
_NO_OFFSETS = 4
"""Bitmaps with runs have offsets of their containers from this number of them on."""
_ARRAY_LIMIT = 4096
_CONTAINER = 1 << 16


def vector_positions(data: bytes, most: int) -> NDArray[np.int64]:
    """Returns the numbers in a serialized deletion vector, in order.

    It is a number of 32-bit Roaring bitmaps, each with the upper half of its numbers, in the portable format.

    Args:
        most: the numbers are below it. A few bytes can say that billions of rows are deleted.

    Raises:
        ValueError: it is damaged, or has larger numbers.
    """
    reader = _Bytes(data)
    magic, bitmaps = reader.numbers("<iq", 12)
    if magic != _MAGIC or not 0 <= bitmaps <= len(data):
        raise ValueError(f"its format {magic} is not known")
    found: list[NDArray[np.int64]] = []
    for _ in range(bitmaps):
        (high,) = reader.numbers("<I", 4)
        found += [values + (high << 32) for values in _bitmap(reader, most)]
    numbers = np.concatenate(found) if found else np.empty(0, np.int64)
    if len(numbers) and (numbers[-1] >= most or (np.diff(numbers) <= 0).any()):
        raise ValueError(f"it has a row after the last one, {most}, or its rows are not in order")
    return numbers


class _Bytes:
    """Reads numbers from bytes. Its methods raise ValueError at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise ValueError("it is too short")
        self._at += size
        return part

    def numbers(self, form: str, size: int) -> tuple[int, ...]:
        return struct.unpack(form, self.take(size))

    def array(self, kind: str, count: int) -> NDArray[np.int64]:
        read: NDArray[np.int64] = np.frombuffer(self.take(count * np.dtype(kind).itemsize), kind).astype(np.int64)
        return read


def _bitmap(reader: _Bytes, most: int) -> Iterator[NDArray[np.int64]]:
    """Yields the numbers of each container of a 32-bit Roaring bitmap."""
    (cookie,) = reader.numbers("<I", 4)
    has_runs = cookie & 0xFFFF == _WITH_RUNS
    if has_runs:
        count = (cookie >> 16) + 1
        runs = np.unpackbits(np.frombuffer(reader.take((count + 7) // 8), np.uint8), bitorder="little")
    elif cookie == _WITHOUT_RUNS:
        (count,) = reader.numbers("<I", 4)
        if count > _CONTAINER:
            raise ValueError(f"it has {count} containers")
        runs = np.zeros(count, np.uint8)
    else:
        raise ValueError(f"the format {cookie} of a bitmap is not known")
    described = reader.array("<u2", 2 * count).reshape(-1, 2)
    if not has_runs or count >= _NO_OFFSETS:
        reader.take(4 * count)
    left = most
    for (key, last), is_run in zip(described.tolist(), runs.tolist(), strict=False):
        values = _container(reader, last + 1, is_run=bool(is_run))
        left -= len(values)
        if left < 0:
            raise ValueError(f"it has more than {most} rows")
        yield values + (key << 16)


def _container(reader: _Bytes, count: int, *, is_run: bool) -> NDArray[np.int64]:
    if is_run:
        (runs,) = reader.numbers("<H", 2)
        pairs = reader.array("<u2", 2 * runs).reshape(-1, 2)
        lengths = pairs[:, 1] + 1
        if lengths.sum() > _CONTAINER:
            raise ValueError("the runs of a container overlap")
        starts = np.repeat(pairs[:, 0] - np.concatenate([[0], np.cumsum(lengths)[:-1]])[: len(pairs)], lengths)
        return np.asarray(starts + np.arange(int(lengths.sum())), np.int64)
    if count > _ARRAY_LIMIT:
        bits = np.unpackbits(np.frombuffer(reader.take(_CONTAINER // 8), np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.int64)
    return reader.array("<u2", count)


def _within(numbers: NDArray[np.int64], first: int, count: int) -> NDArray[np.bool_]:
    """Returns for the rows from a number on whether they are among sorted numbers."""
    begin, end = np.searchsorted(numbers, (first, first + count))
    mask = np.zeros(count, bool)
    mask[numbers[begin:end] - first] = True
    return mask
