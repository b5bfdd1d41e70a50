"""Column aggregates that count and add: count, sum, mean and variance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.aggregate import (
    NUMBERS,
    Accumulators,
    Aggregate,
    FieldTypes,
    Values,
    declared_type,
    to_numpy,
)
from stateflow.api.aggregates.partial.aggregation import Half, Partial, joined
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.errors import StateError

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

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return {"count": pa.array(Values(accumulators["count"], groups).summed)}


class Sum(Aggregate):
    """The sum; null for a key without values."""

    over = NUMBERS

    @property
    def fields(self) -> FieldTypes:
        return {"sum": declared_type(self.column)}

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
        estimate = np.abs(joined(above.astype(np.float64), below)) + np.abs(old.astype(np.float64))
        for at in np.flatnonzero(estimate >= _SAFE_SUM).tolist():
            self._check_64_bits(int(old[at]) + joined(int(above[at]), int(below[at])), at, high.state)
        empty = before["sum"].is_null().to_numpy(zero_copy_only=False) & (high.counts == 0)
        # An intermediate result may wrap around; the final sum fits, so it is exact.
        return {"sum": pa.array(old + joined(above, below), mask=empty)}

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["sum"], groups))

    def _check_overflow(self, before: Array, values: Values) -> None:
        """Raises StateError for a sum beyond 64 bits. numpy wraps around, so float sums find candidates."""
        numbers, starts = values.filled(0), values.state.starts
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
        added = np.add.reduceat(values.filled(0).astype(np.float64), values.state.starts)
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
            added = joined(partials[Half.HIGH.value].summed.astype(np.float64), partials[Half.LOW.value].summed)
        return {
            "count": pa.array(to_numpy(before["count"]) + partials["count"].summed),
            "sum": pa.array(to_numpy(before["sum"], 0.0) + added),
        }

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
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

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
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
    numbers, starts = values.filled(0).astype(np.float64), values.state.starts
    mean = np.add.reduceat(numbers, starts) / np.maximum(count, 1)
    squares = (numbers - mean[values.state.key_of_row]) ** 2
    if values.column.null_count:
        squares[~values.valid] = 0.0
    return mean, np.add.reduceat(squares, starts)
