"""Runs one batch: its starting point, its tasks up to the barrier, and the summary of their reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import nlargest

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.barriers import Acknowledgement, PendingBarrier, TaskReport
from stateflow.checkpoint.log.documents import (
    NOT_BEGUN,
    BatchRecord,
    Manifest,
    OperatorMetrics,
    OperatorState,
    QuarantinedFile,
    SourceWatermark,
    Spread,
    SubtaskMetrics,
    WaitingRows,
    skew,
    total_of,
)
from stateflow.checkpoint.log.manifest_files import check_operator_memory, state_bytes
from stateflow.checkpoint.restore.source_positions import spark_time
from stateflow.clock import epoch_milliseconds, to_milliseconds
from stateflow.errors import BatchFailed
from stateflow.observability import set_log_context
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, Executor, TaskEnvironment, TaskSettings
from stateflow.runtime.job import HotKey, Job, PositionCapture, Positions, quarantine_fields
from stateflow.runtime.planning.state_discovery import source_columns
from stateflow.runtime.task.dead_letters import check_budgets
from stateflow.runtime.watermarks import (
    SeenTimes,
    advance_source_watermarks,
    operator_watermarks,
    output_watermark,
    waiting_rows,
)
from stateflow.state.backends.hash_maps import check_limit
from stateflow.state.handles import Committable, SubtaskState, is_due
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.storage import Credentials
from stateflow.storage.base import TrafficCounts
from stateflow.storage.paths import data_folder

log = logging.getLogger(__name__)


DRIVER_ATTEMPT = "driver"
"""Attempt name in the data folders of the driver's own files."""


Watermarks = dict[str, int | None]
"""In milliseconds since 1970, by uid of the operator; None before the first one."""


@dataclass(frozen=True)
class Batch:
    """Input of one batch.

    Attributes:
        rows: the input rows, as the executor takes them.
        capture: returns the source positions at the end of the batch.
        watermarks: the watermark of each operator in this batch.
        full: whether the tasks store all state again, instead of what has changed.
        drains: whether sources that may get more rows count as ended.
    """

    rows: object
    capture: PositionCapture
    watermarks: Watermarks
    full: bool = False
    drains: bool = False


@dataclass(frozen=True)
class StartingPoint:
    """The starting point of the first batch.

    Attributes:
        generation: number of the run's CLAIM.
        operators: the state of each operator by uid.
        manifest: the manifest of the restored checkpoint; None without one.
    """

    generation: int
    operators: dict[str, OperatorState]
    manifest: Manifest | None


