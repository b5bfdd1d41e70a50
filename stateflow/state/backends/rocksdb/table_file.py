"""Check of the structure of RocksDB's data files (``.sst``) that come from elsewhere, before RocksDB reads them.

RocksDB trusts the blocks of a file once their checksums match, and a checksum has no secret: a forged length or
restart offset makes it read outside of a block. Only the form that this project writes is accepted: format version 6,
a binary search index with one entry per restart, blocks without compression or with LZ4. Each block is decompressed
and each of its entries is followed, for a batch of blocks at a time. Keys and values are not decoded. For the format
see https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format and `table/format.cc`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.state.backends.rocksdb.byte_reader import ByteReader

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

FORMAT_VERSION = 6
_FOOTER = struct.Struct("<B4s8xI24sIQ")
_EXTENDED_MAGIC, _MAGIC = b"\x3e\x00\x7a\x00", 0x88E241B785F4CFF7
_XXH3 = 4
_TRAILER = 5
"""Bytes after a block: its compression and its checksum."""
_PLAIN, _LZ4 = 0, 4
_LZ4_CODEC = pa.Codec("lz4_raw")
_INTERNAL = 8
"""Bytes after each key: its sequence number and the kind of the entry."""
_LARGEST_BLOCK = 128 << 20
_LARGEST_RATIO = 256
"""LZ4 makes at most 255 bytes of one."""
_LONGEST_VARINT = 5
_SMALLEST_BLOCK = 8
_WITHOUT_ENTRIES = struct.pack("<II", 0, 1)
"""The index of a file that has only deleted ranges."""
_LARGEST_START = 16 << 10
"""Bound of the position of an entry in its block: RocksDB ends a block with the entry that makes it 4 KiB."""
_NUMBER = struct.Struct("<I")
_BATCH_BYTES = 4 << 20
_INDEX, _PROPERTIES, _RANGE_DELETIONS = b"rocksdb.index", b"rocksdb.properties", b"rocksdb.range_del"
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
_USER_KEYS = b"rocksdb.index.key.is.user.key"
"""Property: whether the keys of the index lack the bytes after a key."""
_IMPORTED = b"rocksdb.external_sst_file."
"""Prefix of properties with which RocksDB changes the sequence numbers of all entries."""


@dataclass(frozen=True)
class _Handle:
    """The position of a block without its trailer."""

    offset: int
    size: int


def check_table_file(path: Path) -> None:
    """Reads each block of a file.

    Raises:
        ValueError: the file has not the structure of a data file of this project.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        _TableFile(file, path.stat().st_size).check()


class _TableFile:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._end = size - _FOOTER.size

    def check(self) -> None:
        blocks = self._meta_blocks()
        properties = dict(entries_of(self._read(blocks.pop(_PROPERTIES))))
        _check_properties(properties)
        shortest_key = 0 if properties.get(_USER_KEYS) == b"\1" else _INTERNAL
        index = self._read(blocks.pop(_INDEX))
        if _RANGE_DELETIONS in blocks:
            check_blocks([self._read(blocks.pop(_RANGE_DELETIONS))])
        if blocks.keys() - {_FILTER}:
            raise ValueError(f"unknown blocks {sorted(blocks)[:3]}")
        for handle in blocks.values():
            self._bounded(handle)
        for batch in _batches(self._data_blocks(data_blocks(index, shortest_key))):
            check_blocks(batch)

    def _meta_blocks(self) -> dict[bytes, _Handle]:
        """Returns the blocks that the footer leads to, by name."""
        if self._end < 0:
            raise ValueError("the file is too short")
        self._file.seek(self._end)
        kind, extended, size, zeros, version, magic = _FOOTER.unpack(self._file.read(_FOOTER.size))
        expected = (_XXH3, _EXTENDED_MAGIC, FORMAT_VERSION, _MAGIC)
        if (kind, extended, version, magic) != expected or zeros.strip(b"\0"):
            raise ValueError(f"unknown form of the footer, format version {version}")
        entries = entries_of(self._read(_Handle(self._end - _TRAILER - size, size)))
        blocks = {name: _handle_of(value) for name, value in entries}
        if len(blocks) != len(entries) or not blocks.keys() >= {_INDEX, _PROPERTIES}:
            raise ValueError("the blocks of the file are not named as expected")
        return blocks

    def _data_blocks(self, sizes: list[int]) -> Iterator[bytes]:
        """Yields the data blocks, decompressed. They follow one another from the start of the file."""
        self._bounded(_Handle(0, sum(sizes) + _TRAILER * (len(sizes) - 1)))
        self._file.seek(0)
        for size in sizes:
            yield decompressed(self._file.read(size + _TRAILER))

    def _bounded(self, handle: _Handle) -> None:
        if handle.offset < 0 or handle.offset + handle.size + _TRAILER > self._end:
            raise ValueError(f"a block at {handle.offset} of {handle.size} bytes is not in the file")

    def _read(self, handle: _Handle) -> bytes:
        """Returns a block, decompressed."""
        self._bounded(handle)
        self._file.seek(handle.offset)
        return decompressed(self._file.read(handle.size + _TRAILER))


