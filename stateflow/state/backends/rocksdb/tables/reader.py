"""Reads the entries of a data file (``.sst``) by key, without RocksDB: only the blocks that may have the keys.

Deleted entries are entries of their own kind, and deleted ranges are read as well, so that a reader of several files
can find the newest entry of a key: the one with the largest sequence number.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from stateflow.state.backends.rocksdb.tables.blocks import INTERNAL, TRAILER, entries_of, index_parts, require
from stateflow.state.backends.rocksdb.tables.file import (
    INDEX,
    LOADED,
    PROPERTIES,
    RANGE_DELETIONS,
    USER_KEYS,
    Handle,
    TableFile,
    check_properties,
)

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
