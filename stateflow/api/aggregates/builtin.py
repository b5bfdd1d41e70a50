"""The column aggregates that are built in, and their names.

Count, sum, mean, variance, min, max, first, last, and exact and estimated counts of distinct values.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from types import GenericAlias
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from stateflow.api.aggregates.aggregate import (
    NUMBERS,
    Accumulators,
    Aggregate,
    FieldTypes,
    Values,
    to_numpy,
    type_of_column,
)
from stateflow.api.aggregates.partial import DistinctPartial, Half, Pairs, Partial, join_halves, mask_passing_rows
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column
from stateflow.errors import CorruptFile, StateError
from stateflow.state.key_columns import to_comparable
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.types.columns.precision import MOST_DIGITS, precision
from stateflow.types.columns.shapes import Leaf
from stateflow.types.descriptors import MapStateDescriptor

_SAFE_SUM = float(1 << 62)
"""Below this, the float estimate of a sum shows that the exact sum fits into 64 bits."""


class Count(Aggregate):
    """The number of values."""

    fields = {"count": int}
    result_type = "bigint"
    may_be_null = False

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        return {"count": pa.array(to_numpy(before["count"]) + values.counts)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        # Null in a window that was stored before the job had this aggregate, and got no rows since.
        return accumulators["count"].fill_null(0)

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return self._count_partials(prefix)

    def merge(self, before: Accumulators, partials: Mapping[str, Values]) -> Accumulators:
        return {"count": pa.array(to_numpy(before["count"]) + partials["count"].summed)}

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return {"count": pa.array(Values(accumulators["count"], groups).summed)}


class Sum(Aggregate):
    """The sum; null for a key without values."""

    over = NUMBERS

    @property
    def fields(self) -> FieldTypes:
        return {"sum": type_of_column(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        is_integer = self.column.spark_type == "bigint"
        old = to_numpy(before["sum"], 0 if is_integer else 0.0)
        added = values.reduce(np.add, 0 if is_integer else 0.0)
        if is_integer:
            self._check_overflow(old, values)
        empty = before["sum"].is_null().to_numpy(zero_copy_only=False) & (values.counts == 0)
        return {"sum": pa.array(old + added, mask=empty)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["sum"]

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return self._sum_partials(prefix, divide_floats)

    def merge(self, before: Accumulators, partials: Mapping[str, Values]) -> Accumulators:
        if "sum" in partials:
            return self.add(before, partials["sum"])
        old = to_numpy(before["sum"])
        high, low = partials[Half.HIGH.value], partials[Half.LOW.value]
        above, below = high.summed, low.summed
        estimate = np.abs(join_halves(above.astype(np.float64), below)) + np.abs(old.astype(np.float64))
        for at in np.flatnonzero(estimate >= _SAFE_SUM).tolist():
            self._check_64_bits(int(old[at]) + join_halves(int(above[at]), int(below[at])), at, high.state)
        empty = before["sum"].is_null().to_numpy(zero_copy_only=False) & (high.counts == 0)
        # An intermediate result may wrap around; the final sum fits, so it is exact.
        return {"sum": pa.array(old + join_halves(above, below), mask=empty)}

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["sum"], groups))

    def _check_overflow(self, before: Array, values: Values) -> None:
        """Raises StateError for a sum beyond 64 bits. numpy wraps around, so float sums find candidates."""
        numbers, starts = values.fill_nulls(0), values.state.starts
        estimate = np.add.reduceat(np.abs(numbers.astype(np.float64)), starts) + np.abs(before.astype(np.float64))
        for at in np.flatnonzero(estimate >= _SAFE_SUM).tolist():
            start = int(starts[at])
            exact = int(before[at]) + sum(numbers[start : start + int(values.state.counts[at])].tolist())
            self._check_64_bits(exact, at, values.state)

    def _check_64_bits(self, exact: int, at: int, state: VectorState) -> None:
        if not -(1 << 63) <= exact < 1 << 63:
            raise StateError(
                "a sum exceeds 64 bits",
                hint="convert the column to float before the aggregation",
                column=self.column.name,
                key=repr(state.keys.slice(at, 1).to_pylist()),
                sum=exact,
            )


class Mean(Aggregate):
    """The mean; null for a key without values."""

    over = NUMBERS
    fields = {"count": int, "sum": float}
    result_type = "double"

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        added = np.add.reduceat(values.fill_nulls(0).astype(np.float64), values.state.starts)
        return {
            "count": pa.array(to_numpy(before["count"]) + values.counts),
            "sum": pa.array(to_numpy(before["sum"], 0.0) + added),
        }

    def result(self, accumulators: Accumulators) -> pa.Array:
        count = to_numpy(accumulators["count"])
        return pa.array(to_numpy(accumulators["sum"], 0.0) / np.maximum(count, 1), mask=count == 0)

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        summed = self._sum_partials(prefix, divide_floats)
        return (*summed, *self._count_partials(prefix)) if summed else ()

    def merge(self, before: Accumulators, partials: Mapping[str, Values]) -> Accumulators:
        if "sum" in partials:
            added = partials["sum"].summed
        else:
            added = join_halves(partials[Half.HIGH.value].summed.astype(np.float64), partials[Half.LOW.value].summed)
        return {
            "count": pa.array(to_numpy(before["count"]) + partials["count"].summed),
            "sum": pa.array(to_numpy(before["sum"], 0.0) + added),
        }

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return {
            "count": pa.array(Values(accumulators["count"], groups).summed),
            "sum": pa.array(Values(accumulators["sum"], groups).reduce(np.add, 0.0)),
        }


class Variance(Aggregate):
    """The sample variance, as Spark's `variance`; null for fewer than two values.

    Accumulated by the pairwise update of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979.
    """

    over = NUMBERS
    fields = {"count": int, "mean": float, "m2": float}
    result_type = "double"
    may_be_null = True

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        old, count = to_numpy(before["count"]), values.counts
        mean, m2 = _moments(values, count)
        total = np.maximum(old + count, 1)
        delta = mean - to_numpy(before["mean"], 0.0)
        # Exact if there are only old or only new values.
        merged = np.where(old == 0, mean, to_numpy(before["mean"], 0.0) + delta * (count / total))
        return {
            "count": pa.array(old + count),
            "mean": pa.array(np.where(count == 0, to_numpy(before["mean"], 0.0), merged)),
            "m2": pa.array(
                to_numpy(before["m2"], 0.0)
                + np.where((old == 0) | (count == 0), m2, m2 + delta**2 * (old * count / total))
            ),
        }

    def result(self, accumulators: Accumulators) -> pa.Array:
        count = to_numpy(accumulators["count"])
        return pa.array(to_numpy(accumulators["m2"], 0.0) / np.maximum(count - 1, 1), mask=count < 2)

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        counts, means = to_numpy(accumulators["count"]), to_numpy(accumulators["mean"], 0.0)
        count = np.add.reduceat(counts, groups.starts)
        mean = np.add.reduceat(np.where(counts == 0, 0.0, counts * means), groups.starts) / np.maximum(count, 1)
        # Exact for one accumulator: rounding would change its mean, and add to its squares.
        only = np.maximum.reduceat(counts, groups.starts) == count
        single = np.add.reduceat(np.where(counts == count[groups.key_of_row], means, 0.0), groups.starts)
        mean = np.where(only & (count > 0), single, mean)
        between = np.where(counts == 0, 0.0, counts * (means - mean[groups.key_of_row]) ** 2)
        m2 = np.add.reduceat(to_numpy(accumulators["m2"], 0.0) + between, groups.starts)
        return {"count": pa.array(count), "mean": pa.array(mean), "m2": pa.array(m2)}


def _moments(values: Values, count: Array) -> tuple[Array, Array]:
    """Returns each key's mean of a batch's values, and their sum of squared deviations from it."""
    numbers, starts = values.fill_nulls(0).astype(np.float64), values.state.starts
    mean = np.add.reduceat(numbers, starts) / np.maximum(count, 1)
    squares = (numbers - mean[values.state.key_of_row]) ** 2
    if values.column.null_count:
        squares[~values.valid] = 0.0
    return mean, np.add.reduceat(squares, starts)


_EXACT = decimal.Context(prec=2 * MOST_DIGITS)
_MORE_DIGITS = 10
_WIDE = 76
"""The digits of Arrow's largest decimals, which the sum of a batch cannot exceed."""


