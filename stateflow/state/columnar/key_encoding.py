"""Encoding of key columns, with the same bytes as `encode_key`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.errors import CorruptFile
from stateflow.state.columnar.binary_columns import from_list, from_rows, is_valid, joined, parts_of
from stateflow.types.key_encoding import NULL_PART, encode_key

Numbers = NDArray[np.uint64]
Integers = NDArray[np.int64]

_INT, _FLOAT, _WINDOW = 0x15, 0x21, 0x38
WINDOW_BYTES = 17
"""Size of an encoded window."""
_SIGN = np.uint64(1 << 63)
_NAN = 0x7FF8_0000_0000_0000
_TEXT_TAGS = {pa.binary(): b"\1", pa.string(): b"\2"}
"""What the encodings of texts begin with."""


def encode_keys(columns: Sequence[pa.Array]) -> list[bytes]:
    """Returns the encoded keys for n rows of key columns.

    Args:
        columns: one column of length n per part of the key.

    Raises:
        StateError: a value cannot be part of a key.
        UnicodeDecodeError: a string is not valid UTF-8.
    """
    parts = [_encode_parts(column) for column in columns]
    return parts[0] if len(parts) == 1 else [b"".join(each) for each in zip(*parts, strict=True)]


def encode_key_columns(columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Returns the encoded keys as a column; as `encode_keys`."""
    parts = [_encoded_column(column) for column in columns]
    return parts[0] if len(parts) == 1 else joined(*parts)


def _encoded_column(column: pa.Array) -> pa.LargeBinaryArray:
    if column.null_count:
        return from_list(_encode_parts(column))
    numbers = _tagged_numbers(column)
    if numbers is not None:
        return from_rows(numbers)
    if column.type in _TEXT_TAGS:
        stored = column.cast(pa.large_binary())
        # NUL would have to be escaped, and `as_py` reports texts that are not UTF-8.
        data, offsets = parts_of(stored)
        if data[offsets[0] : offsets[-1]].all() and is_valid(column):
            return joined(_TEXT_TAGS[column.type], stored, b"\0")
    return from_list(_encode_parts(column))


def encode_windows(starts: Integers, ends: Integers) -> list[bytes]:
    """Returns encoded windows, of `WINDOW_BYTES` each."""
    data = np.empty((len(starts), WINDOW_BYTES), np.uint8)
    data[:, 0] = _WINDOW
    data[:, 1:9] = _sortable(starts)
    data[:, 9:] = _sortable(ends)
    return _as_list(data)


def encode_times(times: Integers) -> list[bytes]:
    """Returns 64-bit integers as 8 bytes each, in the same order."""
    return _as_list(_sortable(times))


def decode_times(data: bytes) -> Integers:
    """Returns the integers of joined bytes that `encode_times` returned."""
    return (np.frombuffer(data, ">u8").astype(np.uint64) ^ _SIGN).view(np.int64)


def decode_windows(data: bytes) -> tuple[Integers, Integers]:
    """Returns starts and ends of joined windows that `encode_windows` returned.

    Raises:
        CorruptFile: the data is something else.
    """
    rows = np.frombuffer(data, np.uint8).reshape(-1, WINDOW_BYTES)
    if (rows[:, 0] != _WINDOW).any():
        raise CorruptFile("a stored namespace is not a window", hint="restore an older checkpoint")
    return decode_times(rows[:, 1:9].tobytes()), decode_times(rows[:, 9:].tobytes())


def comparable(column: pa.Array) -> pa.Array:
    """Returns a column whose values are equal exactly where the encoded keys are equal; all NaNs are one key."""
    if not pa.types.is_floating(column.type):
        return column
    # NumPy has NaN for a null, which is another key.
    return pa.array(_float_bits(column), mask=_is_null(column))


def are_distinct(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    """Returns for each row whether the values differ; null equals null, and no value."""
    differ = pc.not_equal(left, right)
    if not differ.null_count:
        return np.asarray(differ)
    return np.where(
        np.asarray(differ.is_null()), _is_null(left) != _is_null(right), np.asarray(differ.fill_null(False))
    )


def _is_null(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(column.is_null())


def _encode_parts(column: pa.Array) -> list[bytes]:
    if column.null_count:
        present = iter(_encode_parts(column.drop_null()))
        return [NULL_PART if is_null else next(present) for is_null in _is_null(column).tolist()]
    numbers = _tagged_numbers(column)
    if numbers is not None:
        return numbers.view("V9").ravel().tolist() if len(numbers) else []
    return [encode_key((value,)) for value in column.to_pylist()]


def _tagged_numbers(column: pa.Array) -> NDArray[np.uint8] | None:
    """Returns the encoded numbers of a column, of 9 bytes each; None if it has other values."""
    if pa.types.is_signed_integer(column.type):
        return _tagged(_INT, column.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) ^ _SIGN)
    if pa.types.is_floating(column.type):
        bits = _float_bits(column)
        return _tagged(_FLOAT, np.where(bits & _SIGN, ~bits, bits | _SIGN))
    return None


def _float_bits(column: pa.Array) -> Numbers:
    numbers = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    return np.where(np.isnan(numbers), np.uint64(_NAN), numbers.view(np.uint64))


def _tagged(tag: int, numbers: Numbers) -> NDArray[np.uint8]:
    data = np.empty((len(numbers), 9), np.uint8)
    data[:, 0] = tag
    data[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return data


def _sortable(numbers: Integers) -> NDArray[np.uint8]:
    """Returns the bytes of numbers, which sort like the numbers."""
    return (numbers.astype(np.int64).view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)


def _as_list(rows: NDArray[np.uint8]) -> list[bytes]:
    found: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist() if len(rows) else []
    return found
