"""Partial aggregation before the shuffle: one row per key and Spark partition is shuffled.

Used for aggregates whose result does not depend on partitioning: sums of integers, counts, min and max, as in the first
phase of Flink's local-global aggregation. Sums of floats and the order of rows depend on partitioning.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema
from stateflow.types.columns.shapes import Shape

_LOW_BITS = 32

Number = TypeVar("Number", int, np.ndarray[Any, Any])


class Half(enum.Enum):
    """Half of the bits of an integer. Sums of halves of fewer than 2^31 integers cannot overflow."""

    HIGH = "high"
    LOW = "low"

    def of(self, numbers: pa.Array) -> pa.Array:
        """Returns the upper half of the bits, with the sign, or the lower half."""
        if self is Half.HIGH:
            return pc.shift_right(numbers, _LOW_BITS)
        return pc.bit_wise_and(numbers, (1 << _LOW_BITS) - 1)


@dataclass(frozen=True)
class Partial:
    """A column of partial results.

    Attributes:
        name: name of the column.
        over: the aggregated column of the rows.
        function: Arrow's name of the aggregation.
        shape: the shape of the column's values.
        half: the half of each value that is aggregated; None for the whole value.
        where: bool column of the rows that are aggregated; empty for all rows.
    """

    name: str
    over: str
    function: str
    shape: Shape
    half: Half | None = None
    where: str = ""

    @property
    def column(self) -> Column:
        """The column's declaration; null for a key without values."""
        return Column(self.name, replace(self.shape, nullable=True))


@dataclass(frozen=True)
class PartialAggregation:
    """The partial aggregation of a partition's rows.

    Attributes:
        keys: the key columns.
        partials: the other columns.
        rows_at_once: number of rows that are aggregated together, in memory.
    """

    keys: tuple[Column, ...]
    partials: tuple[Partial, ...]
    rows_at_once: int = 1 << 19

    @cached_property
    def schema(self) -> RowSchema:
        """The columns of the partial results."""
        columns = (*self.keys, *(p.column for p in self.partials))
        return RowSchema(msgspec.defstruct("Partials", [(c.name, Any) for c in columns]), columns)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row for each key in each group of `rows_at_once` rows."""
        for held in _together(batches, self.rows_at_once):
            yield from self._aggregated(held)

    def _aggregated(self, rows: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(rows)
        given = {key.name: table.column(key.name) for key in self.keys}
        for at, partial in enumerate(self.partials):
            values = table.column(partial.over)
            if partial.where:
                values = masked(values, is_true(table.column(partial.where)))
            given[_column_name(at)] = values if partial.half is None else partial.half.of(values)
        # Without threads: with them, the order of groups differs from call to call.
        groups = pa.table(given).group_by([key.name for key in self.keys], use_threads=False)
        made = groups.aggregate([(_column_name(at), p.function) for at, p in enumerate(self.partials)])
        found = [made.column(key.name) for key in self.keys]
        found += [made.column(f"{_column_name(at)}_{p.function}") for at, p in enumerate(self.partials)]
        columns = [c.cast(field.type) for c, field in zip(found, self.schema.arrow, strict=True)]
        yield from pa.table(columns, schema=self.schema.arrow).combine_chunks().to_batches()


def joined(high: Number, low: Number) -> Number:
    """Returns the sum from the sums of both halves: an int, or an array."""
    total: Number = high * (1 << _LOW_BITS) + low
    return total


def is_true(flags: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns flags with false in place of null, as in a filter of SQL."""
    return flags.fill_null(False)


def masked(values: pa.Array | pa.ChunkedArray, kept: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns values with null where they are not kept; aggregates ignore null."""
    return pc.if_else(kept, values, pa.scalar(None, values.type))


def _column_name(number: int) -> str:
    # No column of a row class has this prefix.
    return f"_sf_{number}"


def _together(batches: Iterable[pa.RecordBatch], rows_at_once: int) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(map(len, held)) + len(batch) > rows_at_once:
            yield held
            held = []
        if len(batch):
            held.append(batch)
    if held:
        yield held