class DecimalSum(Aggregate):
    """The exact sum; null for a key without values. As in Spark, it has 10 digits more than the column."""

    over = (decimal.Decimal,)

    @property
    def fields(self) -> FieldTypes:
        return {"sum": Annotated[decimal.Decimal, precision(*self._digits)]}

    @property
    def result_type(self) -> str:
        digits, scale = self._digits
        return f"decimal({digits},{scale})"

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        wide = values.column.cast(pa.decimal256(_WIDE, self._digits[1]))
        rows = pa.table({"key": pa.array(values.state.key_of_row), "value": wide})
        added = rows.group_by("key", use_threads=False).aggregate([("value", "sum")]).column("value_sum").to_pylist()
        sums = [_sum(old, new) for old, new in zip(before["sum"].to_pylist(), added, strict=True)]
        try:
            return {"sum": pa.array(sums, pa.decimal128(*self._digits))}
        except pa.ArrowInvalid as e:
            raise self._too_large(sums, values) from e

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["sum"]

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["sum"], groups))

    @property
    def _digits(self) -> tuple[int, int]:
        kind = self.column.shape.arrow
        return min(MOST_DIGITS, kind.precision + _MORE_DIGITS), kind.scale

    def _too_large(self, sums: list[decimal.Decimal | None], values: Values) -> StateError:
        digits, scale = self._digits
        limit = decimal.Decimal(10) ** (digits - scale)
        at = next(n for n, total in enumerate(sums) if total is not None and total.copy_abs() >= limit)
        return StateError(
            "a sum has more digits than its column",
            hint="declare the column with more digits, or convert it to float before the aggregation",
            column=self.column.name,
            type=self.result_type,
            key=repr(values.state.keys.slice(at, 1).to_pylist()),
            sum=str(sums[at]),
        )