class BatchRunner:
    """Runs the batches of one run, and holds the state that the next batch starts from.

    Args:
        job: the job that runs.
        executor: runs the tasks.
        start: the starting point of the first batch.

    Attributes:
        manifest: the manifest of the newest barrier, or else of the restored checkpoint.
        ordinal: number of the newest batch; 0 before the first one.
    """

    def __init__(self, job: Job, executor: Executor, start: StartingPoint) -> None:
        self._job = job
        self._executor = executor
        self._generation = start.generation
        self._base = start.operators
        self.manifest = start.manifest
        self.ordinal = 0

    def run(self, batch: Batch, checkpoint_id: int) -> CompletedBarrier:
        """Runs a batch. The next batch starts from its state after a call of `advance()`.

        Args:
            checkpoint_id: the newest checkpoint.

        Raises:
            BatchFailed: the reports are incomplete; nothing of the batch is committed.
        """
        clock, ordinal = self._job.root.clock, self.ordinal + 1
        began, began_at = clock.monotonic(), clock.now()
        set_log_context(ordinal=ordinal)
        folder = data_folder(self._generation, ordinal, DRIVER_ATTEMPT)
        positions = batch.capture(folder)
        trigger_ms = round((clock.monotonic() - began) * 1000, 3)
        failpoints.hit("batch.begin")
        info = self.info(ordinal, checkpoint_id, batch.full)
        pending = self._execute(batch, info)
        failpoints.hit("batch.reported")
        output = pending.output()
        drained = self._is_drained(batch, pending, checkpoint_id)
        manifest = self._manifest(pending, positions, info, drained)
        manifest = replace(manifest, batches=[self._record(batch, positions, info)])
        return CompletedBarrier(
            manifest,
            folder,
            output,
            pending.rows_in,
            {sink: sum(c.rows for c in files) for sink, files in output.items()},
            positions.quarantined,
            barrier_metrics(began_at, trigger_ms, pending.reports.values()),
            sum(report.late_rows_dropped for report in pending.reports.values()),
            tuple(HotKey(r.uid, key, n) for r in pending.reports.values() for key, n in r.hot_keys.items()),
            operator_metrics(pending.reports.values(), manifest.operators, info.id.processing_time),
            task_usage(pending.reports.values()),
        )

    def advance(self, barrier: CompletedBarrier) -> None:
        """Makes the next batch start from the state of `barrier`, whether the barrier becomes a checkpoint or not."""
        self.manifest = barrier.manifest
        self.ordinal = barrier.manifest.ordinal
        self._base = {o.uid: o for o in barrier.manifest.operators}

    def info(self, ordinal: int, checkpoint_id: int, full_snapshot: bool = False) -> BatchInfo:
        """Returns what the tasks of a batch receive in addition to its rows.

        Args:
            ordinal: number of the batch.
            checkpoint_id: the newest checkpoint.
            full_snapshot: whether the tasks store all state again.
        """
        root, settings = self._job.root, self._job.settings
        return BatchInfo(
            BatchId(
                job_uuid=root.job.job_uuid,
                generation=self._generation,
                ordinal=ordinal,
                processing_time=root.clock.now(),
                epoch=self._epoch + 1,
                checkpoint_id=checkpoint_id,
            ),
            TaskSettings(
                max_parallelism=root.job.max_parallelism,
                rocksdb=settings.rocksdb,
                state=settings.state.with_inline_limit(len(self._job.plan.participants())),
                sort_memory_bytes=settings.shuffle.sort_memory_bytes,
                full_snapshot=full_snapshot,
                opens_to_clean_up=settings.run.end.continuous,
                upload_timeout=settings.checkpoints.timeout if settings.checkpoints.asynchronous else None,
            ),
            TaskEnvironment(root.storage.uri, settings.local_folder, Credentials.of_process(), settings.telemetry),
        )

    def has_due_timers(self, ended: frozenset[str] = frozenset()) -> bool:
        """Returns whether batches without rows would fire timers, as far as the driver knows.

        A source may have become idle since its last row. The first batch without rows stores that, the second one then
        fires the timers.

        Args:
            ended: uids of sources that count as ended, as for `tick`.
        """
        now = epoch_milliseconds(self._job.root.clock.now())
        if self._fires_timers(self.watermarks(ended), now):
            return True
        strategies = self._job.plan.strategies
        if all(strategy.idleness is None for strategy in strategies.values()):
            return False
        after_idleness = advance_source_watermarks(self._source_watermarks, strategies, SeenTimes(), now)
        return self._fires_timers(self._watermarks(after_idleness, ended), now)

    def has_due_cleanup(self) -> bool:
        """Returns whether a batch without rows would remove expired state."""
        now = epoch_milliseconds(self._job.root.clock.now())
        return any(is_due(subtask.ttl_cleanup_at, now) for _, subtask in self._subtasks())

    def _fires_timers(self, watermarks: Watermarks, now: int) -> bool:
        return any(subtask.earliest_timers.due(watermarks[uid], now) for uid, subtask in self._subtasks())

    def _subtasks(self) -> Iterator[tuple[str, SubtaskState]]:
        """Yields the state of each subtask of the job's operators, with the operator's uid."""
        for chain in self._job.plan.chains:
            if chain.operator and chain.uid in self._base:
                yield from ((chain.uid, subtask) for subtask in self._base[chain.uid].subtasks)

    def watermarks(self, ended: frozenset[str] = frozenset()) -> Watermarks:
        """Returns the watermark of each operator in the next batch; `ended` as for `tick`."""
        return self._watermarks(self._source_watermarks, ended)

    def _watermarks(self, sources: list[SourceWatermark], ended: frozenset[str]) -> Watermarks:
        before = {uid: operator.watermark for uid, operator in self._base.items()}
        return operator_watermarks(self._job.plan.chains, before, sources, ended)

    def tick(self, ended: frozenset[str]) -> Batch:
        """Returns a batch without rows that fires due timers.

        Args:
            ended: uids of sources that have no more rows. Their watermark is the highest, in this batch only: a row
                that a later run reads is not late for that reason.
        """
        return self._without_rows(self.watermarks(ended), drains=not ended <= self._job.plan.bounded)

    def drain(self) -> Batch:
        """Returns a batch without rows that fires every event-time timer: each watermark is the highest."""
        subtasks = [subtask for operator in self._base.values() for subtask in operator.subtasks]
        has_timers = any(subtask.earliest_timers.event is not None for subtask in subtasks)
        return self._without_rows(dict.fromkeys(self.watermarks(), MAX_WATERMARK), drains=has_timers)

    def full_snapshot(self) -> Batch:
        """Returns a batch without rows that stores all state again, so that it shares no file with older batches."""
        return self._without_rows(self.watermarks(), full=True)

    def _without_rows(self, watermarks: Watermarks, *, full: bool = False, drains: bool = False) -> Batch:
        # Before the first barrier no timer can fire and no state is stored.
        assert self.manifest is not None
        positions = Positions(self.manifest.sources, self.manifest.spark)
        empty_rows: object = self._executor.empty_rows(self._job.plan)
        return Batch(empty_rows, lambda _: positions, watermarks, full, drains)

    def _execute(self, batch: Batch, info: BatchInfo) -> PendingBarrier:
        before = {source.uid: source.watermark for source in self._source_watermarks}
        work = BatchWork(self._job.plan, info, self._base, batch.watermarks, before)
        return run_to_barrier(self._executor, batch.rows, work)

    @property
    def _epoch(self) -> int:
        return self.manifest.epoch if self.manifest else 0

    @property
    def _source_watermarks(self) -> list[SourceWatermark]:
        return self.manifest.watermarks if self.manifest else []

    def _manifest(self, pending: PendingBarrier, positions: Positions, info: BatchInfo, drained: bool) -> Manifest:
        # Not those of the batch: one that drains is far ahead, and rows that arrive later are not late for that reason.
        watermarks = self.watermarks()
        limit = self._job.settings.state.memory_limit_bytes
        operators = operator_states_after(pending, self._base, watermarks, limit)
        sources = advance_source_watermarks(
            self._source_watermarks,
            self._job.plan.strategies,
            SeenTimes(pending.event_times, positions.split_times, self._active_sources(positions)),
            epoch_milliseconds(info.id.processing_time),
        )
        return Manifest(
            job_uuid=self._job.root.job.job_uuid,
            generation=pending.generation,
            ordinal=pending.ordinal,
            operators=operators,
            sources=positions.sources,
            spark=positions.spark,
            increment_bytes=sum(r.increment_bytes for r in pending.reports.values()),
            compaction_bytes=sum(r.compaction_bytes for r in pending.reports.values()),
            full_bytes=state_bytes(operators),
            epoch=self._epoch + 1,
            columns=source_columns(self._job.plan),
            watermarks=sources,
            waiting=[] if drained else self._waiting(pending, watermarks, sources),
            output_watermark=output_watermark(self._job.plan.chains, watermarks),
            drained=drained,
            code=self._job.code,
            **quarantine_fields(self.manifest, positions.quarantined),
        )

    def _waiting(
        self, pending: PendingBarrier, before: Watermarks, sources: list[SourceWatermark]
    ) -> list[WaitingRows]:
        """Returns the rows that wait after a batch, of which `before` has the watermarks."""
        plan = self._job.plan
        return waiting_rows(
            plan.chains,
            self.manifest.waiting if self.manifest else (),
            pending.ahead(),
            sources,
            watermarks=operator_watermarks(plan.chains, before, sources),
            ended=plan.bounded,
        )

    def _active_sources(self, positions: Positions) -> frozenset[str]:
        """Returns the uids of the sources with input in a batch, which may have left no rows: their positions moved."""
        before = {position.uid: position.offset for position in self.manifest.sources} if self.manifest else {}
        return frozenset(p.uid for p in positions.sources if p.offset != before.get(p.uid, NOT_BEGUN))

    def _record(self, batch: Batch, positions: Positions, info: BatchInfo) -> BatchRecord:
        return BatchRecord(
            ordinal=info.id.ordinal,
            processing_time=info.id.processing_time.isoformat(timespec="microseconds"),
            checkpoint_id=info.id.checkpoint_id,
            offsets=[position.offset for position in positions.sources],
            spark_time=spark_time(positions.spark.offsets) if positions.spark else None,
            watermarks=batch.watermarks if batch.watermarks != self.watermarks() else {},
        )

    def _is_drained(self, batch: Batch, pending: PendingBarrier, checkpoint_id: int) -> bool:
        """Returns whether every event-time timer has fired early; logs a warning when rows follow a drain."""
        drained = self.manifest is not None and self.manifest.drained
        # Rows that a filter drops set no timer.
        first = {chain.uid for chain in self._job.plan.levels[0].chains}
        has_rows = any(report.rows_in for report in pending.reports.values() if report.uid in first)
        if drained and has_rows:
            log.warning("new rows follow a drain: the timers of checkpoint %d fired before their time", checkpoint_id)
        return batch.drains or (drained and not has_rows)


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
    check_operator_memory(operators)
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
    """Times and sizes of one barrier; the fields are as in `CheckpointRecord`."""

    triggered_at: str = ""
    trigger_ms: float = 0.0
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    subtasks: Mapping[str, Spread] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """CPU time and requests to storage of some processes."""

    cpu_s: float = 0.0
    traffic: TrafficCounts = field(default_factory=TrafficCounts)

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.cpu_s + other.cpu_s, self.traffic + other.traffic)


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
        operators: the metrics of each operator, by uid.
        usage: what the tasks have used.
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
    operators: Mapping[str, OperatorMetrics] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)


