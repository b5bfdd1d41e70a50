"""Many values of one plain type as msgpack, read and written by columns.

A value is written as `msgspec` writes it, byte for byte: whole numbers as short as they can be, floats in nine bytes,
a class as a map of its fields in order, or as a list. What is laid out in any other way is not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.state.shapes import Items, Leaf, Record

Array = np.ndarray[Any, Any]

_NIL, _FALSE, _TRUE, _DOUBLE = 0xC0, 0xC2, 0xC3, 0xCB
_PADDING = b"\0" * 16
_BOUNDS = np.array([-(1 << 31), -(1 << 15), -(1 << 7), -32, 128, 1 << 8, 1 << 16, 1 << 32])
"""Where whole numbers begin to be written in another way."""
_INT_TAGS = np.array([0xD3, 0xD2, 0xD1, 0xD0, 0, 0xCC, 0xCD, 0xCE, 0xCF], np.uint8)
_INT_BYTES = np.array([8, 4, 2, 1, 0, 1, 2, 4, 8])
_SHORT = 4


def _table(values: dict[int, int], default: int) -> Array:
    table = np.full(256, default)
    table[list(values)] = list(values.values())
    return table


_BEHIND_TAG = _table(
    {tag: size for tag, size in zip(_INT_TAGS.tolist(), _INT_BYTES.tolist(), strict=True) if tag}
    | dict.fromkeys((*range(0x80), *range(0xE0, 0x100)), 0),
    -1,
)
"""How many bytes a whole number has behind its tag; -1 for what is none."""
_SIGNED = np.isin(np.arange(256), [0xD0, 0xD1, 0xD2, 0xD3])


@dataclass
class _Reader:
    """Reads field after field of all values at once; `ok` says which are laid out as expected so far."""

    data: Array
    at: Array
    ends: Array
    ok: Array

    def read(self, shape: Leaf | Record) -> pa.Array:
        """The next part of each value; of those that are not `ok`, anything."""
        if isinstance(shape, Record):
            return self._record(shape)
        if shape.kind is bool:
            return self._bools(shape)
        return self._numbers(shape)

    def _record(self, shape: Record) -> pa.Array:
        arrays = []
        for front, field in zip(_fronts(shape), shape.fields, strict=True):
            assert not isinstance(field, Items)
            self._expect(front)
            arrays.append(self.read(field))
        return pa.StructArray.from_arrays(arrays, fields=list(shape.arrow))

    def _expect(self, front: bytes) -> None:
        if front:
            wanted = np.frombuffer(front, np.uint8)
            window = np.ndarray(
                (len(self.data) - len(front), len(front)), np.uint8, self.data, strides=(1, 1)
            )
            self._keep((window[self.at] == wanted).all(axis=1), np.full(len(self.at), len(front)))

    def _bools(self, shape: Leaf) -> pa.Array:
        tags = self.data[self.at]
        nulls = self._nulls(shape, tags)
        self._keep((tags == _FALSE) | (tags == _TRUE) | nulls, np.ones(len(tags), np.int64))
        return pa.array(tags == _TRUE, mask=nulls if nulls.any() else None)

    def _numbers(self, shape: Leaf) -> pa.Array:
        tags = self.data[self.at]
        # Eight bytes behind each tag, of which a shorter number has the first ones.
        behind = np.ndarray((len(self.data) - 8,), ">u8", self.data, strides=(1,))[self.at + 1].astype("=u8")
        sizes, nulls = _BEHIND_TAG[tags], self._nulls(shape, tags)
        numbers, are_floats = _whole_numbers(tags, behind, sizes), tags == _DOUBLE
        too_large = (tags == 0xCF) & (numbers < 0)
        known = (sizes >= 0) & ~too_large | nulls
        if shape.kind is float:
            numbers = np.where(are_floats, behind.view(np.float64), numbers)
            known |= are_floats
        self._keep(known, 1 + np.where(are_floats, 8, np.maximum(sizes, 0)))
        return pa.array(numbers, shape.arrow, mask=nulls if nulls.any() else None)

    def _nulls(self, shape: Leaf, tags: Array) -> Array:
        return (tags == _NIL) if shape.nullable else np.zeros(len(tags), bool)

    def _keep(self, fits: Array, sizes: Array) -> None:
        # A value that does not fit stays where it is: nothing is looked for behind its end.
        self.ok &= fits & (self.at + sizes <= self.ends)
        self.at = self.at + np.where(self.ok, sizes, 0)


def _whole_numbers(tags: Array, behind: Array, sizes: Array) -> Array:
    shift = np.where(sizes > 0, 64 - 8 * sizes, 0)
    numbers = np.where(
        _SIGNED[tags], behind.view(np.int64) >> shift, (behind >> shift.astype("=u8")).view(np.int64)
    )
    return np.where(sizes == 0, tags.view(np.int8), numbers)


def read_columns(shape: Leaf | Record, data: bytes, starts: Array, ends: Array) -> tuple[pa.Array, Array]:
    """The values that lie in `data` between `starts` and `ends`, and which of them were understood."""
    padded = np.frombuffer(data + _PADDING, np.uint8)
    if isinstance(shape, Record):
        longest = max(map(len, _all_fronts(shape)))
        padded = np.frombuffer(data + _PADDING + b"\0" * longest, np.uint8)
    reader = _Reader(padded, starts, ends, np.ones(len(starts), bool))
    values = reader.read(shape)
    return values, reader.ok & (reader.at == ends)


def write_columns(shape: Leaf | Record, values: pa.Array, first: bytes) -> list[bytes]:
    """The bytes of each value behind `first`; of a value that is null itself, anything."""
    parts = [_constant(first, len(values)), *_parts(shape, values)]
    width = sum(part.data.shape[1] for part in parts)
    data = np.empty((len(values), width), np.uint8)
    used = np.ones((len(values), width), bool)
    sizes = np.full(len(values), sum(part.data.shape[1] for part in parts if part.sizes is None))
    at = 0
    for part in parts:
        end = at + part.data.shape[1]
        data[:, at:end] = part.data
        if part.sizes is not None:
            used[:, at:end] = np.arange(end - at) < part.sizes[:, None]
            sizes += part.sizes
        at = end
    if all(part.sizes is None for part in parts):
        return data.view(f"V{width}").ravel().tolist() if len(values) else []
    flat, ends = data[used].tobytes(), np.cumsum(sizes).tolist()
    return [flat[start:end] for start, end in pairwise([0, *ends])]


@dataclass(frozen=True)
class _Part:
    """Bytes side by side in all values; `sizes` says how many of them each has, None that it has all."""

    data: Array
    sizes: Array | None = None


def _parts(shape: Leaf | Record, values: pa.Array) -> Iterator[_Part]:
    if isinstance(shape, Record):
        for at, (front, field) in enumerate(zip(_fronts(shape), shape.fields, strict=True)):
            assert not isinstance(field, Items)
            yield _constant(front, len(values))
            yield from _parts(field, values.field(at))
    elif shape.kind is bool:
        yield _Part(_bool_tags(values)[:, None])
    else:
        yield _with_nils(_floats(values) if shape.kind is float else _ints(values), values)


def _constant(text: bytes, count: int) -> _Part:
    return _Part(np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text))))


def _bool_tags(values: pa.Array) -> Array:
    tags = np.where(_filled(values, False), np.uint8(_TRUE), np.uint8(_FALSE))
    tags[_null_mask(values)] = _NIL
    return tags


def _floats(values: pa.Array) -> _Part:
    data = np.empty((len(values), 9), np.uint8)
    data[:, 0] = _DOUBLE
    data[:, 1:] = _filled(values, 0.0).astype(">f8").view(np.uint8).reshape(-1, 8)
    return _Part(data)


def _ints(values: pa.Array) -> _Part:
    numbers = _filled(values, 0).astype(np.int64)
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


def _filled(values: pa.Array, instead: object) -> Array:
    whole = values.fill_null(instead) if values.null_count else values
    found: Array = whole.to_numpy(zero_copy_only=False)
    return found


def _null_mask(values: pa.Array) -> Array:
    found: Array = values.is_null().to_numpy(zero_copy_only=False)
    return found


def _fronts(shape: Record) -> Sequence[bytes]:
    """What stands in front of each field: the field's name, where it has one, and first of all how many there are."""
    encode = msgspec.msgpack.encode
    if not shape.keys:
        whole = encode([None] * len(shape.fields))[: -len(shape.fields)]
        return [whole, *[b""] * (len(shape.fields) - 1)]
    names = [encode(key) for key in shape.keys]
    whole = encode(dict.fromkeys(shape.keys))[: -sum(len(name) + 1 for name in names)]
    return [whole + names[0], *names[1:]]


def _all_fronts(shape: Record) -> Iterator[bytes]:
    yield from _fronts(shape)
    for field in shape.fields:
        if isinstance(field, Record):
            yield from _all_fronts(field)
