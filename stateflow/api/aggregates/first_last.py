"""Column aggregates that depend on the order of rows: first and last."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, declared_type
from stateflow.api.functions.vectorized import VectorState


class First(Aggregate):
    """The first value that is not null. Within a batch, in the order that `key_by` declares."""

    @property
    def fields(self) -> FieldTypes:
        return {"first": declared_type(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        return {"first": pc.coalesce(before["first"], _value_at(values, np.minimum, len(values.column)))}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["first"]

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["first"], groups))


class Last(Aggregate):
    """The last value that is not null, in the same order as `First`."""

    @property
    def fields(self) -> FieldTypes:
        return {"last": declared_type(self.column)}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        return {"last": pc.coalesce(_value_at(values, np.maximum, -1), before["last"])}

    def result(self, accumulators: Accumulators) -> pa.Array:
        return accumulators["last"]

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        return self.add(self.nothing(len(groups)), Values(accumulators["last"], groups))


def _value_at(values: Values, function: np.ufunc, none: int) -> pa.Array:
    """Returns each key's value at the row number that `function` selects; null for the row number `none`."""
    rows = np.where(values.valid, np.arange(len(values.column)), none)
    found = function.reduceat(rows, values.state.starts)
    return values.column.take(pa.array(found, mask=found == none))