def operator_metrics(
    reports: Iterable[TaskReport], operators: Iterable[OperatorState], now: datetime
) -> dict[str, OperatorMetrics]:
    """Sums up the reports of a barrier for each operator: never more numbers than operators, whatever their subtasks.

    Args:
        reports: the reports of all tasks.
        operators: the state of the operators after the batch, of which the reports of others are left out.
        now: the processing time of the batch.
    """
    found: dict[str, list[TaskReport]] = {state.uid: [] for state in operators}
    for report in reports:
        if report.uid in found:
            found[report.uid].append(report)
    return {state.uid: _metrics_of(state, found[state.uid], epoch_milliseconds(now)) for state in operators}


_BUSIEST = 5
"""Subtasks whose own metrics are kept: a record has a bounded size, whatever the parallelism."""


def _metrics_of(state: OperatorState, reports: Sequence[TaskReport], now: int) -> OperatorMetrics:
    of_subtasks = [_subtask_metrics(r) for r in reports]
    rows_in, most = sum(r.rows_in for r in reports), max((r.rows_in for r in reports), default=0)
    known = state.watermark is not None and abs(state.watermark) < MAX_WATERMARK
    return OperatorMetrics(
        subtasks=len(reports),
        rows_in=rows_in,
        rows_out=sum(r.rows_out for r in reports),
        rows_filtered=sum(r.usage.rows_filtered for r in reports),
        rows_late=sum(r.usage.rows_late for r in reports),
        rows_dropped=sum(r.late_rows_dropped for r in reports),
        dead_letters=sum(r.dead_letters for r in reports),
        state_bytes=sum(each.state_bytes for each in of_subtasks),
        live_bytes=total_of([subtask.live_bytes for subtask in state.subtasks]),
        state_entries=total_of([subtask.entries for subtask in state.subtasks]),
        live_entries=total_of([subtask.live_entries for subtask in state.subtasks]),
        state_entries_exact=all(subtask.backend in ("memory", "filesystem") for subtask in state.subtasks),
        function_ms=to_milliseconds(sum(r.usage.function_s for r in reports)),
        state_ms=to_milliseconds(sum(r.usage.state_s for r in reports)),
        store_ms=to_milliseconds(sum(r.usage.store_s for r in reports)),
        cpu_ms=to_milliseconds(sum(r.usage.cpu_s for r in reports)),
        busiest_subtask_rows=most,
        skew_ratio=skew(most, rows_in, len(reports)),
        watermark_at=state.watermark,
        watermark_lag_ms=now - state.watermark if known and state.watermark is not None else None,
        spread={name: Spread.of([get(each) for each in of_subtasks]) for name, get in _SPREAD.items()}
        if reports
        else {},
        busiest=nlargest(_BUSIEST, of_subtasks, key=lambda each: (each.rows_in, each.state_bytes)),
    )


def _subtask_metrics(report: TaskReport) -> SubtaskMetrics:
    return SubtaskMetrics(
        subtask=report.subtask,
        rows_in=report.rows_in,
        state_bytes=_full_bytes(report),
        function_ms=to_milliseconds(report.usage.function_s),
        cpu_ms=to_milliseconds(report.usage.cpu_s),
    )


_SPREAD: Mapping[str, Callable[[SubtaskMetrics], float]] = {
    "rows_in": lambda each: each.rows_in,
    "state_bytes": lambda each: each.state_bytes,
    "function_ms": lambda each: each.function_ms,
    "cpu_ms": lambda each: each.cpu_ms,
}


def task_usage(reports: Iterable[TaskReport]) -> Usage:
    """Returns what all tasks of a barrier have used."""
    usages = [report.usage for report in reports]
    traffic = TrafficCounts(
        sum(u.requests for u in usages), sum(u.bytes_read for u in usages), sum(u.bytes_written for u in usages)
    )
    return Usage(sum(u.cpu_s for u in usages), traffic)


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
    return report.state.size_bytes if report.state else 0
