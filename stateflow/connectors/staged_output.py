"""Base of sinks of transactional systems: tasks stage rows as Arrow files, and the driver publishes them in one step.

A transaction of a database or of Kafka belongs to one connection or process, and ends with it. So tasks cannot prepare
one that the driver commits after the checkpoint. Their rows go to files in the job root; after the COMMIT of the
checkpoint, the driver writes all of them and the token in one transaction. The files are garbage of the job root as
soon as no log entry has them as pending output.
"""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkWriter, Successor, TableChanges, Writing
from stateflow.clock import SystemClock, is_timestamp
from stateflow.connectors.store_assignment import assign_rows
from stateflow.errors import CorruptFile, DataError, InternalError, SchemaMismatch, SinkRefused, StorageError
from stateflow.private_files import ScratchFolder
from stateflow.state.handles import Committable
from stateflow.storage import Storage
from stateflow.storage.paths import DataKey, data_folder, data_prefixes, parse_data

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 16384
_clock = SystemClock()
_RESTORE_HINT = "restore an older checkpoint"


class StagedSink(Sink):
    """A sink whose tasks stage rows in the job root.

    Subclasses implement `check`, `prepare`, `shadow` and `open_table`, which returns a `StagedTable`.
    """

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        return StagedWriter(context, writing)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        # The garbage collection of the job root removes staged files.
        return []


class StagedWriter(SinkWriter):
    """Writes the rows of one attempt to an Arrow IPC file, which `close` stores in the job root.

    Rows are written to a local temporary file in batches of about 4 MiB; nothing is stored without rows.

    Args:
        target: the columns of an existing table; rows that it cannot store are refused before the checkpoint, after
            which no error could be corrected. None if it has each value.
    """

    def __init__(self, context: SinkContext, writing: Writing, target: pa.Schema | None = None) -> None:
        self._target = target
        self._context = context
        self._key = staged_key(context, writing)
        self._schema = context.schema.arrow
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_rows = self._buffered_bytes = 0
        self._rows = 0
        self._file: _LocalFile | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        if self._target is not None:
            assign_rows(rows, self._target, {"uid": self._context.uid})
        for batch in _slices(rows):
            self._buffered.append(batch)
            self._buffered_rows += len(batch)
            self._buffered_bytes += batch.nbytes
            if self._buffered_rows >= _BATCH_ROWS or self._buffered_bytes >= _BATCH_BYTES:
                self._flush()

    def close(self) -> list[Committable]:
        self._flush()
        if self._file is None:
            return []
        with self._translate_errors():
            path = self._file.finish()
            size = path.stat().st_size
        job_root_storage(self._context).put_file(self._key, path)
        self._file.remove()
        return [Committable(path=self._key, size=size, rows=self._rows, stats=_clock.now().isoformat())]

    def _flush(self) -> None:
        if not self._buffered:
            return
        table = pa.Table.from_batches(self._buffered, self._schema).combine_chunks()
        self._buffered, self._buffered_rows, self._buffered_bytes = [], 0, 0
        with self._translate_errors():
            if self._file is None:
                self._file = _LocalFile(self._schema)
            self._file.write(table)
        self._rows += len(table)

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(
                "rows of a sink cannot be written to the folder for temporary files",
                hint="free disk space, or set TMPDIR to another folder",
                sink=self._context.uid,
                reason=str(e),
            ) from e


class _LocalFile:
    """A temporary Arrow IPC file. It is also removed with this object, when a task fails before `close`."""

    def __init__(self, schema: pa.Schema) -> None:
        folder = ScratchFolder()
        self.remove = weakref.finalize(self, folder.remove)
        self._path = folder.path / "rows.arrow"
        self._file = pa.OSFile(str(self._path), "wb")
        self._batches = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def write(self, rows: pa.Table) -> None:
        self._batches.write_table(rows)

    def finish(self) -> Path:
        self._batches.close()
        self._file.close()
        return self._path


