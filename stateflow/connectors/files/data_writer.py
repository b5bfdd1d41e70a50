"""Writes the rows of one attempt to Parquet, JSON or CSV files, which exist completely or not at all."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkWriter
from stateflow.connectors.delta.data_files import (
    FileName,
    ParquetWriter,
    UnnamedFile,
    disk_error,
    make_folders,
    stored_rows,
)
from stateflow.connectors.delta.partitions.columns import data_columns
from stateflow.connectors.delta.partitions.values import NULL, split, values_of
from stateflow.errors import StorageError
from stateflow.state.handles import Committable

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
        self._data_schema = data_columns(schema, self._partition_by)
        self._rows: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._done: list[Committable] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        stored = stored_rows(rows, self._schema, self._name.uid)
        for folder, part in split(stored, self._partition_by) if self._partition_by else [("", stored)]:
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
        writer = ParquetWriter(self._root, first, self._data_schema)
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


def _spark_folder(folder: str) -> str:
    """Returns the folders of a partition as Spark names them: it decodes bytes that are encoded, not characters."""
    return "/".join(
        f"{_escaped(column)}={NULL if value is None else _escaped(value)}"
        for column, value in values_of(folder).items()
    )


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _json(table: pa.Table) -> bytes:
    lines = (
        json.dumps(_json_row(row), ensure_ascii=False, default=lambda v: v.isoformat()) for row in table.to_pylist()
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _json_row(row: dict[str, object]) -> dict[str, object]:
    """Returns the values as Spark reads them: numbers that JSON lacks are texts; a null is left out."""
    finite = {n: v if not isinstance(v, float) or math.isfinite(v) else _special(v) for n, v in row.items()}
    return {name: value for name, value in finite.items() if value is not None}


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _csv(table: pa.Table) -> bytes:
    for at, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            # With a space, as Arrow writes it, Spark would read null.
            texts = [value.isoformat() if value else None for value in table.column(at).to_pylist()]
            table = table.set_column(at, column.name, pa.array(texts, pa.string()))
        if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(table.column(at))).as_py():
            table = table.set_column(
                at, column.name, pa.array(list(map(_csv_number, table.column(at).to_pylist())), pa.string())
            )
    buffer = io.BytesIO()
    csv.write_csv(table, buffer)
    return buffer.getvalue()


def _csv_number(value: float | None) -> str | None:
    if value is None or math.isfinite(value):
        return None if value is None else repr(value)
    return _special(value).replace("inity", "")
