"""Runs the tasks of one batch up to its barrier, and summarises what they report."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from stateflow.checkpoint.barrier.pending_barrier import Acknowledgement, PendingBarrier
from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.checkpoint.log.documents import Manifest, OperatorState, QuarantinedFile
from stateflow.checkpoint.log.records import Spread
from stateflow.errors import BatchFailed
from stateflow.runtime.executor import BatchWork, Executor
from stateflow.runtime.job.job import HotKey
from stateflow.runtime.task.dead_letters import check_budgets
from stateflow.runtime.task.operator_state import check_memory
from stateflow.state.backends.memory import check_limit
from stateflow.state.handles import Committable

log = logging.getLogger(__name__)


def run_to_barrier(executor: Executor, rows: object, work: BatchWork) -> PendingBarrier:
    """Runs the tasks of a batch and collects their reports.

    Args:
        rows: the input rows, as `Executor.execute` takes them.

    Raises:
        StateflowError: a task failed; it is the task's error.
        BatchFailed: a report is missing, or belongs to another barrier.
        UserCodeError: more rows failed than the job's error budgets allow.
    """
    pending = PendingBarrier(work.info.id.generation, work.info.id.ordinal, work.plan.participants())
    executed = executor.execute(rows, work)
    for report in executed.reports:
        _acknowledge(pending, report)
    pending.check()
    for reported in pending.reports.values():
        for key, pairs in reported.hot_keys.items():
            # A join with one such key takes the time of all its pairs, however many tasks there are.
            log.warning("a join has compared many pairs of one key: uid=%s key=%s pairs=%s", reported.uid, key, pairs)
    check_budgets(work.plan, pending.reports.values())
    pending.event_times, pending.rows_in = executed.event_times, executed.rows
    return pending


def operator_states_after(
    pending: PendingBarrier, base: Mapping[str, OperatorState], watermarks: Mapping[str, int | None], limit: int
) -> list[OperatorState]:
    """Returns the state of every operator after a batch, for the manifest.

    Args:
        pending: the completed barrier of the batch.
        base: the state before the batch, by uid.
        watermarks: the watermarks of the batch, by uid of the operator.
        limit: maximum size of the state in the memory backend, in bytes.

    Raises:
        ConfigError: the memory backend holds more than `limit`.
        StateError: the operator state could not be read again.
    """
    operators = [replace(o, watermark=watermarks.get(o.uid)) for o in pending.operators(base.values())]
    check_limit({o.uid: o.subtasks for o in operators}, limit)
    check_memory(operators)
    return operators


def _acknowledge(pending: PendingBarrier, report: TaskReport) -> None:
    verdict = pending.acknowledge(report)
    if verdict not in (Acknowledgement.ACCEPTED, Acknowledgement.DUPLICATE):
        raise BatchFailed(
            "a task's report does not belong to this barrier",
            why=verdict.value,
            uid=report.uid,
            subtask=report.subtask,
            attempt=report.attempt,
        )


_MS = timedelta(milliseconds=1)


@dataclass(frozen=True)
class BarrierMetrics:
    """Times and sizes of one barrier; the fields are those of `CheckpointRecord`."""

    triggered_at: str = ""
    trigger_ms: float = 0.0
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    subtasks: Mapping[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class CompletedBarrier:
    """A barrier that all tasks have reached.

    Attributes:
        manifest: the manifest of the checkpoint that this barrier can become.
        folder: data folder of the driver's own files.
        output: files to publish, by uid of the sink.
        rows_in: rows that the sources had.
        rows_out: rows in `output`, by uid of the sink.
        quarantined: input files that the batch skipped.
        late_rows_dropped: rows that operators dropped because they were too late.
        hot_keys: keys of which joins have compared many pairs of rows.
        metrics: the metrics for the checkpoint's history record.
    """

    manifest: Manifest
    folder: str
    output: dict[str, list[Committable]]
    rows_in: int
    rows_out: dict[str, int]
    quarantined: tuple[QuarantinedFile, ...] = ()
    metrics: BarrierMetrics = field(default_factory=BarrierMetrics)
    late_rows_dropped: int = 0
    hot_keys: tuple[HotKey, ...] = ()


def barrier_metrics(began: datetime, trigger_ms: float, reports: Iterable[TaskReport]) -> BarrierMetrics:
    """Summarises the reports of a barrier.

    Args:
        began: start of the batch by the driver's clock. A task's clock may differ, so delays are never negative, and
            exact on a single host only.
        trigger_ms: duration of capturing the source positions.
        reports: the reports of all tasks.
    """
    all_reports = list(reports)
    reached = [report.barrier_at for report in all_reports if report.barrier_at is not None]
    first, last = min(reached, default=began), max(reached, default=began)
    stateful = [report for report in all_reports if report.state is not None]
    return BarrierMetrics(
        began.isoformat(timespec="milliseconds"),
        trigger_ms,
        round(max(0.0, (first - began) / _MS), 1),
        round((last - first) / _MS, 1),
        max((report.sync_ms for report in all_reports), default=0.0),
        _spreads(stateful),
    )


def _spreads(reports: list[TaskReport]) -> dict[str, Spread]:
    if not reports:
        return {}
    return {
        "sync_ms": Spread.of([report.sync_ms for report in reports]),
        "increment_bytes": Spread.of([report.increment_bytes for report in reports]),
        "full_bytes": Spread.of([_full_bytes(report) for report in reports]),
    }


def _full_bytes(report: TaskReport) -> int:
    state = report.state
    return sum(file.size for file in state.files) + len(state.inline or b"") if state else 0
