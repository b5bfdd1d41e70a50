"""The column aggregates by name."""

from __future__ import annotations

from stateflow.api.aggregates.aggregate import Aggregate
from stateflow.api.aggregates.approx_distinct import ApproxDistinct
from stateflow.api.aggregates.extremes import Max, Min
from stateflow.api.aggregates.first_last import First, Last
from stateflow.api.aggregates.numeric import Count, Mean, Sum, Variance

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
}
"""What `KeyedStream.aggregate_columns` accepts."""
