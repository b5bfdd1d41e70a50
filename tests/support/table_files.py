"""Forged data files of RocksDB: any change of their blocks, with checksums that fit.

The checksums are those of RocksDB's format version 6 with XXH3; see `ComputeBuiltinChecksum` and
`ChecksumModifierForContext` in RocksDB's `table/format.h`.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import xxhash
from rocksdict import BlockBasedOptions, DBCompressionType, Options, Rdict, WriteBatch

from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.backend import bulk_load, open_store, rocksdb_options, without_wal
from stateflow.state.backends.rocksdb.manifest import ByteReader
from stateflow.state.backends.rocksdb.tables import data_blocks, decompress_block, entries_of

FOOTER_BYTES = 53
TRAILER_BYTES = 5
_LOW = 0xFFFFFFFF
_FOOTER_CHECKSUM, _BASE_CONTEXT, _METAINDEX_SIZE = 5, 9, 13


def store_options(compression: DBCompressionType) -> Options:
    options = rocksdb_options(RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20))
    options.set_compression_type(compression)
    return options


def write_store(folder: Path, entries: Mapping[bytes, bytes], compression: DBCompressionType) -> None:
    """Writes a store with the entries in one file, and a deleted range in another."""
    store = Rdict(str(folder), options=store_options(compression))
    store.set_write_options(without_wal())
    batch = WriteBatch(raw_mode=True)
    for key, value in entries.items():
        batch.put(key, value)
    store.write(batch)
    store.flush()
    store.delete_range(b"\0\5", b"\0\6")
    store.flush()
    store.close()
    for path in folder.glob("LOG*"):
        path.unlink()


def write_apart(folder: Path, keys: Iterable[bytes]) -> None:
    """Writes a store with the keys in one file without compression, each in a block of its own."""
    options = store_options(DBCompressionType.none())
    blocks = BlockBasedOptions()
    blocks.set_block_size(1)
    options.set_block_based_table_factory(blocks)
    store = Rdict(str(folder), options=options)
    store.set_write_options(without_wal())
    for key in keys:
        store.put(key, b"")
    store.flush()
    store.close()


def write_loaded_store(folder: Path, entries: Mapping[bytes, bytes]) -> None:
    """Writes a store with the entries in one file that was loaded, and a deleted range in another."""
    small = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)
    store = open_store(folder, small)
    keys = sorted(entries)
    bulk_load(store, small, [EntryBlock(keys, [entries[key] for key in keys])])
    store.delete_range(b"\0\5", b"\0\6")
    store.flush()
    store.close()
    for path in folder.glob("LOG*"):
        path.unlink()


@dataclass(frozen=True)
class Block:
    """A block of a file: what it is, where it starts, its size without the trailer."""

    kind: str
    offset: int
    size: int


class ForgedTable:
    """A data file whose bytes can be changed in place; a block that is not compressed, in a known way.

    Args:
        data: the bytes of an intact file.
    """

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.footer = len(data) - FOOTER_BYTES
        self.blocks = [*self._find_blocks()]

    def copied(self) -> ForgedTable:
        other = copy.copy(self)
        other.data = bytearray(self.data)
        return other

    def block(self, kind: str) -> Block:
        return next(block for block in self.blocks if block.kind.removeprefix("rocksdb.") == kind)

    def properties(self) -> dict[bytes, bytes]:
        return dict(entries_of(self._content(self.block("properties"))))

    def change(self, block: Block, at: int, data: bytes) -> None:
        """Replaces bytes of a block; `at` its size is the byte that names its compression."""
        self.data[block.offset + at : block.offset + at + len(data)] = data

    def sealed(self) -> bytes:
        for block in self.blocks:
            end = block.offset + block.size
            self._put(end + 1, self._checksum(block.offset, end + 1))
        self._put(self.footer + _FOOTER_CHECKSUM, 0)
        self._put(self.footer + _FOOTER_CHECKSUM, self._checksum(self.footer, len(self.data)))
        return bytes(self.data)

    def _find_blocks(self) -> Iterator[Block]:
        size = self._number(self.footer + _METAINDEX_SIZE)
        metaindex = Block("metaindex", self.footer - TRAILER_BYTES - size, size)
        yield metaindex
        for name, value in entries_of(self._content(metaindex)):
            reader = ByteReader(value)
            block = Block(name.decode(), reader.varint(), reader.varint())
            yield block
            if block.kind == "rocksdb.index":
                yield from self._data_blocks(self._content(block))

    def _data_blocks(self, index: bytes) -> Iterator[Block]:
        offset = 0
        for size in chain.from_iterable(sizes.tolist() for sizes in data_blocks(index, shortest_key=0)):
            yield Block("data", offset, size)
            offset += size + TRAILER_BYTES

    def _content(self, block: Block) -> bytes:
        return decompress_block(bytes(self.data[block.offset : block.offset + block.size + TRAILER_BYTES]))

    def _checksum(self, start: int, end: int) -> int:
        found = xxhash.xxh3_64_intdigest(bytes(self.data[start : end - 1])) & _LOW
        found ^= self.data[end - 1] * 0x6B9083D9 & _LOW
        base = self._number(self.footer + _BASE_CONTEXT)
        context = base ^ (start & _LOW) + (start >> 32) & _LOW
        return found + (context if base else 0) & _LOW

    def _number(self, at: int) -> int:
        (found,) = struct.unpack_from("<I", self.data, at)
        return int(found)

    def _put(self, at: int, number: int) -> None:
        struct.pack_into("<I", self.data, at, number)


def restart_outside(table: ForgedTable) -> None:
    """RocksDB looks a key up at the restarts of a block, and does not check that they are in the block."""
    block = table.block("data")
    table.change(block, block.size - 5, b"\x88")


def too_many_restarts(table: ForgedTable) -> None:
    block = table.block("data")
    table.change(block, block.size - 1, b"\x7f")


def key_shares_too_much(table: ForgedTable) -> None:
    table.change(table.block("data"), 0, b"\5")


def value_outside(table: ForgedTable) -> None:
    table.change(table.block("data"), 2, b"\xff\x7f")


def block_outside(table: ForgedTable) -> None:
    block = table.block("index")
    table.change(block, block.size - 6, b"\x7f")


def filter_in_data(table: ForgedTable) -> None:
    """RocksDB finds a block in its cache by its position: it could take a data block for the filter."""
    name = b"fullfilter.rocksdb.BuiltinBloomFilter"
    block = table.block("metaindex")
    at = table.data.index(name, block.offset) + len(name)
    # The position of the filter has more than one byte: 0 with as many.
    while table.data[at] >= 0x80:
        table.data[at] = 0x80
        at += 1
    table.data[at] = 0


def unknown_compression(table: ForgedTable) -> None:
    block = table.block("data")
    table.change(block, block.size, b"\7")


def wide_columns(table: ForgedTable) -> None:
    """An entry of another kind: RocksDB ends the process when it is looked up."""
    block = table.block("data")
    key_size = table.data[block.offset + 1]
    table.change(block, 3 + key_size - 8, b"\x16")


def bomb(table: ForgedTable) -> None:
    """4 GB after decompression."""
    block = table.block("data")
    table.change(block, 0, b"\xff\xff\xff\xff\x0f")
    table.change(block, block.size, b"\4")


def other_index(table: ForgedTable) -> None:
    """An index of two levels, whose blocks RocksDB would read as such."""
    at = table.data.index(b"table.index.type") + len("table.index.type")
    table.data[at] = 2


def other_version(table: ForgedTable) -> None:
    table.data[-12] = 5


def without_checksums(table: ForgedTable) -> None:
    table.data[table.footer] = 0


def endless_groups(table: ForgedTable) -> None:
    """A loop that seeks one key group after the other does not end; each block for itself is as it must be.

    The file has two entries, in blocks of their own. Both get the first key group, and the index says that the second
    block ends before the next one: RocksDB seeks that in the first block, does not find it, and takes what follows.
    """
    first, second = (block for block in table.blocks if block.kind == "data")
    for block in (first, second):
        table.change(block, 3, b"\0\0")
    index = table.block("index")
    table.change(index, struct.unpack_from("<I", table.data, index.offset + index.size - 8)[0] + 2, b"\0\0")


ATTACKS = [
    restart_outside, too_many_restarts, key_shares_too_much, value_outside, block_outside, filter_in_data,
    unknown_compression, wide_columns, bomb, other_index, other_version, without_checksums,
]  # fmt: skip
"""Changes with which RocksDB would crash, read outside of a block, or allocate gigabytes."""
