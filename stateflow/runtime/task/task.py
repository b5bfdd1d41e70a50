"""A task: restores its base, processes its rows, takes a snapshot, writes sink files and reports.

A task is a pure function of its base state, its rows and the time that the driver sends. The name of everything it
writes contains its attempt, so a retried, killed or speculative attempt changes nothing.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.functions.window_vectors import WindowVectorFunction
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.api.joins.times import TimedColumnJoin
from stateflow.api.side_outputs import MAIN
from stateflow.checkpoint.barriers import Failure, TaskReport, TaskUsage, combine_spans
from stateflow.checkpoint.log.documents import TimeSpan
from stateflow.clock import Section, Stopwatch, SystemClock, cpu_seconds, epoch_milliseconds
from stateflow.config.settings import StateSettings
from stateflow.errors import StateflowError, StorageError
from stateflow.observability import export_spans
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    BROADCAST_ORDER,
    INPUT,
    ORDER,
    ORIGIN,
    PHASE_SHIFT,
    SOURCE_PHASE,
    TIMER_PHASE,
    BatchInfo,
    ChainSpec,
    LevelSpec,
    Numbers,
    TaskSpec,
)
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.keyed_operator import KeyedOperator
from stateflow.runtime.task.operator_runtime import InitialState
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.runtime.task.outputs import InputBarriers, Outputs, report_batch
from stateflow.runtime.task.row_conversion import check_declared, event_times
from stateflow.runtime.task.store_cache import SubtaskStore
from stateflow.runtime.task.vector_operator import (
    JoinOperator,
    VectorOperator,
    WindowJoinOperator,
    WindowVectorOperator,
)
from stateflow.state.handles import Base, Committable, OperatorContent, OperatorPart, StateSchema, SubtaskState, is_due
from stateflow.state.kinds.timers import NO_WATERMARK
from stateflow.state.kinds.ttl import TtlCleanup
from stateflow.storage.base import TRAFFIC
from stateflow.types.columns.conversion import with_type

_clock = SystemClock()


def run_level(
    spec: LevelSpec, partition: int, attempt: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs one task of a level.

    Args:
        partition: number of the task within the level.
        attempt: unique name of this attempt.
        batches: the task's input, sorted by `ORDER`.

    Yields:
        Arrow batches of `spec.output_schema`.
    """
    export_spans(spec.batch.environment.telemetry)
    store_cache.adopt_uploads(spec.batch)
    task = Task(TaskSpec(spec, partition, attempt))
    try:
        for batch in batches:
            yield from task.process(batch)
        yield from task.finish()
    except StateflowError as e:
        task.abort()
        if e.retryable:
            raise
        # An error that no retry can fix is sent to the driver as a report, so that it keeps its type and facts there.
        yield task.failure_report(e)
    except OSError as e:
        task.abort()
        raise _storage_error(e, spec.batch) from e
    except BaseException:
        task.abort()
        raise


def _storage_error(error: OSError, batch: BatchInfo) -> StorageError:
    return StorageError(
        "a task could not write or read its files",
        hint="check the free space of local_dir and the access to the sink tables",
        local_dir=str(batch.environment.local_folder),
        reason=str(error)[:300],
    )


