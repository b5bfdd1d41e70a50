"""The size of each row of Arrow columns, to divide rows into parts of bounded size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Sizes = NDArray[np.int64]
_OFFSET = 4
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def row_bytes(column: pa.Array) -> Sizes:
    """Returns about how many bytes each row of a column takes in memory, without its validity bit."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [row_bytes(column.field(at)) for at in range(kind.num_fields)]
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(len(column), np.int64)
    if pa.types.is_map(kind):
        # Keys and items are those of the whole array, of which this may be a slice.
        offsets = column.offsets.to_numpy()
        entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "item"])
        return _of_lists(np.diff(offsets), entries.slice(offsets[0], offsets[-1] - offsets[0]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(_lengths(pc.list_value_length(column)), column.flatten())
    if any(is_kind(kind) for is_kind in _TEXTS):
        return _lengths(pc.binary_length(column)) + _OFFSET
    return np.full(len(column), -(-column.nbytes // max(len(column), 1)), np.int64)


def _lengths(column: pa.Array) -> Sizes:
    found: Sizes = column.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _of_lists(lengths: Sizes, elements: pa.Array) -> Sizes:
    until = np.append(0, np.cumsum(row_bytes(elements)))
    ends = np.cumsum(lengths)
    found: Sizes = until[ends] - until[ends - lengths] + _OFFSET
    return found
