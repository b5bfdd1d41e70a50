"""Check of the structure of RocksDB's data files (``.sst``) that come from elsewhere, before RocksDB reads them.

RocksDB trusts the blocks of a file once their checksums match, and a checksum has no secret: a forged length or
restart offset makes it read outside of a block. Only the form that this project writes is accepted: format version 6,
a binary search index with one entry per restart, blocks without compression or with LZ4. Each block is decompressed
and each of its entries is followed, for a batch of blocks at a time. Keys and values are not decoded. For the format
see https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format and `table/format.cc`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from stateflow.state.backends.rocksdb.byte_reader import ByteReader
from stateflow.state.backends.rocksdb.tables.blocks import (
    DELETED_RANGE,
    INTERNAL,
    LARGEST_BLOCK,
    TRAILER,
    Blocks,
    Numbers,
    check_blocks,
    checksum,
    data_blocks,
    decompressed,
    entries_of,
    first_key,
    last_key,
    require,
)

T = TypeVar("T")
FORMAT_VERSION = 6
_FOOTER = struct.Struct("<B4s4xII24sIQ")
_EXTENDED_MAGIC, _MAGIC = b"\x3e\x00\x7a\x00", 0x88E241B785F4CFF7
_XXH3 = 4
_CHECKSUM = struct.Struct("<I")
_LARGEST_INDEX = 90 << 20
"""Bytes of any other block, stored and decompressed. An index grows with the size of the file and that of the keys."""
_BATCH_BYTES = 4 << 20
INDEX, PROPERTIES, RANGE_DELETIONS = b"rocksdb.index", b"rocksdb.properties", b"rocksdb.range_del"
_FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
_REQUIRED = {
    b"rocksdb.block.based.table.index.type": b"\0\0\0\0",
    b"rocksdb.block.based.table.prefix.filtering": b"0",
    b"rocksdb.block.based.table.whole.key.filtering": b"1",
    b"rocksdb.comparator": b"leveldb.BytewiseComparator",
    b"rocksdb.index.value.is.delta.encoded": b"\1",
    b"rocksdb.merge.operator": b"nullptr",
    b"rocksdb.prefix.extractor.name": b"nullptr",
}
"""Properties that change how RocksDB reads the other blocks."""
USER_KEYS = b"rocksdb.index.key.is.user.key"
"""Property: whether the keys of the index lack the bytes after a key."""
LOADED = b"rocksdb.external_sst_file."
"""Prefix of the properties of files that were made to be loaded into a store."""
_AS_LOADED = {LOADED + b"version": b"\2\0\0\0", LOADED + b"global_seqno": bytes(8)}
"""RocksDB reads the numbers in these properties without checking their sizes. With these, all entries have the largest
sequence number that the store manifest has for the file: 0 in the files that `bulk_load` makes."""


@dataclass(frozen=True)
class Handle:
    """The position of a block without its trailer."""

    offset: int
    size: int


def check_table_file(path: Path) -> None:
    """Reads each block of a file.

    Raises:
        ValueError: the file does not have the structure of a data file of this project.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        TableFile(file, path.stat().st_size).check()


def key_bounds(path: Path) -> tuple[bytes, bytes] | None:
    """Returns the smallest and the largest key of a file's entries, each with the 8 bytes after a key.

    The checksums of all blocks that this reads are verified: RocksDB does not look a key up in a file whose bounds
    exclude it, so a wrong bound would hide entries without an error.

    Returns:
        None for a file that has only deleted ranges.

    Raises:
        ValueError: the file does not have the structure of a data file of this project, or a block is damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return TableFile(file, path.stat().st_size).key_bounds()


class OpenFile(Protocol):
    """The part of a file that is used: a local file, or parts of a stored object."""

    def seek(self, offset: int, /) -> object:
        """Sets the position of the next read."""

    def read(self, size: int, /) -> bytes:
        """Reads bytes, fewer only at the end."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Reads bytes into a buffer; returns their number."""


