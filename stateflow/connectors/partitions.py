"""Partitions of Delta tables and folders: their columns, their writer, and their values as texts and folder names.

A value is null or a text. The folders of a partition, such as ``day=2026-01-05/place=A%20B``, determine its values:
each character that a folder, a URL or Hive treats differently is percent-encoded, and a text that equals the name for
null as well. In the log's paths, which are URLs, ``%`` is encoded once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkWriter
from stateflow.connectors.data_files import FileName, Limits, ParquetWriter
from stateflow.connectors.delta_types import check_rows, to_stored
from stateflow.connectors.store_assignment import assign_rows, has_length, nullable_schema
from stateflow.connectors.table_folder import TableFolder
from stateflow.errors import DataError, JobDefinitionError
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Leaf

_TARGET = b"stateflow.target"
_WITHOUT_EXACT_TEXT = ("double", "binary")


def check_partition_columns(partition_by: Sequence[str], schema: RowSchema) -> None:
    """Raises JobDefinitionError if a table with the columns of `schema` cannot be partitioned in this way."""
    for name in partition_by:
        column = schema.column(name)
        if not isinstance(column.shape, Leaf) or column.spark_type in _WITHOUT_EXACT_TEXT:
            raise JobDefinitionError(
                "a Delta table cannot be partitioned by a column",
                hint="use columns that are neither float nor bytes, and not a class, list or dict",
                column=name,
                type=column.spark_type,
            )
    if len(set(partition_by)) < len(partition_by) or len(partition_by) == len(schema.columns):
        raise JobDefinitionError(
            "partition columns of a Delta table must be distinct, and not all of its columns",
            hint="data files do not contain the partition columns, and need at least one other column",
            partition_by=list(partition_by),
            columns=list(schema.names),
        )


def data_columns(stored: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Returns the columns of data files in Arrow: all but the partition columns."""
    return pa.schema([field for field in stored if field.name not in partition_by])