def _sum(old: decimal.Decimal | None, new: decimal.Decimal | None) -> decimal.Decimal | None:
    return _EXACT.add(old, new) if old is not None and new is not None else new if old is None else old


class _Extreme(Aggregate):
    """The minimum or maximum. NaN is larger than every other float, as in Spark."""

    largest: bool

    @property
    def fields(self) -> FieldTypes:
        return {self._field: type_of_column(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        old, count = before[self._field], values.counts
        if self.column.spark_type == "double":
            return {self._field: self._float(old, values, count)}
        if self.column.spark_type == "bigint":
            limit = np.iinfo(np.int64).min if self.largest else np.iinfo(np.int64).max
            new = pa.array(values.reduce(self._ufunc, limit), mask=count == 0)
        else:
            new = _by_rank(values, self._ufunc, count)
        combine = pc.max_element_wise if self.largest else pc.min_element_wise
        if self.column.spark_type == "boolean":
            old, new = old.cast(pa.uint8()), new.cast(pa.uint8())
        return {self._field: combine(old, new, skip_nulls=True).cast(self.column.arrow_type)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators[self._field]

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        # Arrow ignores NaN, but NaN is the largest float; and it does not compare durations by key.
        if self.kind in (float, datetime.timedelta):
            return ()
        column = self.column
        return (Partial(f"{prefix}{self._field}", column.name, self._field, column.shape),)

    def merge(self, before: Accumulators, partials: Mapping[str, Values]) -> Accumulators:
        return self.add(before, partials[self._field])

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators[self._field], groups))

    @property
    def _field(self) -> str:
        return "max" if self.largest else "min"

    @property
    def _ufunc(self) -> np.ufunc:
        return np.maximum if self.largest else np.minimum

    def _float(self, old: pa.Array, values: Values, count: Array) -> pa.Array:
        # maximum returns NaN if an operand is NaN; fmin returns the other operand.
        function, neutral = (np.maximum, -np.inf) if self.largest else (np.fmin, np.nan)
        new = function(to_numpy(old, neutral), values.reduce(function, neutral))
        return pa.array(new, mask=old.is_null().to_numpy(zero_copy_only=False) & (count == 0))


class Min(_Extreme):
    """The minimum; null for a key without values."""

    largest = False


class Max(_Extreme):
    """The maximum; null for a key without values."""

    largest = True


def _by_rank(values: Values, function: np.ufunc, count: Array) -> pa.Array:
    """Returns each key's minimum or maximum, for types that numpy cannot compare: compares ranks in a dictionary."""
    encoded = values.column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    # The rank of null: below all values for a maximum, above all for a minimum.
    rank[len(order)] = -1 if function is np.maximum else len(order)
    found = function.reduceat(rank[encoded.indices.fill_null(len(order)).to_numpy()], values.state.starts)
    chosen = np.where(count == 0, 0, found)
    at = pa.array(order[chosen] if len(order) else chosen, mask=count == 0)
    return encoded.dictionary.take(at)


_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class First(Aggregate):
    """The first value that is not null. Within a batch, in the order that `key_by` declares."""

    @property
    def fields(self) -> FieldTypes:
        return {"first": type_of_column(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        return {"first": pc.coalesce(before["first"], _value_at(values, np.minimum, len(values.column)))}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["first"]

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["first"], groups))


class Last(Aggregate):
    """The last value that is not null, in the same order as `First`."""

    @property
    def fields(self) -> FieldTypes:
        return {"last": type_of_column(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        return {"last": pc.coalesce(_value_at(values, np.maximum, -1), before["last"])}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["last"]

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["last"], groups))


class ValueByTime(Aggregate):
    """The first or last value by event time that is not null, stored with the event time of its row.

    Times are in microseconds since 1970. Rows with the same time are in order of arrival. A value that was
    stored without its time, in the order of another column, is before all others.
    """

    optional = frozenset({"time"})
    is_last: bool

    def __init__(self, column: Column, where: str, time_column: str) -> None:
        """Aggregates a column in the order of `time_column`; other arguments as in `Aggregate`."""
        super().__init__(column, where)
        self._time_column = time_column

    @property
    def fields(self) -> FieldTypes:
        return {self._field: type_of_column(self.column), "time": int}

    def values(self, batch: pa.RecordBatch, state: VectorState) -> Values:
        times = batch.column(self._time_column)
        numbers = times.cast(pa.int64())
        micros = numbers if pa.types.is_timestamp(times.type) else pc.multiply(numbers, 1000)
        return _timed(super().values(batch, state).column, micros, state)

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        added = self._selected(values)
        old, new = before[self._field], added[self._field]
        # A row with the time of the stored one has arrived later: it is a new last value, and no new first one.
        is_later = _filled(added["time"]) >= _filled(before["time"])
        is_changed = _is_valid(new) & (~_is_valid(old) | (is_later == self.is_last))
        return {name: pc.if_else(pa.array(is_changed), added[name], before[name]) for name in self.fields}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators[self._field]

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self._selected(_timed(accumulators[self._field], accumulators["time"], groups))

    @property
    def _field(self) -> str:
        return "last" if self.is_last else "first"

    def _selected(self, values: Values) -> Accumulators:
        """Returns accumulators with the first or last pair of value and time of each key."""
        function, none = (np.maximum, _LOWEST) if self.is_last else (np.minimum, _HIGHEST)
        value, time = values.column.field(0), values.column.field(1)
        times = np.where(values.valid, _filled(time), none)
        best = function.reduceat(times, values.state.starts)
        is_best = values.valid & (times == best[values.state.key_of_row])
        rows = np.where(is_best, np.arange(len(times)), none)
        found = function.reduceat(rows, values.state.starts)
        at = pa.array(found, mask=found == none)
        return {self._field: value.take(at), "time": time.take(at)}


class FirstByTime(ValueByTime):
    """The first value by event time."""

    is_last = False


class LastByTime(ValueByTime):
    """The last value by event time."""

    is_last = True


def _timed(values: pa.Array, times: pa.Array, state: VectorState) -> Values:
    """Returns pairs of value and time; null for a value that is null."""
    return Values(pa.StructArray.from_arrays([values, times], names=["value", "time"], mask=values.is_null()), state)


def _filled(times: pa.Array) -> Array:
    return to_numpy(times, _LOWEST)


def _is_valid(column: pa.Array) -> Array:
    found: Array = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _value_at(values: Values, function: np.ufunc, none: int) -> pa.Array:
    """Returns each key's value at the row number that `function` selects; null for the row number `none`."""
    rows = np.where(values.valid, np.arange(len(values.column)), none)
    found = function.reduceat(rows, values.state.starts)
    return values.column.take(pa.array(found, mask=found == none))


_ALL = "all"


class CountDistinct(Count):
    """The number of distinct values. Its input has a value only in rows where it is new to the key."""

    over = (int, str, bytes, bool, datetime.date, datetime.datetime)
    is_distinct = True

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return ()


class DistinctValues(Aggregate):
    """The number of distinct values, for windows: the accumulator has the values, so accumulators can be merged."""

    over = CountDistinct.over
    result_type = "bigint"
    may_be_null = False

    @property
    def fields(self) -> FieldTypes:
        return {"values": GenericAlias(list, (type_of_column(self.column),))}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        rows, state = np.flatnonzero(values.valid), values.state
        lists = before["values"]
        of = np.concatenate([np.repeat(np.arange(len(state)), _lengths(lists)), state.key_of_row[rows]])
        added = values.column.take(pa.array(rows))
        return self._sets(of, pa.concat_arrays([lists.flatten(), added.cast(lists.type.value_type)]), len(state))

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        lists = accumulators["values"]
        return self._sets(np.repeat(groups.key_of_row, _lengths(lists)), lists.flatten(), len(groups))

    def result(self, accumulators: Accumulators) -> pa.Array:
        return pa.array(_lengths(accumulators["values"]))

    def _sets(self, of: Array, values: pa.Array, count: int) -> Accumulators:
        """Returns the distinct values of each key in order, so that equal sets have equal stored content.

        Args:
            of: the number of each value's key.
            count: number of keys.
        """
        encoded = values.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        size = max(len(order), 1)
        codes = np.unique(of * size + rank[encoded.indices.to_numpy()])
        found = encoded.dictionary.take(pa.array(order[codes % size]))
        offsets = np.searchsorted(codes // size, np.arange(count + 1))
        kind = self.nothing(0)["values"].type
        return {"values": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), found, type=kind)}


