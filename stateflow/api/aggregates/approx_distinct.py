"""The column aggregate that estimates the number of distinct values."""

from __future__ import annotations

import pyarrow as pa

from stateflow.api.aggregates import hyperloglog
from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, Values
from stateflow.api.functions.vectorized import VectorState


class ApproxDistinct(Aggregate):
    """The estimated number of distinct values, by HyperLogLog."""

    fields = {"registers": bytes}
    result_type = "bigint"
    may_be_null = False

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        new = hyperloglog.sketch(values.column, values.state.key_of_row, len(values.state))
        merged = hyperloglog.decode(before["registers"].to_pylist()).merged(new)
        return {"registers": pa.array(merged.encode(), pa.binary())}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return pa.array(hyperloglog.decode(accumulators["registers"].to_pylist()).estimates())

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        found = hyperloglog.decode(accumulators["registers"].to_pylist()).grouped(groups.key_of_row, len(groups))
        return {"registers": pa.array(found.encode(), pa.binary())}
