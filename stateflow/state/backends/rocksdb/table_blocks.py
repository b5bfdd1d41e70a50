"""Blocks of RocksDB's data files: their compression, checksums, and entries.

Nothing of a block is trusted: its sizes and positions are followed in NumPy, for many blocks at a time. Keys and values
are not decoded. See `table_file`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

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
_LARGEST_START = 16 << 10
"""Bound of the position of an entry in its block: RocksDB ends a block with the entry that makes it 4 KiB."""
_NUMBER = struct.Struct("<I")
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


def decompressed(stored: bytes, largest: int = LARGEST_BLOCK) -> bytes:
    """Returns the content of a block.

    Args:
        stored: the block with its trailer.
        largest: bytes that it may have.

    Raises:
        ValueError: the block is compressed in another way, or not as it says.
    """
    kind, stored_size = stored[-TRAILER], len(stored) - TRAILER
    if kind == _PLAIN:
        return stored[:stored_size]
    if kind != _LZ4:
        raise ValueError(f"unknown compression {kind} of a block")
    reader = ByteReader(stored[: min(_LONGEST_VARINT, stored_size)])
    size = reader.varint()
    if size > min(largest, _LARGEST_RATIO * stored_size):
        raise ValueError(f"a block of {stored_size} bytes would have {size} bytes")
    # A view: a copy of a large block would double the memory that a hostile file can take.
    data = memoryview(stored)[reader.position : stored_size]
    try:
        found: bytes = _LZ4_CODEC.decompress(data, size, asbytes=True)
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
    require(not shared.any() and bool((key_size >= shortest_key).all()), "an index entry has no whole key")
    offsets, at = _varints(buffer, at + key_size)
    sizes, at = _varints(buffer, at)
    ends = np.append(entries.restarts[1:], entries.ends)
    require(bool((at == ends).all()), "an index entry does not end where the next one starts")
    expected = np.cumsum(sizes + TRAILER) - sizes - TRAILER
    require(bool((offsets == expected).all()), "data blocks have gaps or overlap")
    found: list[int] = sizes.tolist()
    return found


def check_blocks(blocks: list[bytes], kinds: Sequence[int] = (_DELETION, _VALUE)) -> None:
    """Follows the entries of blocks, one entry of each block at a time.

    A block consists of entries, offsets of some entries (the restarts), and their number. An entry consists of three
    lengths, the bytes of the key that differ from the key before, and the value; at a restart the key is complete.

    Args:
        kinds: the kinds of entries that the blocks may have. RocksDB ends the process for an unexpected kind. Empty for
            blocks whose keys have no kind.

    Raises:
        ValueError: an entry or a restart is not where it must be, or an entry has another kind.
    """
    buffer = np.frombuffer(blocks[0] if len(blocks) == 1 else b"".join(blocks), np.uint8)
    entries = _Entries(blocks, _LARGEST_START)
    starts, ends, restarts = entries.starts, entries.ends, entries.restarts
    is_allowed = np.isin(np.arange(256), kinds)
    has_shared_kinds = False
    # The next restart of each block, and where the restarts of the following block begin.
    restart, last_restart = entries.first_restarts, entries.first_restarts + entries.counts
    at, key_size = starts, np.zeros(len(blocks), np.int64)
    while len(at):
        is_restart = (restart < last_restart) & (at == restarts[np.minimum(restart, len(restarts) - 1)])
        restart = restart + is_restart
        require(bool((at - starts < _LARGEST_START).all()), "a block has more entries than a block may have")
        key_at, own, key_size, at = _next_entries(buffer, at, np.where(is_restart, 0, key_size))
        require(bool((at <= ends).all()), "an entry is cut off")
        if kinds:
            require(bool((key_size >= INTERNAL).all()), "a key is too short")
            kind = buffer[np.minimum(key_at + own - INTERNAL, len(buffer) - 1)]
            has_shared_kinds |= bool((own < INTERNAL).any())
            require(bool((is_allowed[kind] | (own < INTERNAL)).all()), "an entry has an unknown kind")
        left = at < ends
        require(bool((left | (restart == last_restart)).all()), "a restart is not at an entry")
        at, key_size, starts, ends = at[left], key_size[left], starts[left], ends[left]
        restart, last_restart = restart[left], last_restart[left]
    if has_shared_kinds:
        for block in blocks:
            require(all(key[-INTERNAL] in kinds for key in _keys(block)), "an entry has an unknown kind")


class _Entries:
    """Where the entries of blocks are that are concatenated.

    Args:
        most_restarts: number of restarts that a block may have; None for any number.

    Attributes:
        starts, ends: of the entries of each block.
        counts, first_restarts: how many restarts each block has, and the index of the first.
        restarts: the positions of all restarts.
    """

    def __init__(self, blocks: list[bytes], most_restarts: int | None = None) -> None:
        sizes = np.array([len(block) for block in blocks])
        require(bool((sizes >= _SMALLEST_BLOCK).all()), "a block is too short")
        self.starts = np.cumsum(sizes) - sizes
        self.counts = np.array([_NUMBER.unpack_from(block, len(block) - 4)[0] for block in blocks])
        if most_restarts is not None:
            require(bool((self.counts <= most_restarts).all()), "a block has too many restarts")
        self.ends = self.starts + sizes - 4 * (self.counts + 1)
        require(bool(((self.counts > 0) & (self.ends > self.starts)).all()), "a block has too many restarts")
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
        require(
            bool((is_in_order & (self.restarts < np.repeat(self.ends, self.counts))).all()), "restarts are not in order"
        )


def _next_entries(buffer: Bytes, at: Numbers, key_size: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Returns where the own bytes of keys are, how many there are, the sizes of the keys, and where the entries end.

    Args:
        at: where the entries start.
        key_size: the sizes of the keys before them.
    """
    shared, at = _varints(buffer, at)
    own, at = _varints(buffer, at)
    value, at = _varints(buffer, at)
    require(bool((shared <= key_size).all()), "an entry shares more than the key before it has")
    return at, own, shared + own, at + own + value


def entries_of(block: bytes) -> list[tuple[bytes, bytes]]:
    """Returns the entries of a block without kinds and with few entries; raises as `check_blocks`."""
    check_blocks([block], kinds=())
    reader = ByteReader(block[: int(_Entries([block]).ends[0])])
    entries: list[tuple[bytes, bytes]] = []
    key = b""
    while reader:
        shared, own, size = reader.varint(), reader.varint(), reader.varint()
        key = key[:shared] + reader.take(own)
        entries.append((key, reader.take(size)))
    return entries


def first_key(block: bytes) -> bytes:
    """Returns the first key of a block; raises as `check_blocks`."""
    check_blocks([block])
    return bytes(next(_keys(block)))


def last_key(block: bytes) -> bytes:
    """Returns the last key of a block; raises as `check_blocks`."""
    check_blocks([block])
    key = bytearray()
    for key in _keys(block):  # noqa: B007
        pass
    return bytes(key)


def _keys(block: bytes) -> Iterator[bytearray]:
    """Yields each key of a checked block, as one object that changes."""
    reader, end = ByteReader(block), int(_Entries([block]).ends[0])
    key = bytearray()
    while reader.position < end:
        shared, own, size = reader.varint(), reader.varint(), reader.varint()
        del key[shared:]
        key += reader.take(own)
        yield key
        reader.skip(size)


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