def _lengths(lists: pa.ListArray) -> Array:
    lengths: Array = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return lengths


class DistinctColumn:
    """The values of a column that each key has had, in a map state ``distinct-<column>``.

    The map has an entry for each value, with a flag for each filter: whether a row with the value has passed it.

    Args:
        column: the column.
        filters: bool columns that filter rows; empty for all rows.
    """

    def __init__(self, column: Column, filters: Sequence[str]) -> None:
        self._column = column
        self._flags = {where: f"where_{where}" if where else _ALL for where in filters}
        self._partial: DistinctPartial | None = None

    @property
    def partial(self) -> DistinctPartial:
        """The values in partial results."""
        return DistinctPartial(self._column, tuple(self._flags))

    def split(self) -> None:
        """Takes partial results from now on, in place of rows."""
        self._partial = self.partial

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""
        fields = [(name, bool, False) for name in self._flags.values()]
        flags = msgspec.defstruct("Flags", fields)
        descriptor: MapStateDescriptor[object, object] = MapStateDescriptor(
            f"distinct-{self._column.name}", type_of_column(self._column), flags
        )
        self._seen: MapState[object, object] = ctx.get_map_state(descriptor)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Returns the value of each row or partial result."""
        return batch.column(self._column.name if self._partial is None else self._partial.name)

    def new_rows(self, batch: pa.RecordBatch, state: VectorState) -> Mapping[str, Array]:
        """Returns for each filter the rows with a value that is new to the key, of rows that pass it.

        Of several such rows of the batch, the first one. The values are added to the state.
        """
        values = self.values(batch)
        flags = {where: where for where in self._flags} if self._partial is None else self._partial.flags
        passed = {w: mask_passing_rows(values, batch.column(flags[w]) if w else None) for w in self._flags}
        pairs = Pairs.in_rows(values, state.key_of_row, np.logical_or.reduce(list(passed.values())))
        if not len(pairs.of):
            return {where: np.zeros(len(batch), bool) for where in passed}
        stored = state.read_entries(self._seen, pairs.of, pairs.values)
        rows, after, changed = {}, {}, np.zeros(len(pairs.of), bool)
        for where, name in self._flags.items():
            first = pairs.first_rows(passed[where])
            had = pc.struct_field(stored, name).fill_null(False).to_numpy(zero_copy_only=False)
            is_new = (first >= 0) & ~had
            rows[where] = np.zeros(len(batch), bool)
            rows[where][first[is_new]] = True
            after[name] = pa.array(had | is_new)
            changed |= is_new
        at = pa.array(np.flatnonzero(changed))
        flags = pa.StructArray.from_arrays(list(after.values()), names=list(after)).take(at)
        state.write_entries(self._seen, pairs.of[changed], pairs.values.take(at), flags)
        return rows


def distinct_columns(aggregates: Sequence[Aggregate]) -> dict[str, DistinctColumn]:
    """Returns the columns whose distinct values are counted, by name."""
    filters: dict[str, dict[str, Column]] = {}
    for each in aggregates:
        if each.is_distinct:
            filters.setdefault(each.column.name, {})[each.where] = each.column
    return {name: DistinctColumn(next(iter(of.values())), list(of)) for name, of in filters.items()}


# -- sketches of distinct values --------------------------------------------------------------------------------------

REGISTERS = 4096
_INDEX_SHIFT, _RANK_BITS = 52, 6
_RANKS = _INDEX_SHIFT + 2
"""Number of register values: 0 for an empty register, else the number of leading zeros of a hash plus 1."""
_HASH_SEED = 0
_SERIES_STEPS = 64
"""Number of terms after which neither series below changes in double precision."""


@dataclass(frozen=True)
class Sketches:
    """HyperLogLog sketches, which estimate the number of distinct values, for many keys at once.

    A sketch has 4096 registers, so the standard error is 1.6 %. A sparse sketch stores its non-zero registers, sorted,
    in four bytes each; a dense sketch stores all registers in one byte each. The estimator is from O. Ertl, "New
    cardinality estimation algorithms for HyperLogLog sketches", 2017, which needs no tables for small cardinalities.
    Hash function and layout are part of the stored format. The non-zero registers are ordered by key and register.

    Attributes:
        keys: number of keys.
        places: number of the key, followed by 12 bits with the number of the register.
        ranks: values of the registers.
    """

    keys: int
    places: Array
    ranks: Array

    def merge(self, other: Sketches) -> Sketches:
        """Returns the union: the larger value of each register."""
        return _highest(
            self.keys, np.concatenate([self.places, other.places]), np.concatenate([self.ranks, other.ranks])
        )

    def merge_groups(self, group_of_key: Array, groups: int) -> Sketches:
        """Returns the union of the sketches of each group.

        Args:
            group_of_key: the number of the group of each key.
            groups: number of groups.
        """
        of_key, registers = self.places // REGISTERS, self.places % REGISTERS
        return _highest(groups, group_of_key[of_key] * REGISTERS + registers, self.ranks)

    def estimates(self) -> Array:
        """Returns the estimated number of distinct values per key."""
        of_key = self.places // REGISTERS
        counts = np.bincount(of_key * _RANKS + self.ranks, minlength=self.keys * _RANKS)
        counts = counts.reshape(self.keys, _RANKS).astype(np.float64)
        counts[:, 0] = REGISTERS - counts.sum(axis=1)
        z = REGISTERS * _tau(1 - counts[:, -1] / REGISTERS)
        for rank in range(_RANKS - 2, 0, -1):
            z = 0.5 * (z + counts[:, rank])
        z += REGISTERS * _sigma(counts[:, 0] / REGISTERS)
        found: Array = np.rint(REGISTERS**2 / (2 * np.log(2)) / z).astype(np.int64)
        return found

    def encode(self) -> list[bytes]:
        """Returns the stored form of each key's sketch."""
        of_key = self.places // REGISTERS
        registers = self.places % REGISTERS
        few = (registers << _RANK_BITS | self.ranks).astype("<u4").tobytes()
        edges = np.searchsorted(of_key, np.arange(self.keys + 1)).tolist()
        return [
            few[4 * start : 4 * end]
            if 4 * (end - start) < REGISTERS
            else _all_registers(registers[start:end], self.ranks[start:end])
            for start, end in pairwise(edges)
        ]


