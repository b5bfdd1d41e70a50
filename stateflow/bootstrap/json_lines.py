"""Lines of JSON as Arrow batches: the opposite of `stateflow.connectors.json_rows`, for columns of known types."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, BinaryIO, TypedDict, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import DataError
from stateflow.types.columns.conversion import arrow_types_within
from stateflow.types.declared_types import NOT_FINITE, python_type_of

_ROWS, _BYTES = 16 << 10, 8 << 20
_LONGEST_LINE = 256 << 20
_INTERVAL = re.compile(r"(-?)(\d{1,9}) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")
"""A duration as Spark writes it: days, hours, minutes and seconds."""
_FINER = re.compile(r"\.\d{6}\d*[1-9]")
"""A fraction of a second with more digits than times have, which msgspec rounds."""
_FINER_BYTES = re.compile(_FINER.pattern.encode())
_FRACTION = re.compile(r"\.(\d+)([DHMS])", re.IGNORECASE)
_MICROSECONDS = {"D": 86_400_000_000, "H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000}
types = pa.types


_TYPED_DICT = cast(Callable[..., object], TypedDict)
"""Type checkers know only the syntax of classes, whose names are not known here."""
_Row = tuple[int, msgspec.Struct]
"""A decoded line, after its number."""
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""Errors of Arrow for a value that a column cannot have."""
_encode = msgspec.json.Encoder().encode
_BOOLEANS = {"true": True, "false": False}


_Type = Any
"""A type for msgspec's decoder."""


class _Float(float):
    """A number, or the text of one that JSON does not have, such as ``NaN``."""


class _Duration(datetime.timedelta):
    """A duration as text of ISO 8601 or of Spark."""


_OTHERS: dict[type | None, _Type] = {
    float: _Float,
    datetime.timedelta: _Duration,
    datetime.time: Annotated[datetime.time, msgspec.Meta(tz=False)],
}
"""Types that values are decoded as where JSON has a form of its own for them."""


