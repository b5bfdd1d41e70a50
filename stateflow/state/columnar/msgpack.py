"""Vectorized reading and writing of msgpack for columns of one plain type.

Values have the same bytes as those written by `msgspec`: integers in the shortest form, floats in nine bytes, times
without a zone as texts, classes as maps of their fields in order, or as arrays. Values with another layout are
reported, and not read here. Format:
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.state.columnar.binary_columns import (
    binary_header_rows,
    from_parts,
    from_rows,
    joined,
    sizes_of,
    text_header_rows,
)
from stateflow.state.columnar.iso_times import LONGEST, SHORT, read_times, write_times
from stateflow.state.columnar.texts import slices
from stateflow.types.columns.shapes import Leaf, Record

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NIL, _FALSE, _TRUE, _DOUBLE, _SHORT_TEXT = 0xC0, 0xC2, 0xC3, 0xCB, 0xA0
_PADDING = b"\0" * 32
_BOUNDS = np.array([-(1 << 31), -(1 << 15), -(1 << 7), -32, 128, 1 << 8, 1 << 16, 1 << 32])
"""The integers at which the encoding changes."""
_INT_TAGS = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.uint8)
_INT_BYTES = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8])
_SHORT = 4


def _table(values: dict[int, int], default: int) -> Numbers:
    table = np.full(256, default)
    table[list(values)] = list(values.values())
    return table


_BYTES_AFTER_TAG = _table(
    {tag: size for tag, size in zip(_INT_TAGS.tolist(), _INT_BYTES.tolist(), strict=True) if tag}
    | dict.fromkeys((*range(0x80), *range(0xE0, 0x100)), 0),
    -1,
)
"""Number of bytes after an integer's tag; -1 for other tags."""
_TEXT_WIDTHS = _table({**dict.fromkeys(range(0xA0, 0xC0), 0), 0xD9: 1, 0xDA: 2, 0xDB: 4}, -1)
_BINARY_WIDTHS = _table({0xC4: 1, 0xC5: 2, 0xC6: 4}, -1)
"""Number of bytes of the length after the tag of a text, or of binary data; -1 for other tags."""
_SIGNED = np.isin(np.arange(256), [0xD0, 0xD1, 0xD2, 0xD3])


@dataclass
class _Reader:
    """Reader of n values, one field of all values at a time.

    Attributes:
        data: the concatenated values and padding.
        at: the current offset of each value.
        ends: the end offset of each value.
        ok: whether each value has the expected layout so far.
    """

    data: Bytes
    at: Numbers
    ends: Numbers
    ok: Flags

    def read(self, shape: Leaf | Record) -> pa.Array:
        """Returns the next field of each value; arbitrary for values that are not `ok`."""
        if isinstance(shape, Record):
            return self._record(shape)
        if shape.kind is bool:
            return self._bools(shape)
        if shape.kind is datetime:
            return self._times(shape)
        return self._texts(shape) if shape.kind in (str, bytes) else self._numbers(shape)

    def _record(self, shape: Record) -> pa.Array:
        arrays = []
        for header, field in zip(_field_headers(shape), shape.fields, strict=True):
            assert isinstance(field, Leaf | Record)
            self._expect(header)
            arrays.append(self.read(field))
        return pa.StructArray.from_arrays(arrays, fields=list(shape.arrow))

    def _expect(self, header: bytes) -> None:
        if header:
            wanted = np.frombuffer(header, np.uint8)
            window = np.ndarray((len(self.data) - len(header), len(header)), np.uint8, self.data, strides=(1, 1))
            self._advance((window[self.at] == wanted).all(axis=1), np.full(len(self.at), len(header)))

    def _bools(self, shape: Leaf) -> pa.Array:
        tags = self.data[self.at]
        nulls = self._nulls(shape, tags)
        self._advance((tags == _FALSE) | (tags == _TRUE) | nulls, np.ones(len(tags), np.int64))
        return pa.array(tags == _TRUE, mask=nulls if nulls.any() else None)

    def _numbers(self, shape: Leaf) -> pa.Array:
        tags = self.data[self.at]
        # The eight bytes after each tag; a shorter number uses the first ones.
        following = np.ndarray((len(self.data) - 8,), ">u8", self.data, strides=(1,))[self.at + 1].astype("=u8")
        sizes, nulls = _BYTES_AFTER_TAG[tags], self._nulls(shape, tags)
        numbers, are_floats = _decode_integers(tags, following, sizes), tags == _DOUBLE
        too_large = (tags == 0xCF) & (numbers < 0)
        known = (sizes >= 0) & ~too_large | nulls
        if shape.kind is float:
            numbers = np.where(are_floats, following.view(np.float64), numbers)
            known |= are_floats
        self._advance(known, 1 + np.where(are_floats, 8, np.maximum(sizes, 0)))
        return pa.array(numbers, shape.arrow, mask=nulls if nulls.any() else None)

    def _texts(self, shape: Leaf) -> pa.Array:
        at, tags = self.at, self.data[self.at]
        following = np.ndarray((len(self.data) - 8,), ">u8", self.data, strides=(1,))[at + 1].astype("=u8")
        widths, nulls = (_TEXT_WIDTHS if shape.kind is str else _BINARY_WIDTHS)[tags], self._nulls(shape, tags)
        shift = np.where(widths > 0, 64 - 8 * widths, 0).astype(np.uint64)
        lengths = np.where(widths > 0, (following >> shift).astype(np.int64), tags & 0x1F)
        sizes = np.where(nulls, 1, 1 + np.maximum(widths, 0) + lengths)
        self._advance((widths >= 0) | nulls, sizes)
        fits = self.ok & ~nulls
        starts, ends = np.where(fits, at + 1 + widths, at), np.where(fits, self.at, at)
        return slices(self.data, starts, ends, shape.arrow, nulls if nulls.any() else None)

    def _times(self, shape: Leaf) -> pa.Array:
        tags = self.data[self.at]
        nulls = self._nulls(shape, tags)
        sizes = np.where(tags == _SHORT_TEXT + LONGEST, LONGEST, SHORT)
        window = np.ndarray((len(self.data) - LONGEST, LONGEST), np.uint8, self.data, strides=(1, 1))[self.at + 1]
        micros, known = read_times(window, sizes)
        self._advance(known & (tags == _SHORT_TEXT + sizes) | nulls, np.where(nulls, 1, 1 + sizes))
        return pa.array(micros, shape.arrow, mask=nulls if nulls.any() else None)

    def _nulls(self, shape: Leaf, tags: Bytes) -> Flags:
        return (tags == _NIL) if shape.nullable else np.zeros(len(tags), bool)

    def _advance(self, fits: Flags, sizes: Numbers) -> None:
        # The offset of a mismatching value does not move, so nothing is read after its end.
        self.ok &= fits & (self.at + sizes <= self.ends)
        self.at = self.at + np.where(self.ok, sizes, 0)