def decode_sketches(stored: Sequence[bytes | None]) -> Sketches:
    """Returns sketches from their stored form; None is an empty sketch.

    Raises:
        CorruptFile: the bytes are not a sketch.
    """
    places, ranks = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, data in enumerate(stored):
        if data is None:
            continue
        if len(data) == REGISTERS:
            every = np.frombuffer(data, np.uint8).astype(np.int64)
            registers = np.flatnonzero(every)
            found = every[registers]
        elif len(data) % 4 == 0 and len(data) < REGISTERS:
            few = np.frombuffer(data, "<u4").astype(np.int64)
            registers, found = few >> _RANK_BITS, few & (1 << _RANK_BITS) - 1
        else:
            raise CorruptFile("a HyperLogLog sketch has an invalid length", size_bytes=len(data))
        if (registers >= REGISTERS).any() or (found >= _RANKS).any():
            raise CorruptFile("a HyperLogLog sketch has an invalid register", size_bytes=len(data))
        places.append(number * REGISTERS + registers)
        ranks.append(found)
    return _highest(len(stored), np.concatenate(places), np.concatenate(ranks))


def sketch(values: pa.Array, key_of_row: Array, keys: int) -> Sketches:
    """Returns the sketches of the non-null values of a column.

    Args:
        values: one value per row.
        key_of_row: number of the key of each row.
        keys: number of keys.
    """
    if values.null_count:
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        values, key_of_row = values.drop_null(), key_of_row[valid]
    hashes = _hashes(values)
    remainder = hashes & np.uint64((1 << _INDEX_SHIFT) - 1)
    # Integers below 2**53 are exact as floats, and the exponent is the number of bits.
    ranks = _INDEX_SHIFT + 1 - np.frexp(remainder.astype(np.float64))[1].astype(np.int64)
    registers = (hashes >> np.uint64(_INDEX_SHIFT)).astype(np.int64)
    return _highest(keys, key_of_row * REGISTERS + registers, ranks)


