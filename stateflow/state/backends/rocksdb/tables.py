"""RocksDB's data files (``.sst``), read without RocksDB: by key, or as a whole to check their structure.

`TableReader` reads only the blocks that may have the requested keys. `check_table_file` follows the structure of a file
that comes from elsewhere, before RocksDB reads it.

Deleted entries are entries of their own kind, and deleted ranges are read as well, so that a reader of several files
can find the newest entry of a key: the one with the largest sequence number.

RocksDB trusts the blocks of a file once their checksums match, and a checksum has no secret: a forged length or
restart offset makes it read outside of a block. Only the form that this project writes is accepted: format version 6,
a binary search index with one entry per restart, blocks without compression or with LZ4. Each block is decompressed
and each of its entries is followed, for a batch of blocks at a time. Keys and values are not decoded. For the format
see https://github.com/facebook/rocksdb/wiki/Rocksdb-BlockBasedTable-Format and `table/format.cc`.

Nothing of a block is trusted: its sizes and positions are followed in NumPy, for many blocks at a time. Keys and values
are not decoded.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stateflow.config.settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.rocksdb.manifest import ByteReader

KeyRange = tuple[bytes, bytes]
"""The first key, and the end, exclusive."""
ReadPart = Callable[[int, int], bytes]
"""Returns bytes of a file: offset, and number of bytes."""
_DELETION, _VALUE = 0, 1
_READ_AHEAD = 1 << 20
_NUMBER = 4
_TRAILER = struct.Struct("<Q")


class TableEntry(NamedTuple):
    """An entry of a data file; a tuple, because there are many.

    Attributes:
        key: the key without RocksDB's trailer.
        sequence: its sequence number.
        value: the value; None for a deletion.
    """

    key: bytes
    sequence: int
    value: bytes | None


@dataclass(frozen=True)
class DeletedRange:
    """Keys that are deleted where they have a smaller sequence number.

    Attributes:
        keys: the range.
        sequence: the sequence number of the deletion.
    """

    keys: KeyRange
    sequence: int


class PartFile:
    """A file whose parts are read when they are needed; counts the bytes read.

    Args:
        read_part: reads a part.

    Attributes:
        read_bytes: bytes that were read.
    """

    def __init__(self, read_part: ReadPart) -> None:
        self.read_bytes = 0
        self._read_part = read_part
        self._position = 0
        self._ahead, self._ahead_at = b"", 0

    def seek(self, offset: int, /) -> None:
        """Sets the position of the next read."""
        self._position = offset

    def read(self, size: int, /) -> bytes:
        """Reads bytes. Raises ValueError if the file ends before."""
        at = self._position - self._ahead_at
        if 0 <= at <= len(self._ahead) - size:
            data = self._ahead[at : at + size]
        else:
            data = self._read(self._position, size)
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview, /) -> int:
        """Reads bytes into a buffer; returns their number."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_ahead(self, offset: int, size: int) -> None:
        """Reads a part once, for several calls of `read` in it."""
        self._ahead, self._ahead_at = self._read(offset, size), offset

    def _read(self, offset: int, size: int) -> bytes:
        data = self._read_part(offset, size)
        self.read_bytes += len(data)
        require(len(data) == size, "the file is shorter than recorded")
        return data


