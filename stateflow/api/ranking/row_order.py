"""Columns as integers of the same order, for sorting and comparing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError

Numbers = NDArray[np.int64]
Order = str | Sequence[str]
"""A column that orders rows: its name, or ``(name, "asc")`` or ``(name, "desc")``."""


@dataclass(frozen=True)
class SortKey:
    """A column that orders rows, ascending or descending. Null is the lowest value and NaN the highest, as in Flink."""

    column: str
    descending: bool = False

    def numbers(self, rows: pa.RecordBatch | pa.Table) -> Numbers:
        """Returns an integer for each row: rows with lower integers come first."""
        found = ordered_numbers(rows.column(self.column))
        # Not the negative number, which the lowest integer does not have.
        return ~found if self.descending else found


def sort_keys(given: str | Sequence[Order], schema: RowSchema) -> tuple[SortKey, ...]:
    """Returns the order that an argument declares.

    Args:
        given: a column, or several, each alone or with ``"asc"`` or ``"desc"``.
        schema: the columns of the rows.

    Raises:
        JobDefinitionError: there is no column, a column is not a scalar, or a direction is another text.
    """
    keys = []
    for each in [given] if isinstance(given, str) else given:
        name, direction = _name_and_direction(each)
        schema.column(name).check_sortable()
        keys.append(SortKey(name, direction == "desc"))
    if not keys:
        raise JobDefinitionError("an order needs at least one column", hint='pass order_by=[("price", "desc")]')
    return tuple(keys)


def _name_and_direction(order: Order) -> tuple[str, str]:
    if isinstance(order, str):
        return order, "asc"
    if len(order) != 2 or not isinstance(order[0], str):
        raise JobDefinitionError(
            "an order is neither a column nor a column with its direction",
            hint='pass "price" or ("price", "desc")',
            given=repr(order),
        )
    if order[1] not in ("asc", "desc"):
        raise JobDefinitionError(
            "an order is neither ascending nor descending", hint='use "asc" or "desc"', given=repr(order)
        )
    return order[0], order[1]


def ordered_numbers(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """Returns integers in the order of a column's values; null is the lowest value, and NaN the highest."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kinds = pa.types
    if not column.null_count and (kinds.is_integer(column.type) or kinds.is_temporal(column.type)):
        if kinds.is_date32(column.type) or kinds.is_time32(column.type):
            column = column.cast(pa.int32())
        numbers: Numbers = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return numbers
    # By default ascending, with NaN after all other values, and null after NaN.
    ranks: Numbers = pc.rank(column, tiebreaker="dense").to_numpy()
    ranks = ranks.astype(np.int64)
    if column.null_count:
        ranks[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return ranks
