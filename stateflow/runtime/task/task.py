"""A task: restores its base, processes its rows, takes a snapshot, writes sink files and reports.

A task is a pure function of its base state, its rows and the time that the driver sends. The name of everything it
writes contains its attempt, so a retried, killed or speculative attempt changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime

import pyarrow as pa
from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.barrier.task_report import Failure, TaskReport
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.errors import StateflowError, StorageError
from stateflow.observability.exporters import export_spans
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.barriers import InputBarriers, report_batch
from stateflow.runtime.task.chain_runner import ChainRunner, OperatorResult, open_runner
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.runtime.task.outputs import Outputs
from stateflow.runtime.task.row_conversion import check_declared
from stateflow.runtime.task.subtask_store import SubtaskStore
from stateflow.runtime.task.task_input import PhaseRows, TaskInput
from stateflow.runtime.task.ttl_schedule import TtlSchedule
from stateflow.runtime.task_spec import SOURCE_PHASE, BatchInfo, LevelSpec, TaskSpec
from stateflow.state.handles import Committable, OperatorPart, SubtaskState

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
        self._input = TaskInput(spec)
        self._barriers = InputBarriers(spec)
        self._store = SubtaskStore(spec)
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
        )