class TableReader:
    """Reads entries of one data file.

    Args:
        file: the file.
        size: its size in bytes.
        largest_sequence: the largest sequence number that the store manifest has for the file.
        gap: bytes between two blocks that are read with them, rather than in a further read.

    Attributes:
        deleted_ranges: its deleted ranges.

    Raises:
        ValueError: the file does not have the structure of a data file of this project, or a block is damaged; the
            methods raise it as well.
    """

    def __init__(self, file: PartFile, size: int, largest_sequence: int, gap: int = 0) -> None:
        self._file, self._gap = file, gap
        self._table = TableFile(file, size)
        self._blocks = self._table.meta_blocks()
        properties = dict(entries_of(self._table.read(self._blocks[PROPERTIES])))
        check_properties(properties)
        self._has_trailers = properties.get(USER_KEYS) != b"\1"
        is_loaded = any(name.startswith(LOADED) for name in properties)
        self._sequence = largest_sequence if is_loaded else None
        self.deleted_ranges = self._read_deleted_ranges()

    def entries(self, ranges: Sequence[KeyRange]) -> Iterator[TableEntry]:
        """Yields the entries in some ranges in order of keys; of one key, the newest entry first.

        Args:
            ranges: in order, and without overlap.
        """
        position = last = 0
        for number in self._read_ahead(self._block_numbers(ranges)):
            while last + 1 < len(ranges) and ranges[last + 1][0] <= self._index.bounds[number]:
                last += 1
            block = self._table.data_block(self._index.handles[number])
            keys, ends = _decode(block, ranges[last][1])
            while position < len(ranges):
                lower, upper = ranges[position]
                for at in range(bisect_left(keys, lower), bisect_left(keys, upper)):
                    yield self._entry(block, keys[at], *ends[at])
                if not keys or keys[-1] < upper:
                    break
                position += 1

    def _entry(self, block: bytes, key: bytes, trailer: int, start: int, end: int) -> TableEntry:
        kind = trailer & 0xFF
        require(kind in (_DELETION, _VALUE), "an entry has an unknown kind")
        sequence = trailer >> 8 if self._sequence is None else self._sequence
        return TableEntry(key, sequence, block[start:end] if kind == _VALUE else None)

    def _block_numbers(self, ranges: Sequence[KeyRange]) -> list[int]:
        """Returns the numbers of the blocks that may have keys of the ranges, in order."""
        bounds, count = self._index.bounds, len(self._index.bounds)
        numbers: list[int] = []
        following = 0
        for lower, upper in ranges:
            # The bound of a block is at least its last key, and at most the first key of the next one. With trailers,
            # the entries of one key may be in several blocks.
            first = max(bisect_left(bounds, lower), following)
            last = bisect_left(bounds, upper)
            if last > first and not self._has_trailers and upper == lower + b"\0" and bounds[first] == lower:
                last = first
            last = min(last, count - 1)
            if first <= last:
                numbers.extend(range(first, last + 1))
                following = last + 1
        return numbers

    def _read_ahead(self, numbers: Sequence[int]) -> Iterator[int]:
        """Yields the numbers after the blocks were read, those near each other in one read."""
        handles = self._index.handles
        position = 0
        while position < len(numbers):
            start = handles[numbers[position]].offset
            end, following = _end(handles[numbers[position]]), position + 1
            while following < len(numbers):
                handle = handles[numbers[following]]
                if handle.offset - end > self._gap or _end(handle) - start > _READ_AHEAD:
                    break
                end, following = _end(handle), following + 1
            self._file.read_ahead(start, end - start)
            yield from numbers[position:following]
            position = following

    @cached_property
    def _index(self) -> _Index:
        index = self._table.read(self._blocks[INDEX])
        bounds: list[bytes] = []
        sizes: list[int] = []
        cut = INTERNAL if self._has_trailers else 0
        for part in index_parts(index, cut):
            ends = (part.key_starts + part.key_sizes - cut).tolist()
            bounds += [index[start:end] for start, end in zip(part.key_starts.tolist(), ends, strict=True)]
            sizes += part.sizes.tolist()
        require(all(one <= other for one, other in pairwise(bounds)), "an index is not in order")
        handles: list[Handle] = []
        offset = 0
        for size in sizes:
            handles.append(Handle(offset, size))
            offset += size + TRAILER
        return _Index(bounds, handles)

    def _read_deleted_ranges(self) -> list[DeletedRange]:
        if RANGE_DELETIONS not in self._blocks:
            return []
        found = []
        for key, end in entries_of(self._table.read(self._blocks[RANGE_DELETIONS])):
            require(len(key) >= INTERNAL, "a key is too short")
            (trailer,) = _TRAILER.unpack(key[-INTERNAL:])
            sequence = trailer >> 8 if self._sequence is None else self._sequence
            found.append(DeletedRange((key[:-INTERNAL], end), sequence))
        return found


