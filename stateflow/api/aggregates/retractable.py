"""Counts, sums and means of rows that may be taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, to_numpy
from stateflow.api.aggregates.decimal_sum import DecimalSum
from stateflow.api.aggregates.numeric import Mean, Sum
from stateflow.api.functions.vectorized import Array, VectorState


@dataclass(frozen=True)
class CountedRows:
    """The number of rows of each key, as it changes with each row of a batch.

    A row that is taken back of a key without rows has no effect, and a key begins again when its last row is taken
        back: as
    in Flink, and whatever the size of batches.

    Attributes:
        after: the number of rows of each key after the batch.
        is_reset: for each key, whether it was without rows after some row of the batch.
        effects: for each row, 1 if it counts, -1 if it takes another one back; 0 if the key was without rows after it.
    """

    after: Array
    is_reset: Array
    effects: Array

    @classmethod
    def of(cls, before: Array, taken_back: Array, state: VectorState) -> CountedRows:
        """Counts the rows of a batch.

        Args:
            before: the number of rows of each key before it.
            taken_back: which rows of the batch take another one back.
            state: which rows belong to which key.
        """
        signs = np.where(taken_back, -1, 1)
        key, last = state.key_of_row, state.starts + state.counts - 1
        sums = np.cumsum(signs)
        # The number after each row, if it could be negative.
        running = before[key] + sums - (sums[state.starts] - signs[state.starts])[key]
        # How far it was below zero up to each row: that many rows had no effect. With lower numbers for later keys, the
        # lowest number so far of all rows is that of the row's key.
        below = np.minimum(running, 0) - key * (len(signs) + 1)
        ignored = np.minimum.accumulate(below) + key * (len(signs) + 1)
        number = running - ignored
        # The last row of each key after which it had no rows; -1 without one.
        reset = np.maximum.reduceat(np.where(number == 0, np.arange(len(signs)), -1), state.starts)
        effects = np.where(np.arange(len(signs)) > reset[key], signs, 0)
        return cls(number[last], reset >= 0, effects)


class _Floats:
    """Values of a float column that are not finite, which a sum cannot take back: they are counted."""

    fields: FieldTypes = {"nans": int, "infinities": int, "negatives": int}

    @staticmethod
    def finite(values: Values) -> Values:
        """Returns the values with null in place of those that are not finite."""
        numbers = values.column.fill_null(0.0).to_numpy(zero_copy_only=False)
        kept = np.isfinite(numbers) & values.valid
        if kept.all():
            return values
        return Values(pa.array(np.where(kept, numbers, 0.0), mask=~kept), values.state, values.signs)

    @classmethod
    def add(cls, before: Accumulators, values: Values) -> Accumulators:
        """Returns how many values are NaN, infinite, and negative infinite after a batch."""
        numbers = values.column.fill_null(0.0).to_numpy(zero_copy_only=False)
        signs = np.ones(len(numbers), np.int64) if values.signs is None else values.signs
        found = {"nans": np.isnan(numbers), "infinities": numbers == np.inf, "negatives": numbers == -np.inf}
        return {
            name: pa.array(to_numpy(before[name]) + np.add.reduceat(np.where(is_one, signs, 0), values.state.starts))
            for name, is_one in found.items()
        }

    @classmethod
    def total(cls, accumulators: Accumulators, finite: Array) -> Array:
        """Returns the sum of all values from that of the finite ones."""
        nans, infinities, negatives = (to_numpy(accumulators[name]) > 0 for name in cls.fields)
        found: Array = np.where(infinities, np.inf, np.where(negatives, -np.inf, finite))
        return np.where(nans | (infinities & negatives), np.nan, found)


class RetractableSum(Sum):
    """The sum of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:
        return {**super().fields, "count": int, **(_Floats.fields if self._is_float else {})}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        count = {"count": pa.array(to_numpy(before["count"]) + values.counts)}
        if not self._is_float:
            return {**super().add(before, values), **count}
        return {**super().add(before, _Floats.finite(values)), **count, **_Floats.add(before, values)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        none = to_numpy(accumulators["count"]) <= 0
        if not self._is_float:
            return pa.array(to_numpy(accumulators["sum"]), mask=none)
        return pa.array(_Floats.total(accumulators, to_numpy(accumulators["sum"], 0.0)), mask=none)

    @property
    def _is_float(self) -> bool:
        return self.column.spark_type == "double"


class RetractableMean(Mean):
    """The mean of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:  # type: ignore[override]
        return {"count": int, "sum": float, **(_Floats.fields if self._is_float else {})}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        if not self._is_float:
            return super().add(before, values)
        finite = super().add(before, _Floats.finite(values))
        count = pa.array(to_numpy(before["count"]) + values.counts)
        return {**finite, "count": count, **_Floats.add(before, values)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        if not self._is_float:
            return super().result(accumulators)
        count = to_numpy(accumulators["count"])
        total = _Floats.total(accumulators, to_numpy(accumulators["sum"], 0.0))
        return pa.array(total / np.maximum(count, 1), mask=count <= 0)

    @property
    def _is_float(self) -> bool:
        return self.column.spark_type == "double"


class RetractableDecimalSum(DecimalSum):
    """The exact sum of rows that may be retracted; null for a key without values."""

    @property
    def fields(self) -> FieldTypes:
        return {**super().fields, "count": int}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        column = values.column
        if values.signs is not None:
            column = pc.if_else(pa.array(values.signs < 0), pc.negate(column), column)
        added = super().add(before, Values(column, values.state))
        return {**added, "count": pa.array(to_numpy(before["count"]) + values.counts)}

    def result(self, accumulators: Accumulators) -> pa.Array:
        none = pa.array(to_numpy(accumulators["count"]) <= 0)
        return pc.if_else(none, pa.scalar(None, accumulators["sum"].type), accumulators["sum"])


RETRACTABLE: Mapping[type[Aggregate], type[Aggregate]] = {
    Sum: RetractableSum,
    Mean: RetractableMean,
    DecimalSum: RetractableDecimalSum,
}
"""The aggregates that take rows back, by those that do not."""
