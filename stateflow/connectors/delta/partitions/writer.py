"""Writes the rows of one attempt into the partitions of a Delta table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa

from stateflow.api.sink import SinkWriter
from stateflow.connectors.delta.data_files import FileName, Limits, ParquetWriter
from stateflow.connectors.delta.partitions.columns import StoredRows
from stateflow.connectors.delta.partitions.values import split
from stateflow.state.handles import Committable

_OPEN_FILES = 32


class PartitionedWriter(SinkWriter):
    """Writes one Parquet file per partition, or several.

    The rows of all partitions together take at most `Limits.row_group_bytes` of memory: then the largest partitions are
    written until half of it is left. At most 32 files are open: then the one that was opened first is finished, and
    further rows of its partition go to another file.

    Args:
        table: folder of the table.
        name: name of the files, which differ in their attempt.
        rows: how the table stores rows.
    """

    def __init__(self, table: Path, name: FileName, rows: StoredRows, limits: Limits | None = None) -> None:
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
        for folder, part in split(self._rows.of(rows), self._rows.partition_by):
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
