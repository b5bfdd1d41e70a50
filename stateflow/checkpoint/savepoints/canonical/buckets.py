"""Files of scratch space into which entries are divided by key group, to be sorted file by file."""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from stateflow.private_files import make_folders, open_private
from stateflow.state.backends import hashmap_snapshot
from stateflow.state.backends.entry_stream import GROUP_BYTES, Entry, entries_of, read_exactly

_LENGTH = struct.Struct(">I")
_BUFFER_BYTES = 32 << 20
_PIECE_BYTES = 1 << 20
_pieces = msgspec.msgpack.Decoder(list[bytes])


class BucketWriter:
    """Appends entries to the files of their buckets, which are not kept open: there may be many.

    Args:
        folder: the folder for the files, which must not be used by another writer.
        bucket_of: the bucket of each key group.
        buffer_bytes: size of the entries in memory after which they are written.
    """

    def __init__(self, folder: Path, bucket_of: Sequence[int], buffer_bytes: int = _BUFFER_BYTES) -> None:
        make_folders(folder)
        self._folder = folder
        self._bucket_of = bucket_of
        self._buffer_bytes = buffer_bytes
        self._buffers: dict[int, list[bytes]] = {}
        self._size = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds entries."""
        for key, value in entries:
            self._buffers.setdefault(self._bucket_of[int.from_bytes(key[:GROUP_BYTES])], []).extend((key, value))
            self._size += len(key) + len(value)
            if self._size >= self._buffer_bytes:
                self.flush()

    def flush(self) -> None:
        """Writes what is in memory."""
        for bucket, items in self._buffers.items():
            with bucket_file(self._folder, bucket).open("ab") as file:
                for piece in _divided(items):
                    data = msgspec.msgpack.encode(piece)
                    file.write(_LENGTH.pack(len(data)) + data)
        self._buffers, self._size = {}, 0


def bucket_file(folder: Path, bucket: int) -> Path:
    """Returns the file of a bucket in the folder of one writer."""
    return folder / str(bucket)


def _divided(items: list[bytes]) -> Iterator[list[bytes]]:
    """Yields keys and values in pieces of about a mebibyte."""
    piece: list[bytes] = []
    size = 0
    for item in items:
        piece.append(item)
        size += len(item)
        if size >= _PIECE_BYTES and len(piece) % 2 == 0:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def read_sorted(files: Iterable[Path], scratch: Path, buffer_bytes: int = _BUFFER_BYTES) -> Iterator[Entry]:
    """Yields the entries of files in order of keys.

    Args:
        files: files of one bucket, by all writers; missing ones have no entries.
        scratch: a folder for sorted runs, if the entries are larger than the buffer; must not be in use.
        buffer_bytes: size of the entries that are sorted at a time.
    """
    runs: list[Path] = []
    last: list[Entry] = []
    for entries in _in_parts(files, buffer_bytes):
        if last:
            runs.append(_store_run(last, scratch, len(runs)))
        entries.sort()
        last = entries
    if not runs:
        yield from last
        return
    opened = [path.open("rb") for path in runs]
    try:
        stored = [_read_run(file, path) for file, path in zip(opened, runs, strict=True)]
        yield from heapq.merge(*stored, last)
    finally:
        for file, path in zip(opened, runs, strict=True):
            file.close()
            path.unlink()


def _in_parts(files: Iterable[Path], buffer_bytes: int) -> Iterator[list[Entry]]:
    """Yields the entries of files in lists of about this size."""
    entries: list[Entry] = []
    size = 0
    for items in _stored_pieces(files):
        entries += zip(items[::2], items[1::2], strict=True)
        size += sum(map(len, items))
        if size >= buffer_bytes:
            yield entries
            entries, size = [], 0
    if entries:
        yield entries


def _stored_pieces(files: Iterable[Path]) -> Iterator[list[bytes]]:
    for path in files:
        if not path.exists():
            continue
        with path.open("rb") as file:
            while head := file.read(_LENGTH.size):
                (length,) = _LENGTH.unpack(head)
                yield _pieces.decode(read_exactly(file, length, str(path)))


def _store_run(entries: list[Entry], scratch: Path, number: int) -> Path:
    path = scratch / f"run-{number}"
    with open_private(path, must_create=True) as file:
        file.writelines(hashmap_snapshot.encode(entries))
    return path


def _read_run(file: BinaryIO, path: Path) -> Iterator[Entry]:
    return entries_of(hashmap_snapshot.decode_blocks(file, path.stat().st_size, str(path)))
