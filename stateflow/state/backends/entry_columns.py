"""Many entries as two columns, where a list with a Python object for each key and value would take longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.columnar.binary_columns import from_list, parts_of
from stateflow.state.columnar.sorted_rows import sorted_rows


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
    def concatenated(cls, parts: Sequence[EntryColumns]) -> EntryColumns:
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

    def sorted(self) -> EntryColumns:
        """Returns the entries in order of keys."""
        return self.take(sorted_rows(self.keys))

    def sorted_parts(self, size: int) -> Iterator[EntryColumns]:
        """Yields the entries in order of keys, in parts of about `size` bytes, which a processor's cache may hold."""
        rows = sorted_rows(self.keys)
        each = max(1, len(rows) * size // (self.bytes or 1))
        for first in range(0, len(rows), each):
            yield self.take(rows[first : first + each])

    def key_groups(self) -> NDArray[np.int64]:
        """Returns the key group of each entry."""
        data, offsets = parts_of(self.keys)
        starts = offsets[:-1]
        groups = data[starts].astype(np.int64) << 8 | data[starts + 1]
        return cast(NDArray[np.int64], groups)
