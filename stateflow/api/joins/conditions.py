"""Conditions over both rows of a pair, for operators that join the rows of a key one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.joins.functions import Untyped
from stateflow.api.joins.pairs import Columns
from stateflow.api.schema import RowSchema
from stateflow.types.columns.conversion import to_column

Schemas = tuple[RowSchema, RowSchema]
"""The columns of the left and of the right rows."""


class Matching(Protocol):
    """Finds the rows that a row is joined with."""

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        """Returns for each row of the other side whether the row, which may be the left one, is joined with it."""
        ...


class EveryPair:
    """No condition: all rows of a key are joined."""

    def __call__(self, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        return [True] * len(others)


class RowCondition:
    """A condition that is called with each pair.

    Args:
        where: takes a left and a right row.
    """

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
