"""Conditions over both rows of a pair, for operators that join the rows of a key one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.joins.functions import Untyped
from stateflow.api.joins.pairs import Columns, is_hashed
from stateflow.api.schema import RowSchema
from stateflow.types.columns.conversion import to_column

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
