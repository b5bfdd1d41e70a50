"""Serializer for columns of state values, with the same bytes as `ValueSerializer`.

Columns of plain types are read and written as msgpack by vectorized code; all others value by value.

Values have the bytes that `msgspec` writes: integers in the shortest form, floats in nine bytes, times
without a zone as texts, classes as maps of their fields in order, or as arrays. Values with another layout are
reported, and not read here. Format:
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.state.binary_columns import (
    binary_header_rows,
    from_list,
    from_parts,
    from_rows,
    is_valid,
    join_columns,
    largest_of,
    sizes_of,
    slices,
    text_header_rows,
)
from stateflow.types.columns.conversion import path_of_null, to_column, to_objects
from stateflow.types.columns.shapes import Items, Leaf, Record, Shape, UnsupportedType, leaves_of, shape_of
from stateflow.types.declared_types import describe_type
from stateflow.types.serializers import VALUE_FORMAT, Codec, ValueSerializer, payload_start

_LARGEST_DATA = (1 << 31) - 1_000
"""Size of values that are read together: a column of texts has offsets of 32 bits."""


class ColumnSerializer:
    """Encoder and decoder for columns of one declared type.

    Args:
        value_type: type of the values, as for `ValueSerializer`.

    Raises:
        JobDefinitionError: the type cannot be converted to an Arrow column.
    """

    def __init__(self, value_type: object) -> None:
        self._serializer: ValueSerializer[Any] = ValueSerializer(value_type)
        self._shape = _shape_of(value_type)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of a column."""
        return self._shape.arrow

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Returns a column of n stored values, null for None.

        Raises:
            CorruptFile: a value is not of the declared type.
            StateError: Arrow cannot represent a value.
        """
        present = [data for data in stored if data is not None]
        values = decode_column(self._shape, present, self._decode_each, self._serializer.unchecked_bytes)
        if len(present) == len(stored):
            return values
        is_present = np.fromiter((data is not None for data in stored), bool, len(stored))
        return values.take(pa.array(np.cumsum(is_present) - 1, mask=~is_present))

    def encode(self, values: pa.Array) -> list[bytes | None]:
        """Returns the bytes of each value, None for null.

        Raises:
            SchemaMismatch: the column has another Arrow type, or a null that the declared type does not allow.
        """
        values = self._checked(values)
        together = self._encode_together(values)
        if together is None:
            return self._encode_each(values)
        encoded: list[bytes | None] = together.to_pylist()
        if values.null_count:
            nulls = values.is_null().to_pylist()
            encoded = [None if null else data for null, data in zip(nulls, encoded, strict=True)]
        return encoded

    def encode_column(self, values: pa.Array) -> pa.LargeBinaryArray:
        """Returns the bytes of each value of a column without nulls, as a column; raises as `encode`."""
        values = self._checked(values)
        together = self._encode_together(values)
        if together is not None:
            return together
        return from_list([data for data in self._encode_each(values) if data is not None])

    def _encode_together(self, values: pa.Array) -> pa.LargeBinaryArray | None:
        """Returns encoded values, arbitrary for null; None for values that have to be checked one by one."""
        shape = self._shape
        if not (shape.by_columns and isinstance(shape, Leaf | Record)) or not _is_storable(shape, values):
            return None
        encoded = write_columns(shape, values, VALUE_FORMAT)
        return encoded if largest_of(encoded) <= self._serializer.unchecked_bytes else None

    def _encode_each(self, values: pa.Array) -> list[bytes | None]:
        objects = to_objects(self._shape, values)
        return [None if value is None else self._serializer.encode(value) for value in objects]

    def _decode_each(self, stored: Sequence[bytes]) -> pa.Array:
        values = [self._serializer.decode(data) for data in stored]
        try:
            _check_zones(self._shape, values)
            return to_column(self._shape, values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
            raise StateError(
                "a stored value cannot be represented in an Arrow column",
                hint="read this state row by row, in a KeyedProcessFunction",
                declared=self._serializer.type_name,
                reason=str(e)[:200],
            ) from e

    def _checked(self, values: pa.Array) -> pa.Array:
        declared = self._serializer.type_name
        try:
            fitting = values if values.type.equals(self.type) else _cast(values, self.type)
        except (pa.ArrowException, ValueError, TypeError) as e:
            raise SchemaMismatch(
                "a column does not have the type of the state",
                hint="cast the column before writing it",
                declared=declared,
                wanted=str(self.type),
                given=str(values.type),
                reason=str(e)[:200],
            ) from e
        path = path_of_null(self._shape, fitting)
        if path is not None:
            raise SchemaMismatch(
                "a field of a state is null but not declared as nullable",
                hint="fill the nulls, or declare the field as … | None",
                declared=declared,
                field=path.lstrip("."),
            )
        return fitting


def decode_column(
    shape: Shape,
    stored: list[bytes],
    decode_each: Callable[[Sequence[bytes]], pa.Array],
    unchecked_bytes: int = _LARGEST_DATA,
) -> pa.Array:
    """Returns a column of stored values; those with the expected layout are decoded without Python objects.

    Args:
        shape: shape of the values.
        stored: the stored values.
        decode_each: decodes values one by one; its errors are raised.
        unchecked_bytes: size of values up to which decoding them does not take too much memory.
    """
    if not (shape.by_columns and isinstance(shape, Leaf | Record)):
        return decode_each(stored)
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    ends = np.cumsum(sizes)
    if sizes.max(initial=0) > unchecked_bytes or sizes.sum() > _LARGEST_DATA:
        return decode_each(stored)
    data = b"".join(stored)
    payloads = _payload_starts(data, ends - sizes, stored)
    try:
        values, understood = read_columns(shape, data, payloads, ends)
    except pa.ArrowInvalid:
        # A text is not valid UTF-8: the error names it.
        return decode_each(stored)
    if understood.all():
        return values
    odd = np.flatnonzero(~understood)
    each = decode_each([stored[i] for i in odd.tolist()])
    order = np.argsort(np.concatenate([np.flatnonzero(understood), odd]))
    return pa.concat_arrays([values.filter(pa.array(understood)), each]).take(pa.array(order))


def _is_storable(shape: Leaf | Record, values: pa.Array) -> bool:
    """Returns whether texts are valid, and times are such that Python can represent."""
    if isinstance(shape, Record):
        parts = ((field, values.field(at)) for at, field in enumerate(shape.fields))
        return all(_is_storable(field, part) for field, part in parts if isinstance(field, Leaf | Record))
    if shape.kind is str:
        return is_valid(values)
    if shape.kind is not datetime.datetime or values.null_count == len(values):
        return True
    bounds = pc.min_max(values.cast(pa.int64()))
    return bool(bounds["min"].as_py() >= MIN_MICROS and bounds["max"].as_py() <= MAX_MICROS)


def _shape_of(value_type: object) -> Shape:
    try:
        return shape_of(value_type)
    except UnsupportedType as e:
        raise JobDefinitionError(
            "a state's type cannot be converted to an Arrow column",
            hint=e.hint
            or "for a vectorized function, declare numbers, strings, bytes, dates, times, Decimals with "
            "precision, Enums, UUIDs, lists or dicts of them, or a class with such fields",
            type=describe_type(value_type),
            part=e.part,
        ) from e


def columns_of(codec: Codec) -> ColumnSerializer:
    """Returns the column serializer for the values of `codec`; raises JobDefinitionError if there is none."""
    if not isinstance(codec, ValueSerializer):
        raise JobDefinitionError(
            "a state with a custom serializer cannot be converted to an Arrow column",
            hint="read this state row by row, in a KeyedProcessFunction",
        )
    return ColumnSerializer(codec.value_type)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts without loss; matches fields of a struct by name."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(values.type):
        names = {field.name for field in wanted}
        found = [values.type.field(i).name for i in range(values.type.num_fields)]
        if set(found) != names or len(found) != len(names):
            raise TypeError(f"fields are {', '.join(found)}")
        children = [_cast(values.field(f.name), f.type) for f in wanted]
        nulls = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=nulls)
    return values if values.type.equals(wanted) else values.cast(wanted, safe=True)


def _check_zones(shape: Shape, values: Sequence[Any]) -> None:
    """Raises ValueError for a datetime with a time zone in a column without one, or the reverse."""
    if not any(leaf.kind is datetime.datetime for leaf in leaves_of(shape)):
        return
    present = [value for value in values if value is not None]
    if isinstance(shape, Leaf):
        zoned = shape.arrow.tz is not None
        if any((value.tzinfo is not None) != zoned for value in present):
            raise ValueError("datetimes with and without time zone are mixed: declare Annotated[datetime, Meta(tz=…)]")
    elif isinstance(shape, Record):
        for name, field in zip(shape.names, shape.fields, strict=True):
            _check_zones(field, [getattr(value, name) for value in present])
    elif isinstance(shape, Items):
        _check_zones(shape.item, [item for value in present for item in value])
    else:
        _check_zones(shape.key, [key for value in present for key in value])
        _check_zones(shape.value, [item for value in present for item in value.values()])


def _payload_starts(data: bytes, starts: NDArray[np.int64], stored: Sequence[bytes]) -> NDArray[np.int64]:
    """Returns the offset of each value's msgpack."""
    # One more byte, so that an empty value has a first byte too, of an unknown format.
    first = np.frombuffer(data + b"\0", np.uint8)[starts]
    if all(stored) and (first == VALUE_FORMAT[0]).all():
        return starts + 1
    return starts + np.fromiter(map(payload_start, stored), np.int64, len(stored))


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
        if shape.kind is datetime.datetime:
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
    return columns[0] if len(columns) == 1 else join_columns(*columns)


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
    elif shape.kind is datetime.datetime:
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