class Task:
    """One attempt of a subtask of an operator chain in one batch."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._meter = UsageMeter()
        self._input = TaskInput(spec)
        self._barriers = InputBarriers(spec)
        self._store = SubtaskStore(spec, self._meter.watch)
        self._parts = OperatorParts.of(spec)
        self._outputs = Outputs(spec)
        self._runner: ChainRunner | None = None
        self._is_time_advanced = False
        self._barrier_at: datetime | None = None
        self._sync_ms = 0.0

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Processes some of the sorted input."""
        phases, controls = self._input.split(batch)
        for rows in phases:
            if rows.phase == SOURCE_PHASE and not rows.is_broadcast:
                yield from self._advance_time()
            yield from self._process_rows(rows)
        if controls is not None:
            self._barriers.receive(controls)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Ends the batch: ends the operator, takes the snapshot, closes the sink files and reports."""
        self._barriers.check()
        self._barrier_at = _clock.now()
        settings = self._spec.batch.settings
        schedule = TtlSchedule(self._store.base, self._now, settings.state)
        if schedule.is_due and settings.opens_to_clean_up and self._spec.chain.function is not None:
            self._opened_runner()
        yield from self._advance_time()
        if self._runner is not None:
            yield from self._runner.finish()
            has_rows = self._input.rows > 0
            self._store.ttl_cleanup_at = schedule.clean_up(self._runner.ttl_cleanup(), has_rows=has_rows)
        elif self._store.must_open:
            self._store.open()
        self._outputs.end_rows()
        failpoints.hit("task.processed")
        part = self._operator_part()
        began = _clock.monotonic()
        state = self._store.snapshot()
        self._sync_ms = round((_clock.monotonic() - began) * 1000, 3)
        report = self._report(state, part, self._outputs.close_writers())
        failpoints.hit("task.sink-closed")
        yield report_batch(self._spec, report)

    def abort(self) -> None:
        """Releases all resources after a failure."""
        self._outputs.abort()
        if self._runner is not None:
            with contextlib.suppress(StateflowError):  # the first failure is the one to report
                self._runner.abort()
        self._store.close()

    def failure_report(self, error: StateflowError) -> pa.RecordBatch:
        """Returns the report of a failed task, for the driver and the tasks of the next level."""
        report = self._report(None, None, {})
        return report_batch(self._spec, replace(report, failure=Failure.of(error)))

    def _process_rows(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        self._input.count(rows)
        if self._spec.chain.function is None:
            (output,), columns = self._spec.chain.outputs, rows.columns
            if output.sinks:
                # Other rows are checked by the task that takes them.
                sinks = ", ".join(context.uid for _, context in output.sinks)
                check_declared(columns, self._spec.chain.inputs[0].schema, sink=sinks)
            yield from self._outputs.relay(pa.RecordBatch.from_arrays(columns, schema=output.schema.arrow), rows.phase)
        else:
            yield from self._opened_runner().process(rows)

    def _advance_time(self) -> Iterator[pa.RecordBatch]:
        """Advances time once, between the rows of the two phases."""
        chain = self._spec.chain
        if self._is_time_advanced or chain.function is None:
            return
        if self._runner is not None or self._store.base.earliest_timers.due(chain.watermark, self._now):
            yield from self._opened_runner().advance_time()
        self._is_time_advanced = True
        failpoints.hit("task.fired")

    def _opened_runner(self) -> ChainRunner:
        """Returns the runner. A subtask without rows, due timers and due cleanup never opens it, nor its store."""
        if self._runner is None:
            self._runner = open_runner(
                self._spec, self._store, self._parts, self._outputs, is_time_advanced=self._is_time_advanced
            )
        return self._runner

    @property
    def _now(self) -> int:
        return epoch_milliseconds(self._spec.batch.id.processing_time)

    def _operator_part(self) -> OperatorPart | None:
        content = self._runner.operator_content() if self._runner is not None else None
        if content is None:
            return self._parts.carry_over(self._spec.attempt)
        return self._parts.write(content, self._spec.attempt)

    def _report(
        self, state: SubtaskState | None, part: OperatorPart | None, output: dict[str, list[Committable]]
    ) -> TaskReport:
        spec, batch, store = self._spec, self._spec.batch.id, self._store
        result = self._runner.result() if self._runner is not None else OperatorResult()
        return TaskReport(
            generation=batch.generation,
            ordinal=batch.ordinal,
            uid=spec.chain.uid,
            subtask=spec.subtask,
            attempt=spec.attempt,
            state=state,
            output=output,
            rows_in=self._input.rows,
            rows_out=self._outputs.rows_out,
            consumed=self._barriers.consumed,
            key_types=list(spec.chain.keying.types) if spec.chain.keying else [],
            key_names=list(spec.chain.keying.columns) if spec.chain.keying else [],
            part=part,
            states=result.states,
            operator_states=result.operator_states,
            dead_letters=result.dead_letters,
            late_rows_dropped=result.late_rows_dropped,
            hot_keys=result.hot_keys,
            last_dead_letter=result.last_dead_letter,
            increment_bytes=store.new_bytes(state) + self._parts.new_bytes(part) - store.compaction_bytes,
            compaction_bytes=store.compaction_bytes,
            carried=self._barriers.reports,
            ahead=self._input.ahead,
            barrier_at=self._barrier_at,
            sync_ms=self._sync_ms,
            usage=self._meter.usage(self._outputs.rows_filtered, self._input.late),
        )


class UsageMeter:
    """Measures what a task uses, from its creation on.

    CPU time and requests are counted in the process: of a task on Spark, which has a process of its own, and of the
    threads that store its files; without Spark, one task runs after another.

    Attributes:
        watch: measures the time in functions, state and store.
    """

    def __init__(self) -> None:
        self.watch = Stopwatch()
        self._cpu_s = cpu_seconds()
        self._traffic = TRAFFIC.now()

    def usage(self, rows_filtered: int, rows_late: int) -> TaskUsage:
        """Returns what was used so far, with counts of rows."""
        traffic = TRAFFIC.now() - self._traffic
        # Estimates of an inner section may exceed the outer one.
        seconds = [round(max(0.0, each), 6) for each in self.watch.read()]
        return TaskUsage(
            rows_filtered,
            rows_late,
            function_s=seconds[Section.FUNCTION],
            state_s=seconds[Section.STATE],
            store_s=seconds[Section.STORE],
            cpu_s=round(cpu_seconds() - self._cpu_s, 6),
            requests=traffic.requests,
            bytes_read=traffic.bytes_read,
            bytes_written=traffic.bytes_written,
        )


@dataclass(frozen=True)
class OperatorResult:
    """The part of an operator in the report of its task.

    Attributes:
        states: the keyed states that the function declared.
        operator_states: the operator states that the function declared.
        dead_letters: number of rows that failed and became dead letters.
        last_dead_letter: the error of the last one.
        late_rows_dropped: number of rows that were dropped because they were too late.
        hot_keys: the pairs of rows that a join has compared for keys with many, by key.
    """

    states: list[StateSchema] = field(default_factory=list)
    operator_states: list[StateSchema] = field(default_factory=list)
    dead_letters: int = 0
    last_dead_letter: Failure | None = None
    late_rows_dropped: int = 0
    hot_keys: dict[str, int] = field(default_factory=dict)


class ChainRunner(ABC):
    """Runs the operator of a chain in one task. Methods yield the Arrow batches for the next level."""

    @abstractmethod
    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        """Processes sorted rows of one phase."""

    @abstractmethod
    def advance_time(self) -> Iterator[pa.RecordBatch]:
        """Advances time to that of the batch and fires the timers that are due."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """Ends the input of the operator."""

    @abstractmethod
    def ttl_cleanup(self) -> TtlCleanup:
        """Returns the cleanup of expired state; to be run after `finish`."""

    @abstractmethod
    def abort(self) -> None:
        """Closes the function after a failure."""

    @abstractmethod
    def result(self) -> OperatorResult:
        """Returns what the operator reports; after `finish`, or after a failure."""

    @abstractmethod
    def operator_content(self) -> OperatorContent | None:
        """Returns the operator state after `finish`; None for an operator that cannot have any."""


class KeyedRunner(ChainRunner):
    """Runs a `KeyedOperator`, which calls its function row by row."""

    def __init__(self, operator: KeyedOperator, outputs: Outputs) -> None:
        self._operator = operator
        self._outputs = outputs

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        operator = self._operator
        if rows.is_broadcast:
            emitted = operator.broadcast(rows.columns)
        else:
            emitted = operator.process(rows.order, rows.columns, rows.inputs, rows.origins)
        yield from self._emit(emitted, rows.phase)

    def advance_time(self) -> Iterator[pa.RecordBatch]:
        # Phase 0: the time of the next level has not advanced yet when these rows arrive there.
        for emitted in self._operator.fire():
            yield from self._emit(emitted, TIMER_PHASE)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for emitted in self._operator.finish():
            yield from self._emit(emitted, SOURCE_PHASE)
        # Side outputs of `close`.
        yield from self._emit([], SOURCE_PHASE)

    def ttl_cleanup(self) -> TtlCleanup:
        return self._operator.ttl_cleanup()

    def abort(self) -> None:
        self._operator.abort()

    def result(self) -> OperatorResult:
        operator = self._operator
        count, last = operator.dead_letters
        return OperatorResult(
            operator.schemas, operator.operator_states, count, last, operator.late_rows_dropped, operator.hot_keys
        )

    def operator_content(self) -> OperatorContent | None:
        return self._operator.operator_content

    def _emit(self, main: list[object], phase: int) -> Iterator[pa.RecordBatch]:
        emitted = {MAIN: main, **self._operator.take_side_outputs()}
        return self._outputs.emit(emitted, phase, self._operator.find_emitting_key)


class VectorRunner(ChainRunner):
    """Runs a `VectorOperator`, which calls its function with Arrow batches of whole keys."""

    def __init__(self, operator: VectorOperator, outputs: Outputs) -> None:
        self._operator = operator
        self._outputs = outputs

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.process(rows.order, rows.columns, rows.origins))

    def advance_time(self) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.fire())

    def finish(self) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.finish())

    def ttl_cleanup(self) -> TtlCleanup:
        return self._operator.ttl_cleanup()

    def abort(self) -> None:
        self._operator.abort()

    def result(self) -> OperatorResult:
        operator = self._operator
        return OperatorResult(
            operator.schemas, late_rows_dropped=operator.late_rows_dropped, hot_keys=operator.hot_keys
        )

    def operator_content(self) -> OperatorContent | None:
        return None

    def _emit(self, emitted: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        operator = self._operator
        for each in emitted:
            yield from self._outputs.emit_columns([each], operator.emits)
        for tag, schema, rows in operator.take_side_outputs():
            yield from self._outputs.emit_columns(rows, schema, tag)


class JoinRunner(VectorRunner):
    """Runs a `JoinOperator`, which gets the rows of two inputs."""

    def __init__(self, operator: JoinOperator, outputs: Outputs) -> None:
        super().__init__(operator, outputs)
        self._join = operator

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        assert rows.inputs is not None
        return self._emit(self._join.process_inputs(rows.order, rows.columns, rows.inputs))


class WindowJoinRunner(VectorRunner):
    """Runs a `WindowJoinOperator`, which gets the rows of two inputs and has timers."""

    def __init__(self, operator: WindowJoinOperator, outputs: Outputs) -> None:
        super().__init__(operator, outputs)
        self._join = operator

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        assert rows.inputs is not None
        return self._emit(self._join.process_inputs(rows.order, rows.columns, rows.inputs, rows.origins))


def open_runner(
    task: TaskSpec, store: SubtaskStore, parts: OperatorParts, outputs: Outputs, *, is_time_advanced: bool
) -> ChainRunner:
    """Opens the store and the function of a chain.

    Args:
        parts: operator state of the base.
        is_time_advanced: whether the timers of this batch have fired already.
    """
    limits = task.batch.settings.state.limits
    if isinstance(task.chain.function, ColumnJoin):
        return JoinRunner(JoinOperator(task.chain, task.info, store.open(), limits), outputs)
    if isinstance(task.chain.function, TimedColumnJoin):
        join = WindowJoinOperator(task.chain, task.info, store.open(), limits, store.timer_index)
        if is_time_advanced:
            join.advance()
        return WindowJoinRunner(join, outputs)
    if isinstance(task.chain.function, WindowVectorFunction):
        columns = WindowVectorOperator(task.chain, task.info, store.open(), limits, store.timer_index)
        if is_time_advanced:
            columns.advance()
        return VectorRunner(columns, outputs)
    if isinstance(task.chain.function, VectorizedKeyedFunction):
        return VectorRunner(VectorOperator(task.chain, task.info, store.open(), limits), outputs)
    initial = InitialState(store.open(), parts, task.batch.id.checkpoint_id, store.timer_index, limits)
    operator = KeyedOperator(task.chain, task.info, initial)
    if is_time_advanced:
        operator.advance()
    return KeyedRunner(operator, outputs)


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

    def count_late(self, watermark: int | None) -> int:
        """Returns how many rows have an event time that is not after a watermark."""
        if watermark is None or self.is_broadcast:
            return 0
        found, inputs = 0, self.inputs
        for number, each in enumerate(self._chain.inputs):
            if each.keying is not None and each.time_column:
                times = event_times(self._batch.column(each.prefix + each.time_column))
                is_late = (times <= watermark) & (times != NO_WATERMARK)
                found += int(np.count_nonzero(is_late if inputs is None else is_late & (inputs == number)))
        return found

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
        rows: number of rows read.
        late: number of them whose event time was not after the watermark.
        ahead: the event times of rows above the watermark, as in `TaskReport`.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._task = task
        self.rows = 0
        self.late = 0
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
        self.rows += len(rows)
        chain = self._task.chain
        # What the previous level emitted before time advanced is late by the watermark of that time.
        self.late += rows.count_late(chain.watermark if rows.phase == SOURCE_PHASE else chain.watermark_before)
        for number, origin, times in rows.times_above(chain.watermark) if chain.waiting else ():
            name = chain.waiting[number] if origin < 0 else self._task.level.sources[origin]
            self.ahead[name] = combine_spans([*self.ahead.get(name, ()), *_spans(times)], _MAX_SPANS)


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


NEVER = (1 << 63) - 1
"""The time of a subtask in which no entry can expire."""
_ENTRIES = 1000
"""Maximum number of expiry entries that a subtask processes in a batch for a state whose declaration sets none."""
_WITHOUT_ROWS = 10
"""A subtask without rows removes so many times as many entries: no row waits for it."""


@dataclass(frozen=True)
class TtlSchedule:
    """The removal of expired entries by one subtask in one batch.

    Attributes:
        base: the state that the subtask starts from.
        now: the processing time of the batch, in milliseconds.
        settings: backend and interval.
    """

    base: Base
    now: int
    settings: StateSettings

    @property
    def is_due(self) -> bool:
        """Whether the subtask removes expired entries even without rows."""
        return is_due(self.base.ttl_cleanup_at, self.now)

    def clean_up(self, cleanup: TtlCleanup, *, has_rows: bool) -> int | None:
        """Removes expired entries: all of them for a full snapshot, otherwise some.

        Returns:
            When the subtask has to do it again even without rows, in milliseconds; None without a TTL in processing
            time.
        """
        is_thorough = self.is_due and not has_rows
        if self.settings.snapshots_are_full:
            cleanup.remove_all()
        else:
            cleanup.remove_some(_ENTRIES * (_WITHOUT_ROWS if is_thorough else 1))
        shortest = cleanup.shortest_ttl()
        if shortest is None:
            return None
        planned = self.base.ttl_cleanup_at
        is_known = planned is not None or not self.base.parts
        if is_known and not self.is_due:
            # Without reading the expiry entries, in every batch: what is written now expires after `shortest`.
            return min(NEVER if planned is None else planned, self._rounded_up(self.now + shortest))
        first = cleanup.first_expiry()
        if first is None:
            return NEVER
        if first > self.now:
            return self._rounded_up(first)
        # More is due than one batch removes.
        return self.now if is_thorough else self._rounded_up(self.now + 1)

    def _rounded_up(self, time: int) -> int:
        interval = max(1, round(self.settings.ttl_cleanup_interval.total_seconds() * 1000))
        return min(NEVER, -(-time // interval) * interval)
