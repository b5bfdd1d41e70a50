"""Writes the rows of one attempt to Parquet, JSON or CSV files, which exist completely or not at all."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkWriter
from stateflow.connectors.delta.column_types import check_rows
from stateflow.connectors.delta.data_files import FileName, ParquetWriter, UnnamedFile, disk_error, make_folders
from stateflow.connectors.delta.partitions.columns import data_columns
from stateflow.connectors.delta.partitions.values import NULL, split, values_of
from stateflow.connectors.json_rows import duration_text, encode, json_objects, special_float
from stateflow.errors import StorageError
from stateflow.state.handles import Committable
from stateflow.types.columns.conversion import with_scalars

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


def list_files(root: Path, kind: str, depth: int) -> Iterator[FileName]:
    """Yields the names of all files that sinks wrote into a folder, of any job.

    Args:
        depth: number of partition columns.
    """
    for folder, folders, files in os.walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == "." else f"{below}/"
        folders[:] = [name for name in folders if "=" in name and prefix.count("/") < depth]
        yield from filter(None, (parse_path(prefix + name, kind) for name in files))


class DataWriter(SinkWriter):
    """Writes the rows of one attempt; a file for each partition, or several if there are many rows.

    Args:
        root: folder of the table.
        name: name of the files, which differ in their parts.
        schema: columns of the rows.
        layout: format and partition columns.
    """

    def __init__(self, root: Path, name: FileName, schema: RowSchema, layout: tuple[str, Sequence[str]]) -> None:
        self._root = root
        self._name = name
        self._schema = schema
        self._kind, self._partition_by = layout
        self._stored = data_columns(_parquet_schema(schema), self._partition_by)
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
        for folder, part in split(rows, self._partition_by) if self._partition_by else [("", rows)]:
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
        try:
            if name.folder:
                make_folders(self._root, name.folder)
            with UnnamedFile.create(self._root) as file:
                file.write(_json(table) if self._kind == JSON else _csv(table))
                if not file.link(path):
                    raise StorageError("a sink's file exists already", name=path)
                return Committable(path=path, size=file.size, rows=table.num_rows)
        except OSError as e:
            raise disk_error(e, self._root / path) from e


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
        for column, value in values_of(folder).items()
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