def _highest(keys: int, places: Array, ranks: Array) -> Sketches:
    both = np.sort(places << _RANK_BITS | ranks)
    places = both >> _RANK_BITS
    last = np.append(places[1:] != places[:-1], True) if len(both) else np.zeros(0, bool)
    return Sketches(keys, places[last], both[last] & (1 << _RANK_BITS) - 1)


def _all_registers(registers: Array, ranks: Array) -> bytes:
    every = np.zeros(REGISTERS, np.uint8)
    every[registers] = ranks
    return every.tobytes()


def _hashes(values: pa.Array) -> Array:
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.string())
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        encoded = values.dictionary_encode()
        each = [xxhash.xxh64_intdigest(text, _HASH_SEED) for text in encoded.dictionary.cast(pa.binary()).to_pylist()]
        found: Array = np.array(each, np.uint64)[encoded.indices.to_numpy()]
        return found
    return _mixed(_numbers(values))


def _numbers(values: pa.Array) -> Array:
    kind = values.type
    if pa.types.is_floating(kind):
        whole = to_comparable(values)
    elif pa.types.is_date32(kind):
        whole = values.cast(pa.int32())
    else:
        whole = values.cast(pa.int64())
    found: Array = whole.to_numpy().astype(np.int64 if whole.type != pa.uint64() else np.uint64).view(np.uint64)
    return found


