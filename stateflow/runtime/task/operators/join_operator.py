"""One subtask of a join of columns, which gets the rows of both inputs of many keys at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.vectorized import Array
from stateflow.api.joins.pairs import Side
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.operators.input_reader import KeyedInputs
from stateflow.runtime.task.operators.vector_operator import VectorOperator, conform
from stateflow.runtime.task.row_conversion import event_times, group_starts
from stateflow.runtime.task_spec import GROUP_MASK, GROUP_SHIFT, PHASE_SHIFT, ChainSpec, Numbers
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.columnar.key_encoding import comparable

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
        self._inputs = KeyedInputs(spec)
        self._types = [pa.struct(list(each.schema.arrow)) for each in spec.inputs]

    def process_inputs(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> Emitted:
        """Processes sorted rows of one phase; yields the phase and the rows of the pairs.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of both inputs.
            inputs: the number of each row's input.
        """
        parts, keys = self._inputs.split(columns, inputs)
        starts = np.array(group_starts(order, [comparable(key) for key in keys]))
        at = pa.array(starts)
        firsts = pa.RecordBatch.from_arrays([key.take(at) for key in keys], names=self._names)
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        many = self._state.batch_of(groups, self._encode(firsts))
        of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        left, right = (self._side(number, parts.get(number), of) for number in (0, 1))
        phase = int(order[0]) >> PHASE_SHIFT
        emitted = self._call("join", lambda: self._join.join(left, right, many))
        while (rows := self._call("join", lambda: next(emitted, None))) is not None:
            for made in conform(rows, self._output, self._spec.uid):
                yield phase, made
        self._state.end_key_batch()

    def _side(self, number: int, part: tuple[Numbers, Sequence[pa.Array]] | None, of: Array) -> Side:
        kind = self._types[number]
        if part is None:
            return Side(np.empty(0, np.int64), pa.array([], kind))
        positions, columns = part
        given, times = self._inputs[number], None
        # Of each row: a batch has rows of many keys, and the time of one must not keep the rows of another.
        if self._expires_by_rows and given.time is not None:
            times = event_times(columns[given.time - given.columns.start])
        return Side(of[positions], pa.StructArray.from_arrays(columns, fields=list(kind)), times)
