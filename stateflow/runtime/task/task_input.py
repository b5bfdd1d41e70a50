"""The sorted input of a task, split into phases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.runtime.task.row_conversion import latest_time
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
from stateflow.types.columns.conversion import with_type


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

    @property
    def origins(self) -> Numbers | None:
        """For each row, the number of the source that it comes from, -1 if unknown; None if no row has a source."""
        if ORIGIN not in self._batch.schema.names:
            return None
        numbers: Numbers = self._batch.column(ORIGIN).to_numpy()
        return numbers

    def latest_times(self) -> Iterator[tuple[int, int]]:
        """Yields the number of each source in the rows and its latest event time in milliseconds since 1970."""
        columns = [each.prefix + each.time_column for each in self._chain.inputs if each.time_column]
        if not columns or ORIGIN not in self._batch.schema.names:
            return
        origins = self._batch.column(ORIGIN)
        for number in set(pc.unique(origins).to_pylist()) - {-1}:
            rows = self._batch.filter(pc.equal(origins, number))
            latest = [latest_time(rows.column(name)) for name in columns]
            known = [time for time in latest if time is not None]
            if known:
                yield number, max(known)


class TaskInput:
    """Splits a task's input into phases and barriers.

    Attributes:
        rows: number of rows read. All subtasks receive each broadcast row; only subtask 0 counts it.
        event_times: the latest event time by uid of the source, in milliseconds since 1970.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._task = task
        self.rows = 0
        self.event_times: dict[str, int] = {}

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
        for number, latest in rows.latest_times():
            uid = self._task.level.sources[number]
            self.event_times[uid] = max(latest, self.event_times.get(uid, latest))


def _phase_bounds(order: Numbers) -> list[tuple[int, int]]:
    """Returns start and end of broadcast rows, phase 0 and phase 1, without those that have no rows."""
    cuts = np.searchsorted(order, [0, SOURCE_PHASE << PHASE_SHIFT]).tolist()
    return [(start, end) for start, end in pairwise([0, *cuts, len(order)]) if start < end]
