"""The rows of a keyed operator's inputs: whose key they are, and the objects that functions are given."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.errors import InternalError, SchemaMismatch, StateError
from stateflow.runtime.rows import Maker, event_times, group_starts, row_maker, to_list, to_rows
from stateflow.runtime.specs import GROUP_MASK, GROUP_SHIFT, InputSpec, UnitSpec
from stateflow.runtime.watermarks import milliseconds
from stateflow.serializers import encode_key

Key = tuple[Any, ...]
NamedKey = tuple[bytes, bytes, Key]
"""Key group and key as they are stored, and the key's values."""
TimeOf = Callable[[Any], int | None]
"""How the event time of a row is read."""


@dataclass(frozen=True)
class Input:
    """How rows of one input are read.

    Attributes:
        columns: which of all columns are its own.
        keys: which of those are the key.
        required: which may not be null.
        time: which of all columns has the event time; None for rows without one.
        time_of: how a row's event time is read.
    """

    names: tuple[str, ...]
    columns: slice
    keys: tuple[int, ...]
    required: tuple[int, ...]
    maker: Maker
    time: int | None
    time_of: TimeOf | None


@dataclass(frozen=True)
class KeyedRows:
    """Sorted rows.

    Attributes:
        keys: those of the rows, in order.
        starts: where the rows of each begin.
    """

    rows: list[Any]
    keys: list[NamedKey]
    starts: list[int]

    def by_key(self) -> Iterator[tuple[NamedKey, slice]]:
        """Each key, and which rows are its own."""
        ends = pairwise([*self.starts, len(self.rows)])
        return ((key, slice(start, end)) for key, (start, end) in zip(self.keys, ends, strict=True))


@dataclass(frozen=True)
class _Part:
    """The rows of one input; `places` says which of all rows they are, None that they are all."""

    input: Input
    places: np.ndarray[Any, Any] | None
    columns: Sequence[pa.Array]

    @property
    def keys(self) -> list[pa.Array]:
        return [self.columns[i] for i in self.input.keys]


class KeyedInputs:
    """Reads the inputs of a keyed operator, whose columns come one input behind the other."""

    def __init__(self, spec: UnitSpec) -> None:
        assert spec.keying is not None
        self._spec = spec
        self._key_columns = spec.keying.columns
        self._inputs = _inputs(spec.inputs)

    def __getitem__(self, number: int) -> Input:
        return self._inputs[number]

    def read(
        self, order: np.ndarray[Any, Any], columns: Sequence[pa.Array], which: np.ndarray[Any, Any] | None
    ) -> KeyedRows:
        """Rows by key. `order` and `which` as in `KeyedOperator.process`. Raises StateError for a key that is null, or
        cannot be read, and SchemaMismatch for a null in a column that may not have one."""
        parts = self._parts(columns, which)
        for part in parts:
            refuse_nulls(self._spec, part.input, part.columns)
        keys = self._keys(parts)
        starts = group_starts(order, keys)
        # Before the rows are made: a key that cannot be read is told as what it is.
        named = self._named(order, keys, starts, columns)
        return KeyedRows(_rows(parts, len(order)), named, starts)

    def event_times(
        self, columns: Sequence[pa.Array], which: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """Of each row, for inputs that all have event time; `columns` and `which` as for `read`."""
        first, *others = [event_times(columns[each.time]) for each in self._inputs if each.time is not None]
        if which is None or not others:
            return first
        return np.choose(which, [first, *others])

    def read_unkeyed(self, number: int, columns: Sequence[pa.Array]) -> list[Any]:
        """Row objects of an input without a key. Raises SchemaMismatch as `read` does."""
        each = self._inputs[number]
        refuse_nulls(self._spec, each, columns[each.columns])
        return to_rows(columns[each.columns], each.maker)

    def _parts(self, columns: Sequence[pa.Array], which: np.ndarray[Any, Any] | None) -> list[_Part]:
        """The rows, apart by input."""
        first, *others = self._inputs
        if which is None or not others or not which.any():
            return [_Part(first, None, columns[first.columns])]
        parts = []
        for number, each in enumerate(self._inputs):
            places = np.flatnonzero(which == number)
            taken = [column.take(pa.array(places)) for column in columns[each.columns]]
            parts.append(_Part(each, places, taken))
        return parts

    def _keys(self, parts: Sequence[_Part]) -> list[pa.Array]:
        """Each row's key, column by column."""
        if len(parts) == 1:
            return parts[0].keys
        back = pa.array(np.argsort(np.concatenate([part.places for part in parts])))
        return [
            pa.concat_arrays(same).take(back) for same in zip(*[part.keys for part in parts], strict=True)
        ]

    def _named(self, order: np.ndarray[Any, Any], keys: list[pa.Array], starts: list[int],
               columns: Sequence[pa.Array]) -> list[NamedKey]:  # fmt: skip
        at = pa.array(starts, pa.int64())
        firsts = [k.take(at) for k in keys]
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).tolist() if starts else []
        try:
            values = zip(*[to_list(k) for k in firsts], strict=True)
            return [(struct.pack(">H", g), encode_key(v), v) for g, v in zip(groups, values, strict=True)]
        except Exception as e:
            self._refuse_failing_key(firsts, [c.take(at) for c in columns])
            raise InternalError("a batch's keys cannot be read, but each can", operator=self._spec.uid) from e

    def _refuse_failing_key(self, keys: list[pa.Array], columns: Sequence[pa.Array]) -> None:
        """Finds the key that cannot be read or encoded, and raises StateError with its row."""
        for at in range(len(keys[0])):
            try:
                encode_key(tuple(k[at].as_py() for k in keys))
            except Exception as e:
                names = [name for each in self._inputs for name in each.names]
                row = {n: _shown(c[at]) for n, c in zip(names, columns, strict=True) if c[at].is_valid}
                raise StateError("a key cannot be read", hint="filter such rows in a transform, or cast the column",
                                 operator=self._spec.uid, columns=list(self._key_columns), row=repr(row)[:500],
                                 reason=str(e)) from e  # fmt: skip


