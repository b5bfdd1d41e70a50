"""The snapshot format of hash map stores: entries in order of keys, in blocks, as one stream of bytes.

::

    stream  = "SFKV" 01 block* 00000000 count        count: of entries, 8 bytes, big-endian
    block   = length items                           length: of items in bytes, 4 bytes, big-endian, not zero
    items   = a msgpack array of bin: key, value, key, value, …

Readers do not trust lengths: a block is neither larger than the remaining bytes nor than the largest one that a writer
makes, and has as few entries, so memory is bounded whatever the checkpoint has recorded. Keys that do not ascend, or
are too short to hold a key group, are refused, as are bytes after the end.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO

import msgspec

from stateflow.config.state_settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.state.backends.entry_stream import (
    GROUP_BYTES,
    Entry,
    EntryBlock,
    block_of,
    entries_of,
    read_exactly,
    select_key_groups,
    unreadable,
)
from stateflow.types.key_groups import KeyGroupRange

_HEAD = b"SFKV\x01"
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_BLOCK = 64 << 10
_MOST_ITEMS = 2 * _BLOCK // GROUP_BYTES
"""Keys and values of a block: a writer ends it with the entry that makes it 64 KiB, and no key is shorter."""
_LONGEST_HEADER = 5
_LARGEST_BLOCK = LARGEST_VALUE + 2 * LARGEST_KEY + _BLOCK + _LONGEST_HEADER * (_MOST_ITEMS + 1)
"""Bytes of a block: entries of 64 KiB, and the largest entry that any settings permit."""
_items = msgspec.msgpack.Decoder(Annotated[list[bytes], msgspec.Meta(max_length=_MOST_ITEMS)])


def encode(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yields the stream in chunks.

    Args:
        entries: (key, value) pairs in order of keys.
    """
    yield _HEAD
    count = 0
    items: list[bytes] = []
    size = 0
    for key, value in entries:
        items += (key, value)
        size += len(key) + len(value)
        count += 1
        if size >= _BLOCK:
            yield _block(items)
            items, size = [], 0
    if items:
        yield _block(items)
    yield _LENGTH.pack(0) + _COUNT.pack(count)


def decode_blocks(stream: BinaryIO, size: int, name: str) -> Iterator[EntryBlock]:
    """Yields the entries of a stream, in blocks.

    Args:
        stream: the stream.
        size: size of the stream in bytes.
        name: name of the file, for errors.

    Raises:
        CorruptFile: the stream is not of this format; entries may have been yielded before.
    """
    if stream.read(len(_HEAD)) != _HEAD:
        raise unreadable(name, "it does not start with the header of this version")
    left = size - len(_HEAD)
    count, last = 0, b""
    while length := _number(stream, _LENGTH, name):
        left -= _LENGTH.size + length
        if left < 0:
            raise unreadable(name, "a block is longer than the file")
        if length > _LARGEST_BLOCK:
            raise unreadable(name, "a block is larger than any that is written")
        block = block_of(_items_of(read_exactly(stream, length, name), name), last, name)
        last = block.keys[-1]
        count += len(block.keys)
        yield block
        del block  # Before the next one is read, since each may be large.
    if _number(stream, _COUNT, name) != count:
        raise unreadable(name, "its number of entries differs from the recorded count")
    if stream.read(1):
        raise unreadable(name, "there are bytes after its end")


def restrict(data: bytes, owned: KeyGroupRange, name: str) -> bytes:
    """Returns the stream `data` with only the entries of the key groups `owned`. Raises as `decode_blocks` does."""
    blocks = decode_blocks(io.BytesIO(data), len(data), name)
    return b"".join(encode(entries_of(select_key_groups(blocks, owned))))


def _block(items: list[bytes]) -> bytes:
    data = msgspec.msgpack.encode(items)
    return _LENGTH.pack(len(data)) + data


def _items_of(data: bytes, name: str) -> list[bytes]:
    try:
        items: list[bytes] = _items.decode(data)
    except msgspec.DecodeError as e:
        raise unreadable(name, str(e)) from e
    return items


def _number(stream: BinaryIO, layout: struct.Struct, name: str) -> int:
    (value,) = layout.unpack(read_exactly(stream, layout.size, name))
    return int(value)
