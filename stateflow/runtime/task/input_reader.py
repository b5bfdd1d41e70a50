"""Reads the input of a keyed operator: its rows by key, the keys' types, and the time of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import TimerService
from stateflow.api.graph import CONSTANT_KEY
from stateflow.api.schema import RowSchema
from stateflow.api.watermarks import event_time_reader
from stateflow.clock import Section, Stopwatch
from stateflow.errors import InternalError, StateError
from stateflow.runtime.executor import GROUP_MASK, GROUP_SHIFT, ChainSpec, InputSpec, Numbers
from stateflow.runtime.task.row_conversion import check_declared, describe_cell, event_times, group_starts, to_rows
from stateflow.state.kinds.key_context import EventClock
from stateflow.state.kinds.timers import NO_WATERMARK, Timer, Timers
from stateflow.state.stored_key import encode_group
from stateflow.types.columns.conversion import to_list, to_stored_scalar
from stateflow.types.columns.shapes import Leaf
from stateflow.types.key_encoding import encode_key

_ENCODED = itemgetter(1)
_CONSTANT_KEY_TYPE = pa.int64()
TimeOf = Callable[[object], int | None]
"""Returns the event time of a row in milliseconds since 1970; None without one."""


@dataclass(frozen=True)
class Input:
    """How the rows of one input are read.

    Attributes:
        schema: the input's columns.
        columns: the positions of the input's columns among those of all inputs.
        keys: positions of the key columns among the input's columns; none if the key is constant.
        time: position of the event time column among those of all inputs; None without event time.
        time_of: reads the event time of a row object; None without event time.
        has_constant_key: whether all rows have the key `CONSTANT_KEY`.
    """

    schema: RowSchema
    columns: slice
    keys: tuple[int, ...]
    time: int | None
    time_of: TimeOf | None
    has_constant_key: bool = False

    def key_columns(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Returns the key columns of rows, of which `columns` are the input's columns."""
        if self.has_constant_key:
            return [pa.array(np.full(len(columns[0]), CONSTANT_KEY), _CONSTANT_KEY_TYPE)]
        return [columns[at] for at in self.keys]

    @property
    def key_types(self) -> tuple[pa.DataType, ...]:
        """The types of the key columns."""
        if self.has_constant_key:
            return (_CONSTANT_KEY_TYPE,)
        return tuple(self.schema.columns[at].arrow_type for at in self.keys)


@dataclass(frozen=True)
class KeyedRows:
    """Row objects, sorted by key.

    Attributes:
        keys: the distinct keys, in the order of their rows.
        starts: position of the first row of each key.
    """

    rows: list[object]
    keys: Sequence[EncodedKey]
    starts: list[int]

    def by_key(self) -> Iterator[tuple[EncodedKey, slice]]:
        """Yields each key with the slice of its rows."""
        ends = pairwise([*self.starts, len(self.rows)])
        return ((key, slice(start, end)) for key, (start, end) in zip(self.keys, ends, strict=True))

    def has_larger_key(self, limit: int) -> bool:
        """Returns whether an encoded key has more than `limit` bytes."""
        return max(map(len, map(_ENCODED, self.keys)), default=0) > limit


@dataclass(frozen=True)
class _InputRows:
    """The rows of one input. `positions` are their positions among all rows; None if they are all rows."""

    input: Input
    positions: np.ndarray[tuple[int], np.dtype[np.intp]] | None
    columns: Sequence[pa.Array]

    @property
    def keys(self) -> list[pa.Array]:
        return self.input.key_columns(self.columns)


