"""Files of scratch space into which entries are divided by key group, to be sorted file by file."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.private_files import make_folders, open_private
from stateflow.state.backends import hashmap_snapshot
from stateflow.state.backends.entry_stream import EntryBlock, entries_of, read_exactly
from stateflow.state.rehash import Rehash

_LENGTH = struct.Struct(">I")
_BUFFER_BYTES = 32 << 20
_PIECE_BYTES = 2 << 20
_Unsorted = tuple[list[bytes], list[bytes]]
"""Keys, in no order, and their values."""
_pieces = msgspec.msgpack.Decoder(_Unsorted)


class BucketWriter:
    """Gives entries new key groups, and appends them to the files of their buckets.

    The files are not kept open: there may be many.

    Args:
        folder: the folder for the files, which must not be used by another writer.
        rehash: gives keys their new key groups.
        starts: the first key group of each bucket; the first one is 0.
        buffer_bytes: size of the divided entries in memory after which they are written.
    """

    def __init__(self, folder: Path, rehash: Rehash, starts: Sequence[int], buffer_bytes: int = _BUFFER_BYTES) -> None:
        make_folders(folder)
        self._folder = folder
        self._rehash = rehash
        self._starts = starts
        self._buffer_bytes = buffer_bytes
        self._divided: dict[int, list[bytes]] = {}
        self._size = 0

    def add(self, blocks: Iterable[EntryBlock]) -> None:
        """Adds entries; raises as `Rehash` does."""
        for keys, values in _gathered(((block.keys, block.values) for block in blocks), _PIECE_BYTES):
            self._divide(keys, values)
            if self._size >= self._buffer_bytes:
                self.flush()

    def _divide(self, keys: list[bytes], values: list[bytes]) -> None:
        keys, groups = self._rehash(keys)
        order = np.argsort(groups, kind="stable")
        bounds = [*np.searchsorted(groups, self._starts, sorter=order).tolist(), len(keys)]
        rows = order.tolist()
        for bucket, (first, end) in zip(self._starts, pairwise(bounds), strict=True):
            if first < end:
                chosen = rows[first:end]
                # As bytes at once: the processor's cache has the entries now.
                piece = msgspec.msgpack.encode(([keys[row] for row in chosen], [values[row] for row in chosen]))
                self._divided.setdefault(bucket, []).extend((_LENGTH.pack(len(piece)), piece))
                self._size += len(piece)

    def flush(self) -> None:
        """Writes what is in memory."""
        for bucket, pieces in self._divided.items():
            with bucket_file(self._folder, bucket).open("ab") as file:
                file.writelines(pieces)
        self._divided, self._size = {}, 0


def bucket_file(folder: Path, bucket: int) -> Path:
    """Returns the file of a bucket in the folder of one writer."""
    return folder / str(bucket)


def read_sorted(files: Iterable[Path], scratch: Path, buffer_bytes: int = _BUFFER_BYTES) -> Iterator[EntryBlock]:
    """Yields the entries of files in order of keys, in blocks.

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
    for part in parts:
        runs.append(_store_run(_sorted(*last), scratch, len(runs)))
        last = part
    if not runs:
        yield _sorted(*last)
        return
    runs.append(_store_run(_sorted(*last), scratch, len(runs)))
    del last
    try:
        with ExitStack() as stack:
            opened = [stack.enter_context(path.open("rb")) for path in runs]
            yield from _merged(
                [
                    hashmap_snapshot.decode_blocks(file, path.stat().st_size, str(path))
                    for file, path in zip(opened, runs, strict=True)
                ]
            )
    finally:
        for path in runs:
            path.unlink()


def _gathered(pieces: Iterable[_Unsorted], size: int) -> Iterator[_Unsorted]:
    """Yields the entries of pieces in larger ones, of at least this size except the last one."""
    keys: list[bytes] = []
    values: list[bytes] = []
    found = 0
    for more_keys, more_values in pieces:
        keys += more_keys
        values += more_values
        found += sum(map(len, more_keys)) + sum(map(len, more_values))
        if found >= size:
            yield keys, values
            keys, values, found = [], [], 0
    if keys:
        yield keys, values


def _stored_pieces(files: Iterable[Path]) -> Iterator[_Unsorted]:
    for path in files:
        if not path.exists():
            continue
        with path.open("rb") as file:
            while head := file.read(_LENGTH.size):
                (length,) = _LENGTH.unpack(head)
                yield _pieces.decode(read_exactly(file, length, str(path)))


def _sorted(keys: list[bytes], values: list[bytes]) -> EntryBlock:
    # Lists of pairs take Python seven times as long to sort. `pa.array` and `to_numpy` would import pandas.
    offsets = np.fromiter(accumulate(map(len, keys), initial=0), np.int64, len(keys) + 1)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(keys))]
    order = pc.sort_indices(pa.Array.from_buffers(pa.large_binary(), len(keys), buffers)).to_pylist()
    return EntryBlock([keys[row] for row in order], [values[row] for row in order])


def _merged(runs: Iterable[Iterator[EntryBlock]]) -> Iterator[EntryBlock]:
    """Yields the entries of sorted runs in order of keys, in blocks; holds one block of each run."""
    heads = [(block, run) for run in runs if (block := next(run, None))]
    while heads:
        # All entries up to this key have been read.
        bound = min(block.keys[-1] for block, _ in heads)
        keys: list[bytes] = []
        values: list[bytes] = []
        left: list[tuple[EntryBlock, Iterator[EntryBlock]]] = []
        for block, run in heads:
            end = bisect_right(block.keys, bound)
            keys += block.keys[:end]
            values += block.values[:end]
            rest = EntryBlock(block.keys[end:], block.values[end:]) if end < len(block.keys) else next(run, None)
            if rest:
                left.append((rest, run))
        yield _sorted(keys, values)
        heads = left


def _store_run(entries: EntryBlock, scratch: Path, number: int) -> Path:
    path = scratch / f"run-{number}"
    with open_private(path, must_create=True) as file:
        file.writelines(hashmap_snapshot.encode(entries_of([entries])))
    return path
