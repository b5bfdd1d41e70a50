"""Vectorized functions with timers of windows. For the runtime's own operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Never, NoReturn

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import OnTimerContext
from stateflow.api.functions.vectorized import Array, VectorizedKeyedFunction, VectorState
from stateflow.api.side_outputs import OutputTag
from stateflow.errors import InternalError
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.window_timers import DueTimers, WindowTimers
from stateflow.state.stored_key import TimeDomain


@dataclass(frozen=True)
class BatchTimes:
    """The times of a call, in milliseconds since 1970.

    Attributes:
        processing: processing time.
        watermark: the watermark before the first row of each key; the lowest integer before the first watermark.
        reached: for each key, the watermark before its last row.
        before_rows: the watermark before each row.
    """

    processing: int
    watermark: int
    reached: Array
    before_rows: Array


class WindowVectorState(VectorState):
    """The keys of a call, their state, windows, and timers.

    Attributes:
        times: the times of the call.
        due: the event-time timers of the keys up to the time that each key reaches; they are deleted already.
        side: batches of rows of side outputs, by tag.
    """

    def __init__(
        self, keys: pa.RecordBatch, starts: Array, states: KeyedStateBatch, times: BatchTimes, timers: WindowTimers
    ) -> None:
        super().__init__(keys, starts, len(times.before_rows), states)
        self.times = times
        self.due = DueTimers.none()
        self.side: dict[str, list[pa.RecordBatch]] = {}
        self._timers = timers
        self._windows: tuple[tuple[Array, Array, Array], KeyedStateBatch] | None = None
        """The windows of the last call of `windows`, and their states."""

    def __len__(self) -> int:
        return int(self.keys.num_rows)

    def windows(self, of: Array, starts: Array, ends: Array) -> KeyedStateBatch:
        """Returns the states of distinct windows; `of` has the number of the key of each window."""
        given = (of, starts, ends)
        if self._windows is None or any(one is not other for one, other in zip(given, self._windows[0], strict=True)):
            # An operator reads, writes and registers the same windows in turn: their keys are encoded once.
            self._windows = given, self.states.windows(of, starts, ends)
        return self._windows[1]

    def register(self, domain: TimeDomain, windows: KeyedStateBatch, times: Array) -> None:
        """Registers a timer for each window."""
        self._timers.register_all(domain, windows, times)

    def delete(self, domain: TimeDomain, windows: KeyedStateBatch, times: Array) -> None:
        """Deletes a timer of each window, if it exists."""
        self._timers.delete_all(domain, windows, times)

    def output(self, tag: OutputTag[Never], rows: pa.RecordBatch) -> None:
        """Emits rows to a side output."""
        self.side.setdefault(tag.name, []).append(rows)


class WindowVectorFunction(VectorizedKeyedFunction):
    """A vectorized function whose state and timers belong to windows of keys.

    Attributes:
        windows_of_row: number of windows that a row belongs to, at most.
    """

    windows_of_row = 1

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | None:
        """Called as for `VectorizedKeyedFunction`, with a `WindowVectorState`."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")

    def additions(self, times: Array, is_first: Array, watermark: int) -> Array:
        """Returns for each row about how many accumulators its windows need in addition to those of the row before.

        Args:
            times: event times of the rows, in order within each key.
            is_first: which rows are the first of a key.
            watermark: the watermark before the rows; the lowest integer before the first watermark.
        """
        return np.ones(len(times), np.int64)

    def on_timers(self, domain: TimeDomain, due: DueTimers, state: WindowVectorState) -> pa.RecordBatch | None:
        """Called with timers that are due, in order of time; `state` has their keys, and no rows."""
        raise NotImplementedError(f"{type(self).__name__} has no on_timers")

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> NoReturn:
        """Never called: `on_timers` is."""
        raise InternalError("a timer of a vectorized function fired by itself")