class KeyedInputs:
    """Reads the inputs of a keyed operator, whose columns follow one another by input.

    Args:
        spec: the operator chain.
        watch: measures the time of encoding keys.
    """

    def __init__(self, spec: ChainSpec, watch: Stopwatch | None = None) -> None:
        assert spec.keying is not None
        self._spec = spec
        self._watch = watch or Stopwatch()
        self._key_columns = spec.keying.columns
        self._key_types = KeyTypes(spec)
        self._inputs = _inputs(spec.inputs)

    def __getitem__(self, number: int) -> Input:
        return self._inputs[number]

    def read(self, order: Numbers, columns: Sequence[pa.Array], input_numbers: Numbers | None) -> KeyedRows:
        """Returns the rows by key.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of all inputs.
            input_numbers: the number of each row's input; None if all rows are of the first.

        Raises:
            StateError: a key cannot be read.
            SchemaMismatch: a value does not have its declared type, or an undeclared null.
        """
        parts = self._parts(columns, input_numbers)
        for part in parts:
            check_declared(part.columns, part.input.schema, operator=self._spec.uid)
        keys = self._keys(parts)
        starts = group_starts(order, keys)
        # Before the row objects are created, so that an unreadable key raises its own error.
        before = self._watch.switch(Section.STATE)
        encoded = self._encode_keys(order, keys, starts, columns)
        self._watch.switch(before)
        rows = _rows(parts, len(order))
        # After the row objects: a value that is not a member of an Enum raises an error with its row.
        return KeyedRows(rows, self._key_types.all_declared(encoded), starts)

    def split(
        self, columns: Sequence[pa.Array], input_numbers: Numbers
    ) -> tuple[dict[int, tuple[Numbers, Sequence[pa.Array]]], list[pa.Array]]:
        """Returns positions and columns of the rows of each input that has rows, and the key columns of all rows.

        Raises: as `read` for nulls.
        """
        found: dict[int, tuple[Numbers, Sequence[pa.Array]]] = {}
        parts = []
        for number, each in enumerate(self._inputs):
            positions = np.flatnonzero(input_numbers == number)
            taken = [column.take(pa.array(positions)) for column in columns[each.columns]]
            check_declared(taken, each.schema, operator=self._spec.uid)
            parts.append(_InputRows(each, positions, taken))
            if len(positions):
                found[number] = positions, taken
        return found, self._keys(parts)

    def event_times(self, columns: Sequence[pa.Array], input_numbers: Numbers | None) -> Numbers:
        """Returns the event time of each row, for inputs that all have one; arguments as for `read`."""
        first, *others = [event_times(columns[each.time]) for each in self._inputs if each.time is not None]
        if input_numbers is None or not others:
            return first
        return np.choose(input_numbers, [first, *others])

    def read_unkeyed(self, number: int, columns: Sequence[pa.Array]) -> list[object]:
        """Returns the row objects of an input without a key; raises SchemaMismatch as `read` does."""
        each = self._inputs[number]
        check_declared(columns[each.columns], each.schema, operator=self._spec.uid)
        return to_rows(columns[each.columns], each.schema)

    def _parts(self, columns: Sequence[pa.Array], input_numbers: Numbers | None) -> list[_InputRows]:
        """Returns the rows, separated by input."""
        first, *others = self._inputs
        if input_numbers is None or not others or not input_numbers.any():
            return [_InputRows(first, None, columns[first.columns])]
        parts = []
        for number, each in enumerate(self._inputs):
            positions = np.flatnonzero(input_numbers == number)
            taken = [column.take(pa.array(positions)) for column in columns[each.columns]]
            parts.append(_InputRows(each, positions, taken))
        return parts

    def _keys(self, parts: Sequence[_InputRows]) -> list[pa.Array]:
        """Returns the key columns of all rows, in their original order."""
        if len(parts) == 1:
            return parts[0].keys
        original = pa.array(np.argsort(np.concatenate([part.positions for part in parts])))
        return [pa.concat_arrays(same).take(original) for same in zip(*[part.keys for part in parts], strict=True)]

    def _encode_keys(
        self, order: Numbers, keys: list[pa.Array], starts: list[int], columns: Sequence[pa.Array]
    ) -> list[EncodedKey]:
        at = pa.array(starts, pa.int64())
        firsts = [k.take(at) for k in keys]
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).tolist() if starts else []
        try:
            values = zip(*[to_list(k) for k in firsts], strict=True)
            return [(encode_group(g), encode_key(v), v) for g, v in zip(groups, values, strict=True)]
        except Exception as e:
            self._raise_for_unreadable_key(firsts, [c.take(at) for c in columns])
            raise InternalError("the keys of a batch cannot be read, but each one can", operator=self._spec.uid) from e

    def _raise_for_unreadable_key(self, keys: list[pa.Array], columns: Sequence[pa.Array]) -> None:
        """Finds the key that cannot be read or encoded and raises StateError with its row."""
        for at in range(len(keys[0])):
            try:
                encode_key(tuple(k[at].as_py() for k in keys))
            except Exception as e:
                names = [name for each in self._inputs for name in each.schema.names]
                row = {n: describe_cell(c[at]) for n, c in zip(names, columns, strict=True) if c[at].is_valid}
                raise StateError(
                    "a key cannot be read",
                    hint="filter such rows in a transform, or cast the column",
                    operator=self._spec.uid,
                    columns=list(self._key_columns),
                    row=repr(row)[:500],
                    reason=str(e),
                ) from e