def _check_properties(properties: dict[bytes, bytes]) -> None:
    for name, expected in _REQUIRED.items():
        if properties.get(name) != expected:
            raise ValueError(f"the property {name.decode()} is {properties.get(name, b'')[:40]!r}")
    if any(name.startswith(_IMPORTED) for name in properties):
        raise ValueError("the file was made to be imported")


def decompressed(stored: bytes) -> bytes:
    """Returns the content of a block.

    Args:
        stored: the block with its trailer.

    Raises:
        ValueError: the block is compressed in another way, or not as it says.
    """
    kind, data = stored[-_TRAILER], stored[:-_TRAILER]
    if kind == _PLAIN:
        return data
    if kind != _LZ4:
        raise ValueError(f"unknown compression {kind} of a block")
    reader = ByteReader(data[:_LONGEST_VARINT])
    size = reader.varint()
    if size > min(_LARGEST_BLOCK, _LARGEST_RATIO * len(data)):
        raise ValueError(f"a block of {len(data)} bytes would have {size} bytes")
    try:
        found: bytes = _LZ4_CODEC.decompress(data[reader.position :], size, asbytes=True)
    except (pa.ArrowException, OSError) as e:
        raise ValueError("a block cannot be decompressed") from e
    if len(found) != size:
        raise ValueError("a block has another size after decompression")
    return found


def data_blocks(index: bytes, shortest_key: int) -> list[int]:
    """Returns the sizes of the data blocks of an index, without their trailers.

    Args:
        index: the index block.
        shortest_key: least size of a key in bytes.

    Raises:
        ValueError: the data blocks do not follow one another from the start of the file.
    """
    if index == _WITHOUT_ENTRIES:
        return []
    buffer, entries = np.frombuffer(index, np.uint8), _Entries([index])
    shared, at = _varints(buffer, entries.restarts)
    key_size, at = _varints(buffer, at)
    _require(not shared.any() and bool((key_size >= shortest_key).all()), "an index entry has no whole key")
    offsets, at = _varints(buffer, at + key_size)
    sizes, at = _varints(buffer, at)
    ends = np.append(entries.restarts[1:], entries.ends)
    _require(bool((at == ends).all()), "an index entry does not end where the next one starts")
    expected = np.cumsum(sizes + _TRAILER) - sizes - _TRAILER
    _require(bool((offsets == expected).all()), "data blocks have gaps or overlap")
    found: list[int] = sizes.tolist()
    return found


