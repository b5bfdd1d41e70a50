"""The functions of `KeyedStream.deduplicate`, which keep the first or the last row of each key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.aggregate import declared_type
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.ranking.row_order import ordered_numbers
from stateflow.api.schema import Column
from stateflow.errors import JobDefinitionError
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig

DEDUPLICATED = "deduplicated"
"""Name of the state, which is part of the stored format. All ways to deduplicate share it, so that none can take the
state of another one."""


def check_order(column: Column) -> None:
    """Raises JobDefinitionError if rows cannot be deduplicated by a column: it may be null, or is not a scalar."""
    column.check_sortable()
    if column.nullable:
        raise JobDefinitionError(
            "rows cannot be deduplicated by a column that may be null",
            hint="filter such rows, and declare the column without None",
            column=column.name,
        )


class KeepFirst(VectorizedKeyedFunction):
    """Emits the first row of each key that arrives.

    Args:
        ttl: after this time, the next row of a key is a first one again; None for never.
    """

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self._seen: ValueState[bool] = ctx.get_state(ValueStateDescriptor(DEDUPLICATED, bool, ttl=self._ttl))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        is_new: Array = state.read(self._seen).is_null().to_numpy(zero_copy_only=False)
        # Only new keys are written: the TTL counts from the first row.
        state.write(self._seen, np.ones(len(state), bool), is_new)
        return batch.take(pa.array(state.starts[is_new]))


class KeepLast(VectorizedKeyedFunction):
    """Emits the last row of each key that arrived with a batch; it needs no state."""

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        return batch.take(pa.array(state.starts + state.counts - 1))


class KeepByOrder(VectorizedKeyedFunction):
    """Emits a row of a key if it comes before all earlier ones, or after them, in the order of a column.

    Of rows with the same value, the one that arrives first is the first, and the one that arrives last the last.

    Args:
        column: the column, as `check_order` accepts it.
        is_first: whether the first row is kept.
        ttl: TTL of the value that is compared; None for none.
    """

    def __init__(self, column: Column, *, is_first: bool, ttl: StateTtlConfig | None) -> None:
        self._column = column
        self._is_first = is_first
        self._ttl = ttl
        self._arguments = f"{'first' if is_first else 'last'} by {column.name}"

    def open(self, ctx: RuntimeContext) -> None:
        descriptor: ValueStateDescriptor[object] = ValueStateDescriptor(
            DEDUPLICATED, declared_type(self._column), ttl=self._ttl, arguments=self._arguments
        )
        self._order: ValueState[object] = ctx.get_state(descriptor)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        before = state.read(self._order)
        given = batch.column(self._column.name)
        known = before.is_valid().to_numpy(zero_copy_only=False)
        old, new = self._comparable(before, given)
        rows = self._kept_rows(new, state)
        # As in Flink: an equal value that arrives later is the last one, and not the first one.
        is_kept = ~known | (new[rows] < old if self._is_first else new[rows] >= old)
        kept = pa.array(rows[is_kept])
        values = given.take(pa.array(rows))
        state.write(self._order, values, is_kept)
        return batch.take(kept)

    def _comparable(self, before: pa.Array, given: pa.Array) -> tuple[Array, Array]:
        """Returns integers that are ordered as the values of both columns; arbitrary for null."""
        filled = before.fill_null(given[0]) if before.null_count else before
        both = ordered_numbers(pa.concat_arrays([filled.cast(given.type), given]))
        return both[: len(before)], both[len(before) :]

    def _kept_rows(self, order: Array, state: VectorState) -> Array:
        """Returns for each key the number of the row that is kept of those in the batch."""
        best = (np.minimum if self._is_first else np.maximum).reduceat(order, state.starts)
        numbers = np.arange(len(order))
        is_best = order == best[state.key_of_row]
        if self._is_first:
            found: Array = np.minimum.reduceat(np.where(is_best, numbers, len(order)), state.starts)
            return found
        found = np.maximum.reduceat(np.where(is_best, numbers, -1), state.starts)
        return found
