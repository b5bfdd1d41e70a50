"""One subtask of a join of columns with timers: passes the rows of both inputs, and due timers, to its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.window_vectors import BatchTimes, WindowVectorState
from stateflow.api.joins.timed_columns import TimedColumnJoin
from stateflow.api.schema import RowSchema
from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.column_conversion import conform
from stateflow.runtime.task.operators.joins.joined_rows import JoinedInputs, JoinedRows
from stateflow.runtime.task.operators.key_watermarks import watermarks_before_rows
from stateflow.runtime.task.operators.window_vector_operator import WindowVectorOperator
from stateflow.runtime.task_spec import PHASE_SHIFT, TIMER_PHASE, ChainSpec, Numbers
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.kinds.key_context import VOID_NAMESPACE
from stateflow.state.kinds.slice_size import MOST_BY_COLUMNS, SliceSize
from stateflow.state.kinds.timer_index import TimeDomain, TimerIndex
from stateflow.state.kinds.timers import NO_WATERMARK

Emitted = Iterator[tuple[int, pa.RecordBatch]]


class WindowJoinOperator(WindowVectorOperator):
    """Calls a `TimedColumnJoin` with the rows of each Arrow batch; a key may have rows in several of them.

    Rows of a key come in the order of event time where timers may fire between them, so that no row in a later Arrow
    batch belongs to what a timer has ended.
    """

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits, index: TimerIndex
    ) -> None:
        super().__init__(spec, info, backend, limits, index)
        assert isinstance(spec.function, TimedColumnJoin)
        self._join = spec.function
        self._inputs = JoinedInputs(spec, has_times=True)
        if not self._join.has_windows:
            self._timers = self._state.window_timers(self._groups, index, len(VOID_NAMESPACE))

    def process_inputs(
        self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers, origins: Numbers | None
    ) -> Emitted:
        """Processes sorted rows of one phase; yields the phase and the rows of the pairs.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of both inputs.
            inputs: the number of each row's input.
            origins: the number of each row's source; None if it is not known.
        """
        rows = self._inputs.read(order, columns, inputs)
        encoded = rows.groups, self._encode(rows.keys)
        times = self._times_of(rows, self._inputs.event_times(columns, inputs), origins)
        # Reads the store, so before there are pending changes.
        due = self._timers.fire_of_keys(*encoded, times.reached)
        state = WindowVectorState(rows.keys, rows.starts, self._state.batch_of(*encoded), times, self._timers)
        state.due = due
        self._calls.append((int(order[0]) >> PHASE_SHIFT, state))
        yield from self._emit(int(order[0]) >> PHASE_SHIFT, "join", lambda: self._join.join(*rows.sides, state))

    def fire(self) -> Emitted:
        self.advance()
        if self._watermark is not None:
            # Not by the size of their state: the rows of these windows are read in parts.
            size = SliceSize(MOST_BY_COLUMNS, MOST_BY_COLUMNS)
            for due in self._timers.fire(TimeDomain.EVENT_TIME, self._watermark, size):
                call = partial(self._join.end_windows, due.timers, self._state_of_timers(due))
                yield from self._emit(TIMER_PHASE, "on_timers", call)

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        calls, self._calls = self._calls, []
        for tag, given in zip(self._join.late_tags, self._spec.inputs, strict=True):
            if tag is not None:
                late = [(phase, rows) for phase, call in calls for rows in call.side.pop(tag.name, [])]
                yield tag.name, given.schema, late

    def _times_of(self, rows: JoinedRows, times: Numbers, origins: Numbers | None) -> BatchTimes:
        watermark = NO_WATERMARK if self._watermark is None else self._watermark
        reached = np.full(len(rows.starts), watermark)
        if self._spec.source_times and origins is not None:
            counts = np.diff(rows.starts, append=len(times))
            first_rows = np.repeat(rows.starts, counts)
            before = watermarks_before_rows(self._spec.source_times, watermark, times, origins, first_rows)
            reached = before[rows.starts + counts - 1]
        return BatchTimes(self._now, watermark, reached, np.full(len(times), watermark))

    def _emit(self, phase: int, name: str, call: Callable[[], Iterator[pa.RecordBatch]]) -> Emitted:
        """Yields what a call emits, and writes its changes."""
        emitted = self._call(name, call)
        while (made := self._call(name, lambda: next(emitted, None))) is not None:
            for each in conform(made, self.emits, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._state.end_key_batch()