def _decode_integers(tags: Bytes, following: NDArray[np.uint64], sizes: Numbers) -> Numbers:
    shift = np.where(sizes > 0, 64 - 8 * sizes, 0)
    numbers = np.where(
        _SIGNED[tags], following.view(np.int64) >> shift, (following >> shift.astype("=u8")).view(np.int64)
    )
    return np.where(sizes == 0, tags.view(np.int8), numbers)


def read_columns(shape: Leaf | Record, data: bytes, starts: Numbers, ends: Numbers) -> tuple[pa.Array, Flags]:
    """Returns the n values between `starts` and `ends` in `data`, and a mask of those with the expected layout.

    The values follow each other. Raises pa.ArrowException for a text that is not valid UTF-8.
    """
    padded = np.frombuffer(data + _PADDING, np.uint8)
    if isinstance(shape, Record):
        longest = max(map(len, _all_field_headers(shape)))
        padded = np.frombuffer(data + _PADDING + b"\0" * longest, np.uint8)
    reader = _Reader(padded, starts, ends, np.ones(len(starts), bool))
    values = reader.read(shape)
    return values, reader.ok & (reader.at == ends)


def write_columns(shape: Leaf | Record, values: pa.Array, first: bytes) -> pa.LargeBinaryArray:
    """Returns the bytes of each value, prefixed with `first`; arbitrary for values that are null.

    Texts are valid UTF-8, and times such as Python can represent.
    """
    columns: list[pa.LargeBinaryArray] = []
    held = [_constant(first, len(values))]
    for part in _parts(shape, values):
        if isinstance(part, _Part):
            held.append(part)
        else:
            columns += [_column(held), part]
            held = []
    if held:
        columns.append(_column(held))
    return columns[0] if len(columns) == 1 else joined(*columns)


def _column(parts: Sequence[_Part]) -> pa.LargeBinaryArray:
    """Returns a column of parts, one after the other."""
    count = len(parts[0].data)
    width = sum(part.data.shape[1] for part in parts)
    data = np.empty((count, width), np.uint8)
    used = np.ones((count, width), bool)
    sizes = np.full(count, sum(part.data.shape[1] for part in parts if part.sizes is None))
    at = 0
    for part in parts:
        end = at + part.data.shape[1]
        data[:, at:end] = part.data
        if part.sizes is not None:
            used[:, at:end] = np.arange(end - at) < part.sizes[:, None]
            sizes += part.sizes
        at = end
    if all(part.sizes is None for part in parts):
        return from_rows(data)
    return from_parts(data[used], np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))))


