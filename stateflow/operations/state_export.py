"""Exports of state: the rows of one state of a checkpoint or savepoint as JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.clock import SystemClock
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.errors import ConfigError
from stateflow.outputs import OptionalId
from stateflow.private_files import ScratchFolder
from stateflow.query.reader import state_table
from stateflow.query.snapshot import open_snapshot
from stateflow.storage import open_location
from stateflow.storage.locations import is_below


class ExportFormat(StrEnum):
    """The format of an export."""

    JSONL = "jsonl"
    PARQUET = "parquet"

    @classmethod
    def of(cls, output: str) -> ExportFormat:
        """Returns the format that the name of an output has: Parquet if it ends with ``.parquet``."""
        return cls.PARQUET if output.endswith(".parquet") else cls.JSONL


@dataclass(frozen=True)
class ExportRequest:
    """Request to export rows of state.

    Attributes:
        location: a job root, or the folder of a savepoint.
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        output: path or URI of the file, which is replaced.
        format: format of the rows; None for the one that the name of the output has.
        snapshot: id of a checkpoint or name of a savepoint; the newest checkpoint by default.
    """

    location: str
    operator: str
    state: str
    output: str
    format: ExportFormat | None = None
    snapshot: int | str | None = None


@dataclass(frozen=True)
class ExportReport:
    """A finished export.

    Attributes:
        output: path or URI of the file.
        rows: number of rows.
        size_bytes: size of the file.
        label: kind and id or name of the snapshot.
        checkpoint_id: id of its checkpoint; 0 for a savepoint of other state.
    """

    output: str
    rows: int
    size_bytes: int
    label: str
    checkpoint_id: OptionalId


def export_state(request: ExportRequest) -> ExportReport:
    """Writes all rows of a state to a file, while they are read; a checkpoint is pinned meanwhile.

    The file has its name once it is complete; an earlier one with this name is deleted just before. On a file system,
    only the current user can read it.

    Raises:
        ConfigError: the location, snapshot, operator or state does not exist; or the output cannot be written, is
            within the location that is read, or is not allowed by the environment.
        MissingFile, CorruptFile: a file of the state is missing or damaged.
        StorageError: the storage of the output failed.
    """
    kind = request.format or ExportFormat.of(request.output)
    with (
        _new_object(request.output, request.location) as file,
        open_snapshot(request.location, request.snapshot) as opened,
    ):
        table = state_table(opened, request.operator, request.state)
        rows = write_rows(file, kind, table.schema, table.batches(opened.storage, SystemClock(), table.schema.names))
        return ExportReport(request.output, rows, file.tell(), opened.label, opened.checkpoint_id)


def write_rows(file: BinaryIO, kind: ExportFormat, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes rows to an open file, and returns their number.

    Args:
        file: the file.
        kind: the format.
        schema: schema of the rows.
        batches: the rows.
    """
    rows = 0
    if kind is ExportFormat.JSONL:
        for batch in batches:
            file.writelines(encode(row) + b"\n" for row in json_objects(batch))
            rows += batch.num_rows
        return rows
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


@contextmanager
def _new_object(output: str, read: str) -> Iterator[BinaryIO]:
    """Opens a local file that is stored as the output at the end of the block."""
    folder, _, name = output.rpartition("/")
    if not name:
        raise ConfigError("the output has no name", hint="pass the path or URI of a file", output=output)
    if is_below(folder or ".", read):
        # It could replace a file of the job.
        raise ConfigError(
            "the output is within the location that is read", hint="write it elsewhere", output=output, location=read
        )
    storage = open_location(folder or ".")
    with ScratchFolder() as scratch:
        path = scratch.path / "export"
        with path.open("wb") as file:
            yield file
        storage.delete([name])
        storage.put_file(name, path)
