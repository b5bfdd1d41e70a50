"""Regular joins of streams without retractions, and the conditions of joins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.column_origins import Origins, of_pairs, origins_of
from stateflow.api.functions.connected import KeyedCoProcessFunction
from stateflow.api.functions.process import Context, RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction
from stateflow.api.joins.functions import Untyped, has_null
from stateflow.api.joins.pairs import (
    HOT,
    Columns,
    ComparedPairs,
    PairedColumns,
    PairLimits,
    Side,
    is_hashed,
    number_equal_rows,
    pairs_of,
)
from stateflow.api.schema import RowSchema
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.list_state import ListState
from stateflow.types.columns.conversion import row_bytes, to_column
from stateflow.types.descriptors import ListStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

Schemas = tuple[RowSchema, RowSchema]
"""The columns of the left and of the right rows."""


def equal_columns(where: Callable[[Columns, Columns], object]) -> tuple[tuple[str, str], ...]:
    """Returns the left and right columns that are equal in each pair for which a condition is true.

    They are found if the condition consists of functions of `pyarrow.compute`: it is called once with expressions in
    place of columns, and is not asked for more than the equalities that `and_` or `and_kleene` connects.
    """
    left, right = _Fields("l"), _Fields("r")
    try:
        made = where(left, right)
    except Exception:
        # The condition looks at values, which there are none of.
        return ()
    if not isinstance(made, pc.Expression):
        return ()
    found = (_EQUAL.fullmatch(each) for each in _conjuncts(str(made)))
    pairs = [sorted(each.groups()) for each in found if each is not None]
    return tuple((left.names[int(one[1:])], right.names[int(other[1:])]) for one, other in pairs if one[0] != other[0])


class _Fields:
    """The columns of one side as names in an expression; the values of pairs are not known."""

    def __init__(self, side: str) -> None:
        self._side = side
        self.names: list[str] = []

    def __len__(self) -> int:
        raise ValueError("the number of pairs is not known")

    def __getitem__(self, name: str) -> pa.Array:
        self.names.append(name)
        return pc.field(f"{self._side}{len(self.names) - 1}")


_EQUAL = re.compile(r"\(([lr]\d+) == ([lr]\d+)\)")


def _conjuncts(text: str) -> Iterator[str]:
    """Yields the conditions that AND connects in the text of an Arrow expression."""
    name, separator = next((each for each in _AND if text.startswith(each[0]) and text.endswith(")")), ("", ""))
    parts = _split(text[len(name) : -1], separator) if name else []
    if len(parts) == 2:
        for each in parts:
            yield from _conjuncts(each)
    else:
        yield text


_AND = (("and_(", ", "), ("and_kleene(", ", "), ("(", " and "))


def _split(text: str, separator: str) -> list[str]:
    """Returns the parts of a text between separators that are in no parentheses and no quotes."""
    parts, depth, start, at = list[str](), 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            closed = _QUOTED.match(text, at)
            at = closed.end() if closed else len(text)
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at])
            start = at + len(separator)
        at += 1
    return [*parts, text[start:]]


_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Matching(Protocol):
    """Finds the rows that a row is joined with."""

    @property
    def equal(self) -> Sequence[tuple[str, str]]:
        """Left and right columns that are equal in each pair that is joined, and whose equal values a hash finds."""
        ...

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        """Returns for each row of the other side whether the row, which may be the left one, is joined with it."""
        ...


class EveryPair:
    """No condition: all rows of a key are joined."""

    equal: Sequence[tuple[str, str]] = ()

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        return [True] * len(others)


class RowCondition:
    """A condition that is called with each pair.

    Args:
        where: takes a left and a right row.
    """

    equal: Sequence[tuple[str, str]] = ()

    def __init__(self, where: Callable[[Untyped, Untyped], object]) -> None:
        self._where = where

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        where = self._where
        return [bool(where(row, other) if is_left else where(other, row)) for other in others]


class ColumnCondition:
    """A condition that is called with the columns of all pairs of a row.

    Args:
        where: takes the columns of the left and of the right rows; returns a boolean Arrow array.
    """

    def __init__(self, schemas: Schemas, where: Callable[[Columns, Columns], pa.Array]) -> None:
        self._schemas = schemas
        self._where = where

    @cached_property
    def equal(self) -> Sequence[tuple[str, str]]:
        """As of `Matching`."""
        left, right = (
            {column.name: column.arrow_type for column in schema.columns if is_hashed(column.arrow_type)}
            for schema in self._schemas
        )
        pairs = equal_columns(self._where)
        return [(one, other) for one, other in pairs if one in left and left[one] == right.get(other)]

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        if not others:
            return []
        sides = ([row] * len(others), others) if is_left else (others, [row] * len(others))
        left, right = (_RowColumns(schema, rows) for schema, rows in zip(self._schemas, sides, strict=True))
        found: list[bool] = pc.fill_null(self._where(left, right), False).to_pylist()
        return found


class _RowColumns:
    """The columns of row objects; a column is made when the condition reads it."""

    def __init__(self, schema: RowSchema, rows: Sequence[object]) -> None:
        self._schema = schema
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._schema.names:
            raise KeyError(name)
        return to_column(self._schema.column(name).shape, [getattr(row, name) for row in self._rows])


Left = TypeVar("Left")
Right = TypeVar("Right")
T = TypeVar("T")


LEFT_RECORDS, RIGHT_RECORDS = "left-records", "right-records"
"""Names of the states with the rows of each side; part of the stored format. As in Flink."""
Condition = Callable[[Columns, Columns], pa.Array]
"""Takes the columns of the left and of the right rows of many pairs; returns for each pair whether it is joined."""


@dataclass(frozen=True)
class KeptRows:
    """The rows that a join keeps.

    Attributes:
        ttl: for how long after its arrival a row is kept; None for ever.
    """

    left: RowSchema
    right: RowSchema
    ttl: StateTtlConfig | None = None

    @property
    def renews_on_read(self) -> bool:
        """Whether the time to live of a row begins again when a row of the other side is joined with it."""
        return self.ttl is not None and self.ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite

    @property
    def descriptors(self) -> tuple[ListStateDescriptor[Untyped], ListStateDescriptor[Untyped]]:
        """The states of both sides."""
        return (
            ListStateDescriptor(LEFT_RECORDS, self.left.row_class, ttl=self.ttl),
            ListStateDescriptor(RIGHT_RECORDS, self.right.row_class, ttl=self.ttl),
        )


class RegularJoin(KeyedCoProcessFunction[Left, Right, object], Generic[Left, Right]):
    """Calls a function with each pair of rows.

    Args:
        function: takes a left and a right row, and returns the row to emit.
        matching: the condition over both rows; None for all pairs of a key.
    """

    _left: ListState[Left]
    _right: ListState[Right]

    def __init__(
        self, rows: KeptRows, function: Callable[[Untyped, Untyped], object], matching: Matching | None = None
    ) -> None:
        self.function = function
        self._rows = rows
        self._matching = matching

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return origins_of(self.function)

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._rows.descriptors
        self._left, self._right = ctx.get_list_state(left), ctx.get_list_state(right)
        self._pairs = ComparedPairs()
        self.hot_keys = self._pairs.hot

    def process_element1(self, row: Left, ctx: Context) -> Iterator[object]:
        if has_null(ctx.get_current_key()):
            return iter(())
        self._left.add(row)
        join, others = self.function, list(self._right.get())
        self._pairs.add(ctx.get_current_key(), len(others))
        return (join(row, other) for other in self._partners(row, others, is_left=True))

    def process_element2(self, row: Right, ctx: Context) -> Iterator[object]:
        if has_null(ctx.get_current_key()):
            return iter(())
        self._right.add(row)
        join, others = self.function, list(self._left.get())
        self._pairs.add(ctx.get_current_key(), len(others))
        return (join(other, row) for other in self._partners(row, others, is_left=False))

    def _partners(self, row: object, others: list[T], is_left: bool) -> Iterable[T]:
        return others if self._matching is None else compress(others, self._matching(row, others, is_left))


@dataclass(frozen=True)
class Selected:
    """The columns and pairs that a join emits.

    Attributes:
        columns: for each column of the output that is one of a row, whether it is of the left side, and its name there.
        where: the condition; None for all pairs of a key.
    """

    output: RowSchema
    columns: Mapping[str, tuple[bool, str]]
    where: Condition | None = None

    @cached_property
    def _equal(self) -> tuple[tuple[str, str], ...]:
        return () if self.where is None else equal_columns(self.where)

    def numbers(self, left: Side, right: Side) -> tuple[Array, Array]:
        """Returns numbers for the rows of both sides, which are different for rows that the condition never joins."""
        return number_equal_rows(left, right, self._equal)

    def sizes(self, left: pa.StructArray, right: pa.StructArray) -> tuple[Array, Array]:
        """Returns the bytes of each left and each right row that a pair of them takes."""
        return self._sizes(left, True), self._sizes(right, False)

    def _sizes(self, rows: pa.StructArray, is_left: bool) -> Array:
        names = {name for of_left, name in self.columns.values() if of_left == is_left}
        if self.where is not None:
            names = {field.name for field in rows.type}  # the condition may read any column
        found = np.zeros(len(rows), np.int64)
        for name in names:
            found += row_bytes(rows.field(name))
        return found

    def rows(self, left: PairedColumns, right: PairedColumns) -> pa.RecordBatch:
        """Returns the rows of the pairs for which the condition is true."""
        if self.where is not None:
            is_joined = self.where(left, right)
            left, right = left.filter(is_joined), right.filter(is_joined)
        found = self.arrays(left, right)
        return pa.RecordBatch.from_arrays([found[name] for name in self.output.names], names=list(self.output.names))

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return of_pairs((name, is_left, of) for name, (is_left, of) in self.columns.items())

    def arrays(self, left: PairedColumns, right: PairedColumns) -> dict[str, pa.Array]:
        """Returns the columns of the output."""
        return {name: (left if is_left else right)[of] for name, (is_left, of) in self.columns.items()}


class ColumnJoin(VectorizedKeyedFunction):
    """Joins the columns of many keys at once."""

    limits = PairLimits()
    """How much is joined at once, whatever the number of rows of a key."""

    _left: ListState[Untyped]
    _right: ListState[Untyped]

    def __init__(self, rows: KeptRows, selected: Selected) -> None:
        self._rows = rows
        self._selected = selected

    def open(self, ctx: RuntimeContext) -> None:
        left, right = self._rows.descriptors
        self._left, self._right = ctx.get_list_state(left), ctx.get_list_state(right)
        self.hot_keys: dict[str, int] = {}

    def join(self, left: Side, right: Side, keys: KeyedStateBatch) -> Iterator[pa.RecordBatch]:
        """Adds rows of both sides to the state, and yields the new pairs.

        Args:
            left, right: the new rows of each side.
            keys: the keys.
        """
        pairs = np.zeros(len(keys), np.int64)
        for of, rows in keys.lists(self._right, left.keys, left.latest_times(), self.limits.bytes):
            yield from self._emit(left, Side(of, rows), pairs)
        for of, rows in keys.lists(self._left, right.keys, right.latest_times(), self.limits.bytes):
            yield from self._emit(Side(of, rows), right, pairs)
        # A row that is read by later rows of its own batch lives as long after them as after those of later batches.
        renews = self._rows.renews_on_read
        keys.append(self._left, left.of, left.rows, left.row_times(right if renews else None))
        keys.append(self._right, right.of, right.rows, right.row_times(left if renews else None))
        yield from self._emit(left, right, pairs)
        self.hot_keys |= {keys.key_text(n): int(pairs[n]) for n in np.flatnonzero(pairs >= HOT).tolist()}

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`."""
        return self._selected.column_origins()

    def _emit(self, left: Side, right: Side, pairs: Array) -> Iterator[pa.RecordBatch]:
        """Yields the rows of pairs, and counts the pairs of each key."""
        if not len(left.of) or not len(right.of):
            return
        sizes = self._selected.sizes(left.rows, right.rows)
        numbers = self._selected.numbers(left, right)
        for left_at, right_at in pairs_of(*numbers, sizes, self.limits):
            pairs += np.bincount(left.of[left_at], minlength=len(pairs))
            yield self._selected.rows(PairedColumns(left.rows, left_at), PairedColumns(right.rows, right_at))
