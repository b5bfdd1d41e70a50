"""Column aggregates whose results are a changelog, over rows that may be retracted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators, Aggregate, Values, to_numpy
from stateflow.api.aggregates.column_aggregates import ColumnAggregates
from stateflow.api.aggregates.numeric import Count
from stateflow.api.aggregates.partial.filters import masked
from stateflow.api.aggregates.retractable import (
    RETRACTABLE,
    CountedRows,
    CountedValues,
    OfCountedValues,
    counted_columns,
)
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError, StateError
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.columns.row_kind import RETRACTIONS, RowKind
from stateflow.types.descriptors import ValueStateDescriptor

_ROWS = "aggregated-rows"
"""Name of the state with the number of rows of a key, which is part of the stored format."""


@dataclass(frozen=True)
class Changes:
    """What a changelog of aggregates takes and makes.

    Attributes:
        taken: the column with the kind of each row; empty if rows only append.
        made: the column with the kind of each result.
        retracts: whether a result that is replaced is emitted before, with the kind `UPDATE_BEFORE`.
    """

    taken: str
    made: str
    retracts: bool


class ChangelogAggregates(ColumnAggregates):
    """Emits the changes of the results of each key that has rows in a batch.

    Args:
        wanted, keys, given, output: as for `ColumnAggregates`.
        changes: the kinds of rows and results.

    Raises:
        JobDefinitionError: as for `ColumnAggregates`; or an aggregate cannot retract rows.
    """

    def __init__(
        self,
        wanted: Mapping[str, Sequence[str]],
        keys: Sequence[str],
        given: RowSchema,
        output: RowSchema,
        changes: Changes,
    ) -> None:
        results = replace(output, columns=tuple(column for column in output.columns if column.name != changes.made))
        super().__init__(wanted, keys, given, results)
        self._changes = changes
        self._signs: Array | None = None
        if changes.taken:
            self._aggregates = {name: _retractable(name, each) for name, each in self._aggregates.items()}
            self._distinct = {}
        self._counted_columns = counted_columns(list(self._aggregates.values()))
        self._counted_values: dict[str, Mapping[str, CountedValues]] = {}

    def open(self, ctx: RuntimeContext) -> None:
        super().open(ctx)
        if self._changes.taken:
            self._rows: ValueState[int] = ctx.get_state(ValueStateDescriptor(_ROWS, int))
        for column in self._counted_columns.values():
            column.open(ctx)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.Table:
        before = state.read(self._state)
        known: Array = before.is_valid().to_numpy(zero_copy_only=False)
        counted = self._counted(batch, state, known)
        exists = np.ones(len(state), bool) if counted is None else counted.after > 0
        self._signs = None if counted is None else counted.effects
        if counted is not None:
            columns = self._counted_columns.items()
            self._counted_values = {name: column.add(batch, state, counted) for name, column in columns}
        kept = before
        if counted is not None and counted.is_reset.any():
            kept = pc.if_else(pa.array(~counted.is_reset), before, pa.scalar(None, before.type))
        stored, results = self._added(batch, state, kept)
        state.write(self._state, pc.if_else(pa.array(exists), stored, pa.scalar(None, stored.type)))
        earlier = self._results(state, before) if self._changes.retracts or not exists.all() else results
        parts = [
            (earlier, known & exists if self._changes.retracts else np.zeros(len(state), bool), RowKind.UPDATE_BEFORE),
            (earlier, known & ~exists, RowKind.DELETE),
            (results, ~known & exists, RowKind.INSERT),
            (results, known & exists, RowKind.UPDATE_AFTER),
        ]
        return pa.concat_tables([self._of_kind(*part) for part in parts])

    def _values(self, aggregate: Aggregate, batch: pa.RecordBatch, state: VectorState) -> Values:
        values = super()._values(aggregate, batch, state)
        if self._signs is None:
            return values
        return Values(masked(values.column, pa.array(self._signs != 0)), state, self._signs)

    def _after(self, name: str, before: Accumulators, batch: pa.RecordBatch, state: VectorState) -> Accumulators:
        aggregate = self._aggregates[name]
        if isinstance(aggregate, OfCountedValues):
            return aggregate.after(before, self._counted_values[aggregate.column.name][aggregate.where], state)
        return super()._after(name, before, batch, state)

    def _counted(self, batch: pa.RecordBatch, state: VectorState, known: Array) -> CountedRows | None:
        """Counts the rows of each key, if some are retracted.

        Raises:
            StateError: a key of `known`, which has a result, has no number of rows.
        """
        if not self._changes.taken:
            return None
        stored = state.read(self._rows)
        if (known & stored.is_null().to_numpy(zero_copy_only=False)).any():
            raise StateError(
                "an aggregate has a result of rows that were not counted: its input only appended rows before",
                hint="give the operator another uid, so that it begins without state",
                state=_ROWS,
            )
        # Not when the module is imported: this loads pandas if it is installed.
        kinds = pa.array([kind.value for kind in RETRACTIONS])
        retracted = pc.is_in(batch.column(self._changes.taken), value_set=kinds).to_numpy(zero_copy_only=False)
        counted = CountedRows.of(to_numpy(stored), retracted, state)
        state.write(self._rows, pa.array(counted.after, mask=counted.after == 0))
        return counted

    def _of_kind(self, results: pa.RecordBatch, where: Array, kind: RowKind) -> pa.Table:
        chosen = pa.Table.from_batches([results.filter(pa.array(where))])
        return chosen.append_column(self._changes.made, pa.array([kind.value] * len(chosen), pa.string()))


def _retractable(name: str, aggregate: Aggregate) -> Aggregate:
    if type(aggregate) is Count:
        return aggregate
    if (kind := RETRACTABLE.get(type(aggregate))) is not None:
        return kind(aggregate.column, aggregate.where)
    raise JobDefinitionError(
        "an aggregate cannot retract rows",
        hint="of a changelog, use count, count_distinct, sum, mean, variance, min or max; or call as_append_only() on "
        "the stream, if each change is to count as a row",
        name=name,
        aggregate=type(aggregate).__name__,
    )
