"""Parquet files that tasks read themselves, by Arrow, when functions in Python take their rows anyway.

Spark would read the same files into rows of the JVM, and convert these back to Arrow columns for Python: several times
the work. Only files whose columns have the declared types are read this way; for all others, `CannotRead` makes the
executor run the batch again with the rows that Spark reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.schema import RowSchema

_ROWS_AT_ONCE = 1 << 14
_BYTES_AT_ONCE = 1 << 25
_BYTES_OF_PARTITION = 1 << 22
"""Smaller partitions cost more than they save, as `spark.sql.files.openCostInBytes`."""
_READ_TYPES = (
    pa.types.is_int64,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal128,
)
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


class CannotRead(Exception):
    """A file that only Spark may be able to read as declared."""


@dataclass(frozen=True)
class SourceRows:
    """The rows of all sources of a batch.

    Attributes:
        frame: the rows, as Spark reads them and `source_frame` combines them.
        files: returns the paths of Parquet files by uid of the source, in order; only of sources whose files tasks may
            read.
    """

    frame: DataFrame
    files: Callable[[], Mapping[str, Sequence[str]]] = dict


@dataclass(frozen=True)
class FileShare:
    """The row groups of a file whose middle is in a range of its bytes.

    Attributes:
        size: size of the file.
    """

    path: str
    begin: int
    end: int
    size: int


@dataclass(frozen=True)
class FileReader:
    """Reads the files of a source in a batch.

    Attributes:
        schema: the columns to read.
        partitions: the shares of each partition.
    """

    schema: RowSchema
    partitions: tuple[tuple[FileShare, ...], ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Returns a frame with as many partitions, each with one row: the number of the partition."""
        count = len(self.partitions)
        return spark.range(0, count, 1, count)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the partitions that rows of `frame` name. Raises CannotRead.

        Not the partition with the task's number: in a union, the second frame's tasks are numbered after the first's.
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for share in self.partitions[number]:
                    yield from read_share(share, self.schema)


def can_read(schema: RowSchema) -> bool:
    """Returns whether the types of all columns are those that tasks read."""
    kinds = {column.name: column.arrow_type for column in schema.columns}
    return all("." not in name and any(of(kind) for of in _READ_TYPES) for name, kind in kinds.items())


def reader_of(paths: Sequence[str], schema: RowSchema, partitions: int) -> FileReader:
    """Returns the reader of a source's files in a batch, in equal partitions. Raises FileNotFoundError."""
    sizes = [(path, os.stat(path).st_size) for path in paths]
    return FileReader(schema, tuple(map(tuple, shares_of(sizes, partitions))))


def useful_partitions(paths: Sequence[str], cores: int) -> int:
    """Returns in how many partitions to read files before a shuffle. Raises FileNotFoundError.

    Args:
        cores: how many tasks Spark can run at once.
    """
    total = sum(os.stat(path).st_size for path in paths)
    return max(1, min(cores, -(-total // _BYTES_OF_PARTITION)))


def shares_of(sizes: Sequence[tuple[str, int]], partitions: int) -> list[list[FileShare]]:
    """Divides files into partitions with equal numbers of bytes, in order.

    Args:
        sizes: paths and sizes.
    """
    # An empty file is no Parquet file: some task must find that out.
    total = sum(max(1, size) for _, size in sizes)
    bounds = [total * at // partitions for at in range(partitions + 1)]
    shares: list[list[FileShare]] = []
    for begin, end in pairwise(bounds):
        shares.append([])
        offset = 0
        for path, size in sizes:
            first, last = max(begin - offset, 0), min(end - offset, max(1, size))
            if first < last:
                shares[-1].append(FileShare(path, first, last, size))
            offset += max(1, size)
    return shares


def read_share(share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a share, with the declared columns.

    Raises:
        CannotRead: the file is missing or corrupt, has other columns or types, or was written again after the files of
            the batch were divided: shares of two versions may not have each row once.
    """
    try:
        with pa.OSFile(share.path) as source, pq.ParquetFile(source) as file:
            if source.size() != share.size:
                raise ValueError(f"the file has {source.size()} bytes, and had {share.size}")
            _check(file, schema)
            groups = [at for at in range(file.num_row_groups) if share.begin <= _middle(file, at, share) < share.end]
            for at in groups:
                yield from _rows_of_group(file, at, schema)
    except (OSError, pa.ArrowException, ValueError) as e:
        raise CannotRead(f"{share.path}: {type(e).__name__}: {e}"[:500]) from e


def _rows_of_group(file: pq.ParquetFile, group: int, schema: RowSchema) -> Iterator[pa.RecordBatch]:
    found = file.metadata.row_group(group)
    rows = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE * max(1, found.num_rows) // max(1, found.total_byte_size)))
    names = list(schema.names)
    for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
        columns = [batch.column(name) for name in names]
        same = [
            column if column.type.equals(declared.arrow_type) else column.cast(declared.arrow_type)
            for column, declared in zip(columns, schema.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(same, schema=schema.arrow)


def _middle(file: pq.ParquetFile, group: int, share: FileShare) -> int:
    """Returns the middle of a row group. Each row group is in one share of its file, whatever the footer says."""
    found = file.metadata.row_group(group)
    columns = [found.column(at) for at in range(found.num_columns)]
    begin = min((_first_page(column) for column in columns), default=0)
    middle: int = begin + sum(column.total_compressed_size for column in columns) // 2
    return min(max(middle, 0), max(share.size - 1, 0))


def _first_page(column: pq.ColumnChunkMetaData) -> int:
    data: int = column.data_page_offset
    return min(data, column.dictionary_page_offset) if column.has_dictionary_page else data


def _check(file: pq.ParquetFile, schema: RowSchema) -> None:
    """Raises ValueError unless the file has each declared column once, with a type whose values are read unchanged."""
    known = file.metadata.metadata or {}
    if any(name in known for name in _OLD_CALENDAR) or known.get(b"org.apache.spark.version", b"4") < b"3":
        raise ValueError("the file may have dates of the Julian calendar")
    found = file.schema_arrow
    lower = [name.lower() for name in found.names]
    for column in schema.columns:
        at = found.get_field_index(column.name)
        if at < 0 or lower.count(column.name.lower()) != 1:
            raise ValueError(f"the file does not have the column {column.name} once")
        if not _is_read_alike(found.field(at).type, column.arrow_type):
            raise ValueError(f"the column {column.name} has the type {found.field(at).type}")


def _is_read_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_int64(wanted):
        return bool(kinds.is_signed_integer(given))
    if kinds.is_timestamp(wanted):
        is_timestamp = kinds.is_timestamp(given) and given.unit in ("ms", "us")
        return bool(is_timestamp and (given.tz is None) == (wanted.tz is None))
    return bool(given.equals(wanted))