@dataclass(frozen=True)
class _Index:
    """The data blocks of a file: a bound of the keys of each, and where each is."""

    bounds: list[bytes]
    handles: list[Handle]


def _end(handle: Handle) -> int:
    return handle.offset + handle.size + TRAILER


def _decode(block: bytes, end: bytes) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Returns the keys of a block without trailers; and trailer, start and end of the value of each.

    This is most of the time of a look-up, so it calls no function for an entry of usual size.

    Args:
        block: the block.
        end: the first key that is not less than this is the last one returned.
    """
    require(len(block) >= 2 * _NUMBER, "a block is too short")
    limit = len(block) - _NUMBER * (int.from_bytes(block[-_NUMBER:], "little") + 1)
    require(limit >= 0, "a block has too many restarts")
    keys: list[bytes] = []
    places: list[tuple[int, int, int]] = []
    key, at, last = b"", 0, b""
    while at < limit and last < end:
        shared, own, size, more = block[at : at + 4]
        at += 3
        if size > 0x7F and more <= 0x7F and shared <= 0x7F and own <= 0x7F:
            size, at = size & 0x7F | more << 7, at + 1
        elif shared > 0x7F or own > 0x7F or size > 0x7F:
            shared, own, size, at = _lengths(block, at - 3)
        start = at + own
        following = start + size
        if shared > len(key) or following > limit or shared + own < INTERNAL:
            raise ValueError("an entry is cut off")
        key = key[:shared] + block[at:start]
        found = key[:-INTERNAL]
        if found < last:
            raise ValueError("the keys of a block are not in order")
        last = found
        keys.append(found)
        places.append((int.from_bytes(key[-INTERNAL:], "little"), start, following))
        at = following
    return keys, places


def _lengths(block: bytes, at: int) -> tuple[int, int, int, int]:
    """Returns the three lengths that an entry begins with, and the position after them."""
    found = []
    for _ in range(3):
        value = shift = 0
        while at < len(block) and block[at] > 0x7F:
            value |= (block[at] & 0x7F) << shift
            shift += 7
            at += 1
        require(shift <= 28 and at < len(block), "a number is too large")
        found.append(value | block[at] << shift)
        at += 1
    return found[0], found[1], found[2], at


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
        blocks = (decompress_block(buffer[start : end + TRAILER].data, LARGEST_BLOCK) for start, end in stored)
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
        return decompress_block(stored, largest)


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


Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
TRAILER = 5
"""Bytes after a block: its compression and its checksum."""
_PLAIN, _LZ4 = 0, 4
_LZ4_CODEC = pa.Codec("lz4_raw")
INTERNAL = 8
"""Bytes after each key: the kind of the entry, and its sequence number."""
DELETED_RANGE = 15
"""The kind of the entries of a block of deleted ranges."""
_LARGEST_RATIO = 256
"""LZ4 makes at most 255 bytes of one."""
_LONGEST_VARINT = 5
_SMALLEST_BLOCK = 8
_WITHOUT_ENTRIES = struct.pack("<II", 0, 1)
"""The index of a file that has only deleted ranges."""
_INDEX_ENTRIES = 1 << 16
"""Entries of an index that are followed at a time."""
_LARGEST_START = 16 << 10
"""Bound of the position of an entry in its block: RocksDB ends a block with the entry that makes it 4 KiB."""
_LOW = 0xFFFFFFFF
_LAST_BYTE_FACTOR = 0x6B9083D9
LARGEST_BLOCK = LARGEST_VALUE + 2 * LARGEST_KEY + (64 << 10)
"""Bytes of a data block, decompressed: entries of 4 KiB, and the largest entry that any settings permit. A key consists
of an operator's key and a map's."""


def checksum(stored: bytes, offset: int, context: int) -> int:
    """Returns the checksum of a block, as `ComputeBuiltinChecksum` and `ChecksumModifierForContext` of RocksDB do.

    Args:
        stored: the block with its trailer, whose checksum is ignored.
        offset: the position of the block in its file.
        context: the file's number for checksums; 0 if they do not depend on the file.
    """
    end = len(stored) - TRAILER
    found = xxhash.xxh3_64_intdigest(memoryview(stored)[:end]) & _LOW
    found ^= stored[end] * _LAST_BYTE_FACTOR & _LOW
    modifier = context ^ (offset & _LOW) + (offset >> 32) & _LOW if context else 0
    return found + modifier & _LOW


def decompress_block(stored: bytes | memoryview, largest: int = LARGEST_BLOCK) -> bytes:
    """Returns the content of a block.

    Args:
        stored: the block with its trailer.
        largest: bytes that it may have.

    Raises:
        ValueError: the block is compressed in another way, or not as it says.
    """
    # A view: a copy of a large block would double the memory that a hostile file can take.
    kind, data = stored[-TRAILER], memoryview(stored)[:-TRAILER]
    if kind == _PLAIN:
        return bytes(data)
    if kind != _LZ4:
        raise ValueError(f"unknown compression {kind} of a block")
    reader = ByteReader(bytes(data[:_LONGEST_VARINT]))
    size = reader.varint()
    if size > min(largest, _LARGEST_RATIO * len(data)):
        raise ValueError(f"a block of {len(data)} bytes would have {size} bytes")
    try:
        found: bytes = _LZ4_CODEC.decompress(data[reader.position :], size, asbytes=True)
    except (pa.ArrowException, OSError) as e:
        raise ValueError("a block cannot be decompressed") from e
    if len(found) != size:
        raise ValueError("a block has another size after decompression")
    return found


@dataclass(frozen=True)
class Blocks:
    """Several blocks in one buffer, decompressed.

    Attributes:
        buffer: contains the blocks.
        starts, sizes: where each block is.
    """

    buffer: Bytes
    starts: Numbers
    sizes: Numbers

    @classmethod
    def joined(cls, blocks: list[bytes]) -> Blocks:
        """Returns blocks in a buffer of their own; a single one is not copied."""
        sizes = np.array([len(block) for block in blocks])
        buffer = np.frombuffer(blocks[0] if len(blocks) == 1 else b"".join(blocks), np.uint8)
        return cls(buffer, np.cumsum(sizes) - sizes, sizes)

    @property
    def words(self) -> Numbers:
        """The eight bytes from each position of the buffer as a number, the first byte the lowest.

        There is none at the last seven positions, where no entry begins: its block ends with two numbers of four bytes.
        """
        return np.ndarray((len(self.buffer) - 7,), np.dtype("<i8"), self.buffer.data, strides=(1,))


@dataclass(frozen=True)
class IndexPart:
    """Consecutive entries of an index.

    Attributes:
        key_starts, key_sizes: where in the index the keys are: none is smaller than a key of the data block.
        sizes: the sizes of the data blocks, without their trailers.
    """

    key_starts: Numbers
    key_sizes: Numbers
    sizes: Numbers


def index_parts(index: bytes, shortest_key: int) -> Iterator[IndexPart]:
    """Yields the entries of an index, some thousands at a time.

    Args:
        index: the index block. It has a restart for each entry.
        shortest_key: least size of a key in bytes.

    Raises:
        ValueError: the data blocks do not follow one another from the start of the file.
    """
    if index == _WITHOUT_ENTRIES:
        return
    require(len(index) >= _SMALLEST_BLOCK, "a block is too short")
    count = int.from_bytes(index[-_NUMBER:], "little")
    end = len(index) - _NUMBER * (count + 1)
    require(count > 0 and end > 0, "a block has too many restarts")
    buffer, starts = np.frombuffer(index, np.uint8), np.frombuffer(index, "<u4", count, end)
    require(starts[0] == 0, "restarts are not in order")
    offset = 0
    for first in range(0, count, _INDEX_ENTRIES):
        following = first + _INDEX_ENTRIES
        shared, at = _varints(buffer, starts[first:following].astype(np.int64))
        key_size, key_start = _varints(buffer, at)
        require(not shared.any() and bool((key_size >= shortest_key).all()), "an index entry has no whole key")
        offsets, at = _varints(buffer, key_start + key_size)
        sizes, at = _varints(buffer, at)
        next_starts = np.append(starts[first + 1 : following + 1], [end] if following >= count else [])
        require(bool((at == next_starts).all()), "an index entry does not end where the next one starts")
        ends = offset + np.cumsum(sizes + TRAILER)
        require(bool((offsets == ends - sizes - TRAILER).all()), "data blocks have gaps or overlap")
        offset = int(ends[-1])
        yield IndexPart(key_start, key_size, sizes)


def data_blocks(index: bytes, shortest_key: int) -> Iterator[Numbers]:
    """Yields the sizes of the data blocks of an index; see `index_parts`."""
    return (part.sizes for part in index_parts(index, shortest_key))


def check_blocks(blocks: Blocks, kinds: Sequence[int] = (_DELETION, _VALUE)) -> None:
    """Follows the entries of blocks, one entry of each block at a time.

    A block consists of entries, offsets of some entries (the restarts), and their number. An entry consists of three
    lengths, the bytes of the key that differ from the key before, and the value; at a restart the key is complete.

    Args:
        blocks: the blocks.
        kinds: the kinds of entries that the blocks may have. RocksDB ends the process for an unexpected kind. Empty for
            blocks whose keys have no kind.

    Raises:
        ValueError: an entry or a restart is not where it must be, or an entry has another kind.
    """
    entries, entry_kinds = _Entries(blocks, _LARGEST_START), _Kinds(blocks, kinds)
    starts, ends, restarts = blocks.starts, entries.ends, np.append(entries.restarts, -1)
    # The next restart of each block, and where the restarts of the following block begin.
    restart, last_restart = entries.first_restarts, entries.first_restarts + entries.counts
    at, key_size = starts, np.zeros(len(starts), np.int64)
    while len(at):
        is_restart = (restart < last_restart) & (at == restarts[restart])
        restart = restart + is_restart
        key_size[is_restart] = 0
        require(bool((at - starts).max() < _LARGEST_START), "a block has more entries than a block may have")
        key_at, own, key_size, at = _next_entries(blocks, at, key_size)
        require(bool((at <= ends).all()), "an entry is cut off")
        entry_kinds.check(key_at, own, key_size)
        left = at < ends
        if left.all():
            continue
        require(bool((left | (restart == last_restart)).all()), "a restart is not at an entry")
        at, key_size, starts, ends = at[left], key_size[left], starts[left], ends[left]
        restart, last_restart = restart[left], last_restart[left]
    entry_kinds.check_shared()


class _Kinds:
    """The check of the kinds of entries.

    Args:
        blocks: the blocks of the entries.
        kinds: the kinds that they may have; empty for blocks whose keys have no kind.
    """

    def __init__(self, blocks: Blocks, kinds: Sequence[int]) -> None:
        self._blocks = blocks
        self._kinds = kinds
        self._is_allowed = np.isin(np.arange(256), kinds)
        self._has_shared = False

    def check(self, at: Numbers, own: Numbers, key_size: Numbers) -> None:
        """Checks entries whose kinds are among their own bytes.

        Args:
            at: where the own bytes of the keys are.
            own: how many there are.
            key_size: the sizes of the keys.
        """
        if not self._kinds:
            return
        require(bool(key_size.min() >= INTERNAL), "a key is too short")
        is_allowed = self._is_allowed[self._blocks.buffer[at + own - INTERNAL]]
        if not is_allowed.all():
            # Another byte stands here if the kind is shared with the key before.
            require(bool((is_allowed | (own < INTERNAL)).all()), "an entry has an unknown kind")
        self._has_shared |= int(own.min()) < INTERNAL

    def check_shared(self) -> None:
        """Checks all entries if an entry shares its kind with the key before, which happens by chance only."""
        if not (self._kinds and self._has_shared):
            return
        for start, size in zip(self._blocks.starts.tolist(), self._blocks.sizes.tolist(), strict=True):
            block = self._blocks.buffer[start : start + size].tobytes()
            require(all(key[-INTERNAL] in self._kinds for key in _keys(block)), "an entry has an unknown kind")


class _Entries:
    """The positions of the entries and restarts of blocks.

    Args:
        blocks: the blocks.
        most_restarts: number of restarts that a block may have; None for any number.

    Attributes:
        ends: of the entries of each block.
        counts, first_restarts: how many restarts each block has, and the index of the first.
        restarts: the positions of all restarts.
    """

    def __init__(self, blocks: Blocks, most_restarts: int | None = None) -> None:
        starts, sizes = blocks.starts, blocks.sizes
        require(bool((sizes >= _SMALLEST_BLOCK).all()), "a block is too short")
        words = blocks.words
        self.counts = words[starts + sizes - 2 * _NUMBER] >> 32 & _LOW
        if most_restarts is not None:
            require(bool((self.counts <= most_restarts).all()), "a block has too many restarts")
        self.ends = starts + sizes - _NUMBER * (self.counts + 1)
        require(bool(((self.counts > 0) & (self.ends > starts)).all()), "a block has too many restarts")
        self.first_restarts = np.cumsum(self.counts) - self.counts
        within = np.arange(int(self.counts.sum())) - np.repeat(self.first_restarts, self.counts)
        offsets = words[np.repeat(self.ends, self.counts) + _NUMBER * within] & _LOW
        self.restarts = offsets + np.repeat(starts, self.counts)
        is_in_order = np.append(True, np.diff(self.restarts) > 0) & ((within > 0) | (offsets == 0))
        require(
            bool((is_in_order & (self.restarts < np.repeat(self.ends, self.counts))).all()), "restarts are not in order"
        )


def _next_entries(blocks: Blocks, at: Numbers, key_size: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Returns where the own bytes of keys are, how many there are, the sizes of the keys, and where the entries end.

    Args:
        at: where the entries start.
        key_size: the sizes of the keys before them.
    """
    # Almost all entries have two lengths of one byte, and a third one of one or two.
    word = blocks.words[at]
    has_more = word >> 23 & 1
    shared, own, value = word & 0x7F, word >> 8 & 0x7F, (word >> 16 & 0x7F) | (word >> 17 & 0x3F80) * has_more
    key_at = at + 3 + has_more
    longer = np.flatnonzero((word & 0x8080) | (word >> 8 & word & 0x800000))
    if len(longer):
        shared[longer], start = _varints(blocks.buffer, at[longer])
        own[longer], start = _varints(blocks.buffer, start)
        value[longer], key_at[longer] = _varints(blocks.buffer, start)
    require(bool((shared <= key_size).all()), "an entry shares more than the key before it has")
    return key_at, own, shared + own, key_at + own + value