class StagedTable(ABC):
    """A handle of a transactional system's table, which publishes staged rows. Implements `SinkTable`.

    Args:
        context: the sink; its storage is needed only to read staged rows.

    Attributes:
        table_id: id of the table.
        version: version of the table when the handle was created. A system without versions of tables uses the token.
        token: the last checkpoint that this application published, read from the system; 0 if there is none.
        successor: the sink that has taken over the table from this application; None if none has.
    """

    table_id: str
    version: int
    token: int | None
    successor: Successor | None = None

    def __init__(self, context: SinkContext) -> None:
        self.context = context

    def missing(self, committables: list[Committable]) -> list[str]:
        """Returns the paths of staged files that do not exist or have another size.

        Raises:
            DataError: a path is not the key of a staged file of this sink.
        """
        keys = [_checked_key(self.context, c.path) for c in committables]
        storage = job_root_storage(self.context)
        barriers = {(key.generation, key.ordinal) for key in keys}
        prefixes = (prefix for generation, ordinal in barriers for prefix in data_prefixes(generation, [ordinal]))
        # One request for each barrier, not for each file.
        sizes = {blob.key: blob.size for prefix in prefixes for blob in storage.list(prefix)}
        return [c.path for c in committables if sizes.get(c.path) != c.size]

    def staged_rows(self, committables: list[Committable]) -> Iterator[pa.RecordBatch]:
        """Yields the staged rows in the order of `committables`, in batches of about 4 MiB.

        The columns are those that the sink had when the rows were staged: an earlier version of the job may have staged
        them. Within a barrier the subtasks follow each other.

        Raises:
            DataError: a path is not the key of a staged file of this sink.
            InternalError: a file is listed twice.
            MissingFile, CorruptFile: a file does not exist, or does not have its recorded content.
        """
        if len({c.path for c in committables}) < len(committables):
            raise InternalError("a checkpoint has a file twice", application=self.context.application)
        for committable in committables:
            _checked_key(self.context, committable.path)
        storage = job_root_storage(self.context)
        for committable in committables:
            yield from _read(storage, committable)

    def age(self, committable: Committable) -> timedelta | None:
        """Returns the time since rows were staged, by the clocks of two hosts; None if it is not known."""
        staged_at = committable.stats
        return _clock.now() - datetime.fromisoformat(staged_at) if is_timestamp(staged_at) else None

    @abstractmethod
    def commit(self, token: int, committables: list[Committable]) -> int | None:
        """Publishes the staged rows and the token in one transaction; as `SinkTable.commit`."""

    @abstractmethod
    def plan_rewind(self, checkpoint_id: int) -> SinkRewind:
        """As `SinkTable.plan_rewind`."""

    @abstractmethod
    def changes_since(self, version: int) -> TableChanges:
        """As `SinkTable.changes_since`."""

    @abstractmethod
    def rewind(self, to_version: int | None, token: int) -> int | None:
        """As `SinkTable.rewind`."""

    def take_over(self, token: int, former: Mapping[str, int], by: Successor) -> int | None:
        """As `SinkTable.take_over`. This one refuses it.

        Raises:
            SinkRefused: the sink cannot prevent the former applications from writing.
        """
        raise SinkRefused(
            "the sink cannot take over its table from another job root",
            hint="give the sink its own table; or implement take_over in its table",
            sink=self.context.uid,
        )


def staged_key(context: SinkContext, writing: Writing) -> str:
    """Returns the key in the job root of the rows that one attempt stages for a sink."""
    return f"{data_folder(writing.generation, writing.ordinal, writing.attempt)}{_name(context, writing.subtask)}"


def cast_to_declared(batch: pa.RecordBatch, schema: RowSchema, location: str) -> pa.RecordBatch:
    """Returns rows that an earlier version of the job may have staged, with the columns of this one.

    Args:
        batch: staged rows.
        schema: the columns of the sink.
        location: of the table, for errors.

    Raises:
        SchemaMismatch: the rows have other columns.
    """
    wanted, found = schema.arrow, batch.schema
    if wanted.equals(found):
        return batch
    usable = {c.name for c in schema.columns if c.nullable} | set(found.names)
    if set(found.names) <= set(wanted.names) <= usable:
        columns = [batch.column(f.name) if f.name in found.names else pa.nulls(len(batch), f.type) for f in wanted]
        try:
            return pa.record_batch([c.cast(f.type) for c, f in zip(columns, wanted, strict=True)], schema=wanted)
        except pa.ArrowException:
            pass
    raise SchemaMismatch(
        "rows that are not published yet have other columns than the sink",
        hint="run the version of the job that emitted them, which publishes them; then change the row class",
        table=location,
        declared={field.name: str(field.type) for field in wanted},
        found={field.name: str(field.type) for field in found},
    )


def job_root_storage(context: SinkContext) -> Storage:
    """Returns the storage of the job root. Raises InternalError for a context without it."""
    if context.storage is None:
        raise InternalError("the storage of the job root is not known to a sink", sink=context.uid)
    return context.storage


def _name(context: SinkContext, subtask: int | str) -> str:
    return f"rows-{context.uid}-{subtask}.arrow"


def _checked_key(context: SinkContext, path: str) -> DataKey:
    """Returns the parsed key. Raises DataError: stored names may be forged, and must not lead anywhere else."""
    key = parse_data(path)
    subtask = key.name.removeprefix(f"rows-{context.uid}-").removesuffix(".arrow") if key else ""
    if key is None or not subtask.isdecimal() or key.name != _name(context, subtask):
        raise DataError("a file to publish was not staged by the sink", path=path, sink=context.uid)
    return key


def _read(storage: Storage, committable: Committable) -> Iterator[pa.RecordBatch]:
    rows = 0
    with storage.local_copy(committable.path) as path:
        if path.stat().st_size != committable.size:
            raise _damaged(committable, "its size differs")
        try:
            # Not a memory map: a file that is truncated meanwhile would end the process.
            with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as file:
                for number in range(file.num_record_batches):
                    batch = file.get_batch(number)
                    # Buffers with wrong offsets could otherwise crash the process.
                    batch.validate(full=True)
                    rows += len(batch)
                    yield batch
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as e:
            raise _damaged(committable, str(e)) from e
    if rows != committable.rows:
        raise _damaged(committable, f"it has {rows} rows")


def _damaged(committable: Committable, reason: str) -> CorruptFile:
    return CorruptFile("a file of staged rows is damaged", hint=_RESTORE_HINT, file=committable.path, reason=reason)


def _slices(rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
    """Yields parts of at most `_BATCH_ROWS` rows and about `_BATCH_BYTES`."""
    if not len(rows):
        return
    per_slice = min(_BATCH_ROWS, max(1, len(rows) * _BATCH_BYTES // max(1, rows.nbytes)))
    for start in range(0, len(rows), per_slice):
        yield rows.slice(start, per_slice)