def first_names(path: Path) -> list[str]:
    """Returns the names of the first line's columns, none for an empty file. Raises DataError for another value."""
    with path.open("rb") as file:
        for number, line in _lines(file):
            try:
                return list(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
            except (msgspec.DecodeError, RecursionError) as e:
                raise _wrong_line(number, str(e)) from e
    return []


def read_lines(path: Path, schema: pa.Schema, ignored: Collection[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yields the lines of a file as batches of bounded size.

    A column that a line does not have is null.

    Args:
        path: the file.
        schema: the columns.
        ignored: names of columns that are not read.

    Raises:
        DataError: a line is not a JSON object, has another column, a value of another type, or a finer time than the
            column.
    """
    decoder, names = _decoder(schema, ignored), _NameCheck(schema, ignored)
    has_times = any(map(_has_times, schema.types))
    rows: list[_Row] = []
    size = 0
    with path.open("rb") as file:
        for number, line in _lines(file):
            try:
                row = decoder.decode(line)
                names.check(line, row)
                # An escape may be a digit.
                if has_times and (b"\\" in line or _FINER_BYTES.search(line)):
                    _check_times(line, schema)
                rows.append((number, row))
            except (msgspec.DecodeError, ValueError, RecursionError) as e:
                raise _wrong_line(number, str(e)) from e
            size += len(line)
            if len(rows) >= _ROWS or size >= _BYTES:
                yield _batch(rows, schema)
                rows, size = [], 0
    if rows:
        yield _batch(rows, schema)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their numbers from 1."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise _wrong_line(number, f"it is longer than {_LONGEST_LINE} bytes")
        if not line.isspace():
            yield number, line


def _wrong_line(number: int, reason: str) -> DataError:
    return DataError(
        "a line of a file is not a row of the state",
        hint="write one object of JSON for each row, with the columns and values of stateflow state export",
        line=number,
        reason=reason[:300],
    )


def _batch(rows: Sequence[_Row], schema: pa.Schema) -> pa.RecordBatch:
    """Returns decoded lines as a batch."""
    try:
        return _converted([row for _, row in rows], schema)
    except _UNFIT:
        for number, row in rows:
            try:
                _converted([row], schema)
            except _UNFIT as e:
                raise _wrong_line(number, str(e)) from e
        raise


def _converted(rows: Sequence[msgspec.Struct], schema: pa.Schema) -> pa.RecordBatch:
    columns = [_column([getattr(row, f"f{number}") for row in rows], field.type) for number, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _column(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    column = pa.array(values, kind)
    if types.is_float32(kind):
        # Arrow makes a number that is too large infinite.
        given = pa.array(values, pa.float64())
        if not pc.is_inf(column).equals(pc.is_inf(given)):
            raise ValueError("a number is out of the range of a float of 32 bits")
    return column


def _decoder(schema: pa.Schema, ignored: Collection[str]) -> msgspec.json.Decoder[msgspec.Struct]:
    """Returns the decoder of a line: an object whose attributes are numbered, since columns may have any name."""
    columns = [*schema.names, *ignored]
    kinds = [*(_python_type(field.type) | None for field in schema), *(Any for _ in ignored)]
    row = msgspec.defstruct(
        "Row",
        [(f"f{number}", kind, None) for number, kind in enumerate(kinds)],
        rename={f"f{number}": name for number, name in enumerate(columns)},
        forbid_unknown_fields=True,
    )
    return msgspec.json.Decoder(row, dec_hook=_from_json)


class _NameCheck:
    """Refuses lines whose objects have names that decoding to dicts would lose: unknown and repeated ones.

    Args:
        schema: the columns of the lines.
        ignored: names of columns that are not read.
    """

    def __init__(self, schema: pa.Schema, ignored: Collection[str]) -> None:
        kinds = [(field.name, _names_type(field.type)) for field in schema]
        self._names = msgspec.json.Decoder(_struct([*kinds, *((name, msgspec.Raw) for name in ignored)]))
        self._has_equal_names = any(_has_equal_names(field.type) for field in schema)
        self._members = 0
        # Numbers may have more digits than Python converts.
        self._objects = json.JSONDecoder(object_pairs_hook=self._count, parse_int=len, parse_float=len)

    def check(self, line: bytes, row: msgspec.Struct) -> None:
        """Raises ValueError or msgspec.DecodeError for a line with such a name; `row` is the decoded line."""
        # No other text of these members is shorter: so a line of this length has no more of them. Most are written so.
        shortest = len(_encode(self._names.decode(line)))
        if shortest == len(line.rstrip()) and not self._has_equal_names:
            return
        self._members = 0
        columns = self._objects.decode(line.decode())
        if self._has_equal_names and self._members - columns != sum(map(_members_of, msgspec.structs.astuple(row))):
            raise ValueError("a map has a key twice")

    def _count(self, members: list[tuple[str, object]]) -> int:
        if len(dict(members)) < len(members):
            names = [name for name, _ in members]
            raise ValueError(f"an object has a name twice: {next(name for name in names if names.count(name) > 1)}")
        self._members += len(members)
        return len(members)


def _has_equal_names(kind: pa.DataType) -> bool:
    """Returns whether a map in a value may have keys with several texts, such as 1 and 1.0, or 0 and -0."""
    return any(types.is_map(part) and not types.is_string(part.key_type) for part in arrow_types_within(kind))


def _members_of(value: object) -> int:
    """Returns the number of entries of all dicts in a decoded value."""
    if isinstance(value, dict):
        return len(value) + sum(map(_members_of, value.values()))
    return sum(map(_members_of, value)) if isinstance(value, list) else 0


def _has_times(kind: pa.DataType) -> bool:
    """Returns whether a value has timestamps or times."""
    return any(python_type_of(part) in (datetime.datetime, datetime.time) for part in arrow_types_within(kind))


def _check_times(line: bytes, schema: pa.Schema) -> None:
    """Raises ValueError for a time in a valid line that is finer than microseconds."""
    row = msgspec.json.decode(line, type=dict[str, Any])
    for field in schema:
        _check_time(row.get(field.name), field.type)


def _check_time(value: object, kind: pa.DataType) -> None:
    if isinstance(value, str) and (types.is_timestamp(kind) or types.is_time(kind)):
        if _FINER.search(value):
            raise ValueError(f"the time {value[:100]} is finer than microseconds")
    elif isinstance(value, list):
        for item in value:
            _check_time(item, kind.value_type)
    elif isinstance(value, dict):
        for name, item in value.items():
            if types.is_map(kind):
                _check_time(name, kind.key_type)
            _check_time(item, kind.item_type if types.is_map(kind) else kind.field(name).type)


def _names_type(kind: pa.DataType) -> _Type:
    """Returns the type that has the names in a value; `msgspec.Raw` if it has none."""
    if types.is_struct(kind):
        return _struct([(field.name, _names_type(field.type)) for field in kind])
    if types.is_map(kind):
        return GenericAlias(dict, (str, _or_null(_names_type(kind.item_type))))
    if types.is_list(kind):
        item = _names_type(kind.value_type)
        return msgspec.Raw if item is msgspec.Raw else GenericAlias(list, (_or_null(item),))
    return msgspec.Raw


def _or_null(kind: _Type) -> _Type:
    # Raw has null, too.
    return kind if kind is msgspec.Raw else kind | None


def _struct(fields: Sequence[tuple[str, _Type]]) -> _Type:
    """Returns a class with optional attributes that are numbered, since fields may have any name.

    Args:
        fields: name and type of each.
    """
    return msgspec.defstruct(
        "Fields",
        [(f"f{number}", _or_null(kind), msgspec.UNSET) for number, (_, kind) in enumerate(fields)],
        rename={f"f{number}": name for number, (name, _) in enumerate(fields)},
        forbid_unknown_fields=True,
    )


def _python_type(kind: pa.DataType) -> _Type:
    """Returns the type that values of a column are decoded as."""
    if types.is_timestamp(kind):
        return Annotated[datetime.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if types.is_map(kind):
        key = _python_type(kind.key_type)
        # The decoder calls its hook for keys of these types, which Arrow accepts as booleans.
        key = {_Float: float, bool: np.bool_}.get(key, key)
        return GenericAlias(dict, (key, _python_type(kind.item_type) | None))
    if types.is_list(kind):
        return GenericAlias(list, (_python_type(kind.value_type) | None,))
    if types.is_struct(kind):
        fields = {field.name: _python_type(field.type) | None for field in kind}
        return _TYPED_DICT("Fields", fields, total=False)
    python = python_type_of(kind)
    return _OTHERS.get(python, python)


def _from_json(kind: type, given: object) -> object:
    """Decodes a value without a type of JSON: a hook of msgspec's decoder."""
    if kind is _Float and (type(given) in (int, float) or (type(given) is str and given in NOT_FINITE)):
        found = _Float(str(given))
        if type(given) is int and int(found) != given:
            raise ValueError(f"the integer {given} is not a floating-point number")
        return found
    if kind is _Duration and isinstance(given, str):
        return _Duration(microseconds=_duration(given) // datetime.timedelta(microseconds=1))
    if kind is np.bool_ and given in _BOOLEANS:
        return np.bool_(_BOOLEANS[str(given)])
    wanted = {_Float: "number", _Duration: "duration"}.get(kind, "boolean")
    raise ValueError(f"a value of type {type(given).__name__} is not a {wanted}")


def _duration(text: str) -> datetime.timedelta:
    found = _INTERVAL.fullmatch(text)
    if found is None:
        part = _FRACTION.search(text)
        if part and int(part[1]) * _MICROSECONDS[part[2].upper()] % 10 ** len(part[1]):
            raise ValueError(f"the duration {text[:100]} is finer than microseconds")
        return msgspec.convert(text, datetime.timedelta)
    sign, days, hours, minutes, seconds, fraction = found.groups(default="")
    size = datetime.timedelta(int(days), int(seconds), int(fraction.ljust(6, "0")), 0, int(minutes), int(hours))
    return -size if sign else size