def compare_partition_columns(partition_by: Sequence[str], existing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each column by which only the sink or only its table is partitioned, with the reason for a refusal."""
    for column in existing:
        if column not in partition_by:
            yield column, "it is partitioned by a column that partition_by does not name"
    for column in partition_by:
        if column not in existing:
            yield column, "it is not partitioned by a column of partition_by"


@dataclass(frozen=True)
class StoredRows:
    """How a table stores emitted rows.

    Attributes:
        schema: columns of the rows.
        target: the same columns as the table has them; see `target_schema`.
        uid: uid of the sink, for errors.
        partition_by: the partition columns, of which an empty text is null.
    """

    schema: RowSchema
    target: pa.Schema
    uid: str
    partition_by: Sequence[str] = ()

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of data files. Where the table limits their values, the metadata says how."""
        columns = data_columns(nullable_schema(self.target), self.partition_by)
        if not any(map(_is_limited, self.target)):
            return columns
        return columns.with_metadata({_TARGET: self.target.to_string(truncate_metadata=False).encode()})

    def were_written_for(self, found: pa.Schema) -> bool:
        """Returns whether the rows of a data file were checked for the limits that the table has now."""
        wanted = (self.file_schema.metadata or {}).get(_TARGET)
        return wanted is None or (found.metadata or {}).get(_TARGET) == wanted

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with the types of data files.

        Raises:
            SchemaMismatch: they are not rows of `schema`, or the table cannot store a value.
        """
        check_rows(rows, self.schema, self.uid)
        columns = [
            empty_as_null(column) if name in self.partition_by else column
            for name, column in zip(rows.schema.names, map(to_stored, rows.columns), strict=True)
        ]
        stored = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
        return assign_rows(stored, self.target, {"uid": self.uid})

    def of_upsert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows whose partitions are made when they are published. Raises DataError as `check_values`, too."""
        stored = self.of(rows)
        check_values(stored, self.partition_by)
        return stored


def _is_limited(field: pa.Field) -> bool:
    """Returns whether a column may lack nulls, or long texts."""
    return not field.nullable or has_length(field) or not field.type.equals(with_nullable_parts(field.type))


def empty_as_null(column: pa.Array) -> pa.Array:
    """Returns the values of a partition column as a table has them: an empty text is null."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


_OPEN_FILES = 32


class PartitionedWriter(SinkWriter):
    """Writes one Parquet file per partition, or several.

    The rows of all partitions together take at most `Limits.row_group_bytes` of memory: then the largest partitions are
    written until half of it is left. At most 32 files are open: then the one that was opened first is finished, and
    further rows of its partition go to another file.

    Args:
        table: the table's folder.
        name: name of the files, which differ in their attempt.
        rows: how the table stores rows.
    """

    def __init__(self, table: TableFolder, name: FileName, rows: StoredRows, limits: Limits | None = None) -> None:
        self._table = table
        self._name = name
        self._rows = rows
        self._limits = limits or Limits()
        self._stored = rows.file_schema
        self._writers: dict[str, ParquetWriter] = {}
        self._open: dict[str, ParquetWriter] = {}
        self._buffered = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        for folder, part in split_by_partition(self._rows.of(rows), self._rows.partition_by):
            writer = self._writers.get(folder) or self._add(folder)
            before = writer.buffered_bytes
            writer.write_stored(part)
            self._buffered += writer.buffered_bytes - before
            self._limit_files(folder, writer)
        if self._buffered >= self._limits.row_group_bytes:
            self._flush_largest()

    def close(self) -> list[Committable]:
        return [file for writer in self._writers.values() for file in writer.close()]

    def _add(self, folder: str) -> ParquetWriter:
        writing = self._name.writing
        attempt = f"{writing.attempt}p{len(self._writers)}"
        name = dataclasses.replace(self._name, folder=folder, writing=dataclasses.replace(writing, attempt=attempt))
        writer = self._writers[folder] = ParquetWriter(self._table, name, self._stored, self._limits)
        return writer

    def _flush_largest(self) -> None:
        for folder, writer in sorted(self._writers.items(), key=lambda item: -item[1].buffered_bytes):
            if self._buffered <= self._limits.row_group_bytes // 2:
                return
            self._buffered -= writer.buffered_bytes
            writer.flush()
            self._limit_files(folder, writer)

    def _limit_files(self, folder: str, writer: ParquetWriter) -> None:
        """Finishes files that were opened first, if there are too many."""
        if not writer.has_open_file:
            self._open.pop(folder, None)
            return
        self._open.setdefault(folder, writer)
        while len(self._open) > _OPEN_FILES:
            first = next(iter(self._open))
            self._open.pop(first).finish_file()


NULL = "__HIVE_DEFAULT_PARTITION__"
"""In place of a null value in the name of a folder."""
Values = Mapping[str, str | None]
"""The values of a partition by column."""


_LONGEST_NAME = 255
"""Bytes of the name of a folder on Linux."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOLEANS = {"true": True, "false": False}


def folder_of(values: Values) -> str:
    """Returns the folders of a partition, relative to the table; empty without partition columns.

    Raises DataError for a value whose folder would have too long a name.
    """
    return "/".join(_folder(column, value) for column, value in values.items())


def _folder(column: str, value: str | None) -> str:
    name = f"{_encoded(column)}={NULL if value is None else _encoded_value(value)}"
    if len(name) > _LONGEST_NAME:
        raise DataError(
            "a value is too long for a partition of the Delta table: it is the name of a folder",
            hint="partition by another column, or by a shorter text such as a prefix or a hash",
            column=column,
            value=str(value)[:40],
            size_bytes=len(name),
            limit_bytes=_LONGEST_NAME,
        )
    return name


def _encoded(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E")


def _encoded_value(value: str) -> str:
    return value.replace("_", "%5F", 1) if value == NULL else _encoded(value)


def parse_partition_folder(folder: str) -> dict[str, str | None]:
    """Returns the values of a partition by its folders."""
    pairs = [part.split("=", 1) for part in folder.split("/") if part]
    return {unquote(column): None if value == NULL else unquote(value) for column, value in pairs}


def to_logged_path(path: str) -> str:
    """Returns a path of stateflow's data files as in the log."""
    return path.replace("%", "%25")


def split_by_partition(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields the rows of each partition with the partition's folders, without the partition columns.

    Args:
        rows: rows with the types of data files.
        columns: the partition columns.

    Raises:
        DataError: a table cannot be partitioned by a value.
    """
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    texts: list[list[str | None]] = []
    found: list[np.ndarray] = []
    for name in columns:
        encoded = rows.column(name).dictionary_encode("encode")
        texts.append([_text(name, value) for value in encoded.dictionary])
        found.append(encoded.indices.to_numpy(zero_copy_only=False))
        _, codes = np.unique(codes * len(texts[-1]) + found[-1], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    kept = rows.drop_columns(list(columns))
    for group in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        values = {name: text[int(at[group[0]])] for name, text, at in zip(columns, texts, found, strict=True)}
        # Each partition gets its own memory: a slice would keep the rows of all partitions.
        yield folder_of(values), kept.take(pa.array(group))


def check_values(rows: pa.RecordBatch, columns: Sequence[str]) -> None:
    """Raises DataError if a partition cannot have a value; arguments as of `split_by_partition`."""
    for name in columns:
        for value in rows.column(name).unique():
            _folder(name, _text(name, value))


def _text(column: str, value: pa.Scalar) -> str | None:
    """Returns a value as in the log: null for an empty text, as Delta's protocol demands."""
    if not value.is_valid:
        return None
    try:
        return _writer_of(value.type)(value) or None
    except (OverflowError, ValueError) as e:
        raise DataError(
            "a Delta table cannot be partitioned by a value: its year is not within 1 to 9999",
            hint="correct the value, or partition by another column",
            column=column,
            type=str(value.type),
        ) from e


def _writer_of(kind: pa.DataType) -> Callable[[pa.Scalar], str]:
    if pa.types.is_timestamp(kind):
        return _instant if kind.tz else _unzoned
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value.as_py() else "false"
    if pa.types.is_decimal(kind):
        return lambda value: format(value.as_py(), "f")
    return lambda value: str(value.as_py())


def _instant(value: pa.Scalar) -> str:
    return _unzoned(value).replace(" ", "T") + "Z"


def _unzoned(value: pa.Scalar) -> str:
    moment = _EPOCH + timedelta(microseconds=value.cast(pa.int64()).as_py())
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def parse_partition_value(text: str | None, kind: pa.DataType, empty: object = None) -> pa.Scalar:
    """Returns a value of the log with the type of its column.

    Args:
        empty: the value of null and of an empty text, which are the same in the log.

    Raises:
        ValueError: the text is not of that type, or a timestamp without time zone, which some writers store in the
            time zone of their session.
    """
    try:
        return pa.scalar(_read(text, kind) if text else empty, kind)
    except (KeyError, InvalidOperation, OverflowError, pa.ArrowException) as e:
        raise ValueError(f"the value of a partition is not of type {kind}") from e


def _read(text: str, kind: pa.DataType) -> object:
    if pa.types.is_boolean(kind):
        return _BOOLEANS[text.lower()]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_timestamp(kind):
        moment = datetime.fromisoformat(text)
        if (moment.tzinfo is None) != (kind.tz is None):
            raise ValueError("the timestamp of a partition has no time zone, or one too many")
        return moment
    return text
