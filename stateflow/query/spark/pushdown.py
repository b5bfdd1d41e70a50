"""Which keys and key groups the filters of a query leave. Pure, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from stateflow.query.columns.state_table import Rows
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT, KeyGroupRange

_MOST_KEYS = 10_000
"""Keys that are looked up; for more, the state is read as a whole."""
GROUP_COLUMN = "key_group"


@dataclass(frozen=True)
class Comparison:
    """A filter of a query: a comparison of a column with values.

    Attributes:
        column: name of the column.
        operator: ``in`` for one of the values, of which None is null; ``>``, ``>=``, ``<`` or ``<=`` for a comparison
            with the only value.
        values: the values.
    """

    column: str
    operator: str
    values: tuple[object, ...]


def rows_of(comparisons: Iterable[Comparison], key_columns: Sequence[str]) -> Rows:
    """Returns rows that include all rows for which every comparison holds.

    Args:
        comparisons: the filters.
        key_columns: names of the key columns; none for a table without keys.
    """
    found = list(comparisons)
    return Rows(_keys(found, key_columns), _groups(found))


def _keys(comparisons: Sequence[Comparison], key_columns: Sequence[str]) -> tuple[object, ...] | None:
    of_columns = []
    for column in key_columns:
        given = [c.values for c in comparisons if (c.column, c.operator) == (column, "in")]
        if not given:
            return None
        # The shortest list: Spark still evaluates all filters.
        of_columns.append(min(given, key=len))
    if not of_columns or prod(map(len, of_columns)) > _MOST_KEYS:
        return None
    return tuple(product(*of_columns))


def _groups(comparisons: Sequence[Comparison]) -> KeyGroupRange | None:
    first, last = 0, MAX_PARALLELISM_LIMIT - 1
    for comparison in comparisons:
        numbers = [value for value in comparison.values if isinstance(value, int)]
        if comparison.column != GROUP_COLUMN or len(numbers) < len(comparison.values) or not numbers:
            continue
        if comparison.operator in ("in", ">", ">="):
            first = max(first, min(numbers) + (comparison.operator == ">"))
        if comparison.operator in ("in", "<", "<="):
            last = min(last, max(numbers) - (comparison.operator == "<"))
    return None if (first, last) == (0, MAX_PARALLELISM_LIMIT - 1) else KeyGroupRange(first, last)