def _mixed(numbers: Array) -> Array:
    """Returns hashes by the mixing step of SplitMix64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    x: Array = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ x >> np.uint64(31)
    return mixed


def _sigma(x: Array) -> Array:
    full = x == 1
    x = np.where(full, 0.0, x)
    total, weight = x.copy(), 1.0
    for _ in range(_SERIES_STEPS):
        x = x * x
        total += x * weight
        weight *= 2
    return np.where(full, np.inf, total)


def _tau(x: Array) -> Array:
    at_end = (x == 0) | (x == 1)
    x = np.where(at_end, 0.5, x)
    total, weight = 1 - x, 1.0
    for _ in range(_SERIES_STEPS):
        x = np.sqrt(x)
        weight *= 0.5
        total -= (1 - x) ** 2 * weight
    return np.where(at_end, 0.0, total / 3)


class ApproxDistinct(Aggregate):
    """The estimated number of distinct values, by HyperLogLog."""

    fields = {"registers": bytes}
    result_type = "bigint"
    may_be_null = False

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        new = sketch(values.column, values.state.key_of_row, len(values.state))
        merged = decode_sketches(before["registers"].to_pylist()).merge(new)
        return {"registers": pa.array(merged.encode(), pa.binary())}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return pa.array(decode_sketches(accumulators["registers"].to_pylist()).estimates())

    def merge_accumulators(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        found = decode_sketches(accumulators["registers"].to_pylist()).merge_groups(groups.key_of_row, len(groups))
        return {"registers": pa.array(found.encode(), pa.binary())}


AGGREGATES: dict[str, type[Aggregate]] = {
    "sum": Sum,
    "count": Count,
    "min": Min,
    "max": Max,
    "mean": Mean,
    "variance": Variance,
    "first": First,
    "last": Last,
    "approx_distinct": ApproxDistinct,
    "count_distinct": CountDistinct,
}
"""What `KeyedStream.aggregate_columns` accepts."""


def aggregate_for(name: str, column: Column, where: str = "") -> Aggregate | None:
    """Returns the aggregate of a column; None if there is none for the column's type.

    Args:
        name: a name in `AGGREGATES`.
        where: bool column of the rows that are aggregated; empty for all rows.
    """
    if not isinstance(column.shape, Leaf):
        return None
    python = column.shape.kind
    kind = DecimalSum if name == "sum" and python is Decimal else AGGREGATES[name]
    return kind(column, where) if python in kind.over or not kind.over else None
