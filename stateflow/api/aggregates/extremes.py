"""Column aggregates that compare: min and max."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, declared_type, to_numpy
from stateflow.api.aggregates.partial.aggregation import Partial
from stateflow.api.functions.vectorized import Array, VectorState


class _Extreme(Aggregate):
    """The minimum or maximum. NaN is larger than every other float, as in Spark."""

    largest: bool

    @property
    def fields(self) -> FieldTypes:
        return {self._field: declared_type(self.column)}

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

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
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
