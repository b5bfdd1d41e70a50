"""Writes rows to the Parquet files of an Iceberg table, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from stateflow.connectors.iceberg.column_types import to_stored
from stateflow.connectors.iceberg.commits import remove_files

_ROW_GROUP_BYTES = 64 << 20


class DataFiles:
    """The data files of one checkpoint.

    Args:
        table: the table.
        schema: of the files, with the table's field ids.
        name: the beginning of the names of the files; no other files have it.
    """

    def __init__(self, table: Table, schema: Schema, name: str) -> None:
        self._table = table
        self._schema = schema
        self._name = name
        self._arrow = schema_to_pyarrow(schema)
        size, default = (
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        self._target_bytes = property_as_int(table.properties, size, default) or default
        self._paths: list[str] = []

    def write(self, rows: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Writes rows and returns the files, which no snapshot has yet; an empty list without rows."""
        written: list[DataFile] = []
        file: _OpenFile | None = None
        buffered: list[pa.RecordBatch] = []
        for batch in rows:
            buffered.append(batch)
            if sum(b.nbytes for b in buffered) < _ROW_GROUP_BYTES:
                continue
            file = self._write(file, buffered)
            buffered = []
            if file.bytes >= self._target_bytes:
                written.append(file.close(self._table))
                file = None
        if buffered:
            file = self._write(file, buffered)
        return [*written, file.close(self._table)] if file else written

    def remove(self) -> None:
        """Deletes the files that were written. No snapshot may have them."""
        remove_files(self._table.io, self._paths)

    def _write(self, file: _OpenFile | None, batches: list[pa.RecordBatch]) -> _OpenFile:
        file = file or self._open()
        file.write(to_stored(pa.Table.from_batches(batches).combine_chunks(), self._arrow))
        return file

    def _open(self) -> _OpenFile:
        name = f"{self._name}-{len(self._paths)}.parquet"
        path = self._table.location_provider().new_data_location(name)
        self._paths.append(path)
        return _OpenFile(self._table.io, path, self._schema, self._table)


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, io: FileIO, path: str, schema: Schema, table: Table) -> None:
        self._path = path
        self._output: OutputFile = io.new_output(path)
        self._writer = ParquetFormatWriter(self._output, schema, table.properties)
        self.bytes = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self.bytes += rows.nbytes

    def close(self, table: Table) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
