"""The sink that replaces every sink of a job in a replay: it keeps rows in scratch storage and publishes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.errors import InternalError, StorageError
from stateflow.state.handles import Committable
from stateflow.storage import PutResult, Storage, open_storage


@dataclass(frozen=True)
class CollectingSink(Sink):
    """Writes the first rows of each task to scratch storage, and counts all of them.

    Args:
        scratch_uri: the storage.
        max_rows: rows that each task keeps; None for all.
    """

    scratch_uri: str
    max_rows: int | None = None

    def for_changelog(self, changelog: Changelog) -> CollectingSink:
        return self

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        return context.uid

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        key = f"rows/{context.uid}/{writing.ordinal:010d}-{writing.subtask:05d}-{writing.attempt}"
        return _Writer(open_storage(self.scratch_uri), key, context.schema, self.max_rows)

    def open_table(self, context: SinkContext) -> SinkTable:
        raise InternalError("a replay publishes nothing", sink=context.uid)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return self


class _Writer(SinkWriter):
    def __init__(self, storage: Storage, key: str, schema: RowSchema, max_rows: int | None) -> None:
        self._storage = storage
        self._key = key
        self._schema = schema.arrow
        self._max_rows = max_rows
        self._rows = self._kept = 0
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += len(rows)
        left = len(rows) if self._max_rows is None else self._max_rows - self._kept
        if left > 0:
            kept = rows.slice(0, left)
            self._kept += len(kept)
            self._batches.append(kept)

    def close(self) -> list[Committable]:
        if not self._rows:
            return []
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, self._batches[0].schema if self._batches else self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        data: bytes = target.getvalue().to_pybytes()
        if self._storage.put_new(self._key, data) is not PutResult.CREATED:
            raise StorageError("a file of a replay could not be stored", hint="check the scratch folder", key=self._key)
        return [Committable(path=self._key, size=len(data), rows=self._rows)]


def collected_rows(
    storage: Storage, committables: Sequence[Committable], max_rows: int | None
) -> list[dict[str, object]]:
    """Returns the first rows that a sink would have published, in the order of its tasks.

    Args:
        storage: the scratch storage.
        committables: the sink's files of one batch.
        max_rows: None for all rows.
    """
    rows: list[dict[str, object]] = []
    for committable in sorted(committables, key=lambda each: each.path):
        if max_rows is not None and len(rows) >= max_rows:
            break
        rows += pa.ipc.open_stream(storage.get(committable.path)).read_all().to_pylist()
    return rows if max_rows is None else rows[:max_rows]
