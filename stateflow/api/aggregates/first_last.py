"""Column aggregates that depend on the order of rows: first and last.

Those of event-time windows are by event time, which they store: rows of a window may come in any batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, declared_type, to_numpy
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


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


class ValueByTime(Aggregate):
    """The first or last value by event time that is not null, stored with the event time of its row.

    Times are in microseconds since 1970. Rows with the same time are in order of arrival. A value that an earlier
    version stored without its time is before all others.
    """

    optional = frozenset({"time"})
    is_last: bool

    def __init__(self, column: Column, where: str, time_column: str) -> None:
        """Aggregates a column in the order of `time_column`; other arguments as in `Aggregate`."""
        super().__init__(column, where)
        self._time_column = time_column

    @property
    def fields(self) -> FieldTypes:
        return {self._field: declared_type(self.column), "time": int}

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

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
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
