"""Writes the rows of a state as JSON lines or Parquet."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.cli.formatting import print_text
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.errors import ConfigError


class ExportFormat(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    PARQUET = "parquet"


def print_rows(batches: Iterable[pa.RecordBatch]) -> None:
    """Prints a line of JSON for each row."""
    for batch in batches:
        for row in json_objects(batch):
            print_text(encode(row).decode())


def write_rows(path: Path, kind: ExportFormat, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes the rows to a file, which appears, or is replaced, once it is complete; returns their number.

    Raises:
        ConfigError: the file cannot be written.
    """
    with _new_file(path) as file:
        rows = 0
        writer: _Rows = _ParquetRows(file, schema) if kind is ExportFormat.PARQUET else _JsonRows(file)
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
        writer.close()
    return rows


class _Rows(ABC):
    """Writer of rows to a file."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the rows of a batch."""

    @abstractmethod
    def close(self) -> None:
        """Completes the content."""


class _JsonRows(_Rows):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        self._file.writelines(encode(row) + b"\n" for row in json_objects(batch))

    def close(self) -> None:
        self._file.flush()


class _ParquetRows(_Rows):
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file next to `path`, which gets its name at the end of the block; removes it if the block fails."""
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as e:
        raise _unwritable(path, e) from e
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as e:
        raise _unwritable(path, e) from e
    finally:
        Path(name).unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "the output cannot be written",
        hint="check the folder, its permissions, and the space that is left",
        output=str(path),
        reason=error.strerror or str(error),
    )