def _rows(parts: Sequence[_Part], count: int) -> list[Any]:
    """Row objects in the order in which they came."""
    if len(parts) == 1:
        return to_rows(parts[0].columns, parts[0].input.maker)
    rows: list[Any] = [None] * count
    for part in parts:
        assert part.places is not None
        for place, row in zip(part.places.tolist(), to_rows(part.columns, part.input.maker), strict=True):
            rows[place] = row
    return rows


def _inputs(specs: Sequence[InputSpec]) -> list[Input]:
    starts = [0, *accumulate(len(spec.schema.names) for spec in specs)]
    return [
        Input(
            spec.schema.names,
            slice(start, end),
            _key_indexes(spec),
            required_indexes(spec.schema),
            row_maker(spec.schema),
            start + spec.schema.names.index(spec.time_column) if spec.time_column else None,
            _time_of(spec.time_column),
        )
        for spec, (start, end) in zip(specs, pairwise(starts), strict=True)
    ]


def _key_indexes(spec: InputSpec) -> tuple[int, ...]:
    return tuple(spec.schema.names.index(c) for c in spec.keying.columns) if spec.keying else ()


def _time_of(column: str) -> TimeOf | None:
    """How the event time of a row is read."""
    if not column:
        return None

    def time_of(row: Any) -> int | None:
        value = getattr(row, column)
        return milliseconds(value) if isinstance(value, datetime) else value

    return time_of


def required_indexes(schema: RowSchema) -> tuple[int, ...]:
    """Which columns may not be null."""
    return tuple(at for at, column in enumerate(schema.columns) if not column.nullable)


_NULL_HINT = (
    "declare it as … | None, or filter such rows in a transform. A column that a file lacks is null; with "
    'mode="PERMISSIVE" a JSON or CSV value that does not parse is null, too. A time with Z or an offset needs the type '
    "Annotated[datetime, msgspec.Meta(tz=True)]"
)


def refuse_nulls(spec: UnitSpec, given: Input, columns: Sequence[pa.Array]) -> None:
    """Raises StateError for a row whose key has a null, and SchemaMismatch for one in another column that its class
    declares without: a file that lacks the column may have come, or a transform have made it."""
    for index in given.keys:
        if columns[index].null_count:
            raise StateError("a key is null", hint="filter such rows in a transform, or replace null by a value",
                             operator=spec.uid, column=given.names[index],
                             row=_row_with_null(given, columns, index))  # fmt: skip
    for index in given.required:
        if columns[index].null_count:
            raise SchemaMismatch("a null in a column that is declared without it", hint=_NULL_HINT,
                                 operator=spec.uid, column=given.names[index],
                                 row=_row_with_null(given, columns, index))  # fmt: skip


def _row_with_null(given: Input, columns: Sequence[pa.Array], index: int) -> str:
    at = int(columns[index].is_null().to_numpy(zero_copy_only=False).argmax())
    return repr({n: _shown(c[at]) for n, c in zip(given.names, columns, strict=True)})[:500]


def _shown(cell: pa.Scalar) -> object:
    try:
        return cell.as_py()
    except Exception:  # it is shown because something in its row cannot be read
        return f"<unreadable {cell.type}>"