def _rows(parts: Sequence[_InputRows], count: int) -> list[object]:
    """Returns the row objects in their original order."""
    if len(parts) == 1:
        return to_rows(parts[0].columns, parts[0].input.schema)
    rows: list[object] = [None] * count
    for part in parts:
        assert part.positions is not None
        for place, row in zip(part.positions.tolist(), to_rows(part.columns, part.input.schema), strict=True):
            rows[place] = row
    return rows


def _inputs(specs: Sequence[InputSpec]) -> list[Input]:
    starts = [0, *accumulate(len(spec.schema.names) for spec in specs)]
    return [
        Input(
            spec.schema,
            slice(start, end),
            _key_indexes(spec),
            start + spec.schema.names.index(spec.time_column) if spec.time_column else None,
            event_time_reader(spec.time_column),
            spec.keying is not None and spec.keying.is_constant,
        )
        for spec, (start, end) in zip(specs, pairwise(starts), strict=True)
    ]


def _key_indexes(spec: InputSpec) -> tuple[int, ...]:
    return tuple(spec.schema.names.index(c) for c in spec.keying.row_columns) if spec.keying else ()


Key = tuple[object, ...]
"""The values of the key columns."""
EncodedKey = tuple[bytes, bytes, Key]
"""Key group (2 bytes) and key as they are stored, and the values of the key columns."""


class KeyTypes:
    """The declared types of an operator's key columns.

    Args:
        spec: the operator chain; its keying is set. With two keyed inputs, the first one's types apply.
    """

    def __init__(self, spec: ChainSpec) -> None:
        assert spec.keying is not None
        self._uid = spec.uid
        schema = spec.inputs[0].schema
        shapes = [schema.column(name).shape for name in spec.keying.row_columns]
        self._kinds = [shape.kind if isinstance(shape, Leaf) and shape.is_converted else None for shape in shapes]
        self._are_stored = not any(self._kinds)

    def to_declared(self, key: Key) -> Key:
        """Returns a key of stored values as the function receives it.

        Raises:
            StateError: a value is not one of the declared type, such as a member that was removed from an Enum, or a
                UUID in upper case.
        """
        if self._are_stored:
            return key
        try:
            found = tuple(
                kind(value) if kind and value is not None else value
                for kind, value in zip(self._kinds, key, strict=True)
            )
        except (ValueError, TypeError, AttributeError) as e:
            raise self._error("a key is not of the declared type", key, str(e)) from e
        # The two texts of one UUID would be two keys with separate state, which the function could not distinguish.
        stored = tuple(map(to_stored_scalar, found))
        if stored != key:
            raise self._error("a key is not in the form in which it is stored", key, f"the form is {stored!r}")
        return found

    def all_declared(self, keys: Sequence[EncodedKey]) -> Sequence[EncodedKey]:
        """Returns encoded keys with the values as the function receives them; raises StateError as `declared` does."""
        if self._are_stored:
            return keys
        return [(group, encoded, self.to_declared(values)) for group, encoded, values in keys]

    def _error(self, message: str, key: Key, reason: str) -> StateError:
        return StateError(
            message,
            hint="convert the column in a transform, for UUIDs with lower(…); restore a member that was removed from "
            "an Enum; or declare the column with the type of its values",
            operator=self._uid,
            key=repr(key)[:200],
            reason=reason,
        )