class TableFile:
    """A data file.

    Args:
        file: the open file.
        size: its size in bytes.
    """

    def __init__(self, file: OpenFile, size: int) -> None:
        self._file = file
        self._buffer = np.empty(0, np.uint8)
        # Where the blocks end, and those of data.
        self._end, self._data_end = size - _FOOTER.size, 0
        self._checksum_context = 0

    def check(self) -> None:
        """Reads each block; raises as `check_table_file`."""
        blocks = self.meta_blocks()
        handles = list(blocks.values())
        sizes = self._data_sizes(blocks)
        if RANGE_DELETIONS in blocks:
            check_blocks(Blocks.joined([self.read(blocks.pop(RANGE_DELETIONS))]), kinds=[DELETED_RANGE])
        if blocks.keys() - {_FILTER}:
            raise ValueError(f"unknown blocks {sorted(blocks)[:3]}")
        for batch in self._data_blocks(sizes):
            check_blocks(batch)
        self._check_places(handles)

    def key_bounds(self) -> tuple[bytes, bytes] | None:
        """Returns what the function of this name does."""
        first = last = None
        end = 0
        for sizes in self._data_sizes(self.meta_blocks()):
            first = first or Handle(0, int(sizes[0]))
            end += int((sizes + TRAILER).sum())
            last = Handle(end - TRAILER - int(sizes[-1]), int(sizes[-1]))
        if first is None or last is None:
            return None
        return first_key(self.data_block(first)), last_key(self.data_block(last))

    def _data_sizes(self, blocks: dict[bytes, Handle]) -> Iterator[Numbers]:
        """Returns the sizes of the data blocks; removes the blocks that it reads from `blocks`."""
        properties = dict(entries_of(self.read(blocks.pop(PROPERTIES))))
        check_properties(properties)
        shortest_key = 0 if properties.get(USER_KEYS) == b"\1" else INTERNAL
        return data_blocks(self.read(blocks.pop(INDEX)), shortest_key)

    def meta_blocks(self) -> dict[bytes, Handle]:
        """Returns the blocks that the footer leads to, by name.

        Raises:
            ValueError: the file does not have the structure of a data file of this project.
        """
        if self._end < 0:
            raise ValueError("the file is too short")
        self._file.seek(self._end)
        kind, extended, context, size, zeros, version, magic = _FOOTER.unpack(self._file.read(_FOOTER.size))
        expected = (_XXH3, _EXTENDED_MAGIC, FORMAT_VERSION, _MAGIC)
        if (kind, extended, version, magic) != expected or zeros.strip(b"\0"):
            raise ValueError(f"unknown form of the footer, format version {version}")
        self._checksum_context = context
        names = Handle(self._end - TRAILER - size, size)
        entries = entries_of(self.read(names))
        self._end = names.offset
        blocks = {name: _handle_of(value) for name, value in entries}
        if len(blocks) != len(entries) or not blocks.keys() >= {INDEX, PROPERTIES}:
            raise ValueError("the blocks of the file are not named as expected")
        return blocks

    def _data_blocks(self, sizes: Iterable[Numbers]) -> Iterator[Blocks]:
        """Yields the data blocks, in batches. They follow one another from the start of the file."""
        self._file.seek(0)
        end = 0
        for some in sizes:
            require(int(some.max()) <= LARGEST_BLOCK, "a data block is too large")
            end += int((some + TRAILER).sum())
            require(end <= self._end, "a data block is not in the file")
            self._data_end = end
            for batch in _batches(some.tolist(), int):
                yield from self._next_blocks(np.array(batch))

    def _check_places(self, handles: list[Handle]) -> None:
        """Checks that the blocks that are not data follow the data, and that no two overlap.

        RocksDB finds a block in its cache by its position, whatever kind of block it expects. A filter in a data block
        crashed a process that had opened another copy of the file before, so a check by opening it once is not enough.
        """
        end = self._data_end
        for handle in sorted(handles, key=lambda handle: handle.offset):
            self._bounded(handle)
            require(handle.offset >= end, "blocks overlap")
            end = handle.offset + handle.size + TRAILER

    def _next_blocks(self, sizes: Numbers) -> Iterator[Blocks]:
        """Reads blocks from the current position of the file."""
        length = int(sizes.sum()) + TRAILER * len(sizes)
        if len(self._buffer) < length:
            self._buffer = np.empty(length, np.uint8)
        # The same memory again: new pages for each batch would take as long as all checks.
        buffer = self._buffer[:length]
        if self._file.readinto(buffer.data) != length:
            raise ValueError("the file is shorter than before")
        ends = np.cumsum(sizes + TRAILER) - TRAILER
        starts = ends - sizes
        if not buffer[ends].any():
            # None of them is compressed.
            yield Blocks(buffer, starts, sizes)
            return
        stored = zip(starts.tolist(), ends.tolist(), strict=True)
        blocks = (decompressed(buffer[start : end + TRAILER].data, LARGEST_BLOCK) for start, end in stored)
        # The memory is bounded by their size now: LZ4 makes up to 255 bytes of one.
        yield from map(Blocks.joined, _batches(blocks, len))

    def _bounded(self, handle: Handle) -> None:
        if handle.offset < 0 or handle.offset + handle.size + TRAILER > self._end:
            raise ValueError(f"a block at {handle.offset} of {handle.size} bytes is not in the file")

    def data_block(self, handle: Handle) -> bytes:
        """Returns a data block; raises as `read`."""
        return self.read(handle, LARGEST_BLOCK)

    def read(self, handle: Handle, largest: int | None = None) -> bytes:
        """Returns a block, decompressed, after its checksum was verified.

        Args:
            largest: bytes that it may have; by default as many as the stored and the decompressed block may have.

        Raises:
            ValueError: the block is damaged, too large or not in the file.
        """
        self._bounded(handle)
        largest = _LARGEST_INDEX - handle.size if largest is None else largest
        require(handle.size <= largest, "a block is too large")
        self._file.seek(handle.offset)
        stored = self._file.read(handle.size + TRAILER)
        require(len(stored) == handle.size + TRAILER, "the file is shorter than before")
        (recorded,) = _CHECKSUM.unpack_from(stored, handle.size + 1)
        if recorded != checksum(stored, handle.offset, self._checksum_context):
            raise ValueError(f"the block at {handle.offset} of {handle.size} bytes has another checksum than recorded")
        return decompressed(stored, largest)


def check_properties(properties: dict[bytes, bytes]) -> None:
    """Raises ValueError if a file has properties with which RocksDB reads its blocks in another way."""
    for name, expected in _REQUIRED.items():
        if properties.get(name) != expected:
            raise ValueError(f"the property {name.decode()} is {properties.get(name, b'')[:40]!r}")
    loaded = {name: value for name, value in properties.items() if name.startswith(LOADED)}
    if loaded and loaded != _AS_LOADED:
        raise ValueError("the file was made to be loaded in another way")


def _batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yields items in batches of about 4 MiB."""
    batch: list[T] = []
    left = _BATCH_BYTES
    for item in items:
        batch.append(item)
        left -= size_of(item)
        if left <= 0:
            yield batch
            batch, left = [], _BATCH_BYTES
    if batch:
        yield batch


def _handle_of(value: bytes) -> Handle:
    reader = ByteReader(value)
    return Handle(reader.varint(), reader.varint())
