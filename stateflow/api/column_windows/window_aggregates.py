"""What all vectorized operators of windows have in common: settings, state, times and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.aggregates.partial.aggregation import ROWS, PartialAggregation
from stateflow.api.column_windows.accumulators import AccumulatorColumns, to_stored
from stateflow.api.column_windows.bounds import BoundColumns
from stateflow.api.functions.process import RuntimeContext
from stateflow.api.functions.vectorized import Array, VectorState
from stateflow.api.functions.window_vectors import WindowVectorFunction, WindowVectorState
from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import StateError
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.single_value import ValueState
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.types.descriptors import ValueStateDescriptor

STATE_NAME = "window-contents"
"""Part of the stored format; the same as of windows that are aggregated row by row."""
_NEVER = -(1 << 63)
_LATEST = (1 << 63) // 1000
"""Times beyond it do not fit into a timestamp of microseconds."""
_PER_MILLISECOND = {"us": 1000, "ns": 1_000_000, "ms": 1}


@dataclass(frozen=True)
class ColumnWindowSettings:
    """The windows of an operator.

    Attributes:
        time_column: the event time of the rows; empty for windows of processing time.
        kind: the kind of the windows; part of the stored format.
        text: the windows and their trigger, for plans.
        longest: milliseconds from a row to the end of its windows, at most.
        lateness: milliseconds after the end of a window for which late rows are added to it.
        late_rows: side output of the rows that are too late; None to drop them.
    """

    time_column: str
    kind: str
    text: str
    longest: int
    lateness: int = 0
    late_rows: OutputTag[Never] | None = None

    @property
    def domain(self) -> TimeDomain:
        """The time that windows end by."""
        return TimeDomain.EVENT_TIME if self.time_column else TimeDomain.PROCESSING_TIME


@dataclass(frozen=True)
class Aggregation:
    """What an operator computes for a window.

    Attributes:
        keys: names of the key columns.
        accumulators: the accumulators of the aggregates.
        bounds: the columns with bounds of the window.
        names: the output columns.
    """

    keys: tuple[str, ...]
    accumulators: AccumulatorColumns
    bounds: BoundColumns
    names: tuple[str, ...]

    def emitted(self, state: VectorState, windows: Windows, accumulators: Accumulators) -> pa.RecordBatch:
        """Returns the output rows of windows."""
        of = pa.array(windows.of)
        found = {key: state.keys.column(key).take(of) for key in self.keys}
        found |= self.accumulators.results(accumulators) | self.bounds.columns(windows.starts, windows.ends)
        return pa.RecordBatch.from_arrays([found[name] for name in self.names], names=list(self.names))


@dataclass(frozen=True)
class Windows:
    """Windows of keys.

    Attributes:
        of: the number of the key of each window.
        starts, ends: milliseconds since 1970.
    """

    of: Array
    starts: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.of)

    def at(self, positions: Array) -> Windows:
        """Returns some of the windows; the same object for all of them in order."""
        if len(positions) == len(self) and (positions == np.arange(len(positions))).all():
            return self
        return Windows(self.of[positions], self.starts[positions], self.ends[positions])

    def states(self, state: WindowVectorState) -> KeyedStateBatch:
        """Returns the states of the windows."""
        return state.windows(self.of, self.starts, self.ends)


class WindowAggregates(WindowVectorFunction):
    """Aggregates the rows of each window by columns."""

    _contents: ValueState[object]

    def __init__(self, settings: ColumnWindowSettings, aggregation: Aggregation) -> None:
        self.windows_text = settings.text
        self._settings = settings
        self._aggregation = aggregation
        self._columns = aggregation.accumulators

    def split(self, given: RowSchema) -> PartialAggregation | None:
        """Makes the function take partial results. Returns their aggregation, which runs before the shuffle.

        Returns None, and changes nothing, if a result would depend on partitioning, or needs each row.

        Args:
            given: columns of the rows.
        """
        return None

    def open(self, ctx: RuntimeContext) -> None:
        self._contents = ctx.get_state(ValueStateDescriptor(STATE_NAME, self._columns.stored_class()))
        ctx.keyed_state.registry.set_windows(self._contents, self._settings.kind)

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | None:
        assert isinstance(state, WindowVectorState)
        return self._process(batch, state, self._row_times(batch, state))

    def _process(self, batch: pa.RecordBatch, state: WindowVectorState, times: Array) -> pa.RecordBatch | None:
        raise NotImplementedError(f"{type(self).__name__} has no _process")

    # -- time ---------------------------------------------------------------------------------------------------------

    def _row_times(self, batch: pa.RecordBatch, state: WindowVectorState) -> Array:
        """Returns the time of each row, in milliseconds since 1970."""
        if not self._settings.time_column:
            return np.full(len(batch), state.times.processing)
        times = _milliseconds(batch.column(self._settings.time_column))
        # Whatever the lateness: the time of a timer does not have to fit into a timestamp.
        limit = _LATEST - self._settings.longest
        if len(times) and not -limit < times.min() <= times.max() < limit:
            raise StateError(
                "an event time is out of range",
                hint="filter such rows in a transform, or convert the column: event time is in milliseconds since 1970",
                earliest=int(times.min()),
                latest=int(times.max()),
            )
        return times

    def _watermark(self, state: WindowVectorState) -> int:
        """Returns the watermark by which rows are late."""
        return state.times.watermark if self._settings.time_column else _NEVER

    def _reached(self, state: WindowVectorState, of: Array) -> Array:
        """Returns the watermark that the key of each window reaches in the batch."""
        return state.times.reached[of] if self._settings.time_column else np.full(len(of), _NEVER)

    def _removal(self, ends: Array) -> Array:
        """Returns the time at which windows are removed."""
        return ends - 1 + self._settings.lateness

    # -- output and state ---------------------------------------------------------------------------------------------

    def _output_late(self, batch: pa.RecordBatch, state: WindowVectorState, is_late: Array) -> None:
        """Emits rows to the side output of late rows, or drops them."""
        if self._settings.late_rows is None:
            late = batch.filter(pa.array(is_late))
            is_partial = ROWS in batch.schema.names
            self.late_rows_dropped += (pc.sum(late.column(ROWS)).as_py() or 0) if is_partial else len(late)
        elif is_late.any():
            state.output(self._settings.late_rows, batch.filter(pa.array(is_late)))

    def _groups(self, state: WindowVectorState, starts: Array, of: Array, count: int) -> VectorState:
        """Returns groups of adjacent rows or accumulators, of which `of` has the number of the key."""
        at = pa.array(of)
        keys = [column.take(at) for column in state.keys.columns]
        return VectorState(pa.RecordBatch.from_arrays(keys, names=state.keys.schema.names), starts, count, state.states)

    def _read(self, windows: KeyedStateBatch) -> tuple[Accumulators, Array]:
        """Returns the stored contents of windows, and which of them exist."""
        stored = windows.read(self._contents)
        return self._columns.of_stored(stored), stored.is_valid().to_numpy(zero_copy_only=False)

    def _write(self, windows: KeyedStateBatch, accumulators: Accumulators, changes: Array, keeps: Array) -> None:
        """Stores the contents of windows.

        Args:
            changes: for each window, whether it changes.
            keeps: whether its content is stored; else it is removed.
        """
        values = to_stored(accumulators)
        if not keeps.all():
            values = pc.if_else(pa.array(keeps), values, pa.scalar(None, values.type))
        windows.write(self._contents, values, None if changes.all() else changes)

    def _register(self, state: WindowVectorState, windows: Windows, reached: Array) -> None:
        """Registers the timers of new windows that have not ended yet: those that fire, and those that remove them."""
        if self._settings.lateness:
            self._register_later(state, windows, windows.ends - 1, reached)
        self._register_later(state, windows, self._removal(windows.ends), reached)

    def _register_removal(self, state: WindowVectorState, windows: Windows, reached: Array) -> None:
        """Registers the timers that remove stored windows: they were stored without one if no lateness was allowed."""
        if self._settings.lateness and len(windows):
            self._register_later(state, windows, self._removal(windows.ends), reached)

    def _register_later(self, state: WindowVectorState, windows: Windows, times: Array, reached: Array) -> None:
        later = np.flatnonzero(times > reached)
        if len(later):
            state.register(self._settings.domain, windows.at(later).states(state), times[later])


def _milliseconds(column: pa.Array) -> Array:
    if column.null_count:
        raise StateError(
            "a row of an event-time window has no event time",
            hint="filter rows whose timestamp column is null before key_by",
        )
    numbers: Array = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers // _PER_MILLISECOND[column.type.unit] if pa.types.is_timestamp(column.type) else numbers
