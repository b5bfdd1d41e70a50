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

import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO

import msgspec
import pyarrow as pa
import xxhash

from stateflow.config.state_settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.entry_stream import GROUP_BYTES, Entry, read_exactly, unreadable
from stateflow.state.handles import Document, StateSchema
from stateflow.types.bounded_json import decode_json

_MAGIC = b"SFCS\x01"
_HEAD, _BLOCK, _GROUP, _COUNT = struct.Struct(">IQ"), struct.Struct(">IIQ"), struct.Struct(">H"), struct.Struct(">Q")
_END, _IS_BLOCK, _END_OF_GROUP = b"\x00", b"\x01", b"\x02"
_BLOCK_BYTES = 256 << 10
_MOST_ITEMS = 2 * _BLOCK_BYTES // GROUP_BYTES
"""Keys and values of a block: a writer ends it with the entry that makes it 256 KiB, and no key is shorter."""
_LONGEST_ITEM_HEADER = 5
_LARGEST_BLOCK = LARGEST_VALUE + 2 * LARGEST_KEY + _BLOCK_BYTES + _LONGEST_ITEM_HEADER * (_MOST_ITEMS + 1)
"""Bytes of a decompressed block: entries of 256 KiB, and the largest entry that any settings permit."""
_LARGEST_HEADER = 16 << 20
_codec = pa.Codec("lz4")
_items = msgspec.msgpack.Decoder(Annotated[list[bytes], msgspec.Meta(max_length=_MOST_ITEMS)])


class CanonicalHeader(Document, frozen=True, kw_only=True):
    """What a file contains, and how its keys and values are encoded."""

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


def encode(header: CanonicalHeader, entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yields the file in chunks.

    Args:
        header: its header.
        entries: (key, value) pairs in order of keys, of the header's key groups.
    """
    text = msgspec.json.encode(header)
    yield _MAGIC + _HEAD.pack(len(text), xxhash.xxh64_intdigest(text)) + text
    count, size, group = 0, 0, b""
    items: list[bytes] = []
    for key, value in entries:
        if key[:GROUP_BYTES] != group:
            if items:
                yield _block(items)
            if group:
                yield _END_OF_GROUP + group
            items, size, group = [], 0, key[:GROUP_BYTES]
        items += (key, value)
        size += len(key) + len(value)
        count += 1
        if size >= _BLOCK_BYTES:
            yield _block(items)
            items, size = [], 0
    if items:
        yield _block(items)
    if group:
        yield _END_OF_GROUP + group
    yield _END + _COUNT.pack(count)


def _block(items: list[bytes]) -> bytes:
    contents = msgspec.msgpack.encode(items)
    data: bytes = _codec.compress(contents, asbytes=True)
    return _IS_BLOCK + _BLOCK.pack(len(data), len(contents), xxhash.xxh64_intdigest(data)) + data


def read_header(stream: BinaryIO, name: str) -> CanonicalHeader:
    """Reads the beginning of a file up to its first record.

    Args:
        stream: the file, at its beginning.
        name: name of the file, for errors.

    Raises:
        CorruptFile: it is not a file of this version.
    """
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise unreadable(name, "it does not start with the header of this version")
    length, checksum = _HEAD.unpack(read_exactly(stream, _HEAD.size, name))
    if length > _LARGEST_HEADER:
        raise unreadable(name, "its header is too large")
    text = read_exactly(stream, length, name)
    if xxhash.xxh64_intdigest(text) != checksum:
        raise unreadable(name, "the checksum of its header does not match")
    try:
        header = decode_json(CanonicalHeader, text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise unreadable(name, str(e)) from e
    if not 0 <= header.first_group <= header.last_group < header.max_parallelism:
        raise unreadable(name, "its key groups are not a range")
    return header


def decode(stream: BinaryIO, name: str) -> Iterator[Entry]:
    """Yields the entries of a file in order of keys.

    Args:
        stream: the file, at its beginning.
        name: name of the file, for errors.

    Raises:
        CorruptFile: the file is not of this format; entries may have been yielded before.
    """
    header = read_header(stream, name)
    count, last, ended = 0, b"", header.first_group - 1
    while (tag := read_exactly(stream, 1, name)) != _END:
        if tag == _END_OF_GROUP:
            (group,) = _GROUP.unpack(read_exactly(stream, GROUP_BYTES, name))
            if last[:GROUP_BYTES] != _GROUP.pack(group) or not ended < group <= header.last_group:
                raise unreadable(name, "the end of a key group is not after its entries")
            ended = group
            continue
        if tag != _IS_BLOCK:
            raise unreadable(name, "a record is of an unknown kind")
        items = _read_block(stream, name)
        keys = items[::2]
        _check_keys(last, keys, ended, name)
        last = keys[-1]
        count += len(keys)
        yield from zip(keys, items[1::2], strict=True)
        del items, keys  # Before the next block is read, since each may be large.
    if last and last[:GROUP_BYTES] != _GROUP.pack(ended):
        raise unreadable(name, "its last key group has no end")
    if _COUNT.unpack(read_exactly(stream, _COUNT.size, name)) != (count,):
        raise unreadable(name, "its number of entries differs from the recorded count")
    if stream.read(1):
        raise unreadable(name, "there are bytes after its end")


def _read_block(stream: BinaryIO, name: str) -> list[bytes]:
    length, size, checksum = _BLOCK.unpack(read_exactly(stream, _BLOCK.size, name))
    if max(length, size) > _LARGEST_BLOCK:
        raise unreadable(name, "a block is larger than any that is written")
    data = read_exactly(stream, length, name)
    if xxhash.xxh64_intdigest(data) != checksum:
        raise unreadable(name, "the checksum of a block does not match")
    try:
        contents = _codec.decompress(data, size, asbytes=True)
        items: list[bytes] = _items.decode(contents)
    except (OSError, ValueError, msgspec.DecodeError) as e:
        raise unreadable(name, str(e)) from e
    if len(contents) != size or not items or len(items) % 2:
        raise unreadable(name, "a block is not an array of keys and values of the recorded size")
    return items


def _check_keys(last: bytes, keys: list[bytes], ended: int, name: str) -> None:
    """Raises CorruptFile unless the keys ascend after `last`, and are all of one key group that has not ended.

    Args:
        last: the key before them; empty for none.
        keys: the keys of a block.
        ended: the last key group that has ended.
        name: name of the file.
    """
    group, before = keys[0][:GROUP_BYTES], last[:GROUP_BYTES]
    if keys[0] <= last or keys != sorted(keys) or len(set(keys)) != len(keys):
        raise unreadable(name, "its keys are not in order")
    if len(group) < GROUP_BYTES or group != keys[-1][:GROUP_BYTES] or int.from_bytes(group) <= ended:
        raise unreadable(name, "a block has several key groups, or one that has ended")
    if last and before != group and int.from_bytes(before) != ended:
        raise unreadable(name, "a key group has no end")
