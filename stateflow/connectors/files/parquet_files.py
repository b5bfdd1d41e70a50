"""Parquet files, read by Arrow, and footers of local ones: corrupt files, row sizes, and nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import lib, orc, parquet

from stateflow.api.input_files import CannotRead, CorruptContent, FileShare, UnfitFile, open_object_share, reason_in
from stateflow.api.schema import RowSchema
from stateflow.connectors.parquet_batches import middle_of_group, read_batches

_ROWS_AT_ONCE = 1 << 14
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
_CHECKSUM = "CRC checksum verification failed"
"""Arrow's message about a page whose bytes do not have its checksum."""
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


@dataclass(frozen=True)
class ParquetFormat:
    """Parquet files, read by Arrow. A row group belongs to the share that has its middle."""

    splits = True

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat.row_starts`."""
        return positions

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`. The file must have each column once, with a type whose values are read unchanged.

        Raises:
            CannotRead: the file is missing or corrupt, has other columns or types, or was written again after the files
                of the batch were divided: shares of two versions may not have each row once.
        """
        try:
            with pa.OSFile(share.path) as source, parquet.ParquetFile(source, page_checksum_verification=True) as file:
                if source.size() != share.size:
                    raise ValueError(f"the file has {source.size()} bytes, and had {share.size}")
                _check(file, schema)
                for at in _groups_of(file, share):
                    yield from _rows_of_group(source, file, at, schema)
        except _NotText as e:
            raise CorruptContent(share.path, str(e)) from e
        except (OSError, pa.ArrowException, ValueError) as e:
            if _CHECKSUM in str(e):
                raise CorruptContent(share.path, str(e)) from e
            raise CannotRead(f"{share.path}: {type(e).__name__}: {e}"[:500]) from e


@dataclass(frozen=True)
class StoredParquet:
    """Parquet files in buckets, which nothing else reads: all columns that have a type whose values are read unchanged.

    As with Spark, a column that a file lacks is null, names are matched in any case if they do not match exactly, and
    a narrower number is read as a wider one.
    """

    splits = True

    def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
        """See `FileFormat.row_starts`."""
        return positions

    def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
        """See `FileFormat.read`.

        Raises:
            LostFile: the object is gone, was replaced, or cannot be read now.
            CorruptContent: it is damaged, or a column has another type.
        """
        with open_object_share(share) as opened:
            try:
                with pa.PythonFile(opened, "r") as source, _open_stored(source) as file:
                    found = _find_columns(file, schema)
                    for at in _groups_of(file, share):
                        for batch in read_batches(source, file, _names(found), groups=[at], rows=_ROWS_AT_ONCE):
                            columns = list(_as_declared(batch, found, schema))
                            yield pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
            except (OSError, pa.ArrowException, ValueError, _NotText) as e:
                raise CorruptContent(share.path, reason_in(e)) from e


def _open_stored(source: pa.NativeFile) -> parquet.ParquetFile:
    # Spark, Hive and Impala write INT96 by default, which has more digits than there are times.
    return parquet.ParquetFile(
        source, page_checksum_verification=True, coerce_int96_timestamp_unit="us", pre_buffer=True
    )


def read_stored_schema(source: BinaryIO) -> pa.Schema:
    """Returns the columns of an open file. Raises OSError and pyarrow.ArrowException if it is not a Parquet file."""
    with _open_stored(pa.PythonFile(source, "r")) as file:
        return _stored_schema(file)


def _stored_schema(file: parquet.ParquetFile) -> pa.Schema:
    # INT96 is a time of the time zone UTC, which its type does not say.
    instants = {column.path for column in file.schema if column.physical_type == "INT96"}
    return pa.schema(
        [field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field for field in file.schema_arrow]
    )


def _find_columns(file: parquet.ParquetFile, schema: RowSchema) -> list[str | None]:
    """Returns the name in the file of each declared column; None for a column that it lacks.

    Raises:
        ValueError: a column has a type whose values cannot be read unchanged, or is there several times.
    """
    _check_calendar(file)
    found, names = _stored_schema(file), list[str | None]()
    for column in schema.columns:
        same = [name for name in found.names if name == column.name]
        alike = same or [name for name in found.names if name.lower() == column.name.lower()]
        if len(alike) > 1:
            raise ValueError(f"the file has the column {column.name} several times")
        names.append(alike[0] if alike else None)
        given = found.field(alike[0]).type if alike else column.arrow_type
        if not is_read_unchanged(given, column.arrow_type):
            raise ValueError(f"the column {column.name} has the type {given}, and {column.spark_type} is declared")
    return names


def _names(found: Sequence[str | None]) -> list[str]:
    return [name for name in found if name is not None]


def _as_declared(batch: pa.RecordBatch, found: Sequence[str | None], schema: RowSchema) -> Iterator[pa.Array]:
    for name, column in zip(found, schema.columns, strict=True):
        if name is None:
            yield pa.nulls(len(batch), column.arrow_type)
            continue
        values = batch.column(name)
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as e:
            raise _NotText(f"the column {column.name} has a text that is not UTF-8") from e
        wanted = column.arrow_type
        if pa.types.is_decimal(wanted) and pa.types.is_integer(values.type):
            # Else Arrow demands digits for every integer.
            values = values.cast(pa.decimal128(38, 0))
        yield values if values.type.equals(wanted) else values.cast(wanted)


def is_read_unchanged(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether `StoredParquet` reads values of a type as another one: Arrow's cast keeps each, or fails."""
    kinds = pa.types
    if kinds.is_dictionary(given):
        return is_read_unchanged(given.value_type, wanted)
    if kinds.is_struct(wanted):
        # A field that the file lacks is null.
        return kinds.is_struct(given) and all(
            given.get_field_index(field.name) < 0 or is_read_unchanged(given.field(field.name).type, field.type)
            for field in wanted
        )
    if kinds.is_map(wanted) and kinds.is_map(given):
        return is_read_unchanged(given.key_type, wanted.key_type) and is_read_unchanged(
            given.item_type, wanted.item_type
        )
    if kinds.is_list(wanted):
        is_list = kinds.is_list(given) or kinds.is_large_list(given) or kinds.is_fixed_size_list(given)
        return bool(is_list and is_read_unchanged(given.value_type, wanted.value_type))
    if kinds.is_timestamp(wanted):
        return bool(kinds.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    if kinds.is_decimal(wanted):
        return bool(kinds.is_integer(given) or (kinds.is_decimal(given) and given.scale <= wanted.scale))
    scalars = (
        (kinds.is_int64, kinds.is_integer),
        (kinds.is_float64, lambda kind: kinds.is_floating(kind) or kind in _EXACT_IN_FLOATS),
        (kinds.is_string, lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind)),
        (kinds.is_binary, lambda kind: kinds.is_binary(kind) or kinds.is_large_binary(kind)),
        (kinds.is_date32, kinds.is_date),
        (kinds.is_time, kinds.is_time),
        (kinds.is_duration, lambda kind: kinds.is_int64(kind) or kinds.is_duration(kind)),
    )
    return any(is_wanted(wanted) and is_given(given) for is_wanted, is_given in scalars) or bool(given.equals(wanted))


