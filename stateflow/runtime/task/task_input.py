"""The sorted input of a task, split into phases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stateflow.checkpoint.barrier.task_report import combined_spans
from stateflow.checkpoint.log.documents import TimeSpan
from stateflow.runtime.task.row_conversion import event_times
from stateflow.runtime.task_spec import (
    BARRIER_ORDER,
    BROADCAST_ORDER,
    INPUT,
    ORDER,
    ORIGIN,
    PHASE_SHIFT,
    SOURCE_PHASE,
    ChainSpec,
    Numbers,
    TaskSpec,
)
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.types.columns.conversion import with_type

_MAX_SPANS = 1024
"""Of the event times that a task reports for one input: with more of them, several are counted together."""


class PhaseRows:
    """Sorted rows of one phase, or broadcast rows.

    Attributes:
        order: the value of the column `ORDER` of each row.
        phase: the phase of the rows. Broadcast rows belong to the phase of source rows.
    """

    def __init__(self, chain: ChainSpec, order: Numbers, batch: pa.RecordBatch) -> None:
        self._chain = chain
        self._batch = batch
        self.order = order
        self.is_broadcast = bool(order[0] == BROADCAST_ORDER)
        self.phase = SOURCE_PHASE if self.is_broadcast else int(order[0] >> PHASE_SHIFT)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def columns(self) -> list[pa.Array]:
        """The columns of all inputs, one input after the other."""
        return [
            with_type(self._batch.column(each.prefix + column.name), column.arrow_type)
            for each in self._chain.inputs
            for column in each.schema.columns
        ]

    @property
    def inputs(self) -> Numbers | None:
        """For each row, the number of the input that it belongs to; None for a chain with one input."""
        if len(self._chain.inputs) == 1:
            return None
        numbers: Numbers = self._batch.column(INPUT).to_numpy()
        return numbers

    def times_above(self, watermark: int | None) -> Iterator[tuple[int, int, Numbers]]:
        """Yields number of the input, number of the source or -1, and the event times above a watermark."""
        inputs, origins = self.inputs, self.origins
        for number, each in enumerate(self._chain.inputs):
            if each.keying is None or not each.time_column:
                continue
            times = event_times(self._batch.column(each.prefix + each.time_column))
            wanted = times > (NO_WATERMARK if watermark is None else watermark)
            if inputs is not None:
                wanted &= inputs == number
            found = np.unique(origins[wanted]).tolist() if origins is not None else [-1]
            for origin in found:
                yield number, origin, times[wanted if origins is None else wanted & (origins == origin)]

    @property
    def origins(self) -> Numbers | None:
        """For each row, the number of the source that it comes from, -1 if unknown; None if no row has a source."""
        if ORIGIN not in self._batch.schema.names:
            return None
        numbers: Numbers = self._batch.column(ORIGIN).to_numpy()
        return numbers


class TaskInput:
    """Splits a task's input into phases and barriers.

    Attributes:
        rows: number of rows read. All subtasks receive each broadcast row; only subtask 0 counts it.
        ahead: the event times of rows above the watermark, as in `TaskReport`.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._task = task
        self.rows = 0
        self.ahead: dict[str, list[TimeSpan]] = {}

    def split(self, batch: pa.RecordBatch) -> tuple[list[PhaseRows], pa.RecordBatch | None]:
        """Returns the rows of an Arrow batch by phase, and its control rows; None without control rows."""
        order: Numbers = batch.column(ORDER).to_numpy()
        count = int(np.searchsorted(order, BARRIER_ORDER, side="left"))
        phases = [
            PhaseRows(self._task.chain, order[start:end], batch.slice(start, end - start))
            for start, end in _phase_bounds(order[:count])
        ]
        return phases, batch.slice(count) if count < len(order) else None

    def count(self, rows: PhaseRows) -> None:
        """Adds rows to the statistics that the task reports."""
        if not rows.is_broadcast or self._task.subtask == 0:
            self.rows += len(rows)
        chain = self._task.chain
        for number, origin, times in rows.times_above(chain.watermark) if chain.waiting else ():
            name = chain.waiting[number] if origin < 0 else self._task.level.sources[origin]
            self.ahead[name] = combined_spans([*self.ahead.get(name, ()), *_spans(times)], _MAX_SPANS)


def _spans(times: Numbers) -> list[TimeSpan]:
    """Returns the distinct times with their numbers of rows, in spans if there are many."""
    values, counts = np.unique(times, return_counts=True)
    starts = np.arange(0, len(values), -(-len(values) // _MAX_SPANS) or 1)
    if not len(starts):
        return []
    lasts = values[np.append(starts[1:], len(values)) - 1]
    rows = np.add.reduceat(counts, starts)
    columns = (values[starts].tolist(), lasts.tolist(), rows.tolist())
    return [TimeSpan(first=first, last=last, rows=n) for first, last, n in zip(*columns, strict=True)]


def _phase_bounds(order: Numbers) -> list[tuple[int, int]]:
    """Returns start and end of broadcast rows, phase 0 and phase 1, without those that have no rows."""
    cuts = np.searchsorted(order, [0, SOURCE_PHASE << PHASE_SHIFT]).tolist()
    return [(start, end) for start, end in pairwise([0, *cuts, len(order)]) if start < end]
