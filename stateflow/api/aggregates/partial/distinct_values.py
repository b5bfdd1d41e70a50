"""Distinct values in partial results, for exact counts of distinct values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.partial.filters import passed_rows
from stateflow.api.aggregates.partial.key_numbers import ranks
from stateflow.api.aggregates.partial.pairs import Pairs
from stateflow.api.functions.vectorized import Array
from stateflow.api.schema import Column
from stateflow.types.columns.shapes import shape_of

Columns = dict[str, pa.Array | pa.ChunkedArray]


@dataclass(frozen=True)
class DistinctPartial:
    """The distinct values of a column in partial results: one in each row, with a flag for each filter.

    Attributes:
        column: the column of the rows.
        filters: bool columns that filter rows; empty for all rows.
    """

    column: Column
    filters: tuple[str, ...]

    @property
    def name(self) -> str:
        """The column of partial results with the values; null in rows without one."""
        return f"{self.column.name}__distinct"

    @property
    def flags(self) -> dict[str, str]:
        """The columns of partial results that say whether a row with the value passed a filter, by filter."""
        return {where: f"{self.column.name}__where_{where}" for where in self.filters if where}

    @property
    def columns(self) -> tuple[Column, ...]:
        """The declarations of these columns."""
        values = Column(self.name, replace(self.column.shape, nullable=True))
        return (values, *(Column(name, shape_of(bool | None)) for name in self.flags.values()))


@dataclass(frozen=True)
class NumberedKeys:
    """The keys of rows.

    Attributes:
        names: the key columns.
        numbers: for each row, the number of its key, from 0.
    """

    names: Sequence[str]
    numbers: Array

    @property
    def first_rows(self) -> Array:
        """For each key, the number of its first row."""
        first: Array = np.empty(int(self.numbers.max()) + 1, np.int64)
        # Of several values for one position, the last one is stored: that of the first row.
        first[self.numbers[::-1]] = np.arange(len(self.numbers))[::-1]
        return first


def with_distinct_values(
    results: Columns, rows: pa.Table, keys: NumberedKeys, distinct: Sequence[DistinctPartial]
) -> Columns:
    """Adds key columns, and columns with distinct values, to partial results.

    A key has as many rows in the result as it has values in the column with most of them. The first one has the partial
    results, which are null in the others.

    Args:
        results: partial results, one of each key, by the number of the key.
        rows: the aggregated rows.
        keys: their keys.
        distinct: the columns to add.
    """
    first_rows = keys.first_rows
    found = [_Values.of(rows, each, keys.numbers, len(first_rows)) for each in distinct]
    counts = np.maximum.reduce([np.ones(len(first_rows), np.int64), *(values.counts for values in found)])
    starts, total = np.cumsum(counts) - counts, int(counts.sum())
    row_of_key, at = pa.array(np.repeat(first_rows, counts)), _positions(starts, total)
    made = {name: rows.column(name).take(row_of_key) for name in keys.names}
    made |= {name: column.take(at) for name, column in results.items()}
    for values in found:
        at = _positions(starts[values.pairs.of] + ranks(values.counts), total)
        made |= {name: column.take(at) for name, column in values.columns.items()}
    return made


@dataclass(frozen=True)
class _Values:
    """The distinct values of a column.

    Attributes:
        pairs: the pairs of key and value, in the order of keys.
        columns: a value for each pair, by column of partial results.
        counts: number of values of each key.
    """

    pairs: Pairs
    columns: Mapping[str, pa.Array]
    counts: Array

    @classmethod
    def of(cls, rows: pa.Table, distinct: DistinctPartial, numbers: Array, keys: int) -> _Values:
        values = rows.column(distinct.column.name).combine_chunks()
        passed = {where: passed_rows(values, rows.column(where) if where else None) for where in distinct.filters}
        pairs = Pairs.in_rows(values, numbers, np.logical_or.reduce(list(passed.values())))
        flags = {name: pa.array(pairs.first_rows(passed[where]) >= 0) for where, name in distinct.flags.items()}
        return cls(pairs, {distinct.name: pairs.values, **flags}, np.bincount(pairs.of, minlength=keys))


def _positions(at: Array, total: int) -> pa.Array:
    """Returns for each of `total` rows which value belongs there: the first value to row `at[0]`; null for none."""
    numbers, is_empty = np.zeros(total, np.int64), np.ones(total, bool)
    numbers[at], is_empty[at] = np.arange(len(at)), False
    return pa.array(numbers, mask=is_empty)