def entries_of(block: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the entries of a block without kinds and with few entries; raises as `check_blocks`."""
    check_blocks(Blocks.joined([block]), kinds=())
    reader = ByteReader(block[: _end_of_entries(block)])
    entries: list[tuple[bytes, bytes]] = []
    key = b""
    while reader:
        shared, own, size = reader.varint(), reader.varint(), reader.varint()
        key = key[:shared] + reader.take(own)
        entries.append((key, reader.take(size)))
    return entries


def first_key(block: bytes) -> bytes:
    """Returns the first key of a block; raises as `check_blocks`."""
    check_blocks(Blocks.joined([block]))
    return bytes(next(_keys(block)))


def last_key(block: bytes) -> bytes:
    """Returns the last key of a block; raises as `check_blocks`."""
    check_blocks(Blocks.joined([block]))
    key = bytearray()
    for key in _keys(block):  # noqa: B007
        pass
    return bytes(key)


def _keys(block: bytes) -> Iterator[bytearray]:
    """Yields each key of a checked block, as one object that changes."""
    reader, end = ByteReader(block), _end_of_entries(block)
    key = bytearray()
    while reader.position < end:
        shared, own, size = reader.varint(), reader.varint(), reader.varint()
        del key[shared:]
        key += reader.take(own)
        yield key
        reader.skip(size)


def _end_of_entries(block: bytes) -> int:
    return int(_Entries(Blocks.joined([block])).ends[0])


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
    require(not len(longer), "a number is too large")
    return value, after


def require(condition: bool, reason: str) -> None:
    """Raises ValueError with the reason unless the condition holds."""
    if not condition:
        raise ValueError(reason)
