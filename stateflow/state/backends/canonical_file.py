"""The file of a canonical savepoint: keyed state of a range of key groups, independent of state backends.

::

    file         = "SFCS" 01 length checksum header record* 00 count     header: JSON of a `CanonicalHeader`
    record       = block | end of group
    block        = 01 length size checksum data      data: an LZ4 frame, `length` bytes
    end of group = 02 group                          after the last entry of a key group
    contents     = a msgpack array of bin: key, value, …    what `data` is decompressed to, `size` bytes

Numbers are big-endian: lengths, sizes and the count of entries after the end have 4, 4 and 8 bytes, a group has 2. The
checksum is the XXH64 of the header or of `data`, 8 bytes. Entries are in order of keys, so in order of key group, state
and key. A block has entries of one key group only, so a file can be divided by key groups without decompressing it.

Readers trust no length: memory is bounded by the largest block that a writer makes, whatever a file has recorded.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import add
from typing import Annotated, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stateflow.config.settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.entry_stream import EntryBlock, EntryColumns, block_of, read_exactly, unreadable_file
from stateflow.state.binary_columns import binary_headers, join_columns, parts_of, sizes_of
from stateflow.state.handles import Document, StateSchema
from stateflow.state.stored_key import GROUP_BYTES, decode_group, encode_group
from stateflow.types.decoders import decode_json
from stateflow.types.key_groups import KeyGroupRange

_NAME, _VERSION = b"SFCS", 1
_MAGIC = _NAME + bytes([_VERSION])
_HEAD, _BLOCK, _COUNT = struct.Struct(">IQ"), struct.Struct(">IIQ"), struct.Struct(">Q")
_END, _IS_BLOCK, _END_OF_GROUP = b"\x00", b"\x01", b"\x02"
BLOCK_BYTES = 256 << 10
"""Bytes of keys and values with which a block ends."""
_MOST_ITEMS = 2 * BLOCK_BYTES // GROUP_BYTES
"""Keys and values of a block: a writer ends it with the entry that makes it 256 KiB, and no key is shorter."""
_LONGEST_ITEM_HEADER = 5
_LARGEST_BLOCK = LARGEST_VALUE + 2 * LARGEST_KEY + BLOCK_BYTES + _LONGEST_ITEM_HEADER * (_MOST_ITEMS + 1)
"""Bytes of a decompressed block: entries of 256 KiB, and the largest entry that any settings permit."""
_LARGEST_HEADER = 16 << 20
_codec = pa.Codec("lz4")
_items = msgspec.msgpack.Decoder(Annotated[list[bytes], msgspec.Meta(max_length=_MOST_ITEMS)])


class CanonicalHeader(Document, frozen=True, kw_only=True):
    """The content of a file, and the encoding of its keys and values."""

    uid: str
    """The operator."""
    key_types: list[str]
    """Types of the key columns, by Spark's names."""
    max_parallelism: int
    """Number of key groups of the job."""
    first_group: int
    last_group: int
    """The range of key groups whose entries the file may have."""
    states: list[StateSchema]
    """The states, whose ids are in the keys."""


def encode_file(header: CanonicalHeader, blocks: Iterable[EntryBlock]) -> Iterator[bytes]:
    """Yields the file in chunks, which do not depend on how the entries are divided into blocks.

    Args:
        header: its header.
        blocks: entries in order of keys, of the header's key groups.
    """
    yield encode_header(header)
    count, last = 0, -1
    pending = _PendingBlock()
    for block in blocks:
        count += len(block.keys)
        for group, entries in block.by_group():
            if group != last:
                yield from _end(pending, last)
                last = group
            yield from pending.add(entries)
    yield from _end(pending, last)
    yield encode_end_of_file(count)


def encode_header(header: CanonicalHeader) -> bytes:
    """Returns what a file begins with."""
    text = msgspec.json.encode(header)
    return _MAGIC + _HEAD.pack(len(text), xxhash.xxh64_intdigest(text)) + text


def encode_end_of_group(group: int) -> bytes:
    """Returns what ends the blocks of a key group."""
    return _END_OF_GROUP + encode_group(group)


def encode_end_of_file(count: int) -> bytes:
    """Returns what ends a file with some number of entries."""
    return _END + _COUNT.pack(count)


def compress_block(contents: bytes) -> tuple[bytes, bytes]:
    """Returns the two parts of a block with contents."""
    data: bytes = _codec.compress(contents, asbytes=True)
    return _IS_BLOCK + _BLOCK.pack(len(data), len(contents), xxhash.xxh64_intdigest(data)), data


def _end(pending: _PendingBlock, group: int) -> Iterator[bytes]:
    """Yields what ends a key group; nothing before the first one."""
    yield from pending.flush()
    if group >= 0:
        yield encode_end_of_group(group)


