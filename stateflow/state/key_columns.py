"""Encoding of key columns, with the same bytes as `encode_key`, and decoding of stored keys into columns.

`encode_keys` writes keys, `KeyLayout` reads the key group, the key columns, the namespace and a map's key of stored
entries. Columns of parts of keys have values of any type: namespaces, and the keys of maps that have several types.

Such a part is a struct of its ``type``, as Python names it, and its ``value`` as text. So the number 7 and the text 7
differ, as they do in stored keys. None is null.

Numbers, dates and texts are decoded for all keys at once, from where they are in the joined keys. So are namespaces
that are integers or texts, where they have the type of the first one. A key with another layout, a decimal, a time or
another namespace is decoded by itself.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.errors import CorruptFile, DataError, SchemaMismatch
from stateflow.state.binary_columns import from_list, from_rows, is_valid, join_columns, parts_of, slices
from stateflow.state.stored_key import KEY_OFFSET
from stateflow.types.declared_types import DECLARED, parse_arrow_type, scalar_of
from stateflow.types.key_encoding import NULL_PART, decode_key_parts, encode_key
from stateflow.types.time_window import TimeWindow

Unsigned = NDArray[np.uint64]
Numbers = NDArray[np.int64]


_INT, _FLOAT, _WINDOW = 0x15, 0x21, 0x38
WINDOW_BYTES = 17
"""Size of an encoded window."""
_SIGN = np.uint64(1 << 63)
_NAN = 0x7FF8_0000_0000_0000
_TEXT_TAGS = {pa.binary(): b"\1", pa.string(): b"\2"}
"""First bytes of the encodings of texts."""


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
    return parts[0] if len(parts) == 1 else join_columns(*parts)


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
            return join_columns(_TEXT_TAGS[column.type], stored, b"\0")
    return from_list(_encode_parts(column))


def encode_windows(starts: Numbers, ends: Numbers) -> list[bytes]:
    """Returns encoded windows, of `WINDOW_BYTES` each."""
    data = np.empty((len(starts), WINDOW_BYTES), np.uint8)
    data[:, 0] = _WINDOW
    data[:, 1:9] = time_rows(starts)
    data[:, 9:] = time_rows(ends)
    return _as_list(data)


def time_rows(times: Numbers) -> NDArray[np.uint8]:
    """Returns 64-bit integers as rows of 8 bytes, which sort as the integers do."""
    return (times.astype(np.int64).view(np.uint64) ^ _SIGN).astype(">u8").view(np.uint8).reshape(-1, 8)


def encode_times(times: Numbers) -> list[bytes]:
    """Returns 64-bit integers as 8 bytes each, in the same order."""
    return _as_list(time_rows(times))


def decode_times(data: bytes) -> Numbers:
    """Returns the integers of joined bytes that `encode_times` returned."""
    return (np.frombuffer(data, ">u8").astype(np.uint64) ^ _SIGN).view(np.int64)


def decode_windows(data: bytes) -> tuple[Numbers, Numbers]:
    """Returns starts and ends of joined windows that `encode_windows` returned.

    Raises:
        CorruptFile: the data is something else.
    """
    rows = np.frombuffer(data, np.uint8).reshape(-1, WINDOW_BYTES)
    if (rows[:, 0] != _WINDOW).any():
        raise CorruptFile("a stored namespace is not a window", hint="restore an older checkpoint")
    return decode_times(rows[:, 1:9].tobytes()), decode_times(rows[:, 9:].tobytes())


def to_comparable(column: pa.Array) -> pa.Array:
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


def _float_bits(column: pa.Array) -> Unsigned:
    numbers = column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
    return np.where(np.isnan(numbers), np.uint64(_NAN), numbers.view(np.uint64))


def _tagged(tag: int, numbers: Unsigned) -> NDArray[np.uint8]:
    data = np.empty((len(numbers), 9), np.uint8)
    data[:, 0] = tag
    data[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    return data


def _as_list(rows: NDArray[np.uint8]) -> list[bytes]:
    found: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist() if len(rows) else []
    return found


KEY_PART = pa.struct([pa.field("type", pa.string()), pa.field("value", pa.string())])
"""Its fields are nullable: Arrow checks them also where the struct is null."""


_TYPES: dict[str, type] = {
    **{kind: each.python for kind, each in DECLARED.items()},
    "decimal": decimal.Decimal,
    "window": TimeWindow,
}
_ARROW = {("int",): pa.int64(), ("str",): pa.string()}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def parts_column(parts: Iterable[object], kind: pa.DataType) -> pa.Array:
    """Returns decoded parts of keys as a column: of `KEY_PART`, or of the one type that all of them have.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: a part has another type.
    """
    return pa.array(map(_as_struct, parts) if kind.equals(KEY_PART) else parts, kind)


def parts_of_column(column: pa.Array, name: str) -> list[Any]:
    """Returns the parts of keys in a column: structs of their types and values, or values of one type.

    Args:
        column: the column.
        name: its name, for errors.

    Raises:
        SchemaMismatch: it has structs of other fields.
        DataError: a type or value is not valid.
    """
    if not pa.types.is_struct(column.type):
        return list(column.to_pylist())
    if not _is_of_parts(column.type):
        raise SchemaMismatch(
            "a column of parts of keys has structs of other fields",
            hint="pass type and value, both texts, or a column of one type",
            column=name,
            given=str(column.type),
        )
    return [None if part is None else _from_struct(part, name) for part in column.to_pylist()]


def as_plain_column(column: pa.Array) -> pa.Array:
    """Returns structs of integers only, or of texts only, as a column of these; any other column as it is."""
    if column.null_count or not _is_of_parts(column.type):
        return column
    kind = _ARROW.get(tuple(pc.unique(column.field("type")).to_pylist()))
    if kind is None or column.field("value").null_count:
        return column
    try:
        return column.field("value").cast(kind)
    except pa.ArrowInvalid:
        # The error names the value that is not an integer.
        return column


def _is_of_parts(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and {field.name for field in kind} == {"type", "value"}


def _as_struct(part: object) -> dict[str, str] | None:
    if part is None:
        return None
    return {"type": _NAMES[type(part)], "value": part_text(part)}


def part_text(part: object) -> str:
    """Returns a part of a key as text: a time in ISO 8601, a window as an interval of it, bytes in base64."""
    if isinstance(part, TimeWindow):
        return str(part)
    return str(part).lower() if isinstance(part, bool | int | float) else str(msgspec.to_builtins(part))


def _from_struct(part: dict[str, str | None], name: str) -> object:
    kind = _TYPES.get(part["type"] or "")
    try:
        if kind is None:
            raise ValueError("its type is unknown")
        if part["value"] is None:
            raise ValueError("its value is null")
        return _from_text(part["value"], kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as e:
        raise DataError(
            "a namespace or the key of a map is not valid",
            hint=f"types are {', '.join(_TYPES)}; values have the form of stateflow.read_state",
            column=name,
            part=repr(part)[:200],
            reason=str(e)[:200],
        ) from e


def _from_text(text: str, kind: type) -> object:
    if kind is TimeWindow:
        return TimeWindow.parse(text)
    return float(text) if kind is float else msgspec.convert(text, kind, strict=False)


Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


KEY_GROUP = pa.field("key_group", pa.int32(), nullable=False)
NAMESPACE = pa.field("namespace", KEY_PART)
_PADDING = bytes(16)
_DAY_ZERO = 719_163
"""Number of 1970-01-01, counted from the year 1."""
_TEXT_END, _ESCAPE = 0, 0xFF


def key_column_type(spark_type: str) -> pa.DataType:
    """Returns the Arrow type of a key column; raises CorruptFile for a type that cannot be part of a key."""
    try:
        return parse_arrow_type(spark_type)
    except ValueError as e:
        raise CorruptFile("a recorded key column has an invalid type", type=spark_type) from e


def map_key_field(recorded: str) -> pa.Field:
    """Returns the column of a map's keys; keys of several types, such as those of a union, are of `KEY_PART`."""
    scalar = scalar_of(recorded)
    # Keys that are datetimes may have a zone, or none.
    if scalar is None or scalar.kind == "datetime":
        return pa.field("map_key", KEY_PART)
    return pa.field("map_key", scalar.arrow, nullable=False)


