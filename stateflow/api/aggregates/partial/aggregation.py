"""Partial aggregation before the shuffle: one row per key and Spark partition is shuffled, or per key and time slice.

Used for aggregates whose result does not depend on partitioning: sums of integers, counts, also of distinct values, min
and max, as in the first phase of Flink's local-global aggregation. Sums of floats and the order of rows depend on
partitioning.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.partial.distinct_values import (
    Columns,
    DistinctPartial,
    NumberedKeys,
    with_distinct_values,
)
from stateflow.api.aggregates.partial.filters import is_true, masked
from stateflow.api.aggregates.partial.key_numbers import (
    BYTES_AT_ONCE,
    ROWS_AT_ONCE,
    are_grouped_alike,
    held_together,
    key_numbers,
)
from stateflow.api.schema import Column, RowSchema
from stateflow.types.columns.shapes import Shape, shape_of

ROWS = "_sf_rows"
"""The column of a partial result of a time slice with the number of its rows."""
_SLICE = "_sf_slice"
_KEY = "_sf_key"
_LOW_BITS = 32
_PER_MILLISECOND = {"us": 1000, "ns": 1_000_000, "ms": 1}

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
class TimeSlices:
    """Slices of event time by which rows are aggregated, in addition to their key.

    A partial result has the latest event time of its rows, from which tasks compute watermarks, and their number.

    Attributes:
        time: the column with the event time, of which partial results have the latest.
        length: length of a slice in milliseconds.
        offset: start of a slice in milliseconds since 1970.
    """

    time: Column
    length: int
    offset: int

    @property
    def partials(self) -> tuple[Partial, ...]:
        """The columns with the latest event time and the number of rows."""
        name = self.time.name
        return Partial(name, name, "max", self.time.shape), Partial(ROWS, name, "count", shape_of(int))

    def numbers(self, times: pa.ChunkedArray) -> pa.Array:
        """Returns the number of the slice of each event time, null for null."""
        unit = _PER_MILLISECOND[times.type.unit] if pa.types.is_timestamp(times.type) else 1
        values = times.cast(pa.int64()).fill_null(0).to_numpy()
        return pa.array((values - self.offset * unit) // (self.length * unit), mask=times.is_null().to_numpy())


@dataclass(frozen=True)
class PartialAggregation:
    """The partial aggregation of a partition's rows.

    Attributes:
        keys: the key columns.
        partials: the other columns.
        slices: slices of event time by which rows are aggregated as well; None to aggregate by key alone.
        distinct: columns whose distinct values are added to the partial results of a key; not with slices.
        rows_at_once, bytes_at_once: number and size of the rows that are aggregated together, in memory.
    """

    keys: tuple[Column, ...]
    partials: tuple[Partial, ...]
    slices: TimeSlices | None = None
    distinct: tuple[DistinctPartial, ...] = ()
    rows_at_once: int = ROWS_AT_ONCE
    bytes_at_once: int = BYTES_AT_ONCE

    name: ClassVar[str] = "partial aggregation"

    @classmethod
    def of(
        cls,
        keys: Sequence[Column],
        partials: Mapping[str, tuple[Partial, ...]],
        slices: TimeSlices | None = None,
        distinct: Sequence[DistinctPartial] = (),
    ) -> PartialAggregation | None:
        """Returns the aggregation; None if a result would depend on partitioning, or names differ in case at most.

        Args:
            partials: partial results by output column; empty for an aggregate that depends on partitioning.
            distinct: columns whose distinct values are counted.
        """
        every = (*(slices.partials if slices else ()), *(p for own in partials.values() for p in own))
        made = (*(p.column for p in every), *(column for each in distinct for column in each.columns))
        names = [*(key.name for key in keys), *(column.name for column in made)]
        is_split = all(partials.values()) and are_grouped_alike(keys)
        is_unique = len({name.lower() for name in names}) == len(names)
        return cls(tuple(keys), every, slices, tuple(distinct)) if is_split and is_unique else None

    @cached_property
    def schema(self) -> RowSchema:
        """The columns of the partial results."""
        columns = (*self.keys, *(p.column for p in self.partials), *(c for each in self.distinct for c in each.columns))
        return RowSchema(msgspec.defstruct("Partials", [(c.name, Any) for c in columns]), columns)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row for each key, or key and slice, of the rows that are aggregated together.

        With distinct values, a key has as many rows as it has values in the column with most of them.
        """
        for held in held_together(batches, self.rows_at_once, self.bytes_at_once):
            yield from self._aggregated(held)

    def _aggregated(self, rows: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(rows)
        by = {key.name: table.column(key.name) for key in self.keys}
        if self.slices is not None:
            by[_SLICE] = self.slices.numbers(table.column(self.slices.time.name))
        made = self._with_distinct_values(table) if self.distinct else self._grouped(table, by)
        columns = [made[field.name].cast(field.type) for field in self.schema.arrow]
        yield from pa.table(columns, schema=self.schema.arrow).combine_chunks().to_batches()

    def _with_distinct_values(self, table: pa.Table) -> Columns:
        keys = [key.name for key in self.keys]
        numbers = key_numbers(table, keys)
        grouped = self._grouped(table, {_KEY: pa.array(numbers)})
        # Arrow's groups are not in the order of their first rows.
        order = pc.sort_indices(grouped.pop(_KEY))
        results = {name: column.take(order) for name, column in grouped.items()}
        return with_distinct_values(results, table, NumberedKeys(keys, numbers), self.distinct)

    def _grouped(self, table: pa.Table, by: Columns) -> Columns:
        """Returns the grouping columns and the partial results, one row for each group."""
        given = dict(by)
        for at, partial in enumerate(self.partials):
            values = table.column(partial.over)
            if partial.where:
                values = masked(values, is_true(table.column(partial.where)))
            given[_column_name(at)] = values if partial.half is None else partial.half.of(values)
        # Without threads: with them, the order of groups differs from call to call.
        groups = pa.table(given).group_by([*by], use_threads=False)
        found = groups.aggregate([(_column_name(at), p.function) for at, p in enumerate(self.partials)])
        columns = {p.name: found.column(f"{_column_name(at)}_{p.function}") for at, p in enumerate(self.partials)}
        return {name: found.column(name) for name in by} | columns


def joined(high: Number, low: Number) -> Number:
    """Returns the sum from the sums of both halves: an int, or an array."""
    total: Number = high * (1 << _LOW_BITS) + low
    return total


def _column_name(number: int) -> str:
    # No column of a row class has this prefix.
    return f"_sf_{number}"