class _PendingBlock:
    """Entries of one key group that are not written yet: less than a block has."""

    def __init__(self) -> None:
        self._items: list[bytes] = []
        self._size = 0

    def add(self, entries: EntryBlock) -> Iterator[bytes]:
        """Adds entries; yields the blocks that they complete."""
        ends = list(accumulate(map(add, map(len, entries.keys), map(len, entries.values))))
        first = written = 0
        while (last := bisect_left(ends, written + BLOCK_BYTES - self._size, first)) < len(ends):
            self._append(entries, first, last + 1)
            yield from self.flush()
            first, written = last + 1, ends[last]
        self._append(entries, first, len(ends))
        self._size += ends[-1] - written

    def _append(self, entries: EntryBlock, first: int, end: int) -> None:
        items = [b""] * (2 * (end - first))
        items[::2], items[1::2] = entries.keys[first:end], entries.values[first:end]
        self._items += items

    def flush(self) -> Iterator[bytes]:
        """Yields a block with what is in memory, if there is something."""
        if self._items:
            yield from compress_block(msgspec.msgpack.encode(self._items))
        self._items, self._size = [], 0


def read_header(stream: BinaryIO, name: str) -> CanonicalHeader:
    """Reads the beginning of a file up to its first record.

    Args:
        stream: the file, at its beginning.
        name: name of the file, for errors.

    Raises:
        CorruptFile: it is not a file of this version.
    """
    if (magic := stream.read(len(_MAGIC))) != _MAGIC:
        raise unreadable_file(name, _unknown_form(magic))
    length, checksum = _HEAD.unpack(read_exactly(stream, _HEAD.size, name))
    if length > _LARGEST_HEADER:
        raise unreadable_file(name, "its header is too large")
    text = read_exactly(stream, length, name)
    if xxhash.xxh64_intdigest(text) != checksum:
        raise unreadable_file(name, "the checksum of its header does not match")
    try:
        header = decode_json(CanonicalHeader, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise unreadable_file(name, str(e)) from e
    if not 0 <= header.first_group <= header.last_group < header.max_parallelism:
        raise unreadable_file(name, "its key groups are not a range")
    return header


def _unknown_form(magic: bytes) -> str:
    if magic[:-1] != _NAME:
        return "it is not a canonical file"
    return f"it has version {magic[-1]} of the canonical format, and this version of stateflow reads {_VERSION}"


@dataclass(frozen=True)
class _Group:
    """The blocks of a key group.

    Attributes:
        number: the key group.
        offset: position of its first record in the file.
        blocks: number of blocks, at least one.
    """

    number: int
    offset: int
    blocks: int


def decode_groups(stream: BinaryIO, name: str, owned: KeyGroupRange) -> Iterator[EntryBlock]:
    """Yields the entries of some key groups in order of keys, in blocks. Blocks of others are not read.

    Args:
        stream: the file, at its beginning; it can seek.
        name: name of the file, for errors.
        owned: the key groups.

    Raises:
        CorruptFile: the file is not of this format; entries may have been yielded before.
    """
    groups, count = _find_groups(stream, name)
    numbers = [group.number for group in groups]
    first, end = bisect_left(numbers, owned.first), bisect_right(numbers, owned.last)
    # No checksum covers the number of a key group. The first block shows it, and damage to one number that hides an
    # owned key group makes it one of these two.
    for neighbour in (*groups[max(0, first - 1) : first], *groups[end : end + 1]):
        next(_read_group(stream, name, neighbour))
    found = 0
    for group in groups[first:end]:
        for block in _read_group(stream, name, group):
            found += len(block.keys)
            yield block
            del block  # Before the next one is read, since each may be large.
    if end - first == len(groups) and found != count:
        raise unreadable_file(name, "its number of entries differs from the recorded count")


def _find_groups(stream: BinaryIO, name: str) -> tuple[list[_Group], int]:
    """Returns the key groups of a file in ascending order, and the recorded number of entries, reading no block."""
    header = read_header(stream, name)
    groups: list[_Group] = []
    offset, blocks, last = stream.tell(), 0, header.first_group - 1
    while (tag := read_exactly(stream, 1, name)) != _END:
        if tag == _IS_BLOCK:
            stream.seek(_read_head(stream, name)[0], os.SEEK_CUR)
            blocks += 1
        elif tag == _END_OF_GROUP:
            number = decode_group(read_exactly(stream, GROUP_BYTES, name))
            if not blocks or not last < number <= header.last_group:
                raise unreadable_file(
                    name, "a key group has no entries, or is not in order or not in the range of the file"
                )
            groups.append(_Group(number, offset, blocks))
            offset, blocks, last = stream.tell(), 0, number
        else:
            raise unreadable_file(name, "a record has an unknown kind")
    if blocks:
        raise unreadable_file(name, "its last key group has no end")
    (count,) = _COUNT.unpack(read_exactly(stream, _COUNT.size, name))
    if stream.read(1):
        raise unreadable_file(name, "there are bytes after its end")
    return groups, count


def _read_group(stream: BinaryIO, name: str, group: _Group) -> Iterator[EntryBlock]:
    """Yields the blocks of a key group; raises CorruptFile for keys of another one."""
    stream.seek(group.offset)
    prefix, last = encode_group(group.number), b""
    for _ in range(group.blocks):
        read_exactly(stream, 1, name)
        block = block_of(_read_items(stream, name), last, name)
        # The keys are in order, so all between these two begin with the same key group.
        if not block.keys[0].startswith(prefix) or not block.keys[-1].startswith(prefix):
            raise unreadable_file(name, "a block has keys of another key group")
        last = block.keys[-1]
        yield block
        del block


def _read_head(stream: BinaryIO, name: str) -> tuple[int, int, int]:
    """Returns length, size and checksum of a block whose kind was read."""
    length, size, checksum = _BLOCK.unpack(read_exactly(stream, _BLOCK.size, name))
    if max(length, size) > _LARGEST_BLOCK:
        raise unreadable_file(name, "a block exceeds the largest size")
    return length, size, checksum


def _read_items(stream: BinaryIO, name: str) -> list[bytes]:
    length, size, checksum = _read_head(stream, name)
    data = read_exactly(stream, length, name)
    if xxhash.xxh64_intdigest(data) != checksum:
        raise unreadable_file(name, "the checksum of a block does not match")
    try:
        # A buffer of Arrow, whose memory is used again: with new pages for each block, LZ4 takes four times as long. It
        # has `size` bytes in any case, and bytes after the array are an error.
        items: list[bytes] = _items.decode(_codec.decompress(data, size))
    except (OSError, ValueError, msgspec.DecodeError) as e:
        raise unreadable_file(name, str(e)) from e
    return items


_SHORT_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, b"\xdc", b"\xdd"


def encode_file_of_columns(header: CanonicalHeader, parts: Iterable[EntryColumns]) -> Iterator[bytes]:
    """Yields the file in chunks, which do not depend on how the entries are divided into parts.

    Args:
        header: its header.
        parts: entries in order of keys, of the header's key groups.
    """
    yield encode_header(header)
    count, last = 0, -1
    pending = _PendingColumns()
    for entries in parts:
        count += len(entries)
        items = _Items.of(entries)
        groups = entries.key_groups()
        for first, end in pairwise([0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]):
            group = int(groups[first])
            if group != last:
                yield from pending.end(last)
                last = group
            yield from pending.add(items, first, end)
        del items
    yield from pending.end(last)
    yield encode_end_of_file(count)


@dataclass(frozen=True)
class _Items:
    """Entries as a block contains them.

    Attributes:
        data: for each entry its key and its value, both as binary data of msgpack.
        offsets: offset of each entry, and of the end.
        sizes: the size of keys and values up to each entry, and of all of them.
    """

    data: memoryview
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, entries: EntryColumns) -> _Items:
        keys, values = sizes_of(entries.keys), sizes_of(entries.values)
        data, offsets = parts_of(
            join_columns(binary_headers(keys), entries.keys, binary_headers(values), entries.values)
        )
        return cls(data.data, offsets, np.concatenate((np.zeros(1, np.int64), np.cumsum(keys + values))))


