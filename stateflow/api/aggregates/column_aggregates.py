"""Ready-made aggregates by name, over the rows of many keys at once. Nulls do not count.

The accumulators of all of an operator's aggregates are one value per key: a map of ``<name>__<part>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.accumulators import AGGREGATES, Aggregate, Parts, Values
from stateflow.api.functions import RuntimeContext
from stateflow.api.partial_aggregation import Partial, PartialAggregation
from stateflow.api.schema import RowSchema
from stateflow.api.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.descriptors import ValueStateDescriptor
from stateflow.errors import JobDefinitionError
from stateflow.state.value_state import ValueState

_NAME = "aggregates"
"""Of the state: part of the stored format."""


class ColumnAggregates(VectorizedKeyedFunction):
    """One row for each key that had rows in a batch.

    Args:
        wanted: by output column: the aggregate's name, and the column that it is over.
        keys: columns of the key.
        given: columns of the rows.
        output: columns of the result.

    Raises:
        JobDefinitionError: there is no such aggregate, it does not take such a column, or the output class has other
            columns.
    """

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], keys: Sequence[str], given: RowSchema, output: RowSchema
    ) -> None:
        self._aggregates = {name: _aggregate(name, spec, given) for name, spec in wanted.items()}
        self._keys = tuple(keys)
        self._output = output
        self._given = given
        self._partials: dict[str, tuple[Partial, ...]] = {}
        self._check(given)

    def split(self, divide_floats: bool = False) -> PartialAggregation | None:
        """Makes this the second of two phases, and gives the one before the shuffle; None where some result would
        depend on how rows are divided.

        Args:
            divide_floats: whether that does not matter for sums of floats.
        """
        partials = {n: a.partials(f"{n}__", divide_floats) for n, a in self._aggregates.items()}
        keys = tuple(map(self._given.column, self._keys))
        names = {p.name for own in partials.values() for p in own}
        # A float has several spellings, which a shuffle and Arrow would have to tell apart alike.
        if (
            not all(partials.values())
            or names & set(self._keys)
            or any(k.spark_type == "double" for k in keys)
        ):
            return None
        self._partials = partials
        return PartialAggregation(keys, tuple(p for own in partials.values() for p in own))

    def open(self, ctx: RuntimeContext) -> None:
        fields = [
            (f"{name}__{part}", kind | None, None)
            for name, aggregate in self._aggregates.items()
            for part, kind in aggregate.parts.items()
        ]
        accumulators = msgspec.defstruct("Aggregates", fields)
        self._state: ValueState[Any] = ctx.get_state(ValueStateDescriptor(_NAME, accumulators))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self._state)
        stored: dict[str, pa.Array] = {}
        results = {key: state.keys.column(key) for key in self._keys}
        # Infinities, whose differences are NaN, are no reason to warn.
        with np.errstate(all="ignore"):
            for name, aggregate in self._aggregates.items():
                own = {part: pc.struct_field(before, f"{name}__{part}") for part in aggregate.parts}
                after = self._after(name, own, batch, state)
                stored |= {f"{name}__{part}": column for part, column in after.items()}
                results[name] = aggregate.result(after)
        state.write(self._state, pa.StructArray.from_arrays(list(stored.values()), names=list(stored)))
        return pa.RecordBatch.from_arrays([results[n] for n in self._output.names], names=self._output.names)

    def _after(self, name: str, before: Parts, batch: pa.RecordBatch, state: VectorState) -> Parts:
        aggregate = self._aggregates[name]
        if not self._partials:
            return aggregate.add(before, Values(batch.column(aggregate.column.name), state))
        partials = {
            p.name.removeprefix(f"{name}__"): Values(batch.column(p.name), state)
            for p in self._partials[name]
        }
        return aggregate.merge(before, partials)

    def _check(self, given: RowSchema) -> None:
        made = {key: (given.column(key).spark_type, given.column(key).nullable) for key in self._keys}
        made |= {n: (a.result_type, a.may_be_null) for n, a in self._aggregates.items()}
        declared = {c.name: c for c in self._output.columns}
        if set(made) != set(declared) or set(self._keys) & set(self._aggregates):
            raise JobDefinitionError("the output class has other columns than the key and the aggregates", hint="each "
                                     "once", declared=list(declared), made=list(made))  # fmt: skip
        for name, (kind, may_be_null) in made.items():
            column = declared[name]
            nullable = may_be_null and name not in self._keys
            if column.spark_type != kind or (nullable and not column.nullable):
                raise JobDefinitionError("a column of the output class does not fit its aggregate", hint="without "
                                         "values, or with too few, there is no result: declare | None",
                                         column=name, declared=f"{column.spark_type}, null: {column.nullable}",
                                         made=f"{kind}, null: {nullable}")  # fmt: skip


def _aggregate(name: str, spec: Sequence[str], given: RowSchema) -> Aggregate:
    if isinstance(spec, str) or len(spec) != 2 or spec[0] not in AGGREGATES or "__" in name:
        raise JobDefinitionError("there is no such aggregate", hint=f"name=(kind, column); kinds are "
                                 f"{', '.join(AGGREGATES)}; a name has no two underscores in a row",
                                 name=name, given=repr(spec))  # fmt: skip
    kind, column = AGGREGATES[spec[0]], given.column(spec[1])
    if column.spark_type not in kind.over:
        raise JobDefinitionError("an aggregate does not take such a column", hint=f"it takes {', '.join(kind.over)}",
                                 name=name, aggregate=spec[0], column=column.name, type=column.spark_type)  # fmt: skip
    return kind(column)
