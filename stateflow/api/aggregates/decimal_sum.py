"""The column aggregate that adds Decimals."""

from __future__ import annotations

import decimal
from typing import Annotated

import pyarrow as pa

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values
from stateflow.api.functions.vectorized import VectorState
from stateflow.errors import StateError
from stateflow.types.columns.precision import MOST_DIGITS, precision

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

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
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
