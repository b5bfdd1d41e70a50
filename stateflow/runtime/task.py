"""A task: restores its base, works off its rows, snapshots, writes sink files, reports.

A task is a pure function of its base state, its rows, and the time that the driver gives. Everything it writes has its
attempt in the name, so a retried, killed or speculative attempt changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.functions import TaskInfo
from stateflow.api.side_outputs import MAIN
from stateflow.api.vectorized import VectorizedKeyedFunction
from stateflow.checkpoint.reports import Consumed, Failure, TaskReport
from stateflow.clock import SystemClock
from stateflow.decoders import msgpack_decoder
from stateflow.errors import BatchFailed, StateflowError, StorageError
from stateflow.keygroups import range_of
from stateflow.runtime import stores
from stateflow.runtime.operator import KeyedOperator
from stateflow.runtime.operator_parts import OperatorParts
from stateflow.runtime.outlets import Outlets, filled
from stateflow.runtime.rows import latest_time
from stateflow.runtime.specs import (
    BARRIER_ORDER,
    BROADCAST_ORDER,
    CONTROL,
    INPUT,
    ORDER,
    ORIGIN,
    PHASE_SHIFT,
    POSITION,
    REPORT,
    SOURCE_PHASE,
    TARGET,
    TIMER_PHASE,
    BatchInfo,
    LevelSpec,
    UnitSpec,
)
from stateflow.runtime.vector_operator import VectorOperator
from stateflow.runtime.watermarks import milliseconds
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.handles import Base, Committable, OperatorPart, SubtaskState
from stateflow.state.memory import check_limit
from stateflow.telemetry import join

_clock = SystemClock()


class Barrier(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ends a batch's input: from the driver, or from a task of the level before.

    Attributes:
        report: msgpack of the `TaskReport` of that task, in one of the barriers that it sends.
    """

    generation: int
    ordinal: int
    uid: str = ""
    subtask: int = 0
    attempt: str = ""
    report: bytes = b""


