"""Blocks of RocksDB's data files: their compression, checksums, and entries.

Nothing of a block is trusted: its sizes and positions are followed in NumPy, for many blocks at a time. Keys and values
are not decoded. See `file.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stateflow.config.state_settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.rocksdb.byte_reader import ByteReader

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
_DELETION, _VALUE = 0, 1
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
_NUMBER = 4
"""Bytes of a number at the end of a block."""
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


def decompressed(stored: bytes | memoryview, largest: int = LARGEST_BLOCK) -> bytes:
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