@dataclass(frozen=True)
class _Part:
    """Consecutive bytes of n values.

    Attributes:
        data: an array of shape (n, width).
        sizes: number of bytes used by each value; None if all use the full width.
    """

    data: Bytes
    sizes: Numbers | None = None


def _parts(shape: Leaf | Record, values: pa.Array) -> Iterator[_Part | pa.LargeBinaryArray]:
    if isinstance(shape, Record):
        for at, (header, field) in enumerate(zip(_field_headers(shape), shape.fields, strict=True)):
            assert isinstance(field, Leaf | Record)
            yield _constant(header, len(values))
            yield from _parts(field, values.field(at))
    elif shape.kind is bool:
        yield _Part(_bool_tags(values)[:, None])
    elif shape.kind in (str, bytes):
        texts = (values.fill_null(shape.kind()) if values.null_count else values).cast(pa.large_binary())
        headers = text_header_rows if shape.kind is str else binary_header_rows
        yield _with_nils(_Part(*headers(sizes_of(texts))), values)
        yield texts
    elif shape.kind is datetime:
        yield _with_nils(_times(values), values)
    else:
        yield _with_nils(_floats(values) if shape.kind is float else _ints(values), values)


def _constant(text: bytes, count: int) -> _Part:
    return _Part(np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text))))


def _bool_tags(values: pa.Array) -> Bytes:
    tags = np.where(_without_nulls(values, False), np.uint8(_TRUE), np.uint8(_FALSE))
    tags[_null_mask(values)] = _NIL
    return tags


def _floats(values: pa.Array) -> _Part:
    data = np.empty((len(values), 9), np.uint8)
    data[:, 0] = _DOUBLE
    data[:, 1:] = _without_nulls(values, 0.0).astype(">f8").view(np.uint8).reshape(-1, 8)
    return _Part(data)


def _times(values: pa.Array) -> _Part:
    texts, sizes = write_times(_without_nulls(values.cast(pa.int64()), 0).astype(np.int64))
    return _Part(np.column_stack([_SHORT_TEXT + sizes.astype(np.uint8), texts]), 1 + sizes)


def _ints(values: pa.Array) -> _Part:
    numbers = _without_nulls(values, 0).astype(np.int64)
    kinds = np.searchsorted(_BOUNDS, numbers, side="right")
    sizes = _INT_BYTES[kinds]
    data = np.empty((len(numbers), 9), np.uint8)
    data[:, 0] = np.where(kinds == _SHORT, numbers.astype(np.uint8), _INT_TAGS[kinds])
    shift = np.where(sizes > 0, 64 - 8 * sizes, 0).astype(np.uint64)
    data[:, 1:] = (numbers.view(np.uint64) << shift).astype(">u8").view(np.uint8).reshape(-1, 8)
    return _Part(data, 1 + sizes)


def _with_nils(part: _Part, values: pa.Array) -> _Part:
    if not values.null_count:
        return part
    nulls = _null_mask(values)
    part.data[nulls, 0] = _NIL
    sizes = np.full(len(values), part.data.shape[1]) if part.sizes is None else part.sizes
    return _Part(part.data, np.where(nulls, 1, sizes))


def _without_nulls(values: pa.Array, instead: object) -> NDArray[np.generic]:
    whole = values.fill_null(instead) if values.null_count else values
    found: NDArray[np.generic] = whole.to_numpy(zero_copy_only=False)
    return found


def _null_mask(values: pa.Array) -> Flags:
    found: Flags = values.is_null().to_numpy(zero_copy_only=False)
    return found


def _field_headers(shape: Record) -> Sequence[bytes]:
    """Returns the bytes before each field: its name, if stored, and before the first field the number of fields."""
    encode = msgspec.msgpack.encode
    if not shape.keys:
        whole = encode([None] * len(shape.fields))[: -len(shape.fields)]
        return [whole, *[b""] * (len(shape.fields) - 1)]
    names = [encode(key) for key in shape.keys]
    whole = encode(dict.fromkeys(shape.keys))[: -sum(len(name) + 1 for name in names)]
    return [whole + names[0], *names[1:]]


def _all_field_headers(shape: Record) -> Iterator[bytes]:
    yield from _field_headers(shape)
    for field in shape.fields:
        if isinstance(field, Record):
            yield from _all_field_headers(field)