_EXACT_IN_FLOATS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())


def can_read(schema: RowSchema) -> bool:
    """Returns whether `ParquetFormat` reads the types of all columns."""
    kinds = {column.name: column.arrow_type for column in schema.columns}
    return all("." not in name and any(of(kind) for of in _READ_TYPES) for name, kind in kinds.items())


def truncation_of(file: Path) -> str | None:
    """Returns why a file's footer cannot be read; None when it can, or when the failure is not due to its content.

    An empty file counts as readable, because Spark skips it.
    """
    try:
        if file.stat().st_size:
            parquet.read_metadata(file)
    except lib.ArrowException as e:
        return reason_in(e)
    except OSError as e:
        # Arrow raises an OSError without errno for some footers; an error of the system has one.
        return reason_in(e) if e.errno is None else None
    return None


def bytes_per_row(files: Sequence[Path]) -> float | None:
    """Returns the average size of a row on disk, in bytes; None when the files have no rows.

    Raises:
        OSError, pyarrow.ArrowException: a file cannot be read.
    """
    rows = sum(map(count_rows, files))
    return sum(file.stat().st_size for file in files) / rows if rows else None


def count_rows(file: Path | BinaryIO) -> int:
    """Returns the number of rows that the footer of a file has. Raises as `bytes_per_row` does."""
    return int(parquet.read_metadata(file).num_rows)


def first_with_nanoseconds(files: Iterable[Path]) -> Path | None:
    """Returns the first file with a timestamp in nanoseconds; Spark rejects such a file without naming it."""
    for file in files:
        try:
            types = parquet.read_schema(file).types
        except (OSError, lib.ArrowException):
            continue
        if any(str(kind).startswith("timestamp[ns") for kind in types):
            return file
    return None


def check_types(file: Path, uri: str, format: str, schema: RowSchema) -> None:
    """Checks the types that Spark's reader converts without an error: of ORC, and times and unsigned ones of Parquet.

    Raises:
        UnfitFile: a column has another type than declared.
    """
    try:
        found = parquet.read_schema(file) if format == "parquet" else orc.ORCFile(str(file)).schema
    except (OSError, lib.ArrowException):
        return  # Spark's error names the fault.
    kinds = {field.name.lower(): field.type for field in found}
    for column in schema.columns:
        kind = kinds.get(column.name.lower())
        if kind is not None and not _is_kept(kind, column.arrow_type, is_orc=format == "orc"):
            raise UnfitFile(uri, f"the column {column.name} has the type {kind}, and {column.spark_type} is declared")


