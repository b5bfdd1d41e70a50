"""Partial aggregation: one row per key and Spark partition is shuffled, or per key and time slice.

Counts, sums and extremes of partial results are aggregated again after the shuffle.
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

from stateflow.api.functions.vectorized import Array
from stateflow.api.schema import Column, RowSchema
from stateflow.types.columns.conversion import PER_MILLISECOND
from stateflow.types.columns.shapes import Shape, shape_of


def is_true(flags: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns flags with false in place of null, as in a filter of SQL."""
    return flags.fill_null(False)


def mask_values(values: pa.Array | pa.ChunkedArray, kept: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns values with null where they are not kept; aggregates ignore null."""
    return pc.if_else(kept, values, pa.scalar(None, values.type))


def mask_passing_rows(values: pa.Array, flags: pa.Array | pa.ChunkedArray | None) -> Array:
    """Returns for each row whether it has a value and passes a filter, if there is one."""
    valid: Array = values.is_valid().to_numpy(zero_copy_only=False)
    return valid if flags is None else valid & np.asarray(is_true(flags))


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of key and value of some rows, in the order of keys.

    Attributes:
        of: the number of each pair's key.
        values: the value of each pair.
        pair_of_row: for each row, the number of its pair; -1 without one.
    """

    of: Array
    values: pa.Array
    pair_of_row: Array

    @classmethod
    def in_rows(cls, values: pa.Array, keys: Array, chosen: Array) -> Pairs:
        """Returns the pairs of the chosen rows.

        Args:
            values: a value for each row; not null for a chosen one.
            keys: the number of each row's key.
            chosen: whether a row is chosen.
        """
        rows = np.flatnonzero(chosen)
        encoded = values.take(pa.array(rows)).dictionary_encode()
        size = max(len(encoded.dictionary), 1)
        # By a hash table, and then sorted: there are fewer pairs than rows.
        codes = pa.array(keys[rows] * size + encoded.indices.to_numpy()).dictionary_encode()
        found = codes.dictionary.to_numpy()
        order = np.argsort(found)
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        pair_of_row = np.full(len(values), -1)
        pair_of_row[rows] = number[codes.indices.to_numpy()]
        found = found[order]
        return cls(found // size, encoded.dictionary.take(pa.array(found % size)), pair_of_row)

    def first_rows(self, passed: Array) -> Array:
        """Returns for each pair the first of its rows that pass a filter; -1 without one."""
        rows = np.flatnonzero(passed)[::-1]
        first = np.full(len(self.of), -1)
        # Of several values for one position, the last one is stored: that of the first row.
        first[self.pair_of_row[rows]] = rows
        return first


ROWS_AT_ONCE = 1 << 19
BYTES_AT_ONCE = 64 << 20


def group_batches_in_memory(
    batches: Iterable[pa.RecordBatch], rows_at_once: int = ROWS_AT_ONCE, bytes_at_once: int = BYTES_AT_ONCE
) -> Iterator[list[pa.RecordBatch]]:
    """Yields the batches of a partition in groups that are in memory at once; a larger batch is a group of its own."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + len(batch) > rows_at_once or size + batch.nbytes > bytes_at_once):
            yield held
            held, rows, size = [], 0, 0
        if len(batch):
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
    if held:
        yield held


def are_grouped_alike(keys: Iterable[Column]) -> bool:
    """Returns whether Arrow and Spark's shuffle agree on which rows have equal keys.

    A float has several binary forms (NaN, -0.0), which they may group differently.
    """
    return not any(key.spark_type == "double" for key in keys)


def key_numbers(rows: pa.Table, keys: Sequence[str]) -> Array:
    """Returns the number of each row's key: 0 for that of the first row, 1 for the next key, and so on.

    Null is a value like others.
    """
    numbers: Array = np.zeros(len(rows), np.int64)
    for key in keys:
        encoded = rows.column(key).combine_chunks().dictionary_encode(null_encoding="encode")
        # Both factors are at most the number of rows, so the product fits into 64 bits.
        codes = numbers * len(encoded.dictionary) + encoded.indices.to_numpy()
        numbers = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return numbers


def ranks(counts: Array) -> Array:
    """Returns the number of each row among those of its key, from 0, for rows in the order of keys.

    Args:
        counts: number of rows of each key.
    """
    first = np.cumsum(counts) - counts
    found: Array = np.arange(int(counts.sum())) - np.repeat(first, counts)
    return found


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
        passed = {where: mask_passing_rows(values, rows.column(where) if where else None) for where in distinct.filters}
        pairs = Pairs.in_rows(values, numbers, np.logical_or.reduce(list(passed.values())))
        flags = {name: pa.array(pairs.first_rows(passed[where]) >= 0) for where, name in distinct.flags.items()}
        return cls(pairs, {distinct.name: pairs.values, **flags}, np.bincount(pairs.of, minlength=keys))


def _positions(at: Array, total: int) -> pa.Array:
    """Returns for each of `total` rows which value belongs there: the first value to row `at[0]`; null for none."""
    numbers, is_empty = np.zeros(total, np.int64), np.ones(total, bool)
    numbers[at], is_empty[at] = np.arange(len(at)), False
    return pa.array(numbers, mask=is_empty)


ROWS = "_sf_rows"
"""The column of a partial result of a time slice with the number of its rows."""
_SLICE = "_sf_slice"
_KEY = "_sf_key"
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
        unit = PER_MILLISECOND[times.type.unit] if pa.types.is_timestamp(times.type) else 1
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
        for held in group_batches_in_memory(batches, self.rows_at_once, self.bytes_at_once):
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
                values = mask_values(values, is_true(table.column(partial.where)))
            given[_column_name(at)] = values if partial.half is None else partial.half.of(values)
        # Without threads: with them, the order of groups differs from call to call.
        groups = pa.table(given).group_by([*by], use_threads=False)
        found = groups.aggregate([(_column_name(at), p.function) for at, p in enumerate(self.partials)])
        columns = {p.name: found.column(f"{_column_name(at)}_{p.function}") for at, p in enumerate(self.partials)}
        return {name: found.column(name) for name in by} | columns


def join_halves(high: Number, low: Number) -> Number:
    """Returns the sum from the sums of both halves: an int, or an array."""
    total: Number = high * (1 << _LOW_BITS) + low
    return total


def _column_name(number: int) -> str:
    # No column of a row class has this prefix.
    return f"_sf_{number}"
