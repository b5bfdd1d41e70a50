"""Data files before they are committed: their names, how they are written, and their statistics for Delta.

Statistics come from the Parquet footer. A missing bound is always correct, because readers then read the file. So a
bound that JSON, or some reader of Delta, cannot represent exactly enough is left out, not rounded inwards.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.api.sink import SinkContext, SinkWriter, Writing
from stateflow.connectors.table_folder import TableFolder, translate_disk_errors
from stateflow.errors import ConfigError, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import BlobInfo
from stateflow.types.columns.conversion import with_scalars

# 40 % of snappy's size on a million rows of a keyed aggregation, for a quarter more CPU; 0.3 ms more for ten rows.
_COMPRESSION = "zstd"
_NAME = re.compile(
    r"(?:(?P<folder>(?:[A-Za-z0-9_.%-]{1,254}=[A-Za-z0-9_.%-]{0,254}/)*[A-Za-z0-9_.%-]{1,254}=[A-Za-z0-9_.%-]{0,254})/)?"
    r"stateflow-(?P<job_uuid>[A-Za-z0-9]{1,64})-(?P<uid>[A-Za-z0-9][A-Za-z0-9._-]{0,99})"
    r"-g(?P<generation>\d{1,20})-o(?P<ordinal>\d{1,10})-s(?P<subtask>\d{1,10})-(?P<attempt>[A-Za-z0-9]{1,64})"
    r"-(?P<part>\d{1,6})\.zstd\.parquet"
)
_LONGEST_NAME = 255
_ARRAY_BYTES = 256
"""Memory of an Arrow array without its values."""


_WORD = re.compile(rb"[A-Za-z0-9._-]+")


def own_names(text: bytes) -> Iterator[bytes]:
    """Yields what may be names of stateflow's data files in the text of a table's log."""
    # By whole words: an expression for the names would begin a search at each "stateflow-" of a long word.
    for found in _WORD.finditer(text):
        if found[0].startswith(b"stateflow-") and found[0].endswith(b".parquet"):
            yield found[0]


@dataclass(frozen=True)
class FileName:
    """The parsed name of a data file: which job, sink and subtask wrote it, and for which barrier.

    The name starts with a letter, because Delta and Spark ignore names that start with ``_`` or ``.``, and has no
    character that a path in Delta's log would have to escape.

    Attributes:
        part: number of the file among the files of its writer.
        folder: folders of its partition, relative to the table; empty for a file in the table's own folder.
    """

    job_uuid: str
    uid: str
    writing: Writing
    part: int = 0
    folder: str = ""

    def __str__(self) -> str:
        w = self.writing
        position = f"g{w.generation}-o{w.ordinal}-s{w.subtask}-{w.attempt}-{self.part}"
        return f"stateflow-{self.job_uuid}-{self.uid}-{position}.zstd.parquet"

    @property
    def path(self) -> str:
        """Path of the file, relative to the table."""
        return f"{self.folder}/{self}" if self.folder else str(self)

    @classmethod
    def first(cls, context: SinkContext, writing: Writing) -> FileName:
        """Returns the name of a writer's first file. Raises ConfigError when `parse` could not parse it."""
        name = cls(context.job_uuid, context.uid, writing)
        if len(str(name)) > _LONGEST_NAME or cls.parse(str(name)) != name:
            raise ConfigError(
                "the name of a sink's file would not be valid",
                hint="use a shorter uid, of letters, digits, '.', '_' and '-'",
                name=str(name),
                limit=_LONGEST_NAME,
            )
        return name

    @classmethod
    def parse(cls, path: str) -> FileName | None:
        """Parses a file's path, relative to the table; returns None for a file that stateflow did not write."""
        found = _NAME.fullmatch(path)
        if found is None:
            return None
        generation, ordinal, subtask = int(found["generation"]), int(found["ordinal"]), int(found["subtask"])
        writing = Writing(generation, ordinal, subtask, found["attempt"])
        return cls(found["job_uuid"], found["uid"], writing, int(found["part"]), found["folder"] or "")


def list_own_files(table: TableFolder) -> Iterator[tuple[FileName, BlobInfo]]:
    """Yields all data files that sinks wrote into a table, of any job. Raises StorageError."""
    for file in table.files(""):
        if name := FileName.parse(file.key):
            yield name, file


@dataclass(frozen=True)
class Limits:
    """The sizes at which a writer ends a row group (bytes of rows in memory) and a file (bytes on disk)."""

    row_group_bytes: int = 64 << 20
    file_bytes: int = 1 << 30


