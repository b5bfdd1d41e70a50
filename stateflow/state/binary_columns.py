"""Columns of binary data, for many rows of state without a Python object for each, and the order of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


_SHORT_BINARY, _SHORT_TEXT = 0xC4, 0xA0
_LONGEST_SHORT_TEXT = 31


def from_list(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """Returns a column of values. `pa.array` would import pandas."""
    offsets = np.fromiter(accumulate(map(len, values), initial=0), np.int64, len(values) + 1)
    return from_parts(b"".join(values), offsets)


def from_parts(data: bytes | Bytes, offsets: Numbers) -> pa.LargeBinaryArray:
    """Returns the column of the n parts of data between n + 1 ascending offsets; it copies nothing."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def from_rows(data: Bytes) -> pa.LargeBinaryArray:
    """Returns a column of values of one size, which are the rows of an array."""
    count, width = data.shape
    return from_parts(np.ascontiguousarray(data).reshape(-1), np.arange(count + 1, dtype=np.int64) * width)


def empty_values(count: int) -> pa.LargeBinaryArray:
    """Returns a column of empty values."""
    return from_parts(b"", np.zeros(count + 1, np.int64))


def parts_of(column: pa.LargeBinaryArray) -> tuple[Bytes, Numbers]:
    """Returns data and the n + 1 offsets of a column without nulls in it; it copies nothing."""
    _, offsets, data = column.buffers()
    if not len(column):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    found = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    return np.frombuffer(data or b"", np.uint8), found


def sizes_of(column: pa.LargeBinaryArray) -> Numbers:
    """Returns the size of each value of a column without nulls."""
    sizes: Numbers = np.diff(parts_of(column)[1])
    return sizes


def largest_of(column: pa.LargeBinaryArray) -> int:
    """Returns the size of the largest value; 0 without one."""
    return int(sizes_of(column).max(initial=0))


def join_columns(*parts: pa.LargeBinaryArray | bytes) -> pa.LargeBinaryArray:
    """Returns a column whose values are those of columns one after the other; bytes are the same in each row."""
    # `pa.scalar` would import pandas.
    arguments = [from_list([part])[0] if isinstance(part, bytes) else part for part in (*parts, b"")]
    return pc.binary_join_element_wise(*arguments)


def without_first_byte(column: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Returns a column of values, none of which is empty, without their first bytes."""
    data, offsets = parts_of(column)
    # Arrow's `binary_slice` fails for some columns that are slices of others.
    rest = np.delete(data[offsets[0] : offsets[-1]], offsets[:-1] - offsets[0])
    return from_parts(rest, offsets - offsets[0] - np.arange(len(offsets)))


def is_valid(column: pa.Array) -> bool:
    """Returns whether all texts of a column are valid UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def binary_headers(sizes: Numbers) -> pa.LargeBinaryArray:
    """Returns what msgpack has before binary data of these sizes."""
    if int(sizes.max(initial=0)) < 1 << 8:
        short = np.full((len(sizes), 2), _SHORT_BINARY, np.uint8)
        short[:, 1] = sizes
        return from_rows(short)
    data, used = binary_header_rows(sizes)
    if (used == used.max(initial=0)).all():
        return from_rows(data[:, : int(used.max(initial=0))])
    is_used = np.arange(data.shape[1]) < used[:, None]
    return from_parts(data[is_used], np.concatenate((np.zeros(1, np.int64), np.cumsum(used))))


def binary_header_rows(sizes: Numbers) -> tuple[Bytes, Numbers]:
    """Returns what msgpack has before binary data of these sizes: a row for each, and how many of its bytes count."""
    widths = np.where(sizes < 1 << 8, 1, np.where(sizes < 1 << 16, 2, 4))
    tags = np.where(sizes < 1 << 8, _SHORT_BINARY, np.where(sizes < 1 << 16, 0xC5, 0xC6))
    return _header_rows(tags, widths, sizes)


def text_header_rows(sizes: Numbers) -> tuple[Bytes, Numbers]:
    """Returns what msgpack has before texts of these sizes in bytes, as `binary_header_rows`."""
    is_short = sizes <= _LONGEST_SHORT_TEXT
    widths = np.where(is_short, 0, np.where(sizes < 1 << 8, 1, np.where(sizes < 1 << 16, 2, 4)))
    tags = np.where(sizes < 1 << 8, 0xD9, np.where(sizes < 1 << 16, 0xDA, 0xDB))
    return _header_rows(np.where(is_short, _SHORT_TEXT + sizes, tags), widths, sizes)


def _header_rows(tags: Numbers, widths: Numbers, sizes: Numbers) -> tuple[Bytes, Numbers]:
    """Returns a tag and the last bytes of the size, as many as `widths` has."""
    data = np.empty((len(sizes), 5), np.uint8)
    data[:, 0] = tags
    shift = np.where(widths > 0, 32 - 8 * widths, 0)
    data[:, 1:] = (sizes << shift).astype(np.uint32).astype(">u4").view(np.uint8).reshape(-1, 4)
    return data, 1 + widths


_WORD_BYTES = 8


def sort_rows(keys: pa.LargeBinaryArray) -> Numbers:
    """Returns the rows of a column without nulls in ascending order of their bytes; equal ones stay in their order."""
    data, offsets = parts_of(keys)
    width = int(offsets[1] - offsets[0]) if len(keys) else 0
    if width and (np.diff(offsets) == width).all():
        words = _distinctive_words(data[offsets[0] : offsets[-1]].reshape(-1, width))
        # Sorting numbers takes a tenth of the time that sorting bytes takes.
        rows: Numbers = np.argsort(words)
        ordered = words[rows]
        if (ordered[1:] != ordered[:-1]).all():
            return rows
    found: Numbers = pc.sort_indices(keys).to_numpy().view(np.int64)
    return found


def _distinctive_words(keys: Bytes) -> NDArray[np.uint64]:
    """Returns the first 8 of the bytes in which keys of one size differ, as a number for each key.

    Different numbers have the order of their keys; the keys of equal ones may differ.

    Args:
        keys: the bytes of each key, as a row.
    """
    differing = np.flatnonzero((keys != keys[0]).any(axis=0))[:_WORD_BYTES]
    words = np.zeros((len(keys), _WORD_BYTES), np.uint8)
    words[:, _WORD_BYTES - len(differing) :] = keys[:, differing]
    return words.view(">u8").ravel().astype(np.uint64)


def slices(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    kind: pa.DataType,
    nulls: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Returns a column of parts of data, which follow each other in less than 2 GiB.

    Args:
        data: the data.
        starts, ends: where each part begins and ends.
        kind: the type of the column, ``string`` or ``binary``.
        nulls: the rows that are null instead; None for none.

    Raises:
        pa.ArrowException: a text is not valid UTF-8.
    """
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    # Arrow copies every second part: the others are what is between them.
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), max(0, len(bounds) - 1), buffers)
    return parts.take(pa.array(np.arange(0, len(bounds), 2), mask=nulls)).cast(kind)
