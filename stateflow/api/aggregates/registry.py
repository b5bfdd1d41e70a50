"""The column aggregates by name."""

from __future__ import annotations

from decimal import Decimal

from stateflow.api.aggregates.aggregate import Aggregate
from stateflow.api.aggregates.approx_distinct import ApproxDistinct
from stateflow.api.aggregates.decimal_sum import DecimalSum
from stateflow.api.aggregates.distinct import CountDistinct
from stateflow.api.aggregates.extremes import Max, Min
from stateflow.api.aggregates.first_last import First, Last
from stateflow.api.aggregates.numeric import Count, Mean, Sum, Variance
from stateflow.api.schema import Column
from stateflow.types.columns.shapes import Leaf

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
