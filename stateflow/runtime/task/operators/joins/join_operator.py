"""One subtask of a join of columns, which gets the rows of both inputs of many keys at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from stateflow.api.functions.process import TaskInfo
from stateflow.api.joins.pairs import joinable
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.column_conversion import conform
from stateflow.runtime.task.operators.joins.joined_rows import JoinedInputs
from stateflow.runtime.task.operators.vector_operator import VectorOperator
from stateflow.runtime.task_spec import PHASE_SHIFT, ChainSpec, Numbers
from stateflow.state.backends.base import KeyedStateBackend

Emitted = Iterator[tuple[int, pa.RecordBatch]]


class JoinOperator(VectorOperator):
    """Calls a `ColumnJoin` with the rows of each Arrow batch; a key may have rows in several of them."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits = EntryLimits()
    ) -> None:
        super().__init__(spec, info, backend, limits)
        assert isinstance(spec.function, ColumnJoin)
        assert spec.emits is not None
        self._join = spec.function
        self._output = spec.emits
        # Of each row: a batch has rows of many keys, and the time of one must not keep the rows of another.
        self._inputs = JoinedInputs(spec, has_times=self._expires_by_rows)

    def process_inputs(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> Emitted:
        """Processes sorted rows of one phase; yields the phase and the rows of the pairs.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of both inputs.
            inputs: the number of each row's input.
        """
        rows = self._inputs.read(order, columns, inputs)
        many = self._state.batch_of(rows.groups, self._encode(rows.keys))
        has_partners = joinable(rows.keys)
        left, right = (side.of_keys(has_partners) for side in rows.sides)
        phase = int(order[0]) >> PHASE_SHIFT
        emitted = self._call("join", lambda: self._join.join(left, right, many))
        while (made := self._call("join", lambda: next(emitted, None))) is not None:
            for each in conform(made, self._output, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._state.end_key_batch()
