"""One subtask of a vectorized operator with windows: passes rows of whole keys, and due timers, to its function."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.functions.window_vectors import BatchTimes, WindowVectorFunction, WindowVectorState
from stateflow.api.schema import RowSchema
from stateflow.clock import epoch_milliseconds
from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.operators.key_watermarks import watermarks_before_rows
from stateflow.runtime.task.operators.vector_operator import SortedRows, VectorOperator
from stateflow.runtime.task.row_conversion import event_times, group_starts
from stateflow.runtime.task_spec import TIMER_PHASE, ChainSpec, Numbers
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.columnar.key_reader import KeyLayout
from stateflow.state.kinds.slice_size import SliceSize
from stateflow.state.kinds.timer_index import TimeDomain, TimerIndex
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.state.kinds.window_timers import DueKeys
from stateflow.types.columns.row_bytes import row_bytes

_GROUP_BYTES = 2
_ACCUMULATOR_BYTES = 128
"""What one accumulator may take; those of a row with long texts count several times."""


def calls_of(starts: Array, added: Numbers, limit: int) -> Iterator[tuple[int, int]]:
    """Yields the first row and the end of adjacent groups of rows: as many groups as fit a limit, one at least.

    Args:
        starts: the first row of each group.
        added: the number of accumulators for the rows up to each one.
        limit: how many accumulators are in memory at once.
    """
    edges = np.append(starts, len(added))
    until = np.append(0, added)[edges]
    at = 0
    while at < len(starts):
        end = max(int(np.searchsorted(until, until[at] + limit, side="right")) - 1, at + 1)
        yield int(edges[at]), int(edges[end])
        at = end


def _accumulator_sizes(rows: SortedRows) -> Array:
    """Returns how many accumulators of usual size each row counts as: it may be stored in each of its windows."""
    found = np.zeros(len(rows), np.int64)
    for column in rows.columns:
        found += row_bytes(column)
    return np.maximum(found // _ACCUMULATOR_BYTES, 1)


def _with_sizes(additions: Array, sizes: Array) -> Array:
    """Returns how many accumulators of usual size the additions of each row count as.

    A row without additions shares the accumulators of the row before. They may have the largest texts of these rows.
    """
    starts = np.flatnonzero(additions)
    found = additions.copy()
    if len(starts):
        found[starts] *= np.maximum.reduceat(sizes, starts)
    return found


class WindowVectorOperator(VectorOperator):
    """Calls a `WindowVectorFunction`; arguments as for `VectorOperator`, and the index of the timers in the backend."""

    rows_at_once = 1 << 17
    """A call costs some milliseconds, whatever the number of rows."""

    additions_at_once = 1 << 20
    """Accumulators of the windows of a call, which are in memory together."""

    def __init__(
        self, spec: ChainSpec, info: TaskInfo, backend: KeyedStateBackend, limits: EntryLimits, index: TimerIndex
    ) -> None:
        assert isinstance(spec.function, WindowVectorFunction)
        super().__init__(spec, info, backend, limits)
        self._windows: WindowVectorFunction = spec.function
        self._timers = self._state.window_timers(self._groups, index)
        self._due_size = SliceSize.of_columns()
        self._now = epoch_milliseconds(info.processing_time)
        self._watermark = spec.watermark_before
        self._times_of_part: BatchTimes | None = None
        self._calls: list[tuple[int, WindowVectorState]] = []
        self._layout = KeyLayout(self._input.key_types, _GROUP_BYTES)

    def advance(self) -> None:
        """Advances event time to that of the batch, after the rows of phase 0."""
        self._watermark = self._spec.watermark

    def fire(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield from self.flush()
        self.advance()
        for domain, until in ((TimeDomain.EVENT_TIME, self._watermark), (TimeDomain.PROCESSING_TIME, self._now)):
            if until is not None:
                for due in self._timers.fire(domain, until, self._due_size):
                    call = partial(self._windows.on_timers, domain, due.timers, self._state_of_timers(due))
                    emitted = self._call("on_timers", call)
                    emitted_bytes = 0 if emitted is None else emitted.nbytes
                    self._due_size.adapt(len(due.timers.of), self._state.bytes_read + emitted_bytes)
                    yield from self._end_call(emitted, TIMER_PHASE)

    def take_side_outputs(self) -> Iterator[tuple[str, RowSchema, list[tuple[int, pa.RecordBatch]]]]:
        calls, self._calls = self._calls, []
        for phase, state in calls:
            for tag, batches in state.side.items():
                yield tag, self._spec.inputs[0].schema, [(phase, rows) for rows in batches]

    def _feed(self, rows: SortedRows) -> Iterator[tuple[int, pa.RecordBatch]]:
        sizes = _accumulator_sizes(rows)
        if int(sizes.sum()) * self._windows.windows_of_row <= self.additions_at_once:
            yield from super()._feed(rows)
            return
        starts = np.array(group_starts(rows.order, self._key_columns(rows)))
        column = None if self._input.time is None else rows.columns[self._input.time]
        times = np.zeros(len(rows), np.int64) if column is None else event_times(column)
        is_first = np.zeros(len(rows), bool)
        is_first[starts] = True
        additions = self._windows.additions(times, is_first, self._watermark_before)
        added = np.cumsum(_with_sizes(additions, sizes))
        is_in_order = bool(((times[1:] >= times[:-1]) | is_first[1:]).all())
        for first, last in calls_of(starts, added, self.additions_at_once):
            some, at = rows.slice(first, last), starts[(starts >= first) & (starts < last)]
            if not is_in_order or len(at) != 1 or added[last - 1] - added[first] < self.additions_at_once:
                yield from super()._feed(some)
            else:
                yield from self._feed_key(some, added[first:last] - (added[first - 1] if first else 0))

    def _feed_key(self, rows: SortedRows, added: Numbers) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Passes the rows of one key in several calls, by time: as many smaller batches would have them."""
        whole = self._times(rows, np.zeros(1, np.int64))
        watermark = whole.watermark
        for first, last in calls_of(np.arange(len(rows)), added, self.additions_at_once):
            before = whole.before_rows[first:last]
            self._times_of_part = BatchTimes(self._now, watermark, before[-1:], before)
            yield from super()._feed(rows.slice(first, last))
            watermark = int(before[-1])
        self._times_of_part = None

    @property
    def _watermark_before(self) -> int:
        return NO_WATERMARK if self._watermark is None else self._watermark

    def _new_state(
        self, rows: SortedRows, keys: pa.RecordBatch, starts: Array, encoded: tuple[list[bytes], list[bytes]]
    ) -> VectorState:
        times = self._times_of_part or self._times(rows, starts)
        # Reads the store, so before there are pending changes.
        due = self._timers.fire_of_keys(*encoded, times.reached)
        state = WindowVectorState(keys, starts, self._states(rows, starts, encoded), times, self._timers)
        state.due = due
        self._calls.append((rows.phase, state))
        return state

    def _times(self, rows: SortedRows, starts: Array) -> BatchTimes:
        watermark = self._watermark_before
        before_rows = np.full(len(rows), watermark)
        if self._spec.source_times and rows.origins is not None and self._input.time is not None:
            times = event_times(rows.columns[self._input.time])
            first_rows = np.repeat(starts, np.diff(starts, append=len(rows)))
            sources = self._spec.source_times
            before_rows = watermarks_before_rows(sources, watermark, times, rows.origins, first_rows)
        last_rows = np.append(starts[1:], len(rows)) - 1
        return BatchTimes(self._now, watermark, before_rows[last_rows], before_rows)

    def _state_of_timers(self, due: DueKeys) -> WindowVectorState:
        stored = [group + key + b"\0" for group, key in zip(due.groups, due.keys, strict=True)]
        columns = self._layout.read(stored).keys
        keys = pa.RecordBatch.from_arrays(columns, names=list(self._names))
        watermark = self._watermark_before
        none = np.zeros(0, np.int64)
        times = BatchTimes(self._now, watermark, np.full(len(stored), watermark), none)
        return WindowVectorState(keys, none, self._state.batch_of(due.groups, due.keys), times, self._timers)