@dataclass
class _Cursor:
    """Reader of n keys, one part of all keys at a time.

    Attributes:
        data: the joined keys and padding.
        at: the current offset in each key.
        ends: the end of each key.
        ok: whether each key has the expected layout so far.
    """

    data: Bytes
    at: Numbers
    ends: Numbers
    ok: Flags

    def skip(self, fits: Flags, size: int | Numbers) -> None:
        self.ok &= fits & (self.at + size <= self.ends)
        self.at = np.where(self.ok, self.at + size, self.at)

    def words(self, offset: int) -> NDArray[np.uint64]:
        """Returns the 8 bytes at an offset from the current ones, as big-endian numbers."""
        table = np.ndarray(len(self.data) - 7, ">u8", self.data, strides=(1,))
        return table[self.at + offset].astype(np.uint64)

    def read(self, kind: pa.DataType) -> pa.Array | None:
        """Returns the next part; arbitrary for keys that are not `ok`. None for a type that is read one by one."""
        is_null = self.data[self.at] == NULL_PART[0]
        if not is_null.any():
            return self._read_values(kind)
        present = np.flatnonzero(~is_null)
        values = _Cursor(self.data, self.at[present], self.ends[present], self.ok[present])
        found = values._read_values(kind)
        self.skip(is_null, 1)
        self.at[present], self.ok[present] = values.at, values.ok
        at = np.cumsum(~is_null) - 1
        return None if found is None else found.take(pa.array(at, mask=is_null))

    def _read_values(self, kind: pa.DataType) -> pa.Array | None:
        for is_kind, read in _READERS:
            if is_kind(kind):
                return read(self, kind)
        return None

    def read_namespaces(self) -> pa.Array:
        """Returns the namespaces; arbitrary for keys that are not `ok`, such as those with one of another type."""
        name, kind = _NAMESPACES.get(int(self.data[self.at[0]]), ("", None))
        if kind is None:
            self.skip(self.data[self.at] == _TEXT_END, 1)
            return pa.nulls(len(self.at), KEY_PART)
        found = self._read_values(kind)
        assert found is not None
        names = pa.repeat(pa.scalar(name), len(found))
        return pa.StructArray.from_arrays([names, found.cast(pa.string())], fields=list(KEY_PART))


