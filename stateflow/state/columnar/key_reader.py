"""Decoding of stored keys into columns: key group, key columns, namespace, and a map's key.

Numbers, dates and texts are decoded for all keys at once, from where they are in the joined keys. So are namespaces
that are integers or texts, where they have the type of the first one. A key with another layout, a decimal, a time or
another namespace is decoded by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.errors import CorruptFile
from stateflow.state.columnar.key_parts import KEY_PART, parts_column
from stateflow.state.columnar.texts import slices
from stateflow.types.arrow_types import KEY_TYPES
from stateflow.types.key_encoding import NULL_PART, decode_key_parts

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

KEY_GROUP = pa.field("key_group", pa.int32(), nullable=False)
NAMESPACE = pa.field("namespace", KEY_PART)
_KEY_OFFSET = 6
"""Offset of the key in an entry of a state: after key group and state id."""
_PADDING = bytes(16)
_SIGN = np.uint64(1 << 63)
_DAY_ZERO = 719_163
"""Number of 1970-01-01, counted from the year 1."""
_TEXT_END, _ESCAPE = 0, 0xFF

_MAP_KEYS = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    **{f"numpy.{sign}int{bits}": pa.int64() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "numpy.bool": pa.bool_(),
    "numpy.float32": pa.float64(),
    "numpy.float64": pa.float64(),
}
"""Arrow types of a map's keys by recorded types. A datetime is none of them: keys may have a zone, or none."""


def key_column_type(spark_type: str) -> pa.DataType:
    """Returns the Arrow type of a key column; raises CorruptFile for a type that cannot be part of a key."""
    if spark_type.startswith("decimal("):
        try:
            precision, scale = (int(part) for part in spark_type.removeprefix("decimal(").rstrip(")").split(","))
            return pa.decimal128(precision, scale)
        except (ValueError, pa.ArrowException):
            pass
    found = KEY_TYPES.get(spark_type)
    if found is None:
        raise CorruptFile("a recorded key column has a type that no key has", type=spark_type)
    return found


def map_key_field(recorded: str) -> pa.Field:
    """Returns the column of a map's keys; keys of several types, such as those of a union, are of `KEY_PART`."""
    kind = _MAP_KEYS.get(recorded, KEY_PART)
    return pa.field("map_key", kind, nullable=kind.equals(KEY_PART))


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
    cursor.skip((cursor.data[cursor.at] == 0x15) & (narrow == numbers), 9)
    return pa.array(narrow, kind)


def _read_floats(cursor: _Cursor, kind: pa.DataType) -> pa.Array:
    bits = cursor.words(1)
    numbers = np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float64)
    # What is no float of this column may overflow; it is read again, or was not a float at all.
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = numbers.astype(kind.to_pandas_dtype())
    cursor.skip((cursor.data[cursor.at] == 0x21) & ((narrow == numbers) | np.isnan(numbers)), 9)
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


_NAMESPACES = {0x15: ("int", pa.int64()), 2: ("str", pa.string())}
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
    """What the stored keys of a state consist of, after key group and state id.

    Attributes:
        types: Arrow types of the key columns.
        start: offset of the key.
        map_key: Arrow type of the key of a map, which follows the namespace; None without one.
        tail: number of bytes that follow, which are not decoded.
    """

    types: tuple[pa.DataType, ...]
    start: int = _KEY_OFFSET
    map_key: pa.DataType | None = None
    tail: int = 0

    def read(self, stored: Sequence[bytes]) -> KeyColumns:
        """Returns the columns of stored keys, at least one.

        Raises:
            CorruptFile: a key does not have this layout.
        """
        joined = np.frombuffer(b"".join((*stored, _PADDING)), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, stored), np.int64, len(stored)))
        starts = ends - np.diff(ends, prepend=0)
        groups = pa.array(joined[starts].astype(np.int32) << 8 | joined[starts + 1])
        cursor = _Cursor(joined, starts, ends - self.tail, np.ones(len(stored), bool))
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
                "a stored key is not of its recorded type", key=stored[0].hex()[:200], reason=str(e)[:200]
            ) from e