class KeyTime:
    """The event time of one key at a time; begins at the operator's watermark for each key.

    Args:
        service: receives the watermark that functions read.
        clock: receives the event time by which state expires.
    """

    def __init__(self, spec: ChainSpec, service: TimerService, timers: Timers, clock: EventClock) -> None:
        self._before = {each.number: each.watermark for each in spec.source_times}
        self._bounds = {each.number: each.out_of_orderness for each in spec.source_times}
        self._start = NO_WATERMARK if spec.watermark is None else spec.watermark
        self._at_start = spec.watermark
        self._service = service
        self._timers = timers
        self._clock = clock
        self._known = dict(self._before)
        self._watermark = self._start
        self._sources: list[int] = []
        """The number of each row's source."""
        self._reached: list[int] = []
        """For each row the watermark of its source, unless an earlier row had a later event time."""
        self._until: list[int] = []
        """For each key the highest watermark that its rows can reach."""

    def read(self, rows: KeyedRows, times: Numbers, sources: Numbers) -> None:
        """Prepares for the sorted rows of many keys.

        Args:
            rows: the keys and where their rows begin.
            times: event time of each row in milliseconds since 1970; `NO_WATERMARK` for a row without one.
            sources: number of each row's source.
        """
        reached = np.full(len(times), NO_WATERMARK)
        for number, bound in self._bounds.items():
            is_known = (sources == number) & (times > NO_WATERMARK + bound)
            reached = np.where(is_known, times - bound - 1, reached)
        self._sources, self._reached = sources.tolist(), reached.tolist()
        self._until = self._latest(reached, sources, rows.starts).tolist()
        ends = {(group, key): time for (group, key, _), time in zip(rows.keys, self._until, strict=True)}
        self._timers.prefetch(ends)

    def begin_key(self) -> None:
        """Resets event time, before the first row of another key."""
        self._known = dict(self._before)
        self._watermark = self._start
        self._service.advance(self._at_start)

    def begin_rows(self, number: int) -> None:
        """Prepares the timers of the current key, before its rows.

        Args:
            number: number of the key among those of `read`.
        """
        self._timers.begin_key(self._until[number])

    def end_rows(self) -> None:
        """Ends the rows of the current key in this Arrow batch."""
        self._timers.end_key()

    def advance_to(self, row: int) -> bool:
        """Advances event time to a row; returns whether timers of the key are due before it.

        Args:
            row: number of the row among those of `read`.
        """
        source, reached, known = self._sources[row], self._reached[row], self._known
        if reached <= known.get(source, reached):
            return False
        known[source] = reached
        watermark = reached if len(known) == 1 else min(known.values())
        if watermark <= self._watermark:
            return False
        self._watermark = watermark
        self._service.advance(watermark)
        self._clock.set(watermark)
        return self._timers.is_due_of_key(watermark)

    def due(self) -> Iterator[Timer]:
        """Yields the key's timers that are due, in order of time; then sets the clock to the watermark again."""
        yield from self._timers.due_of_key(self._watermark)
        self._clock.set(self._watermark)

    def _latest(self, reached: Numbers, sources: Numbers, starts: Sequence[int]) -> Numbers:
        """Returns the highest watermark that the rows of each key can reach.

        The first key may have had rows in the previous Arrow batch.
        """
        each = []
        for number, before in self._before.items():
            of = np.where(sources == number, np.maximum(reached, before), before)
            latest = np.maximum.reduceat(of, starts)
            latest[0] = max(latest[0], self._known[number])
            each.append(latest)
        latest_of_all: Numbers = np.maximum(np.minimum.reduce(each), self._start)
        return latest_of_all
