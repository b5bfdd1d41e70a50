"""The column aggregate that estimates the number of distinct values."""

from __future__ import annotations

import pyarrow as pa

from stateflow.api.aggregates import hyperloglog
from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, Values


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
