"""Writes the file of a canonical savepoint from columns of entries: the bytes of `canonical_file.encode`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stateflow.state.backends.canonical_file import (
    BLOCK_BYTES,
    CanonicalHeader,
    compressed_block,
    end_of_file,
    end_of_group,
    file_header,
)
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.columnar.binary_columns import binary_headers, joined, parts_of, sizes_of

_SHORT_ARRAY, _ARRAY_16, _ARRAY_32 = 0x90, b"\xdc", b"\xdd"


def encode_columns(header: CanonicalHeader, parts: Iterable[EntryColumns]) -> Iterator[bytes]:
    """Yields the file in chunks, which do not depend on how the entries are divided into parts.

    Args:
        header: its header.
        parts: entries in order of keys, of the header's key groups.
    """
    yield file_header(header)
    count, last = 0, -1
    pending = _PendingBlock()
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
    yield end_of_file(count)


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
        data, offsets = parts_of(joined(binary_headers(keys), entries.keys, binary_headers(values), entries.values))
        return cls(data.data, offsets, np.concatenate((np.zeros(1, np.int64), np.cumsum(keys + values))))


class _PendingBlock:
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
            yield end_of_group(group)

    def _flush(self) -> Iterator[bytes]:
        if self._count:
            yield from compressed_block(b"".join((_array_header(2 * self._count), *self._parts)))
        self._parts, self._count, self._size = [], 0, 0


def _array_header(count: int) -> bytes:
    """Returns what an array of msgpack begins with."""
    if count < 16:
        return bytes([_SHORT_ARRAY | count])
    return _ARRAY_16 + count.to_bytes(2) if count < 1 << 16 else _ARRAY_32 + count.to_bytes(4)
