"""Barriers: they end the input of a task and carry the reports of the tasks before it."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from stateflow.checkpoint.barrier.task_report import Consumed, TaskReport
from stateflow.errors import BatchFailed
from stateflow.runtime.task.outputs import filled
from stateflow.runtime.task_spec import CONTROL, POSITION, REPORT, TARGET, TaskSpec
from stateflow.types.decoders import msgpack_decoder


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
        return filled(level.output_schema, 1, {REPORT: [data]})
    barrier = BarrierMessage(report.generation, report.ordinal, report.uid, report.subtask, task.attempt)
    count = level.next_targets
    controls = [msgspec.msgpack.encode(barrier)] * count
    controls[task.partition % count] = msgspec.msgpack.encode(replace(barrier, report=data))
    return filled(level.output_schema, count, {TARGET: range(count), CONTROL: controls, POSITION: [0] * count})