def _is_kept(given: pa.DataType, wanted: pa.DataType, *, is_orc: bool) -> bool:
    """Returns False if Spark's reader changes values of a type, or of a part of one, without an error."""
    kinds = pa.types
    if kinds.is_nested(wanted):
        return all(_is_kept(part, other, is_orc=is_orc) for part, other in _parts(given, wanted))
    is_time = kinds.is_timestamp(given) or kinds.is_date(given) or kinds.is_time(given)
    if given in _SIGNED and not (given == pa.uint32() and kinds.is_int64(wanted)):
        return bool(kinds.is_decimal(wanted) and given == pa.uint64() and wanted.precision - wanted.scale >= 20)
    if kinds.is_int64(wanted) and (is_orc or is_time):
        return bool(kinds.is_integer(given))
    if kinds.is_date32(wanted):
        return bool(kinds.is_date(given))
    if not is_orc:
        return True
    if kinds.is_decimal(wanted):
        digits, scale = (given.precision, given.scale) if kinds.is_decimal(given) else (_DIGITS.get(given, 99), 0)
        return bool(scale <= wanted.scale and digits - scale <= wanted.precision - wanted.scale)
    if kinds.is_float64(wanted):
        return bool(kinds.is_floating(given) or (given in _DIGITS and given != pa.int64()))
    return not kinds.is_boolean(wanted) or bool(kinds.is_boolean(given))


def _parts(given: pa.DataType, wanted: pa.DataType) -> Iterator[tuple[pa.DataType, pa.DataType]]:
    """Yields the given and the declared type of each part that both of two nested types have."""
    kinds = pa.types
    if kinds.is_map(given) and kinds.is_map(wanted):
        yield from ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type))
    elif (kinds.is_list(given) or kinds.is_large_list(given)) and kinds.is_list(wanted):
        yield given.value_type, wanted.value_type
    elif kinds.is_struct(given) and kinds.is_struct(wanted):
        found = {field.name.lower(): field.type for field in given}
        yield from ((found[f.name.lower()], f.type) for f in wanted if f.name.lower() in found)


_SIGNED = (pa.uint32(), pa.uint64())
"""Types whose bits Spark reads as signed numbers, except an uint32 as a bigint and an uint64 as a decimal."""
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def _rows_of_group(
    source: pa.NativeFile, file: parquet.ParquetFile, group: int, schema: RowSchema
) -> Iterator[pa.RecordBatch]:
    names = list(schema.names)
    for batch in read_batches(source, file, names, groups=[group], rows=_ROWS_AT_ONCE):
        columns = [batch.column(name) for name in names]
        same = [
            column if column.type.equals(declared.arrow_type) else column.cast(declared.arrow_type)
            for column, declared in zip(columns, schema.columns, strict=True)
        ]
        _check_texts(batch, schema)
        yield pa.RecordBatch.from_arrays(same, schema=schema.arrow)


def _check_texts(batch: pa.RecordBatch, schema: RowSchema) -> None:
    """Raises _NotText for texts that are not UTF-8, which Arrow does not check."""
    for column in schema.columns:
        values = batch.column(column.name)
        if pa.types.is_string(values.type):
            try:
                values.validate(full=True)
            except pa.ArrowInvalid as e:
                raise _NotText(f"the column {column.name} has a text that is not UTF-8") from e


class _NotText(Exception):
    """A column has a text that is not UTF-8."""


def _groups_of(file: parquet.ParquetFile, share: FileShare) -> Iterator[int]:
    """Yields the numbers of the row groups that belong to a share."""
    for at in range(file.num_row_groups):
        if share.begin <= middle_of_group(file, at, share.size) < share.end:
            yield at


def _check(file: parquet.ParquetFile, schema: RowSchema) -> None:
    """Raises ValueError unless the file has each declared column once, with a type whose values are read unchanged."""
    _check_calendar(file)
    found = file.schema_arrow
    lower = [name.lower() for name in found.names]
    for column in schema.columns:
        at = found.get_field_index(column.name)
        if at < 0 or lower.count(column.name.lower()) != 1:
            raise ValueError(f"the file does not have the column {column.name} once")
        if not _is_read_alike(found.field(at).type, column.arrow_type):
            raise ValueError(f"the column {column.name} has the type {found.field(at).type}")


def _check_calendar(file: parquet.ParquetFile) -> None:
    known = file.metadata.metadata or {}
    if any(name in known for name in _OLD_CALENDAR) or known.get(b"org.apache.spark.version", b"4") < b"3":
        raise ValueError("the file may have dates of the Julian calendar")


def _is_read_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = pa.types
    if kinds.is_int64(wanted):
        # One that is too large does not fit: the cast to signed ones is checked.
        return bool(kinds.is_integer(given))
    if kinds.is_timestamp(wanted):
        is_timestamp = kinds.is_timestamp(given) and given.unit in ("ms", "us")
        return bool(is_timestamp and (given.tz is None) == (wanted.tz is None))
    return bool(given.equals(wanted))
