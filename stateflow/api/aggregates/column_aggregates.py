"""The function of `KeyedStream.aggregate_columns`: aggregates by name, over the rows of many keys at once.

The accumulators of all aggregates of an operator are one value per key, a struct with fields ``<name>__<field>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import (
    Accumulators,
    Aggregate,
    Values,
    aggregate_origins,
    partials_of,
    values_of,
)
from stateflow.api.aggregates.builtin import AGGREGATES, aggregate_for, distinct_columns
from stateflow.api.aggregates.partial import Partial, PartialAggregation, mask_values
from stateflow.api.column_origins import Origins
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import ValueStateDescriptor

Made = Mapping[str, tuple[str, bool]]
"""Spark types of columns by name, and whether they may be null."""
_STATE_NAME = "aggregates"
"""Part of the stored format."""


class ColumnAggregates(VectorizedKeyedFunction):
    """Emits one row for each key that has rows in a batch.

    Args:
        wanted: ``(aggregate, column)`` or ``(aggregate, column, filter)`` by output column.
        keys: the key columns.
        given: columns of the rows.
        output: columns of the result.

    Raises:
        JobDefinitionError: an aggregate does not exist or does not accept its column, or the output class has other
            columns.
    """

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], keys: Sequence[str], given: RowSchema, output: RowSchema
    ) -> None:
        if not wanted:
            raise JobDefinitionError(
                "aggregate_columns needs at least one aggregate",
                hint='pass {"rows": ("count", "id")} or others; deduplicate keeps one row of each key',
            )
        self._aggregates = {name: parse_aggregate(name, spec, given) for name, spec in wanted.items()}
        self._keys = tuple(keys)
        self._output = output
        self._given = given
        self._distinct = distinct_columns(list(self._aggregates.values()))
        self._partials: dict[str, tuple[Partial, ...]] = {}
        check_output(infer_columns(self._aggregates, keys, given, output), keys, output)

    def column_origins(self) -> Origins:
        """See `HasColumnOrigins`; the kind of a row comes from no column."""
        found = aggregate_origins(self._keys, self._aggregates)
        return Origins({**dict.fromkeys(self._output.names, ()), **found.columns})

    def split(self, divide_floats: bool = False) -> PartialAggregation | None:
        """Turns this function into the second of two phases. Returns the first phase, which runs before the shuffle.

        Returns None, and changes nothing, if a result would depend on partitioning.

        Args:
            divide_floats: whether sums of floats may depend on partitioning.
        """
        others = {name: each for name, each in self._aggregates.items() if not each.is_distinct}
        partials, keys = partials_of(others, divide_floats), [self._given.column(key) for key in self._keys]
        distinct = [column.partial for column in self._distinct.values()]
        aggregation = PartialAggregation.of(keys, partials, distinct=distinct)
        if aggregation is not None:
            self._partials = partials
            for column in self._distinct.values():
                column.split()
        return aggregation

    def open(self, ctx: RuntimeContext) -> None:
        fields = [
            (f"{name}__{field}", kind | None, None)
            for name, aggregate in self._aggregates.items()
            for field, kind in aggregate.fields.items()
        ]
        for column in self._distinct.values():
            column.open(ctx)
        accumulators = msgspec.defstruct("Aggregates", fields)
        self._state: ValueState[Any] = ctx.get_state(ValueStateDescriptor(_STATE_NAME, accumulators))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | pa.Table:
        stored, results = self._add_batch(batch, state, state.read(self._state))
        state.write(self._state, stored)
        return results

    def _add_batch(
        self, batch: pa.RecordBatch, state: VectorState, before: pa.StructArray
    ) -> tuple[pa.StructArray, pa.RecordBatch]:
        """Returns the accumulators after a batch, and the results of all keys."""
        stored: dict[str, pa.Array] = {}
        new = {name: column.new_rows(batch, state) for name, column in self._distinct.items()}
        # Without numpy's warnings: differences of infinities are NaN, which is intended.
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                own = _own(name, aggregate, before)
                if aggregate.is_distinct:
                    rows = pa.array(new[aggregate.column.name][aggregate.where])
                    values = self._distinct[aggregate.column.name].values(batch)
                    after = aggregate.add(own, Values(mask_values(values, rows), state))
                else:
                    after = self._after(name, own, batch, state)
                stored |= {f"{name}__{field}": column for field, column in after.items()}
        made = pa.StructArray.from_arrays(list(stored.values()), names=list(stored))
        return made, self._results(state, made)

    def _results(self, state: VectorState, stored: pa.StructArray) -> pa.RecordBatch:
        """Returns the results of accumulators."""
        found = {key: state.keys.column(key) for key in self._keys}
        with np.errstate(all="ignore"):
            found |= {name: each.result(_own(name, each, stored)) for name, each in self._aggregates.items()}
        return pa.RecordBatch.from_arrays([found[n] for n in self._output.names], names=self._output.names)

    def _values(self, aggregate: Aggregate, batch: pa.RecordBatch, state: VectorState) -> Values:
        return aggregate.values(batch, state)

    def _after(self, name: str, before: Accumulators, batch: pa.RecordBatch, state: VectorState) -> Accumulators:
        aggregate = self._aggregates[name]
        if not self._partials:
            return aggregate.add(before, self._values(aggregate, batch, state))
        return aggregate.merge(before, values_of(self._partials[name], name, batch, state))


def _own(name: str, aggregate: Aggregate, stored: pa.StructArray) -> Accumulators:
    return {field: pc.struct_field(stored, f"{name}__{field}") for field in aggregate.fields}


def check_output(made: Made, keys: Sequence[str], output: RowSchema) -> None:
    """Checks the columns of an output class.

    Args:
        made: Spark type of each column, and whether it may be null.
        keys: the key columns.
        output: columns of the output class.

    Raises:
        JobDefinitionError: the class has other columns.
    """
    declared = {c.name: c for c in output.columns}
    if set(made) != set(declared):
        raise _other_columns(output, made)
    for name, (kind, may_be_null) in made.items():
        column = declared[name]
        nullable = may_be_null and name not in keys
        if column.spark_type != kind or (nullable and not column.nullable):
            raise JobDefinitionError(
                "a column of the output class does not fit its aggregate",
                hint="declare the aggregate's type; with | None where the result is null for too few values",
                column=name,
                declared=f"{column.spark_type}, null: {column.nullable}",
                made=f"{kind}, null: {nullable}",
            )


def infer_columns(
    aggregates: Mapping[str, Aggregate], keys: Sequence[str], given: RowSchema, output: RowSchema
) -> Made:
    """Returns the columns that aggregates of a key make.

    Raises:
        JobDefinitionError: an aggregate has the name of a key column.
    """
    made = {key: (given.column(key).spark_type, given.column(key).nullable) for key in keys}
    if set(keys) & set(aggregates):
        raise _other_columns(output, made)
    return made | {n: (a.result_type, a.may_be_null) for n, a in aggregates.items()}


def _other_columns(output: RowSchema, made: Made) -> JobDefinitionError:
    return JobDefinitionError(
        "the output class does not have exactly the columns of the key and the aggregates",
        hint="declare each column once",
        declared=list(output.names),
        made=list(made),
    )


def parse_aggregate(name: str, spec: Sequence[str], given: RowSchema) -> Aggregate:
    """Returns the aggregate that a job declares.

    Args:
        name: the output column.
        spec: kind of aggregate, column, and optionally a bool column of the rows that are aggregated.
        given: columns of the rows.

    Raises:
        JobDefinitionError: the aggregate does not exist, or it does not accept the column.
    """
    if isinstance(spec, str) or len(spec) not in (2, 3) or spec[0] not in AGGREGATES or "__" in name:
        raise JobDefinitionError(
            "the aggregate does not exist",
            hint=f"pass name=(kind, column) or name=(kind, column, filter), without two underscores in a row; kinds "
            f"are {', '.join(AGGREGATES)}",
            name=name,
            given=repr(spec),
        )
    column = given.column(spec[1])
    where = spec[2] if len(spec) == 3 else ""
    if where and given.column(where).spark_type != "boolean":
        raise JobDefinitionError(
            "the filter of an aggregate is not a bool column",
            hint="add the condition as a column in a transform or map",
            name=name,
            column=where,
            type=given.column(where).spark_type,
        )
    aggregate = aggregate_for(spec[0], column, where)
    if aggregate is None:
        raise JobDefinitionError(
            "an aggregate does not accept the type of its column",
            hint="sum accepts int, float and Decimal; mean and variance accept int and float; count_distinct accepts "
            "int, str, bytes, bool, date and datetime; no aggregate accepts a class, list or dict: select a part "
            "of it in a transform",
            name=name,
            aggregate=spec[0],
            column=column.name,
            type=column.spark_type,
        )
    return aggregate