SHORT, LONGEST = 19, 26
"""The sizes of a text: ``2015-07-15T00:00:00``, or with six more digits if it has a fraction of a second."""
MIN_MICROS, MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and last time that Python can represent, in microseconds since 1970."""
_PATTERN = np.frombuffer(b"0000-00-00T00:00:00.000000", np.uint8)
_PAIRS = np.frombuffer("".join(f"{n:02}" for n in range(100)).encode(), np.uint8).reshape(100, 2)
"""The two digits of each number below a hundred."""
_SECOND = 1_000_000
_DAY = 86_400


def write_times(micros: Numbers) -> tuple[Bytes, Numbers]:
    """Returns the texts of n times, in an array of shape (n, `LONGEST`), and their sizes.

    Args:
        micros: microseconds since 1970, from `MIN_MICROS` to `MAX_MICROS`.
    """
    seconds, fractions = np.divmod(micros, _SECOND)
    days, of_day = np.divmod(seconds, _DAY)
    dates = days.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    day = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    year, month = np.divmod(months.astype(np.int64) + 1970 * 12, 12)
    minute, second = np.divmod(of_day.astype(np.int32), 60)
    millis, micro = np.divmod(fractions.astype(np.int32), 100)
    pairs = (
        (0, year // 100),
        (2, year % 100),
        (5, month + 1),
        (8, day),
        (11, minute // 60),
        (14, minute % 60),
        (17, second),
        (20, millis // 100),
        (22, millis % 100),
        (24, micro),
    )
    texts = np.tile(_PATTERN, (len(micros), 1))
    for at, numbers in pairs:
        texts[:, at : at + 2] = _PAIRS[numbers]
    return texts, np.where(fractions == 0, SHORT, LONGEST)


def read_times(texts: Bytes, sizes: Numbers) -> tuple[Numbers, Flags]:
    """Returns the times of n texts, and which of them are written as `write_times` does; arbitrary for the others.

    Args:
        texts: an array of shape (n, `LONGEST`); what follows a shorter text is ignored.
        sizes: the size of each text.
    """
    year = _pair(texts, 0) * 100 + _pair(texts, 2)
    first = ((year - 1970) * 12 + _pair(texts, 5) - 1).astype("datetime64[M]").astype("datetime64[D]")
    of_day = (_pair(texts, 11) * 60 + _pair(texts, 14)) * 60 + _pair(texts, 17)
    fractions = (_pair(texts, 20) * 100 + _pair(texts, 22)) * 100 + _pair(texts, 24)
    seconds = (first.astype(np.int64) + _pair(texts, 8) - 1) * _DAY + of_day
    exact = seconds * _SECOND + np.where(sizes == LONGEST, fractions, 0)
    micros = np.clip(exact, MIN_MICROS, MAX_MICROS)
    # The text of a date that does not exist, or with other characters than digits, differs from that of its number.
    wanted, wanted_sizes = write_times(micros)
    same = (texts == wanted) | (np.arange(LONGEST) >= sizes[:, None])
    return micros, same.all(axis=1) & (sizes == wanted_sizes)


def _pair(texts: Bytes, at: int) -> Numbers:
    """Returns the number of two digits; another number below 2,300 and above -600 for other characters."""
    high, low = (texts[:, at + place].astype(np.int64) - ord("0") for place in (0, 1))
    return high * 10 + low
