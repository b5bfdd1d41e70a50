"""The accumulators of all aggregates of an operator, as columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, partials_of, values_of
from stateflow.api.aggregates.partial.aggregation import Partial, PartialAggregation, TimeSlices
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import Column


class AccumulatorColumns:
    """The accumulators of several aggregates.

    They are columns ``<name>__<field>`` with one row per accumulator, and are stored as one struct.

    Args:
        aggregates: the aggregates by output column.
        required: the output columns that are not nullable.
    """

    def __init__(self, aggregates: Mapping[str, Aggregate], required: Collection[str] = ()) -> None:
        self._aggregates = aggregates
        self._required = frozenset(required)
        self._partials: dict[str, tuple[Partial, ...]] = {}

    def split(self, keys: Sequence[Column], slices: TimeSlices | None) -> PartialAggregation | None:
        """Makes `of_rows` take partial results. Returns their aggregation, which runs before the shuffle.

        Returns None, and changes nothing, if a result would depend on partitioning.

        Args:
            keys: the key columns.
            slices: slices whose rows belong to the same windows; None if all rows of a batch do.
        """
        partials = partials_of(self._aggregates)
        aggregation = PartialAggregation.of(keys, partials, slices)
        if aggregation is not None:
            self._partials = partials
        return aggregation

    def stored_class(self) -> type[object]:
        """Returns the class of the stored value.

        A field is required if its aggregate cannot be null, and is null for rows that were added before the aggregate:
        then it cannot be added while windows are open.
        """
        fields: list[tuple[str, type[object]] | tuple[str, type[object], None]] = []
        for name, aggregate in self._aggregates.items():
            is_required = name in self._required and bool(aggregate.result(aggregate.nothing(1)).null_count)
            for field, kind in aggregate.fields.items():
                stored = f"{name}__{field}", kind | None
                fields.append(stored if is_required and field not in aggregate.optional else (*stored, None))
        return msgspec.defstruct("Aggregates", fields, kw_only=True)

    def nothing(self, count: int) -> Accumulators:
        """Returns accumulators to which nothing was added."""
        found: dict[str, pa.Array] = {}
        for name, aggregate in self._aggregates.items():
            found |= _named(name, aggregate.nothing(count))
        return found

    def of_rows(self, batch: pa.RecordBatch, groups: VectorState) -> Accumulators:
        """Returns the accumulators of groups of adjacent rows, which are partial results after `split`."""
        found: dict[str, pa.Array] = {}
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                nothing = aggregate.nothing(len(groups))
                if self._partials:
                    made = aggregate.merge(nothing, values_of(self._partials[name], name, batch, groups))
                else:
                    made = aggregate.add(nothing, aggregate.values(batch, groups))
                found |= _named(name, made)
        return found

    def merged(self, accumulators: Accumulators, groups: VectorState) -> Accumulators:
        """Returns the accumulators of groups of adjacent accumulators."""
        found: dict[str, pa.Array] = {}
        # Without numpy's warnings: differences of infinities are NaN, which is intended.
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                found |= _named(name, aggregate.merged(_own(name, aggregate, accumulators), groups))
        return found

    def results(self, accumulators: Accumulators) -> dict[str, pa.Array]:
        """Returns the results by output column."""
        with np.errstate(all="ignore"):
            return {name: each.result(_own(name, each, accumulators)) for name, each in self._aggregates.items()}

    def of_stored(self, stored: pa.StructArray) -> Accumulators:
        """Returns the columns of stored values."""
        return {field.name: pc.struct_field(stored, field.name) for field in stored.type}


def to_stored(accumulators: Accumulators) -> pa.StructArray:
    """Returns the values to store."""
    return pa.StructArray.from_arrays(list(accumulators.values()), names=list(accumulators))


def taken(accumulators: Accumulators, at: Array) -> Accumulators:
    """Returns the accumulators at some positions."""
    indices = pa.array(at)
    return {name: column.take(indices) for name, column in accumulators.items()}


def joined(parts: Sequence[Accumulators]) -> Accumulators:
    """Returns the accumulators of several parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return {name: pa.concat_arrays([part[name].cast(column.type) for part in parts]) for name, column in first.items()}


def _own(name: str, aggregate: Aggregate, accumulators: Accumulators) -> Accumulators:
    return {field: accumulators[f"{name}__{field}"] for field in aggregate.fields}


def _named(name: str, accumulators: Accumulators) -> dict[str, pa.Array]:
    return {f"{name}__{field}": column for field, column in accumulators.items()}
