"""Vectorized operators with two inputs: joins of changelogs, and joins of rows in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.vectorized import Array
from stateflow.api.functions.window_vectors import BatchTimes, WindowVectorState
from stateflow.api.joins.pairs import Side, joinable
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.api.joins.times import TimedColumnJoin
from stateflow.api.schema import RowSchema
from stateflow.config.settings import EntryLimits
from stateflow.runtime.executor import GROUP_MASK, GROUP_SHIFT, PHASE_SHIFT, TIMER_PHASE, ChainSpec, Numbers
from stateflow.runtime.task.input_reader import KeyedInputs
from stateflow.runtime.task.row_conversion import conform_rows, event_times, group_starts
from stateflow.runtime.task.vector_operator import VectorOperator, WindowVectorOperator, watermarks_before_rows
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.key_columns import to_comparable
from stateflow.state.kinds.key_context import VOID_NAMESPACE
from stateflow.state.kinds.timers import MOST_BY_COLUMNS, NO_WATERMARK, SliceSize, TimeDomain, TimerIndex

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
        self._inputs = _JoinedInputs(spec, has_times=self._expires_by_rows)

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
            for each in conform_rows(made, self._output, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._state.end_key_batch()


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
        self._inputs = _JoinedInputs(spec, has_times=True)
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

    def _times_of(self, rows: _JoinedRows, times: Numbers, origins: Numbers | None) -> BatchTimes:
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
            for each in conform_rows(made, self.emits, "process_batch", operator=self._spec.uid):
                yield phase, each
        self._state.end_key_batch()


@dataclass(frozen=True)
class _JoinedRows:
    """Sorted rows of two inputs.

    Attributes:
        keys: the distinct keys, in the order of their rows.
        groups: the key group of each key, 2 bytes.
        starts: the position of the first row of each key.
        sides: the rows of the left and of the right input.
    """

    keys: pa.RecordBatch
    groups: list[bytes]
    starts: Array
    sides: tuple[Side, Side]


class _JoinedInputs:
    """Reads the rows of two inputs.

    Args:
        has_times: whether the event times of rows are read.
    """

    def __init__(self, spec: ChainSpec, *, has_times: bool) -> None:
        assert spec.keying is not None
        self._names = spec.keying.columns
        self._inputs = KeyedInputs(spec)
        self._types = [pa.struct(list(each.schema.arrow)) for each in spec.inputs]
        self._has_times = has_times

    def read(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> _JoinedRows:
        """Returns rows of one phase; arguments as for `KeyedInputs.read`, errors as for its nulls."""
        parts, keys = self._inputs.split(columns, inputs)
        starts = np.array(group_starts(order, [to_comparable(key) for key in keys]))
        at = pa.array(starts)
        firsts = pa.RecordBatch.from_arrays([key.take(at) for key in keys], names=self._names)
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        left, right = (self._side(number, parts.get(number), of) for number in (0, 1))
        return _JoinedRows(firsts, groups, starts, (left, right))

    def event_times(self, columns: Sequence[pa.Array], inputs: Numbers) -> Numbers:
        """Returns the event time of each row, for inputs that both have one."""
        return self._inputs.event_times(columns, inputs)

    def _side(self, number: int, part: tuple[Numbers, Sequence[pa.Array]] | None, of: Array) -> Side:
        kind, given = self._types[number], self._inputs[number]
        has_times = self._has_times and given.time is not None
        if part is None:
            none = np.empty(0, np.int64)
            return Side(none, pa.array([], kind), none if has_times else None)
        positions, columns = part
        times = None
        if has_times and given.time is not None:
            times = event_times(columns[given.time - given.columns.start])
        return Side(of[positions], pa.StructArray.from_arrays(columns, fields=list(kind)), times)