def cast_read(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Returns a column of a data file of any writer with the type of the table's column.

    Other writers store texts as views or dictionaries, and times with nanoseconds, which the table does not have.

    Raises:
        pyarrow.ArrowException: a value is not of that type.
    """
    if column.type.equals(kind):
        return column
    micros = with_scalars(column.type, lambda scalar: pa.timestamp("us", scalar.tz) if _is_nanos(scalar) else scalar)
    return column.cast(micros, safe=False).cast(kind)


def _is_nanos(scalar: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(scalar) and scalar.unit == "ns")


class ParquetWriter(SinkWriter):
    """Writes the rows of one attempt to a Parquet file, or to several when it exceeds `limits`.

    Args:
        table: the folder of the table.
        name: name of the first file; later ones differ in `part`.
        stored: the columns of the file, all of whose parts are nullable.
        of: how emitted rows are stored; not needed by a writer of stored rows.
    """

    def __init__(
        self,
        table: TableFolder,
        name: FileName,
        stored: pa.Schema,
        limits: Limits | None = None,
        *,
        of: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> None:
        self._table = table
        self._name = name
        self._limits = limits or Limits()
        self._stored = stored
        self._of = of
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        self._file: _ParquetFile | None = None
        self._done: list[Committable] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        assert self._of is not None
        self.write_stored(self._of(rows))

    def write_stored(self, rows: pa.RecordBatch) -> None:
        """Writes rows with the types of data files."""
        if rows.num_rows == 0:
            return
        self._rows.append(rows)
        self._rows_bytes += rows.nbytes + rows.num_columns * _ARRAY_BYTES
        if self._rows_bytes >= self._limits.row_group_bytes:
            self.flush()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of memory of rows that are not written yet."""
        return self._rows_bytes

    @property
    def has_open_file(self) -> bool:
        """Whether a file is being written."""
        return self._file is not None

    def close(self) -> list[Committable]:
        self.flush()
        self.finish_file()
        return self._done

    def flush(self) -> None:
        """Writes the rows in memory as one row group."""
        if not self._rows:
            return
        rows = pa.Table.from_batches(self._rows, self._stored)
        self._rows, self._rows_bytes = [], 0
        with translate_disk_errors(self._table.address):
            if self._file is None:
                self._file = _ParquetFile(self._table, self._stored)
            self._file.add(rows)
        if self._file.size >= self._limits.file_bytes:
            self.finish_file()

    def finish_file(self) -> None:
        """Completes the open file, if there is one."""
        if self._file is None:
            return
        name = dataclasses.replace(self._name, part=len(self._done))
        with translate_disk_errors(self._table.address):
            self._done.append(self._file.finish(name.path))
        self._file = None


class _ParquetFile:
    """A Parquet file that has no name yet."""

    def __init__(self, table: TableFolder, schema: pa.Schema) -> None:
        self._file = table.new_file()
        self._schema = schema
        self._metadata: list[pq.FileMetaData] = []
        self._doubles = {f.name: DoubleBounds() for f in schema if pa.types.is_floating(f.type)}
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression=_COMPRESSION,
            store_schema=False,
            metadata_collector=self._metadata,
            # Bounds of floats within a nested column would ignore NaN as well: nested columns have no statistics.
            write_statistics=[f.name for f in schema if f.name not in self._doubles and not pa.types.is_nested(f.type)],
            store_decimal_as_integer=True,
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.size

    def add(self, rows: pa.Table) -> None:
        """Writes the rows as one row group."""
        for name, bounds in self._doubles.items():
            bounds.add(rows.column(name))
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def finish(self, path: str) -> Committable:
        """Completes the file, and publishes it as `path`, relative to the table."""
        self._writer.close()
        with self._file:
            if not self._file.publish(path):
                raise StorageError("a sink's file exists already", name=path)
        metadata = self._metadata[0]
        stats = statistics(metadata, self._schema, self._doubles)
        return Committable(path=path, size=self._file.size, rows=metadata.num_rows, stats=stats)


# Delta's own limits: dataSkippingNumIndexedCols and dataSkippingStringPrefixLength.
_INDEXED_COLUMNS = 32
_PREFIX = 32
_EXPANDED_PREFIX = 2 * _PREFIX


_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_EXACT_DIGITS = 15
"""A decimal of this many digits is exact as a float, which is how some readers parse JSON numbers."""
_encoder = msgspec.json.Encoder(decimal_format="number")


Json = int | float | str | Decimal
Bounds = tuple[Json | None, Json | None]


class DoubleBounds:
    """Smallest and largest value of a column of doubles.

    They are computed here and left out of the Parquet footer, whose bounds ignore NaN. Spark orders NaN above every
    number, so a filter such as ``x > 5`` would miss a NaN in a file whose other values are small.
    """

    def __init__(self) -> None:
        self.nulls = 0
        self._values: list[float] = []
        self._nan = False

    def add(self, column: pa.ChunkedArray) -> None:
        """Adds the values of a column of doubles."""
        self.nulls += column.null_count
        self._nan = self._nan or bool(pc.any(pc.is_nan(column)).as_py())
        ends = pc.min_max(column).as_py()
        self._values += [v for v in ends.values() if v is not None and not math.isnan(v)]

    def bounds(self) -> Bounds:
        """Returns the bounds; None for one that is unknown, NaN or infinite.

        Some readers order -0.0 below 0.0, and others treat them as equal: a zero is bounded so that both are right.
        """
        if not self._values:
            return None, None
        low, high = min(self._values), max(self._values)
        low, high = (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
        has_high = math.isfinite(high) and not self._nan
        return (low if math.isfinite(low) else None), (high if has_high else None)


def statistics(metadata: pq.FileMetaData, schema: pa.Schema, doubles: Mapping[str, DoubleBounds]) -> str:
    """Returns the ``stats`` of an ``add`` action, as JSON.

    Args:
        metadata: footer of a file with the columns of `schema`.
        doubles: bounds of the columns that the footer has none for, by column.
    """
    low: dict[str, Json] = {}
    high: dict[str, Json] = {}
    nulls: dict[str, int] = {}
    scalars = [field for field in list(schema)[:_INDEXED_COLUMNS] if not pa.types.is_nested(field.type)]
    positions = _positions(metadata)
    for column in scalars:
        if column.name in doubles:
            nulls[column.name] = doubles[column.name].nulls
            smallest, largest = doubles[column.name].bounds()
        else:
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            chunks = [group.column(positions[column.name]).statistics for group in groups]
            nulls[column.name] = sum(c.null_count for c in chunks)
            smallest, largest = _bounds(column.type, chunks)
        if smallest is not None:
            low[column.name] = smallest
        if largest is not None:
            high[column.name] = largest
    found = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return _encoder.encode(found).decode()


def _positions(metadata: pq.FileMetaData) -> dict[str, int]:
    """Returns the position of each column in the footer, by path; a nested column has one for each scalar in it."""
    if metadata.num_row_groups == 0:
        return {}
    group = metadata.row_group(0)
    return {group.column(at).path_in_schema: at for at in range(group.num_columns)}


def _bounds(kind: pa.DataType, chunks: list[pq.Statistics]) -> Bounds:
    """Returns the bounds over all row groups, from the statistics of each."""
    filled = [c for c in chunks if c.num_values > 0]
    # A row group without bounds has a string that is longer than the Parquet footer stores.
    if not filled or not all(c.has_min_max for c in filled):
        return None, None
    if pa.types.is_decimal(kind):
        return _decimal(min(c.min for c in filled)), _decimal(max(c.max for c in filled))
    translate = _TRANSLATE.get(kind)
    if translate is None:
        return None, None
    return translate(min(c.min_raw for c in filled), max(c.max_raw for c in filled))


def _integers(low: int, high: int) -> Bounds:
    return low, high


def _strings(low: bytes, high: bytes) -> Bounds:
    return low.decode()[:_PREFIX], shortened_up(high.decode())


def shortened_up(text: str) -> str | None:
    """Returns a short string that is not less than `text` in the order of UTF-8 bytes; None when there is none."""
    if len(text) <= _PREFIX:
        return text
    for end in range(_PREFIX, min(_EXPANDED_PREFIX, len(text))):
        if text[end] < _LAST_ASCII:
            return text[:end] + _LAST_ASCII
        if text[end] < _LAST_CHARACTER:
            return text[:end] + _LAST_CHARACTER
    return text if len(text) <= _EXPANDED_PREFIX else None


def _decimal(value: Decimal) -> Decimal | None:
    """Returns the number; None if it has too many digits to be exact in all readers."""
    return value if len(value.as_tuple().digits) <= _EXACT_DIGITS else None


def _dates(low: int, high: int) -> Bounds:
    return _date(low), _date(high)


def _date(days: int) -> str | None:
    return _or_none(lambda: date.fromordinal(_EPOCH_DAY + days).isoformat())


def _zoned(low: int, high: int) -> Bounds:
    """Returns bounds in milliseconds, as Delta's writers store them, rounded outwards: not all readers do that."""
    return _instant(low // 1000, "Z"), _instant(-(-high // 1000), "Z")


def _unzoned(low: int, high: int) -> Bounds:
    return _instant(low // 1000, ""), _instant(-(-high // 1000), "")


def _instant(milliseconds: int, zone: str) -> str | None:
    def text() -> str:
        timestamp = _EPOCH + timedelta(milliseconds=milliseconds)
        return timestamp.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone

    return _or_none(text)


T = TypeVar("T")


def _or_none(make: Callable[[], T]) -> T | None:
    """Returns None for a date outside of Python's calendar, years 1 to 9999."""
    try:
        return make()
    except (OverflowError, ValueError):
        return None


_TRANSLATE: dict[pa.DataType, Callable[..., Bounds]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), _integers),
    pa.string(): _strings,
    pa.date32(): _dates,
    pa.timestamp("us", tz="UTC"): _zoned,
    pa.timestamp("us"): _unzoned,
}