def _batches(blocks: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for block in blocks:
        batch.append(block)
        size += len(block)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_blocks(blocks: list[bytes], shortest_key: int = _INTERNAL) -> None:
    """Follows the entries of blocks, one entry of each block at a time.

    A block consists of entries, offsets of some entries (the restarts), and their number. An entry consists of three
    lengths, the bytes of the key that differ from the key before, and the value; at a restart the key is complete.

    Args:
        shortest_key: least size of a key in bytes.

    Raises:
        ValueError: an entry or a restart is not where it must be.
    """
    buffer, entries = np.frombuffer(b"".join(blocks), np.uint8), _Entries(blocks)
    starts, ends, restarts = entries.starts, entries.ends, entries.restarts
    # The next restart of each block, and where the restarts of the following block begin.
    restart, last_restart = entries.first_restarts, entries.first_restarts + entries.counts
    at, key_size = starts, np.zeros(len(blocks), np.int64)
    while len(at):
        is_restart = (restart < last_restart) & (at == restarts[np.minimum(restart, len(restarts) - 1)])
        restart = restart + is_restart
        _require(bool((at - starts < _LARGEST_START).all()), "a block has more entries than a block may have")
        at, key_size = _next_entries(buffer, at, np.where(is_restart, 0, key_size))
        _require(bool((key_size >= shortest_key).all()), "a key is too short")
        _require(bool((at <= ends).all()), "an entry is cut off")
        left = at < ends
        _require(bool((left | (restart == last_restart)).all()), "a restart is not at an entry")
        at, key_size, starts, ends = at[left], key_size[left], starts[left], ends[left]
        restart, last_restart = restart[left], last_restart[left]


class _Entries:
    """Where the entries of blocks are that are concatenated.

    Attributes:
        starts, ends: of the entries of each block.
        counts, first_restarts: how many restarts each block has, and the index of the first.
        restarts: the positions of all restarts.
    """

    def __init__(self, blocks: list[bytes]) -> None:
        sizes = np.array([len(block) for block in blocks])
        _require(bool((sizes >= _SMALLEST_BLOCK).all()), "a block is too short")
        self.starts = np.cumsum(sizes) - sizes
        self.counts = np.array([_NUMBER.unpack_from(block, len(block) - 4)[0] for block in blocks])
        self.ends = self.starts + sizes - 4 * (self.counts + 1)
        _require(bool(((self.counts > 0) & (self.ends > self.starts)).all()), "a block has too many restarts")
        self.first_restarts = np.cumsum(self.counts) - self.counts
        offsets = np.concatenate(
            [
                np.frombuffer(block, "<u4", count, len(block) - 4 * (count + 1))
                for block, count in zip(blocks, self.counts.tolist(), strict=True)
            ]
        )
        self.restarts = offsets + np.repeat(self.starts, self.counts)
        is_first = np.zeros(len(offsets), np.bool_)
        is_first[self.first_restarts] = True
        is_in_order = np.append(True, np.diff(self.restarts) > 0) & (is_first <= (offsets == 0))
        _require(
            bool((is_in_order & (self.restarts < np.repeat(self.ends, self.counts))).all()), "restarts are not in order"
        )


def _next_entries(buffer: Bytes, at: Numbers, key_size: Numbers) -> tuple[Numbers, Numbers]:
    """Returns where entries end, and the sizes of their keys.

    Args:
        at: where the entries start.
        key_size: the sizes of the keys before them.
    """
    shared, at = _varints(buffer, at)
    own, at = _varints(buffer, at)
    value, at = _varints(buffer, at)
    _require(bool((shared <= key_size).all()), "an entry shares more than the key before it has")
    return at + own + value, shared + own


def entries_of(block: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the entries of a block with few of them; raises as `check_blocks`."""
    check_blocks([block], shortest_key=0)
    reader = ByteReader(block[: int(_Entries([block]).ends[0])])
    entries: list[tuple[bytes, bytes]] = []
    key = b""
    while reader:
        shared, own, size = reader.varint(), reader.varint(), reader.varint()
        key = key[:shared] + reader.take(own)
        entries.append((key, reader.take(size)))
    return entries


def _handle_of(value: bytes) -> _Handle:
    reader = ByteReader(value)
    return _Handle(reader.varint(), reader.varint())


def _varints(buffer: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Returns the numbers at some positions, and the positions after them.

    A position after the end of the buffer reads its last byte: the caller finds that the entry is cut off.

    Raises:
        ValueError: a number has more than 35 bits.
    """
    last = len(buffer) - 1
    value = buffer[np.minimum(at, last)].astype(np.int64)
    after = at + 1
    longer = np.flatnonzero(value >= 0x80)
    value[longer] &= 0x7F
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        if not len(longer):
            return value, after
        byte = buffer[np.minimum(after[longer], last)].astype(np.int64)
        value[longer] |= (byte & 0x7F) << shift
        after[longer] += 1
        longer = longer[byte >= 0x80]
    _require(not len(longer), "a number is too large")
    return value, after


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)