class _PendingColumns:
    """Entries of one key group that are not written yet: less than a block has."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        self._count = self._size = 0

    def add(self, items: _Items, first: int, end: int) -> Iterator[bytes]:
        """Adds the entries from `first` to `end`; yields the blocks that they complete."""
        sizes = items.sizes
        while first < end:
            missing = sizes[first] + BLOCK_BYTES - self._size
            # An entry that makes it 256 KiB is the last one of a block.
            found = first + int(np.searchsorted(sizes[first + 1 : end + 1], missing)) + 1
            until = min(found, end)
            self._parts.append(items.data[items.offsets[first] : items.offsets[until]])
            self._count += until - first
            self._size += int(sizes[until] - sizes[first])
            if found <= end:
                yield from self._flush()
            first = until

    def end(self, group: int) -> Iterator[bytes]:
        """Yields what ends a key group; nothing before the first one."""
        yield from self._flush()
        if group >= 0:
            yield encode_end_of_group(group)

    def _flush(self) -> Iterator[bytes]:
        if self._count:
            yield from compress_block(b"".join((_array_header(2 * self._count), *self._parts)))
        self._parts, self._count, self._size = [], 0, 0


def _array_header(count: int) -> bytes:
    """Returns what an array of msgpack begins with."""
    if count < 16:
        return bytes([_SHORT_ARRAY | count])
    return _ARRAY_16 + count.to_bytes(2) if count < 1 << 16 else _ARRAY_32 + count.to_bytes(4)
