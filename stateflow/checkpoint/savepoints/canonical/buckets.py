"""Files of scratch space into which entries are divided by key group, to be sorted file by file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from stateflow.private_files import make_folders
from stateflow.scratch_folder import local_disk_errors
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.rehash import Rehash

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
        """Writes what is in memory."""
        pending, self._pending, self._size = self._pending, [], 0
        for number, bucket in enumerate(self._starts):
            found = [
                piece.slice(bounds[number], bounds[number + 1])
                for piece, bounds in pending
                if bounds[number] < bounds[number + 1]
            ]
            if found:
                _write(bucket_file(self._folder, bucket), "ab", [EntryColumns.concatenated(found)])


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
            yield from last.sorted_parts(_PIECE_BYTES)
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
            yield EntryColumns.concatenated(found)
            found, used = [], 0
    if found:
        yield EntryColumns.concatenated(found)


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
        yield EntryColumns.concatenated(found).sorted()
        heads = left


def _key(entries: EntryColumns, row: int) -> bytes:
    found: bytes = entries.keys[row].as_py()
    return found


def _store_run(entries: EntryColumns, path: Path) -> Path:
    _write(path, "wb", entries.sorted_parts(_RUN_BATCH_BYTES))
    return path
