"""Exact counts of distinct values: which rows have a value that their key did not have before."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from types import GenericAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, FieldTypes, Values, declared_type
from stateflow.api.aggregates.numeric import Count
from stateflow.api.aggregates.partial.aggregation import Partial
from stateflow.api.aggregates.partial.distinct_values import DistinctPartial
from stateflow.api.aggregates.partial.filters import passed_rows
from stateflow.api.aggregates.partial.pairs import Pairs
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column
from stateflow.state.kinds.maps.map_state import MapState
from stateflow.types.descriptors import MapStateDescriptor

_ALL = "all"


class CountDistinct(Count):
    """The number of distinct values. Its input has a value only in rows where it is new to the key."""

    over = (int, str, bytes, bool, datetime.date, datetime.datetime)
    is_distinct = True

    def partials(self, prefix: str, divide_floats: bool = False) -> tuple[Partial, ...]:
        return ()


class DistinctValues(Aggregate):
    """The number of distinct values, for windows: the accumulator has the values, so accumulators can be merged."""

    over = CountDistinct.over
    result_type = "bigint"
    may_be_null = False

    @property
    def fields(self) -> FieldTypes:
        return {"values": GenericAlias(list, (declared_type(self.column),))}

    def add(self, before: Accumulators, values: Values) -> Accumulators:
        rows, state = np.flatnonzero(values.valid), values.state
        lists = before["values"]
        of = np.concatenate([np.repeat(np.arange(len(state)), _lengths(lists)), state.key_of_row[rows]])
        added = values.column.take(pa.array(rows))
        return self._sets(of, pa.concat_arrays([lists.flatten(), added.cast(lists.type.value_type)]), len(state))

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        lists = accumulators["values"]
        return self._sets(np.repeat(groups.key_of_row, _lengths(lists)), lists.flatten(), len(groups))

    def result(self, accumulators: Accumulators) -> pa.Array:
        return pa.array(_lengths(accumulators["values"]))

    def _sets(self, of: Array, values: pa.Array, count: int) -> Accumulators:
        """Returns the distinct values of each key in order, so that equal sets have equal stored content.

        Args:
            of: the number of each value's key.
            count: number of keys.
        """
        encoded = values.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        size = max(len(order), 1)
        codes = np.unique(of * size + rank[encoded.indices.to_numpy()])
        found = encoded.dictionary.take(pa.array(order[codes % size]))
        offsets = np.searchsorted(codes // size, np.arange(count + 1))
        kind = self.nothing(0)["values"].type
        return {"values": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), found, type=kind)}


def _lengths(lists: pa.ListArray) -> Array:
    lengths: Array = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return lengths


class DistinctColumn:
    """The values of a column that each key has had, in a map state ``distinct-<column>``.

    The map has an entry for each value, with a flag for each filter: whether a row with the value has passed it.

    Args:
        column: the column.
        filters: bool columns that filter rows; empty for all rows.
    """

    def __init__(self, column: Column, filters: Sequence[str]) -> None:
        self._column = column
        self._flags = {where: f"where_{where}" if where else _ALL for where in filters}
        self._partial: DistinctPartial | None = None

    @property
    def partial(self) -> DistinctPartial:
        """The values in partial results."""
        return DistinctPartial(self._column, tuple(self._flags))

    def split(self) -> None:
        """Takes partial results from now on, in place of rows."""
        self._partial = self.partial

    def open(self, ctx: RuntimeContext) -> None:
        """Declares the state."""
        fields = [(name, bool, False) for name in self._flags.values()]
        flags = msgspec.defstruct("Flags", fields)
        descriptor: MapStateDescriptor[object, object] = MapStateDescriptor(
            f"distinct-{self._column.name}", declared_type(self._column), flags
        )
        self._seen: MapState[object, object] = ctx.get_map_state(descriptor)

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Returns the value of each row or partial result."""
        return batch.column(self._column.name if self._partial is None else self._partial.name)

    def new_rows(self, batch: pa.RecordBatch, state: VectorState) -> Mapping[str, Array]:
        """Returns for each filter the rows with a value that is new to the key, of rows that pass it.

        Of several such rows of the batch, the first one. The values are added to the state.
        """
        values = self.values(batch)
        flags = {where: where for where in self._flags} if self._partial is None else self._partial.flags
        passed = {w: passed_rows(values, batch.column(flags[w]) if w else None) for w in self._flags}
        pairs = Pairs.in_rows(values, state.key_of_row, np.logical_or.reduce(list(passed.values())))
        if not len(pairs.of):
            return {where: np.zeros(len(batch), bool) for where in passed}
        stored = state.read_entries(self._seen, pairs.of, pairs.values)
        rows, after, changed = {}, {}, np.zeros(len(pairs.of), bool)
        for where, name in self._flags.items():
            first = pairs.first_rows(passed[where])
            had = pc.struct_field(stored, name).fill_null(False).to_numpy(zero_copy_only=False)
            is_new = (first >= 0) & ~had
            rows[where] = np.zeros(len(batch), bool)
            rows[where][first[is_new]] = True
            after[name] = pa.array(had | is_new)
            changed |= is_new
        at = pa.array(np.flatnonzero(changed))
        flags = pa.StructArray.from_arrays(list(after.values()), names=list(after)).take(at)
        state.write_entries(self._seen, pairs.of[changed], pairs.values.take(at), flags)
        return rows


def distinct_columns(aggregates: Sequence[Aggregate]) -> dict[str, DistinctColumn]:
    """Returns the columns whose distinct values are counted, by name."""
    filters: dict[str, dict[str, Column]] = {}
    for each in aggregates:
        if each.is_distinct:
            filters.setdefault(each.column.name, {})[each.where] = each.column
    return {name: DistinctColumn(next(iter(of.values())), list(of)) for name, of in filters.items()}
