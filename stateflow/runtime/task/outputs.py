"""The rows that a task emits: its outputs, and the barriers that end them and carry the reports of tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.api.schema import RowSchema
from stateflow.api.side_outputs import MAIN
from stateflow.api.sink import Sink, SinkContext, SinkWriter, Writing
from stateflow.checkpoint.barriers import Consumed, TaskReport
from stateflow.errors import BatchFailed, SchemaMismatch, StateflowError, UserCodeError
from stateflow.runtime.executor import (
    CONTROL,
    OUTPUT_NUMBER,
    PHASE,
    POSITION,
    POSITION_SHIFT,
    REPORT,
    TARGET,
    OutputSpec,
    TaskSpec,
    output_prefix,
)
from stateflow.runtime.task.row_conversion import check_required, find_misfit, to_batch, to_rows
from stateflow.runtime.task.stateless_functions import ColumnStep, RowFunctions
from stateflow.state.handles import Committable
from stateflow.types.decoders import msgpack_decoder

Emitted = Mapping[str, list[object]]
"""Rows by name of the output."""
KeyOfRow = Callable[[int], Mapping[str, object] | None]
"""Returns the key that emitted the row at a position, by column; None if it is not known."""


class Outputs:
    """All outputs of one task, for one batch. Methods yield the rows for the next level as Arrow batches.

    Attributes:
        rows_out: number of rows that the operator emitted, each counted once.
    """

    def __init__(self, task: TaskSpec) -> None:
        self.rows_out = 0
        self._task = task
        self._chain = task.chain
        self._first_position = task.partition << POSITION_SHIFT
        self._sent = 0
        self._row_functions: dict[int, RowFunctions] = {}
        self._writers: dict[str, SinkWriter] = {}

    def relay(self, rows: pa.RecordBatch, phase: int) -> Iterator[pa.RecordBatch]:
        """Forwards the rows of a chain without a function, which has one output."""
        (output,) = self._chain.outputs
        self.rows_out += len(rows)
        yield from self._send(output, rows, phase)

    def emit(self, emitted: Emitted, phase: int, key_of: KeyOfRow) -> Iterator[pa.RecordBatch]:
        """Sends row objects.

        Args:
            key_of: the keys of the rows of the main output.
        """
        self.rows_out += sum(map(len, emitted.values()))
        for index, output in enumerate(self._chain.outputs):
            rows = emitted.get(output.tag)
            if rows and output.steps:
                rows = self._row_functions_of(index, output).apply(rows)
            if rows:
                known = None if output.tag or output.steps else key_of
                yield from self._send(output, self._to_columns(output, rows, known), phase)

    def emit_columns(
        self, emitted: Iterable[tuple[int, pa.RecordBatch]], schema: RowSchema, tag: str = MAIN
    ) -> Iterator[pa.RecordBatch]:
        """Sends the phases and rows that a vectorized operator emits to one of its outputs.

        Args:
            schema: the columns of the rows.
            tag: name of the output tag.
        """
        for phase, batch in emitted:
            self.rows_out += len(batch)
            for index, output in enumerate(self._chain.outputs):
                if output.tag != tag:
                    continue
                if not output.steps:
                    yield from self._send(output, batch, phase)
                    continue
                rows = to_rows(batch.columns, schema)
                made = self._row_functions_of(index, output).apply(rows)
                if made:
                    yield from self._send(output, self._to_columns(output, made), phase)

    @property
    def rows_filtered(self) -> int:
        """The number of rows that functions of `filter` have dropped."""
        return sum(functions.filtered for functions in self._row_functions.values())

    def end_rows(self) -> None:
        """Closes the row functions, after the last row."""
        for functions in self._row_functions.values():
            functions.close()

    def close_writers(self) -> dict[str, list[Committable]]:
        """Closes the sink writers; returns what they wrote, by uid of the sink."""
        return {uid: writer.close() for uid, writer in self._writers.items()}

    def abort(self) -> None:
        """Closes the row functions after a failure; errors of closing them do not replace it."""
        for functions in self._row_functions.values():
            with contextlib.suppress(StateflowError):
                functions.close()

    def _to_columns(self, output: OutputSpec, rows: list[object], key_of: KeyOfRow | None = None) -> pa.RecordBatch:
        """Returns the columns of row objects.

        Raises:
            SchemaMismatch: a row does not fit; the error names the operator, and the key if it is known.
        """
        try:
            return to_batch(rows, output.emitted)
        except SchemaMismatch as e:
            if self._chain.function is not None:
                e.add_facts(operator=self._chain.uid)
            position = find_misfit(rows, output.emitted)
            key = key_of(position) if key_of and position is not None else None
            if key is not None:
                e.add_facts(key=repr(key))
            raise

    def _row_functions_of(self, index: int, output: OutputSpec) -> RowFunctions:
        if index not in self._row_functions:
            self._row_functions[index] = RowFunctions(output.steps, self._task.info)
        return self._row_functions[index]

    def _send(self, output: OutputSpec, rows: pa.RecordBatch, phase: int) -> Iterator[pa.RecordBatch]:
        """Applies the functions of columns, and passes the results to the sinks and to the next level."""
        made: Iterable[pa.RecordBatch] = (rows,)
        for each in output.columns:
            made = ColumnStep(each.function, each.given, each.output).apply(made)
        try:
            for batch in made:
                yield from self._deliver(output, batch, phase)
        except UserCodeError as e:
            e.add_facts(operator=self._chain.uid)
            raise

    def _deliver(self, output: OutputSpec, rows: pa.RecordBatch, phase: int) -> Iterator[pa.RecordBatch]:
        for sink, context in output.sinks:
            writer = self._writers.get(context.uid)
            if writer is None:
                writer = self._writers[context.uid] = self._new_writer(sink, context)
            check_required(rows, sink.required_columns, sink=context.uid)
            writer.write(rows)
        if output.number is not None:
            yield self._data_batch(output.number, rows, phase)

    def _new_writer(self, sink: Sink, context: SinkContext) -> SinkWriter:
        batch = self._task.batch
        writing = Writing(batch.id.generation, batch.id.ordinal, self._task.subtask, self._task.attempt)
        # Storage has connections, so it is not sent to tasks.
        return sink.writer(replace(context, storage=batch.environment.storage), writing)

    def _data_batch(self, number: int, rows: pa.RecordBatch, phase: int) -> pa.RecordBatch:
        first = self._first_position + self._sent
        self._sent += len(rows)
        columns: dict[str, object] = {
            OUTPUT_NUMBER: np.full(len(rows), number, np.int32),
            POSITION: np.arange(first, first + len(rows), dtype=np.int64),
            PHASE: np.full(len(rows), phase, np.int64),
        }
        prefix = output_prefix(number)
        columns |= {prefix + name: rows.column(name) for name in rows.schema.names}
        return fill_columns(self._task.level.output_schema, len(rows), columns)


def fill_columns(schema: pa.Schema, length: int, columns: Mapping[str, object]) -> pa.RecordBatch:
    """Returns a batch with the given columns; all other columns are null."""
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(length, field.type))
        else:
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class BarrierMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a batch's input, sent by the driver or by a task of the previous level.

    Attributes:
        uid: the operator chain that sent it; empty for the driver.
        report: msgpack of the sender's `TaskReport`. A task sends its report with only one of its barriers.
    """

    generation: int
    ordinal: int
    uid: str = ""
    subtask: int = 0
    attempt: str = ""
    report: bytes = b""


