"""Writes rows to the Parquet files of an Iceberg table, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from stateflow.connectors.columns.store_assignment import assign
from stateflow.connectors.iceberg.commits import remove_files
from stateflow.connectors.iceberg.partitions import Partitioning, Values

_ROW_GROUP_BYTES = 64 << 20
_OPEN_FILES = 32


class DataFiles:
    """The data files of one checkpoint.

    The rows that are not in a file yet take at most `_ROW_GROUP_BYTES` of memory: then the largest partitions are
    written until half of it is left. At most `_OPEN_FILES` files are open: then the one that was opened first is
    finished, and further rows of its partition go to another file.

    Args:
        table: the table.
        schema: of the files, with the table's field ids.
        name: the beginning of the names of the files; no other files have it.
        target: the columns of the rows as the table stores them.
    """

    def __init__(self, table: Table, schema: Schema, name: str, target: pa.Schema) -> None:
        self._table = table
        self._target = target
        self._facts = {"table": ".".join(table.name())}
        self._schema = schema
        self._name = name
        self._arrow = schema_to_pyarrow(schema)
        size, default = (
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        self._target_bytes = property_as_int(table.properties, size, default) or default
        self._partitioning = Partitioning(table, schema)
        self._buffers: dict[Values, list[pa.Table]] = {}
        self._open: dict[Values, _OpenFile] = {}
        self._finished: list[DataFile] = []
        self._paths: list[str] = []

    def write(self, rows: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Writes rows and returns the files, which no snapshot has yet; an empty list without rows."""
        buffered = 0
        for batch in rows:
            stored = pa.Table.from_batches([assign(batch, self._target, self._facts)]).cast(self._arrow)
            for values, part in self._partitioning.split(stored):
                self._buffers.setdefault(values, []).append(part)
                buffered += part.nbytes
            if buffered >= _ROW_GROUP_BYTES:
                buffered = self._flush(down_to=_ROW_GROUP_BYTES // 2)
        self._flush(down_to=0)
        for values in list(self._open):
            self._finish(values)
        return self._finished

    def remove(self) -> None:
        """Deletes the files that were written. No snapshot may have them."""
        remove_files(self._table.io, self._paths)

    def _flush(self, down_to: int) -> int:
        """Writes the largest buffers until that many bytes are left; returns how many are left."""
        sizes = {values: sum(part.nbytes for part in parts) for values, parts in self._buffers.items()}
        left: int = sum(sizes.values())
        for values in sorted(sizes, key=lambda values: -sizes[values]):
            if left <= down_to:
                break
            self._write(values, pa.concat_tables(self._buffers.pop(values)).combine_chunks())
            left -= sizes[values]
        return left

    def _write(self, values: Values, rows: pa.Table) -> None:
        if values not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            name = f"{self._partitioning.folder(values)}{self._name}-{len(self._paths)}.parquet"
            path = self._table.location_provider().new_data_location(name)
            self._paths.append(path)
            self._open[values] = _OpenFile(self._table, path, self._schema)
        file = self._open[values]
        file.write(rows)
        if file.bytes >= self._target_bytes:
            self._finish(values)

    def _finish(self, values: Values) -> None:
        self._finished.append(self._open.pop(values).close(values))


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, table: Table, path: str, schema: Schema) -> None:
        self._path = path
        self._spec_id = table.metadata.default_spec_id
        self._output = table.io.new_output(path)
        self._writer = ParquetFormatWriter(self._output, schema, table.properties)
        self.bytes = 0

    def write(self, rows: pa.Table) -> None:
        self._writer.write(rows)
        self.bytes += rows.nbytes

    def close(self, values: Values) -> DataFile:
        statistics = self._writer.close()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=len(self._output),
            sort_order_id=None,
            spec_id=self._spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
