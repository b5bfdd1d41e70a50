"""Divides entries among buckets for a new max parallelism, and sorts them bucket by bucket in the canonical format.

A bucket is a file of scratch space with the entries of some key groups.

A key's group depends on the max parallelism, so every new subtask may have keys of every old one. Workers first divide
the entries of their shares among buckets of new key groups, which are files on local disk. Then each new subtask sorts
its buckets, one after the other, and writes its canonical file. Memory is bounded; disk is that of the whole state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.savepoints.canonical.writer import Shard, divide_key_groups
from stateflow.private_files import local_disk_errors, make_folders
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryBlock, EntryColumns
from stateflow.state.handles import Document, SubtaskState
from stateflow.state.rehash import Rehash
from stateflow.types.key_groups import range_of

_BUCKET_BYTES = 8 << 20
_MOST_BUCKETS = 256


ShardReader = Callable[[Shard], Iterable[EntryBlock]]


class NewSubtask(Document, frozen=True, kw_only=True):
    """A subtask of an operator with the new max parallelism."""

    operator: int
    """Index of the operator in the manifest."""
    state: SubtaskState
    """Its number, key groups and timers; without files."""
    header: CanonicalHeader
    buckets: list[int]
    """First key group of each of its buckets; the entries of a bucket are sorted together."""


def new_subtasks(manifest: Manifest, max_parallelism: int) -> list[NewSubtask]:
    """Returns the subtasks of all operators with keyed state, with another number of key groups.

    An operator has as many subtasks as before, or as many as there are key groups.
    """
    return [
        subtask
        for index, operator in enumerate(manifest.operators)
        if operator.subtasks
        for subtask in _new_subtasks(index, operator, max_parallelism)
    ]


def _new_subtasks(index: int, operator: OperatorState, max_parallelism: int) -> Iterator[NewSubtask]:
    parallelism = min(operator.parallelism, max_parallelism)
    size = sum(file.size for state in operator.subtasks for file in state.files)
    buckets = min(_MOST_BUCKETS, -(-size // _BUCKET_BYTES)) or 1
    timers = [state.earliest_timers for state in operator.subtasks]
    for number in range(parallelism):
        groups = range_of(number, parallelism, max_parallelism)
        state = SubtaskState(
            subtask=number,
            first_group=groups.first,
            last_group=groups.last,
            snapshot="",
            event_timer=min((t.event for t in timers if t.event is not None), default=None),
            processing_timer=min((t.processing for t in timers if t.processing is not None), default=None),
        )
        header = CanonicalHeader(
            uid=operator.uid,
            key_types=operator.key_types,
            max_parallelism=max_parallelism,
            first_group=groups.first,
            last_group=groups.last,
            states=operator.states,
        )
        ranges = divide_key_groups(groups, -(-buckets // parallelism))
        yield NewSubtask(operator=index, state=state, header=header, buckets=[r.first for r in ranges])


def divide_into_buckets(
    shards: Sequence[Shard], subtasks: Sequence[NewSubtask], read: ShardReader, folder: Path
) -> None:
    """Divides the entries of shards among buckets.

    Args:
        shards: the shards that one worker reads.
        subtasks: all new subtasks.
        read: returns the entries of a shard.
        folder: local folder of this worker.

    Raises:
        CorruptFile: an entry does not belong to a state of its operator, or a file is damaged.
    """
    for operator, same in groupby(shards, lambda shard: shard.operator):
        headers = [s.header for s in subtasks if s.operator == operator]
        starts = [first for s in subtasks if s.operator == operator for first in s.buckets]
        rehash = Rehash(headers[0].key_types, [s.name for s in headers[0].states], headers[0].max_parallelism)
        writer = BucketWriter(folder / str(operator), rehash, starts)
        for shard in same:
            writer.add(read(shard))
        writer.flush()


def read_sorted_entries(subtask: NewSubtask, folders: Sequence[Path], scratch: Path) -> Iterator[EntryColumns]:
    """Yields the entries of a new subtask in order of keys, in parts.

    Args:
        subtask: the subtask.
        folders: the folders of all workers that have divided entries.
        scratch: an empty local folder.
    """
    for bucket in subtask.buckets:
        files = [bucket_file(folder / str(subtask.operator), bucket) for folder in folders]
        yield from read_sorted_columns(files, scratch)
        for file in files:
            # The canonical file that is being written needs about as much disk.
            file.unlink(missing_ok=True)


_BUFFER_BYTES = 32 << 20
_PIECE_BYTES = 2 << 20
_RUN_BATCH_BYTES = 1 << 20
_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


class BucketWriter:
    """Gives entries new key groups, and appends them to the files of their buckets.

    The files are not kept open: there may be many.

    Args:
        folder: the folder for the files, which must not be used by another writer.
        rehash: gives keys their new key groups.
        starts: the first key group of each bucket; the first one is 0.
        buffer_bytes: size of the entries in memory after which they are divided and written.
    """

    def __init__(self, folder: Path, rehash: Rehash, starts: Sequence[int], buffer_bytes: int = _BUFFER_BYTES) -> None:
        make_folders(folder)
        self._folder = folder
        self._rehash = rehash
        self._starts = starts
        self._buffer_bytes = buffer_bytes
        self._pending: list[tuple[EntryColumns, list[int]]] = []
        self._size = 0

    def add(self, blocks: Iterable[EntryBlock]) -> None:
        """Adds entries; raises as `Rehash` does."""
        self.add_columns(_as_columns(blocks))

    def add_columns(self, parts: Iterable[EntryColumns]) -> None:
        """Adds entries; raises as `Rehash` does."""
        for entries in parts:
            # Pieces are divided at once, while the processor's cache has them.
            keys, groups = self._rehash(entries.keys)
            rows = np.argsort(groups, kind="stable")
            bounds = [*np.searchsorted(groups, self._starts, sorter=rows).tolist(), len(rows)]
            self._pending.append((EntryColumns(keys, entries.values).take(rows), bounds))
            self._size += entries.bytes
            if self._size >= self._buffer_bytes:
                self.flush()

    def flush(self) -> None:
        """Writes the entries in memory."""
        pending, self._pending, self._size = self._pending, [], 0
        for number, bucket in enumerate(self._starts):
            found = [
                piece.slice(bounds[number], bounds[number + 1])
                for piece, bounds in pending
                if bounds[number] < bounds[number + 1]
            ]
            if found:
                _write(bucket_file(self._folder, bucket), "ab", [EntryColumns.concatenate(found)])


def bucket_file(folder: Path, bucket: int) -> Path:
    """Returns the file of a bucket in the folder of one writer."""
    return folder / str(bucket)


def read_sorted(files: Iterable[Path], scratch: Path, buffer_bytes: int = _BUFFER_BYTES) -> Iterator[EntryBlock]:
    """As `read_sorted_columns`, in blocks."""
    return (entries.block() for entries in read_sorted_columns(files, scratch, buffer_bytes))


def read_sorted_columns(
    files: Iterable[Path], scratch: Path, buffer_bytes: int = _BUFFER_BYTES
) -> Iterator[EntryColumns]:
    """Yields the entries of files in order of keys, in parts.

    Args:
        files: files of one bucket, by all writers; missing ones have no entries.
        scratch: a folder for sorted runs, if the entries are larger than the buffer; must not be in use.
        buffer_bytes: size of the entries that are sorted at a time.
    """
    parts = _gathered(_stored_pieces(files), buffer_bytes)
    last = next(parts, None)
    if last is None:
        return
    runs: list[Path] = []
    try:
        for part in parts:
            runs.append(_store_run(last, scratch / f"run-{len(runs)}"))
            last = part
        if not runs:
            yield from last.sort_in_parts(_PIECE_BYTES)
            return
        runs.append(_store_run(last, scratch / f"run-{len(runs)}"))
        del last
        with ExitStack() as stack:
            yield from _merged([_read(stack.enter_context(pa.OSFile(str(path)))) for path in runs])
    finally:
        for path in runs:
            path.unlink()


def _as_columns(blocks: Iterable[EntryBlock]) -> Iterator[EntryColumns]:
    """Yields the entries of blocks in larger parts."""
    keys: list[bytes] = []
    values: list[bytes] = []
    found = 0
    for block in blocks:
        keys += block.keys
        values += block.values
        found += sum(map(len, block.keys)) + sum(map(len, block.values))
        if found >= _PIECE_BYTES:
            yield EntryColumns.of(keys, values)
            keys, values, found = [], [], 0
    if keys:
        yield EntryColumns.of(keys, values)


def _gathered(pieces: Iterable[EntryColumns], size: int) -> Iterator[EntryColumns]:
    """Yields the entries of pieces in larger ones, of at least this size except the last one."""
    found: list[EntryColumns] = []
    used = 0
    for piece in pieces:
        found.append(piece)
        used += piece.bytes
        if used >= size:
            yield EntryColumns.concatenate(found)
            found, used = [], 0
    if found:
        yield EntryColumns.concatenate(found)


def _stored_pieces(files: Iterable[Path]) -> Iterator[EntryColumns]:
    for path in files:
        if path.exists():
            with pa.memory_map(str(path)) as file:
                while file.tell() < file.size():
                    yield from _read(file)


def _write(path: Path, mode: str, parts: Iterable[EntryColumns]) -> None:
    with local_disk_errors(path), pa.OSFile(str(path), mode) as file, pa.ipc.new_stream(file, _SCHEMA) as stream:
        for entries in parts:
            stream.write_batch(pa.RecordBatch.from_arrays([entries.keys, entries.values], schema=_SCHEMA))


def _read(file: pa.NativeFile) -> Iterator[EntryColumns]:
    """Yields what one call of `_write` has written, from the current position of a file on."""
    for batch in pa.ipc.open_stream(file):
        yield EntryColumns(batch.column(0), batch.column(1))


def _merged(runs: Iterable[Iterator[EntryColumns]]) -> Iterator[EntryColumns]:
    """Yields the entries of sorted runs in order of keys, in parts; holds one part of each run."""
    heads = [(entries, run) for run in runs if (entries := next(run, None))]
    while heads:
        # All entries up to this key have been read.
        bound = min(_key(entries, len(entries) - 1) for entries, _ in heads)
        found: list[EntryColumns] = []
        left: list[tuple[EntryColumns, Iterator[EntryColumns]]] = []
        for entries, run in heads:
            end = bisect_right(range(len(entries)), bound, key=partial(_key, entries))
            if end:
                found.append(entries.slice(0, end))
            rest = entries.slice(end, len(entries)) if end < len(entries) else next(run, None)
            if rest:
                left.append((rest, run))
        yield EntryColumns.concatenate(found).sort()
        heads = left


def _key(entries: EntryColumns, row: int) -> bytes:
    found: bytes = entries.keys[row].as_py()
    return found


def _store_run(entries: EntryColumns, path: Path) -> Path:
    _write(path, "wb", entries.sort_in_parts(_RUN_BATCH_BYTES))
    return path