class InputBarriers:
    """The barriers that a task has received.

    Attributes:
        reports: the reports that the barriers carried; the task passes them on.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._task = task
        self._received: list[BarrierMessage] = []
        self.reports: list[TaskReport] = []

    def receive(self, batch: pa.RecordBatch) -> None:
        """Adds the barriers of control rows."""
        for data in batch.column(CONTROL).to_pylist():
            barrier = msgpack_decoder(BarrierMessage).decode(data)
            self._received.append(barrier)
            if barrier.report:
                self.reports.append(msgpack_decoder(TaskReport).decode(barrier.report))

    @property
    def consumed(self) -> list[Consumed]:
        """The upstream attempts whose rows the task has read."""
        return [Consumed(uid=b.uid, subtask=b.subtask, attempt=b.attempt) for b in self._received if b.uid]

    def check(self) -> None:
        """Raises BatchFailed unless every upstream task has sent exactly one barrier of this batch."""
        batch = self._task.batch.id
        unexpected = [b for b in self._received if (b.generation, b.ordinal) != (batch.generation, batch.ordinal)]
        expected = max(1, len(self._task.level.upstream))
        if unexpected or len(self._received) != expected:
            raise BatchFailed(
                "a task's input did not end with the expected barriers",
                uid=self._task.chain.uid,
                subtask=self._task.subtask,
                expected=expected,
                found=len(self._received),
            )


def report_batch(task: TaskSpec, report: TaskReport) -> pa.RecordBatch:
    """Returns the last rows that a task emits.

    In the last level this is the report; in any other level a barrier for each task of the next level, one of which
    carries the report.
    """
    data = msgspec.msgpack.encode(report)
    level = task.level
    if not level.next_targets:
        return fill_columns(level.output_schema, 1, {REPORT: [data]})
    barrier = BarrierMessage(report.generation, report.ordinal, report.uid, report.subtask, task.attempt)
    count = level.next_targets
    controls = [msgspec.msgpack.encode(barrier)] * count
    controls[task.partition % count] = msgspec.msgpack.encode(msgspec.structs.replace(barrier, report=data))
    return fill_columns(level.output_schema, count, {TARGET: range(count), CONTROL: controls, POSITION: [0] * count})
