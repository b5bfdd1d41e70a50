"""Entries of keyed state as streams of blocks and as columns, for all formats of entries."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import lt
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.errors import CorruptFile
from stateflow.state.binary_columns import from_list, parts_of, sort_rows
from stateflow.state.stored_key import GROUP_BYTES, KeyRange, decode_group, encode_group
from stateflow.types.key_groups import KeyGroupRange

Entry = tuple[bytes, bytes]
"""A key, which begins with its key group, and its value."""
_BLOCK_BYTES = 256 << 10


@dataclass(frozen=True)
class EntryBlock:
    """Consecutive entries of a stream. What is done once for a block would take longer for each of its entries.

    Attributes:
        keys: at least one key; they ascend, and each begins with its key group.
        values: the values of the keys, in their order.
    """

    keys: list[bytes]
    values: list[bytes]

    def select(self, groups: KeyGroupRange) -> EntryBlock | None:
        """Returns the entries of some key groups; None without any."""
        first = bisect_left(self.keys, encode_group(groups.first))
        end = bisect_left(self.keys, encode_group(groups.last + 1))
        return EntryBlock(self.keys[first:end], self.values[first:end]) if first < end else None

    def by_group(self) -> Iterator[tuple[int, EntryBlock]]:
        """Yields each key group, with its entries."""
        first = 0
        while first < len(self.keys):
            group = decode_group(self.keys[first])
            end = bisect_left(self.keys, encode_group(group + 1), first)
            yield group, EntryBlock(self.keys[first:end], self.values[first:end])
            first = end


def entries_of(blocks: Iterable[EntryBlock]) -> Iterator[Entry]:
    """Yields the entries of blocks."""
    for block in blocks:
        yield from zip(block.keys, block.values, strict=True)
        del block  # Before the next one is read, since each may be large.


def blocks_of(entries: Iterable[Entry]) -> Iterator[EntryBlock]:
    """Yields entries, which are in order of keys, in blocks of about 256 KiB."""
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= _BLOCK_BYTES:
            yield EntryBlock(keys, values)
            keys, values, size = [], [], 0
    if keys:
        yield EntryBlock(keys, values)


def select_key_groups(blocks: Iterable[EntryBlock], groups: KeyGroupRange) -> Iterator[EntryBlock]:
    """Yields the entries of some key groups, in blocks."""
    return (selected for block in blocks if (selected := block.select(groups)))


def select_ranges(blocks: Iterable[EntryBlock], ranges: Sequence[KeyRange]) -> Iterator[EntryBlock]:
    """Yields the entries within ranges of keys, in blocks; `ranges` are ascending and do not overlap."""
    uppers = [upper for _, upper in ranges]
    for block in blocks:
        for at in range(bisect_right(uppers, block.keys[0]), len(ranges)):
            lower, upper = ranges[at]
            if lower > block.keys[-1]:
                break
            first, end = bisect_left(block.keys, lower), bisect_left(block.keys, upper)
            if first < end:
                yield EntryBlock(block.keys[first:end], block.values[first:end])


def block_of(items: list[bytes], last: bytes, name: str) -> EntryBlock:
    """Returns a decoded block of a stream.

    Args:
        items: its keys and values: key, value, key, …
        last: the key before them; empty for none.
        name: name of the file, for errors.

    Raises:
        CorruptFile: the items are not keys and values, or the keys do not ascend after `last` or have no key group.
    """
    if not items or len(items) % 2:
        raise unreadable_file(name, "a block is not an array of keys and values")
    keys = items[::2]
    if keys[0] <= last or not all(map(lt, keys, keys[1:])):
        raise unreadable_file(name, "its keys are not in order")
    if min(map(len, keys)) < GROUP_BYTES:
        raise unreadable_file(name, "a key is too short")
    return EntryBlock(keys, items[1::2])


def read_exactly(stream: BinaryIO, size: int, name: str) -> bytes:
    """Returns the next `size` bytes of a stream; raises CorruptFile if it ends before. `name` is that of the file."""
    data = stream.read(size)
    if len(data) != size:
        raise unreadable_file(name, "it is truncated")
    return data


def unreadable_file(name: str, reason: str) -> CorruptFile:
    """Returns the error for a file of entries that is not in its format."""
    return CorruptFile(
        "a file of state cannot be read",
        hint="restore an older checkpoint, or another savepoint",
        file=name,
        reason=reason,
    )


@dataclass(frozen=True)
class EntryColumns:
    """Entries of a stream, as columns without nulls.

    Attributes:
        keys: the keys, each of which begins with its key group.
        values: the values of the keys, in their order.
    """

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray

    @classmethod
    def of(cls, keys: Sequence[bytes], values: Sequence[bytes]) -> EntryColumns:
        """Returns entries whose keys and values are in lists."""
        return cls(from_list(keys), from_list(values))

    @classmethod
    def concatenate(cls, parts: Sequence[EntryColumns]) -> EntryColumns:
        """Returns the entries of at least one part in one."""
        if len(parts) == 1:
            return parts[0]
        return cls(pa.concat_arrays([p.keys for p in parts]), pa.concat_arrays([p.values for p in parts]))

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def bytes(self) -> int:
        """The size of all keys and values."""
        return sum(int(offsets[-1] - offsets[0]) for _, offsets in map(parts_of, (self.keys, self.values)))

    def block(self) -> EntryBlock:
        """Returns the entries with lists."""
        return EntryBlock(self.keys.to_pylist(), self.values.to_pylist())

    def slice(self, first: int, end: int) -> EntryColumns:
        """Returns consecutive entries; it copies nothing."""
        return EntryColumns(self.keys.slice(first, end - first), self.values.slice(first, end - first))

    def take(self, rows: NDArray[np.int64]) -> EntryColumns:
        """Returns the entries of some rows, in the order of `rows`."""
        # `pa.array` would import pandas.
        taken = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
        return EntryColumns(self.keys.take(taken), self.values.take(taken))

    def sort(self) -> EntryColumns:
        """Returns the entries in order of keys."""
        return self.take(sort_rows(self.keys))

    def sort_in_parts(self, size: int) -> Iterator[EntryColumns]:
        """Yields the entries in order of keys, in parts of about `size` bytes, which a processor's cache may hold."""
        rows = sort_rows(self.keys)
        each = max(1, len(rows) * size // (self.bytes or 1))
        for first in range(0, len(rows), each):
            yield self.take(rows[first : first + each])

    def key_groups(self) -> NDArray[np.int64]:
        """Returns the key group of each entry."""
        data, offsets = parts_of(self.keys)
        starts = offsets[:-1]
        groups = data[starts].astype(np.int64) << 8 | data[starts + 1]
        return cast(NDArray[np.int64], groups)