def _read_ints(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    numbers = (cursor.words(1) ^ _SIGN).view(np.int64)
    narrow = numbers.astype(kind.to_pandas_dtype())
    cursor.skip((cursor.data[cursor.at] == _INT) & (narrow == numbers), 9)
    return pa.array(narrow, kind)


def _read_floats(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    bits = cursor.words(1)
    numbers = np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)
    # A value that is not a float of this column may overflow; it is read again, or was not a float at all.
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = numbers.astype(kind.to_pandas_dtype())
    cursor.skip((cursor.data[cursor.at] == _FLOAT) & ((narrow == numbers) | np.isnan(numbers)), 9)
    return pa.array(narrow, kind)


def _read_bools(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    tags = cursor.data[cursor.at]
    cursor.skip((tags == 0x26) | (tags == 0x27), 1)
    return pa.array(tags == 0x27, kind)


def _read_dates(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    days = (cursor.words(1) >> np.uint64(32)).astype(np.int64) - _DAY_ZERO
    cursor.skip((cursor.data[cursor.at] == 0x30) & (days.astype(np.int32) == days), 5)
    return pa.array(days.astype(np.int32), kind)


def _read_datetimes(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    micros = (cursor.words(2) ^ _SIGN).view(np.int64)
    cursor.skip(cursor.data[cursor.at] == 0x31, 10)
    return pa.array(micros, pa.int64()).view(kind)


def _read_texts(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    before, data = cursor.at, cursor.data
    zeros = np.append(np.flatnonzero(data == _TEXT_END), len(data))
    ends = zeros[np.searchsorted(zeros, before + 1)]
    fits = (data[before] == (2 if pa.types.is_string(kind) else 1)) & (ends < cursor.ends)
    # An escaped NUL does not end a text: such a key is decoded by itself.
    fits &= data[np.where(fits, ends + 1, 0)] != _ESCAPE
    cursor.skip(fits, np.where(fits, ends - before + 1, 0))
    return slices(data, np.where(fits, before + 1, before), np.where(fits, ends, before), kind)


_NAMESPACES = {_INT: ("int", pa.int64()), 2: ("str", pa.string())}
"""Names and Arrow types of the types of namespaces that are decoded for all keys at once, by their codes."""
_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[_Cursor, pa.DataType], pa.Array]], ...] = (
    (pa.types.is_signed_integer, _read_ints),
    (pa.types.is_floating, _read_floats),
    (pa.types.is_boolean, _read_bools),
    (pa.types.is_date32, _read_dates),
    (pa.types.is_timestamp, _read_datetimes),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_binary(kind), _read_texts),
)


@dataclass(frozen=True)
class KeyColumns:
    """Columns of n stored keys.

    Attributes:
        key_group: the key groups.
        keys: the key columns.
        namespace: of `KEY_PART`, null for the void namespace.
        map_key: the map's keys; None if the state is not a map.
    """

    key_group: pa.Array
    keys: list[pa.Array]
    namespace: pa.Array
    map_key: pa.Array | None = None


@dataclass(frozen=True)
class KeyLayout:
    """The parts of the stored keys of a state, after key group and state id.

    Attributes:
        types: Arrow types of the key columns.
        start: offset of the key.
        map_key: Arrow type of the key of a map, which follows the namespace; None without one.
        tail: number of bytes that follow, which are not decoded.
    """

    types: tuple[pa.DataType, ...]
    start: int = KEY_OFFSET
    map_key: pa.DataType | None = None
    tail: int = 0

    def read(self, stored: Sequence[bytes]) -> KeyColumns:
        """Returns the columns of stored keys, at least one.

        Raises:
            CorruptFile: a key does not have this layout.
        """
        data = np.frombuffer(b"".join((*stored, _PADDING)), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, stored), np.int64, len(stored)))
        starts = ends - np.diff(ends, prepend=0)
        groups = pa.array(data[starts].astype(np.int32) << 8 | data[starts + 1])
        cursor = _Cursor(data, starts, ends - self.tail, np.ones(len(stored), bool))
        try:
            fast = self._read_fast(cursor)
        except pa.ArrowException:
            # A text that is not UTF-8: the error names its key.
            fast = None
        if fast is not None and cursor.ok.all():
            return self._columns(groups, fast)
        odd = np.arange(len(stored)) if fast is None else np.flatnonzero(~cursor.ok)
        slow = self._read_slow([stored[row] for row in odd.tolist()])
        if fast is None:
            return self._columns(groups, slow)
        order = pa.array(np.argsort(np.concatenate([np.flatnonzero(cursor.ok), odd])))
        is_fast = pa.array(cursor.ok)
        pairs = zip(fast, slow, strict=True)
        return self._columns(groups, [pa.concat_arrays([a.filter(is_fast), b]).take(order) for a, b in pairs])

    def _columns(self, groups: pa.Array, found: list[pa.Array]) -> KeyColumns:
        count = len(self.types)
        return KeyColumns(groups, found[:count], found[-1], found[count] if self.map_key is not None else None)

    def _read_fast(self, cursor: _Cursor) -> list[pa.Array] | None:
        """Returns key columns, map key and namespace; None if a column is of a type that is decoded one by one."""
        cursor.skip(cursor.ok, self.start)
        found = [cursor.read(kind) for kind in self.types]
        namespaces = cursor.read_namespaces()
        if self.map_key is not None:
            found.append(cursor.read(self.map_key))
        found.append(namespaces)
        cursor.ok &= cursor.at == cursor.ends
        return None if any(column is None for column in found) else found

    def _read_slow(self, stored: Sequence[bytes]) -> list[pa.Array]:
        count = len(self.types) + 1
        rows = []
        for key in stored:
            parts, end = decode_key_parts(key, self.start, count)
            *values, namespace = parts
            if self.map_key is not None:
                found, end = decode_key_parts(key, end, 1)
                values += found
            if end != len(key) - self.tail:
                raise CorruptFile("a stored key has another length than its parts", key=key.hex()[:200])
            rows.append([*values, namespace])
        kinds = [*self.types, *([] if self.map_key is None else [self.map_key]), NAMESPACE.type]
        try:
            return [parts_column(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise CorruptFile(
                "a stored key does not have its recorded type", key=stored[0].hex()[:200], reason=str(e)[:200]
            ) from e