def run_level(
    spec: LevelSpec, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs the task `partition` of a level over its sorted input; yields Arrow batches of `spec.output`."""
    join(spec.batch.telemetry)
    stores.adopt_orphans(spec.batch)
    task = _Task(spec, partition, attempt)
    try:
        for batch in batches:
            yield from task.take(batch)
        yield from task.finish()
    except StateflowError as e:
        task.abandon()
        if e.retryable:
            raise
        # What no retry can mend travels to the driver as a report, so that it arrives as what it is.
        yield from task.report_failure(e)
    except Exception as e:
        task.abandon()
        if isinstance(e, OSError):
            raise _told(e, spec.batch) from e
        raise
    except BaseException:
        task.abandon()
        raise


def _told(error: Exception, batch: BatchInfo) -> StorageError:
    return StorageError("a task could not write or read its files", hint="is a disk full? look at local_dir, and at "
                        "the tables", local_dir=str(batch.local_folder), reason=str(error)[:300])  # fmt: skip


class _Task:
    def __init__(self, spec: LevelSpec, partition: int, attempt: str) -> None:
        self._level = spec
        self._partition = partition
        self._attempt = attempt
        self._index, self._subtask = divmod(partition, spec.parallelism)
        self._unit: UnitSpec = spec.units[self._index]
        self._columns = [column for each in self._unit.inputs for column in each.columns]
        self._info = TaskInfo(self._unit.uid, self._subtask, spec.parallelism, spec.batch.max_parallelism,
                              spec.batch.processing_time, spec.batch.epoch, self._unit.state_watermark)  # fmt: skip
        owned = range_of(self._subtask, spec.parallelism, spec.batch.max_parallelism)
        parts = stores.decode_parts(self._unit.bases[self._subtask]) if self._unit.keying else ()
        self._base = Base(self._subtask, owned, parts)
        self._parts = OperatorParts.of(self._unit, self._subtask, spec.parallelism, spec.batch)
        self._key = stores.StoreKey(spec.batch.job_uuid, self._unit.uid, self._subtask)
        self._backend: KeyedStateBackend | None = None
        self._operator: KeyedOperator | VectorOperator | None = None
        self._outlets = Outlets(spec, self._unit, self._info, partition, attempt)
        self._barriers: list[Barrier] = []
        self._carried: list[TaskReport] = []
        self._event_times: dict[str, int] = {}
        self._fired = False
        self._compaction_bytes = 0
        self._barrier_at: datetime | None = None
        self._sync_ms = 0.0
        self._rows_in = 0

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Works off some of the sorted input."""
        order = batch.column(ORDER).to_numpy()
        rows = int(np.searchsorted(order, BARRIER_ORDER, side="left"))
        for start, end in _phases(order[:rows]):
            if order[start] >> PHASE_SHIFT == SOURCE_PHASE:
                yield from self._fire()
            yield from self._process(order[start:end], batch.slice(start, end - start))
        if rows < len(order):
            self._take_control(batch.slice(rows))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Ends the batch: the operator's end, snapshot, sink files, report."""
        self._check_barriers()
        self._barrier_at = _clock.now()
        yield from self._fire()
        if self._operator is not None:
            yield from self._end(self._operator)
            self._remove_expired(self._operator)
        elif self._base.rescales or (self._level.batch.full and self._base.parts):
            # With rows or without: the next manifest must not mix the states of two parallelisms, nor a full
            # checkpoint refer to what others did.
            self._opened_backend()
        self._outlets.end_rows()
        failpoints.hit("task.processed")
        part = self._operator_part()
        began = _clock.monotonic()
        state = self._snapshot()
        self._sync_ms = round((_clock.monotonic() - began) * 1000, 3)
        report = self._report(state, self._outlets.close_writers(), part)
        failpoints.hit("task.sink-closed")
        yield from self._send(report)

    def abandon(self) -> None:
        """Lets go of everything after a failure."""
        self._outlets.abandon()
        if self._operator is not None:
            with contextlib.suppress(StateflowError):  # the failure before it is the one to tell
                self._operator.abandon()
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def report_failure(self, error: StateflowError) -> Iterator[pa.RecordBatch]:
        """Tells the driver, and the tasks behind, that there is no result."""
        report = self._report(None, {})
        yield from self._send(replace(report, failure=Failure.of(error)))

    # -- rows ---------------------------------------------------------------------------------------------------

    def _process(self, order: np.ndarray[Any, Any], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of one phase, or broadcast rows."""
        columns = [batch.column(c) for c in self._columns]
        self._note_event_times(batch)
        is_broadcast = order[0] == BROADCAST_ORDER
        # Every subtask gets all of those.
        self._rows_in += 0 if is_broadcast and self._subtask else len(order)
        phase = SOURCE_PHASE if is_broadcast else int(order[0] >> PHASE_SHIFT)
        if self._unit.function is None:
            schema = self._unit.outlets[0].schema.arrow
            yield from self._outlets.relay(pa.RecordBatch.from_arrays(columns, schema=schema), phase)
            return
        operator = self._opened_operator()
        if isinstance(operator, VectorOperator):
            yield from self._outlets.emit_columns(operator.process(order, columns))
        elif is_broadcast:
            yield from self._emit(operator, operator.broadcast(columns), phase)
        else:
            which = batch.column(INPUT).to_numpy() if len(self._unit.inputs) > 1 else None
            origins = batch.column(ORIGIN).to_numpy() if ORIGIN in batch.schema.names else None
            yield from self._emit(operator, operator.process(order, columns, which, origins), phase)

    def _fire(self) -> Iterator[pa.RecordBatch]:
        """Once, between the rows of both phases: time advances, and what is due is called. What that emits is of phase
        0, for a level behind whose time has not advanced yet."""
        if self._fired or self._unit.function is None:
            return
        now = milliseconds(self._level.batch.processing_time)
        if self._operator is not None or self._base.earliest_timers.due(self._unit.watermark, now):
            yield from self._fire_due(self._opened_operator())
        self._fired = True
        failpoints.hit("task.fired")

    def _fire_due(self, operator: KeyedOperator | VectorOperator) -> Iterator[pa.RecordBatch]:
        if isinstance(operator, VectorOperator):
            yield from self._outlets.emit_columns(operator.flush())
            return
        for emitted in operator.fire():
            yield from self._emit(operator, emitted, TIMER_PHASE)

    def _note_event_times(self, batch: pa.RecordBatch) -> None:
        columns = [each.prefix + each.time_column for each in self._unit.inputs if each.time_column]
        if not columns or ORIGIN not in batch.schema.names:
            return
        origins = batch.column(ORIGIN)
        for number in set(pc.unique(origins).to_pylist()) - {-1}:
            rows = batch.filter(pc.equal(origins, number))
            uid = self._level.sources[number]
            latest = [latest_time(rows.column(name)) for name in columns]
            known = [time for time in (*latest, self._event_times.get(uid)) if time is not None]
            if known:
                self._event_times[uid] = max(known)

    def _end(self, operator: KeyedOperator | VectorOperator) -> Iterator[pa.RecordBatch]:
        """What an operator emits at a batch's end."""
        if isinstance(operator, VectorOperator):
            yield from self._outlets.emit_columns(operator.finish())
        else:
            yield from self._emit(operator, operator.finish(), SOURCE_PHASE)

    def _remove_expired(self, operator: KeyedOperator | VectorOperator) -> None:
        settings = self._level.batch.state
        if settings.snapshots_are_full:
            operator.remove_expired()
        else:
            operator.clean_up(settings.ttl_cleanup_entries)

    def _opened_operator(self) -> KeyedOperator | VectorOperator:
        """A subtask without rows does not open its store, unless that has to be laid out anew."""
        if self._operator is None:
            self._operator = self._made_operator(self._opened_backend())
        return self._operator

    def _made_operator(self, backend: KeyedStateBackend) -> KeyedOperator | VectorOperator:
        if isinstance(self._unit.function, VectorizedKeyedFunction):
            return VectorOperator(self._unit, self._info, backend)
        timers = stores.timers_of(backend, self._base)
        operator = KeyedOperator(
            self._unit, self._info, backend, self._parts, self._level.batch.checkpoint_id, timers
        )
        if self._fired:
            operator.advance()
        return operator

    def _opened_backend(self) -> KeyedStateBackend:
        if self._backend is None:
            level = self._level
            self._backend = stores.acquire(
                self._key, self._base, level.batch, self._attempt, level.parallelism
            )
            failpoints.hit("task.restored")
        return self._backend

    def _emit(self, operator: KeyedOperator, main: list[Any], phase: int) -> Iterator[pa.RecordBatch]:
        return self._outlets.emit({MAIN: main, **operator.take_side_outputs()}, phase, operator.name_emitter)

    # -- barriers and reports -----------------------------------------------------------------------------------

    def _take_control(self, batch: pa.RecordBatch) -> None:
        for data in batch.column(CONTROL).to_pylist():
            barrier = msgpack_decoder(Barrier).decode(data)
            self._barriers.append(barrier)
            if barrier.report:
                self._carried.append(msgpack_decoder(TaskReport).decode(barrier.report))

    def _check_barriers(self) -> None:
        batch = self._level.batch
        wrong = [b for b in self._barriers if (b.generation, b.ordinal) != (batch.generation, batch.ordinal)]
        wanted = max(1, len(self._level.upstream))
        if wrong or len(self._barriers) != wanted:
            raise BatchFailed("a task's input did not end with the expected barriers", uid=self._unit.uid,
                              subtask=self._subtask, expected=wanted, found=len(self._barriers))  # fmt: skip

    def _snapshot(self) -> SubtaskState | None:
        if self._backend is None:
            return self._base.own
        name = f"{self._unit.uid}-{self._subtask}-"
        batch, owned = self._level.batch, self._base.owned
        snapshot = f"{batch.data_folder(self._attempt)}{name}"
        taken = self._backend.snapshot(snapshot, batch.full)
        earliest = stores.timers_of(self._backend, self._base).earliest
        self._compaction_bytes = taken.compaction_bytes
        state = SubtaskState(subtask=self._subtask, first_group=owned.first, last_group=owned.last, snapshot=snapshot,
                             files=list(taken.files), backend=batch.state.backend, inline=taken.inline,
                             store_manifest=taken.store_manifest, event_timer=earliest.event,
                             processing_timer=earliest.processing)  # fmt: skip
        # The driver looks at all subtasks together; what one alone has too much of need not travel there.
        check_limit({self._unit.uid: [state]}, batch.state.memory_limit_bytes)
        failpoints.hit("task.uploaded")
        stores.give_back(self._key, self._backend, snapshot, batch.state)
        self._backend = None
        return state

    def _operator_part(self) -> OperatorPart | None:
        if not isinstance(self._operator, KeyedOperator):
            return self._parts.kept(self._attempt)
        return self._parts.written(self._operator.operator_content, self._attempt)

    def _report(
        self,
        state: SubtaskState | None,
        output: dict[str, list[Committable]],
        part: OperatorPart | None = None,
    ) -> TaskReport:
        batch = self._level.batch
        before = {f.handle.key for stored in self._base.parts for f in stored.files}
        objects = {f.handle.key: f.handle.size for f in state.files} if state else {}
        new = [size for key, size in objects.items() if key not in before]
        if state is not None and state is not self._base.own:
            new.append(len(state.inline or b""))
        if part is not None and part.handle is not None and not self._parts.has(part):
            new.append(part.handle.size)
        rows_operator = self._operator if isinstance(self._operator, KeyedOperator) else None
        count, last = rows_operator.dead_letters if rows_operator else (0, None)
        return TaskReport(
            generation=batch.generation, ordinal=batch.ordinal, uid=self._unit.uid, subtask=self._subtask,
            attempt=self._attempt, state=state, output=output, rows_in=self._rows_in, rows_out=self._outlets.rows_out,
            consumed=[Consumed(uid=b.uid, subtask=b.subtask, attempt=b.attempt) for b in self._barriers if b.uid],
            key_types=list(self._unit.keying.types) if self._unit.keying else [],
            part=part, states=self._operator.schemas if self._operator else [],
            operator_states=rows_operator.operator_states if rows_operator else [],
            dead_letters=count, last_dead_letter=last,
            increment_bytes=sum(new) - self._compaction_bytes, compaction_bytes=self._compaction_bytes,
            carried=self._carried, event_times=self._event_times, barrier_at=self._barrier_at, sync_ms=self._sync_ms,
        )  # fmt: skip

    def _send(self, report: TaskReport) -> Iterator[pa.RecordBatch]:
        data = msgspec.msgpack.encode(report)
        if not self._level.next_targets:
            yield filled(self._level.output, 1, {REPORT: [data]})
            return
        barrier = Barrier(report.generation, report.ordinal, report.uid, report.subtask, self._attempt)
        count = self._level.next_targets
        # Every task behind hears the barrier; one of them carries the report on.
        controls = [msgspec.msgpack.encode(barrier)] * count
        controls[self._partition % count] = msgspec.msgpack.encode(
            msgspec.structs.replace(barrier, report=data)
        )
        yield filled(
            self._level.output, count, {TARGET: range(count), CONTROL: controls, POSITION: [0] * count}
        )


def _phases(order: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Where broadcast rows, phase 0 and phase 1 begin and end, without those that have no rows."""
    cuts = np.searchsorted(order, [0, SOURCE_PHASE << PHASE_SHIFT]).tolist()
    return [(a, b) for a, b in pairwise([0, *cuts, len(order)]) if a < b]
