"""Checkpoints of a run: when one is due, and its steps from the barriers' files to published output.

`CheckpointPipeline` collects barriers in a `PendingCheckpoint` and hands it over when a checkpoint is due.
`CheckpointCommitter` waits for the uploads, writes the manifest, appends COMMIT, and publishes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.barriers import CheckpointCoordinator, Due
from stateflow.checkpoint.log.checkpoint_log import Head, Overtaken
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import (
    ABORTED,
    BatchRecord,
    CheckpointRecord,
    Manifest,
    OperatorMetrics,
    PendingOutput,
    SinkMetrics,
)
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.manifest_files import files_of, write_manifest
from stateflow.checkpoint.log.transitions import Commit, Settlement
from stateflow.clock import cpu_seconds, to_milliseconds
from stateflow.errors import BatchFailed, Fenced, StateflowError, StorageError
from stateflow.observability import (
    CHECKPOINT,
    METRIC_FIELDS,
    METRICS,
    MetricKind,
    Recorder,
    log_event,
    set_log_context,
    span,
)
from stateflow.runtime.driver.background import Maintenance, RunContext
from stateflow.runtime.driver.batch_runner import BarrierMetrics, CompletedBarrier, Usage
from stateflow.runtime.driver.job_restore import RestoredJob
from stateflow.runtime.job import CheckpointReport
from stateflow.state.handles import Committable, FileHandle
from stateflow.state.host_cache import check_content
from stateflow.storage.base import TRAFFIC
from stateflow.storage.paths import data_prefixes

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 20


class CheckpointPipeline:
    """Decides which barriers become checkpoints, and passes these to a `CheckpointCommitter`.

    All methods are called in the batch thread. Asynchronously, the committer runs in the checkpoint thread while the
    next batch runs. The output of an aborted checkpoint passes to the next one.

    Args:
        run: the run that this is part of.
        restored: the restored job that the run starts from.
        maintenance: gets the records of the checkpoints.
        keep_workers_alive: called every 20 seconds while the batch thread waits for checkpoints.

    Attributes:
        committer: does the work on each checkpoint.
    """

    def __init__(
        self, run: RunContext, restored: RestoredJob, maintenance: Maintenance, keep_workers_alive: Callable[[], None]
    ) -> None:
        settings = run.job.settings.checkpoints
        self._run = run
        self._keep_workers_alive = keep_workers_alive
        self._coordinator = CheckpointCoordinator(settings, run.now)
        self._uploads = UploadWaiter(run, restored.manifest, self._coordinator.is_overdue)
        self._pool = ThreadPoolExecutor(1, "stateflow-checkpoints") if settings.asynchronous else None
        self._submitted: deque[Future[None]] = deque()
        self._pending = PendingCheckpoint()
        self._kept_alive_at = run.now
        self.committer = CheckpointCommitter(run, restored.head, maintenance, self._uploads)

    def add(self, barrier: CompletedBarrier, output: dict[str, list[Committable]], seconds: float) -> None:
        """Adds a barrier to the next checkpoint; arguments as for `PendingCheckpoint.add`."""
        self._pending.add(barrier, output, seconds)

    def checkpoint_if_due(self, requested: bool) -> None:
        """Starts a checkpoint of the barrier that was added last, if one is due.

        Args:
            requested: whether a request waits for a checkpoint. It gets one that is committed and published, so this
                then returns when no checkpoint is pending.

        Raises as `check` does.
        """
        self.check()
        verdict = self._coordinator.at_barrier(self._pending.ordinal, self._run.now, requested)
        if isinstance(verdict, Due):
            self._submit()
        if requested:
            self.commit_pending()
        else:
            self.check()

    def checkpoint_if_idle(self) -> None:
        """Starts a checkpoint of the newest barrier if one is due although no batch follows.

        Raises as `check` does.
        """
        self.check()
        now = self._run.now
        if self._pending.manifest is not None:
            if self._coordinator.is_due_when_idle(now):
                self._submit()
        elif not self._submitted and self.committer.has_aborted and self._coordinator.may_retry(now):
            self._submit()
        if (self._submitted or self._pending.manifest is not None) and now - self._kept_alive_at >= _KEEP_ALIVE_SECONDS:
            self._kept_alive_at = now
            self._keep_workers_alive()

    def commit_pending(self) -> None:
        """Makes the newest barrier a checkpoint unless it is one, and waits until none is pending.

        Raises as `check` does.
        """
        self._wait()
        while self._pending.manifest is not None or self.committer.has_aborted:
            self._submit()
            self._wait()

    def check(self) -> None:
        """Takes over the results of the checkpoints that ended.

        Raises a fatal error of the checkpoint thread, or the last checkpoint's error once more checkpoints in a row
        have failed than ``checkpoints.tolerable_failures``.
        """
        while self._submitted and self._submitted[0].done():
            self._submitted.popleft()
        if self.committer.failure is not None:
            raise self.committer.failure
        while self.committer.finished:
            self._on_finished(self.committer.finished.popleft())
        self._gauge_pending()

    def abandon(self) -> None:
        """Ends the checkpoint thread: a checkpoint that is being committed is completed, others are not."""
        self._coordinator.shut_down()
        self._uploads.cancel()
        if self._pool is not None:
            # A restart in this process must not run concurrently with this thread.
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        """Makes the accumulated barriers a checkpoint; without any, retries the aborted one."""
        pending, self._pending = self._pending, PendingCheckpoint()
        if pending.manifest is None:
            # Here, not in the checkpoint thread: the coordinator must know the ordinal of the retried
            # barrier, or that checkpoint would neither end nor be overdue. Nothing is pending at this point.
            pending = self.committer.take_aborted(pending)
        pending.triggered_at = self._run.now
        self._coordinator.record_trigger(pending.ordinal, pending.triggered_at)
        if self._pool is None:
            self.committer.complete(pending)
        else:
            self._submitted.append(self._pool.submit(self.committer.run_in_background, pending))
        self._gauge_pending()

    def _wait(self) -> None:
        while self._submitted:
            try:
                self._submitted[0].result(_KEEP_ALIVE_SECONDS)
            except TimeoutError:
                self._keep_workers_alive()
            else:
                self._submitted.popleft()
        self.check()

    def _on_finished(self, finished: _FinishedCheckpoint) -> None:
        if finished.error is None:
            self._coordinator.record_completion(finished.ordinal, finished.at)
            return
        self._coordinator.record_failure(finished.ordinal)
        if self._coordinator.has_failed_too_often:
            raise finished.error

    def _gauge_pending(self) -> None:
        self._run.job.recorder.gauge("number_of_in_progress_checkpoints", len(self._coordinator.pending))


@dataclass(frozen=True)
class _FinishedCheckpoint:
    """How a checkpoint ended.

    Attributes:
        ordinal: the ordinal of its barrier.
        at: when it ended, in seconds of the monotonic clock.
        error: why it was aborted; None for a completed one.
    """

    ordinal: int
    at: float
    error: StateflowError | None = None


class CheckpointCommitter:
    """Moves the head of a run from checkpoint to checkpoint.

    Asynchronously, `run_in_background` is called in the checkpoint thread, and `finished` is the queue from there to
    the batch thread, which calls everything else while no checkpoint is pending.

    Args:
        run: the run that this is part of.
        head: the log entry that the run was restored from.
        maintenance: gets the records of the checkpoints.
        uploads: waits for files; with synchronous checkpoints nothing is left to wait for.

    Attributes:
        head: the newest log entry of the run.
        finished: the checkpoints that ended, oldest first.
        failure: the error that no later checkpoint survives.
    """

    def __init__(self, run: RunContext, head: Head, maintenance: Maintenance, uploads: UploadWaiter) -> None:
        self._run = run
        self._settings = run.job.settings.checkpoints
        self._maintenance = maintenance
        self._uploads = uploads
        self._aborted = PendingCheckpoint()
        self._meter = _DriverMeter()
        self.head = head
        self.finished: deque[_FinishedCheckpoint] = deque()
        self.failure: Exception | None = None

    @property
    def has_aborted(self) -> bool:
        """Whether an aborted checkpoint waits for the next one; meaningful while none is pending."""
        return self._aborted.manifest is not None

    def take_aborted(self, pending: PendingCheckpoint) -> PendingCheckpoint:
        """Returns `pending` with the output of the aborted checkpoint, which the committer then no longer holds."""
        merged, self._aborted = pending.merged_after(self._aborted), PendingCheckpoint()
        return merged

    def settle(self) -> Head:
        """Appends the entry that ends the run, with what was published since its last COMMIT; returns the newest entry.

        A newer run that claimed the job meanwhile finds that out itself; this returns the run's newest entry then.
        """
        publisher = self._run.publisher
        maintenance = self._maintenance
        settlement = Settlement(publisher.published, publisher.settled, maintenance.collected, maintenance.history)
        outcome = self._run.job.root.settle(self.head, settlement)
        return self.head if isinstance(outcome, Overtaken) else outcome.head

    def run_in_background(self, pending: PendingCheckpoint) -> None:
        """Calls `complete`, and keeps a fatal error in `failure`."""
        if self.failure is not None:
            # Commits stay in order: none may follow one that failed.
            return
        generation = pending.document.generation
        try:
            with span(CHECKPOINT, job=self._run.job.root.job.job, generation=generation, ordinal=pending.ordinal):
                self.complete(pending)
        except _UploadsCancelled:
            log.info("the checkpoint of barrier %d is cancelled because the run ends", pending.ordinal)
        except Exception as e:
            self.failure = e

    def complete(self, pending: PendingCheckpoint) -> None:
        """Commits and publishes a checkpoint, or aborts it; `finished` gets the result.

        Raises:
            Fenced: a newer run has claimed the job.
            StateflowError: the COMMIT or the publication failed; no later checkpoint may follow.
        """
        pending = self.take_aborted(pending)
        stages = _Stages(self._run.now)
        try:
            if self._settings.asynchronous:
                self._uploads.wait(pending)
            failpoints.hit("commit.stored")
            stages.async_ms = stages.lap(self._run.now)
            record = _new_record(self._run, self.head, pending, stages.async_ms)
            handle = self._write_manifest(pending, record)
            output = self._store_output(pending)
        except (StorageError, BatchFailed) as e:
            self._abort(pending, stages, e)
            return
        # An append without an answer may have happened: an error from here on is fatal, nothing may continue after it.
        self._commit(pending, handle, output)
        stages.commit_ms = stages.lap(self._run.now)
        self._publish()
        stages.publish_ms = stages.lap(self._run.now)
        self.finished.append(_FinishedCheckpoint(pending.ordinal, self._run.now))
        usage = self._meter.lap() + (Usage() if pending.document.spark is None else pending.usage)
        durations = self._run.publisher.take_durations()
        self._record(
            replace(
                record,
                sinks={
                    u: replace(s, publish_ms=to_milliseconds(durations.get(u, 0.0))) for u, s in record.sinks.items()
                },
                cpu_ms=to_milliseconds(usage.cpu_s),
                storage_requests=usage.traffic.requests,
                storage_read_bytes=usage.traffic.bytes_read,
                storage_written_bytes=usage.traffic.bytes_written,
                checkpoint_id=self.head.checkpoint_id,
                ended_at=self._run.timestamp,
                duration_ms=_duration_ms(self._run, pending),
                commit_ms=stages.commit_ms,
                publish_ms=stages.publish_ms,
                manifest_bytes=handle.size,
            ),
            pending.document,
        )

    def _write_manifest(self, pending: PendingCheckpoint, record: CheckpointRecord) -> FileHandle:
        history, parent = self._maintenance.pending_records, self.head.checkpoint_id
        document = replace(pending.document, record=record, history=history, parent=parent)
        # An earlier attempt may have stored a manifest with a different record, so use a new name.
        name = f"manifest-{pending.tries + 1}.json" if pending.tries else "manifest.json"
        handle = write_manifest(self._run.job.root.storage, pending.folder, document, name)
        failpoints.hit("commit.manifest")
        return handle

    def _store_output(self, pending: PendingCheckpoint) -> list[PendingOutput]:
        """Returns the output as the COMMIT names it; stores what is too large for a log entry."""
        return self._run.job.root.outputs.store(pending.folder, f"output-{pending.tries + 1}", pending.output)

    def _abort(self, pending: PendingCheckpoint, stages: _Stages, error: StateflowError) -> None:
        log.warning("the checkpoint of barrier %d is aborted: %s", pending.ordinal, error)
        self._aborted = pending
        record = _new_record(self._run, self.head, pending, stages.async_ms)
        before = self.head.checkpoint_id
        self._maintenance.add_record(replace(record, checkpoint_id=before, status=ABORTED, failure=error.sentence))
        self.finished.append(_FinishedCheckpoint(pending.ordinal, self._run.now, error))
        # Last: a reader of this metric may continue at once with the next batch.
        self._run.job.recorder.count("number_of_failed_checkpoints")

    def _commit(self, pending: PendingCheckpoint, handle: FileHandle, output: list[PendingOutput]) -> None:
        publisher, sources = self._run.publisher, pending.document.sources
        new = Commit(
            ordinal=pending.ordinal,
            manifest=handle,
            sources=sources,
            output=output,
            published=publisher.published,
            settled=publisher.settled,
            collected=self._maintenance.collected,
            history=self._maintenance.history,
        )
        retention = RetentionLimits(self._settings.retained, self._settings.max_age)
        outcome = self._run.job.root.commit(self.head, new, retention)
        if isinstance(outcome, Overtaken):
            raise Fenced(
                "a newer run has claimed the job",
                hint=FENCED_HINT,
                generation=self._run.generation,
                ordinal=pending.ordinal,
            )
        self.head = outcome.head
        set_log_context(checkpoint_id=self.head.checkpoint_id)
        publisher.discard_settled(self.head)
        failpoints.hit("commit.after")

    def _publish(self) -> None:
        # Check all sinks before writing to one: what is published in one of them cannot be replayed for another.
        publisher = self._run.publisher
        lost = publisher.oldest_lost_checkpoint(self.head)
        if lost is not None:
            raise BatchFailed(
                "output was deleted before it was published",
                hint="check whether a table was vacuumed; a new run continues from the checkpoint before this one",
                checkpoint_id=lost,
            )
        publisher.publish_pending(self.head)

    def _record(self, record: CheckpointRecord, manifest: Manifest) -> None:
        """Reports the newest checkpoint, then does the maintenance that is due after it."""
        self._maintenance.add_record(record)
        report_metrics(self._run.job.recorder, record)
        published = self.head.entry.published | self._run.publisher.published
        self._run.job.observer.on_checkpoint(CheckpointReport(self.head, record, manifest, published))
        if self._settings.asynchronous:
            log_event(
                log,
                logging.INFO,
                "committed",
                checkpoint_id=record.checkpoint_id,
                ordinal=record.ordinal,
                rows_in=record.rows_in,
                rows_out=record.rows_out,
                duration_ms=record.duration_ms,
                increment_bytes=record.increment_bytes,
                full_bytes=record.full_bytes,
            )
        self._maintenance.after_checkpoint(self.head)


class _DriverMeter:
    """Measures what this process uses from one checkpoint to the next; without Spark, its tasks are part of it."""

    def __init__(self) -> None:
        self._last = Usage(cpu_seconds(), TRAFFIC.now())

    def lap(self) -> Usage:
        """Returns what was used since the last call."""
        before, self._last = self._last, Usage(cpu_seconds(), TRAFFIC.now())
        return Usage(self._last.cpu_s - before.cpu_s, self._last.traffic - before.traffic)


_MAX_BATCHES = 1000
"""Batches that a manifest records."""
_MAX_OFFSETS = 1 << 20
"""Characters of all positions that a manifest records of its batches."""


@dataclass
class BatchRecords:
    """Records of the batches since the last checkpoint; none, once a manifest could not have them all.

    Attributes:
        records: the records, oldest first.
        characters: of their positions together.
        is_complete: whether no record was dropped.
    """

    records: list[BatchRecord] = field(default_factory=list)
    characters: int = 0
    is_complete: bool = True

    def add(self, more: Sequence[BatchRecord]) -> None:
        """Adds the records of the next batches."""
        if not self.is_complete or not more:
            return
        self.records += more
        self.characters += sum(map(_characters, more))
        # A manifest has the positions of its last batch anyway.
        size = self.characters - _characters(more[-1])
        if len(self.records) > _MAX_BATCHES or size > _MAX_OFFSETS:
            # There may be any number of batches until the next checkpoint.
            self.drop()

    def drop(self) -> None:
        """Drops all records, and those that are added later."""
        self.records, self.characters, self.is_complete = [], 0, False

    @property
    def stored(self) -> list[BatchRecord]:
        """The records as the manifest has them."""
        if not self.records:
            return []
        *earlier, last = self.records
        return [*earlier, replace(last, offsets=[], spark_time=None)]


def _characters(batch: BatchRecord) -> int:
    return sum(map(len, batch.offsets))


@dataclass
class PendingCheckpoint:
    """Barriers that are not committed yet: the state of the newest one, the output of all.

    Attributes:
        manifest: the manifest of the newest barrier; None without a barrier.
        folder: data folder of the driver's files of the newest barrier.
        tries: number of aborted checkpoints of the newest barrier.
        increment_bytes, compaction_bytes: stored since the last checkpoint.
        seconds: duration of the batches.
        committables: files to publish, by uid of the sink.
        metrics: the metrics of the newest barrier.
        triggered_at: when its checkpoint was triggered, in seconds of the monotonic clock.
        batches: the records of the batches.
        operators, sinks: the metrics of each operator and sink, by uid, over all barriers.
        usage: what the tasks have used.
    """

    manifest: Manifest | None = None
    folder: str = ""
    tries: int = 0
    increment_bytes: int = 0
    compaction_bytes: int = 0
    rows_in: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: BarrierMetrics = field(default_factory=BarrierMetrics)
    triggered_at: float = 0.0
    committables: dict[str, list[Committable]] = field(default_factory=dict)
    batches: BatchRecords = field(default_factory=BatchRecords)
    operators: Mapping[str, OperatorMetrics] = field(default_factory=dict)
    sinks: Mapping[str, SinkMetrics] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)

    def add(self, barrier: CompletedBarrier, output: dict[str, list[Committable]], seconds: float) -> None:
        """Adds the next barrier.

        Args:
            output: files to publish with the checkpoint, by uid of the sink.
            seconds: duration of the barrier's batch.
        """
        manifest = barrier.manifest
        self.manifest, self.folder, self.metrics = manifest, barrier.folder, barrier.metrics
        self.increment_bytes += manifest.increment_bytes
        self.compaction_bytes += manifest.compaction_bytes
        self.rows_in += barrier.rows_in
        self.seconds += seconds
        self.usage += barrier.usage
        self.operators = _combined(self.operators, barrier.operators)
        written = {
            uid: SinkMetrics(
                rows=sum(c.rows for c in files), written_bytes=sum(c.size for c in files), files=len(files)
            )
            for uid, files in barrier.output.items()
        }
        self.sinks = _combined(self.sinks, written)
        self.batches.add(manifest.batches)
        _add_rows(self.rows_out, barrier.rows_out)
        _add_files(self.committables, output)

    def merged_after(self, older: PendingCheckpoint) -> PendingCheckpoint:
        """Returns both together. `older` was aborted, and what it would have published passes to this one."""
        if older.manifest is None:
            return self
        newest, tries = (self, 0) if self.manifest is not None else (older, older.tries + 1)
        merged = PendingCheckpoint(
            newest.manifest,
            newest.folder,
            tries,
            older.increment_bytes + self.increment_bytes,
            older.compaction_bytes + self.compaction_bytes,
            older.rows_in + self.rows_in,
            seconds=older.seconds + self.seconds,
            metrics=newest.metrics,
            triggered_at=self.triggered_at,
            operators=_combined(older.operators, self.operators),
            sinks=_combined(older.sinks, self.sinks),
            usage=older.usage + self.usage,
        )
        for each in (older, self):
            merged.batches.add(each.batches.records)
            if not each.batches.is_complete:
                merged.batches.drop()
            _add_rows(merged.rows_out, each.rows_out)
            _add_files(merged.committables, each.committables)
        return merged

    @property
    def ordinal(self) -> int:
        """Number of the newest barrier; 0 without any."""
        return self.manifest.ordinal if self.manifest else 0

    @property
    def document(self) -> Manifest:
        """The manifest of the checkpoint; its byte counts and batches cover all its barriers."""
        assert self.manifest is not None
        return replace(
            self.manifest,
            increment_bytes=self.increment_bytes,
            compaction_bytes=self.compaction_bytes,
            batches=self.batches.stored,
        )

    @property
    def output(self) -> list[PendingOutput]:
        """Files to publish."""
        return [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.committables.items()]


_Metrics = TypeVar("_Metrics", OperatorMetrics, SinkMetrics)


def _combined(older: Mapping[str, _Metrics], later: Mapping[str, _Metrics]) -> dict[str, _Metrics]:
    """Returns the metrics of operators or sinks over older and later batches."""
    return {**older, **{uid: older[uid].plus(each) if uid in older else each for uid, each in later.items()}}


def _add_rows(counts: dict[str, int], more: dict[str, int]) -> None:
    for sink, rows in more.items():
        counts[sink] = counts.get(sink, 0) + rows


def _add_files(files: dict[str, list[Committable]], more: dict[str, list[Committable]]) -> None:
    for sink, committables in more.items():
        files.setdefault(sink, []).extend(committables)


_POLL_SECONDS = (0.002, 0.25)
"""First and longest pause between two reads of the storage; the pause doubles in between."""
_NAMED = 3
"""Missing files that an error names."""


class _UploadsCancelled(Exception):
    """The run ends with an error, so its uncommitted checkpoints are no longer needed."""


class UploadWaiter:
    """Waits for the files of one checkpoint after the other.

    Args:
        run: the run that this is part of.
        restored: manifest of the checkpoint that the run started from; the start has checked its files.
        is_overdue: returns whether the checkpoint of a barrier has taken longer than it may; takes the barrier's
            ordinal and the time in seconds of the monotonic clock.
    """

    def __init__(self, run: RunContext, restored: Manifest | None, is_overdue: Callable[[int, float], bool]) -> None:
        self._run = run
        self._is_overdue = is_overdue
        self._cancelled = threading.Event()
        self._stored = {handle.key for handle in files_of(restored)} if restored else set()

    def cancel(self) -> None:
        """Ends `wait` in the other thread."""
        self._cancelled.set()

    def wait(self, pending: PendingCheckpoint) -> None:
        """Returns when each file of a checkpoint is stored.

        Raises:
            BatchFailed: a file was not stored within ``checkpoints.timeout``.
            Fenced: a newer run has claimed the job.
            CorruptFile: a stored file has another size or hash.
            _UploadsCancelled: `cancel` was called.
        """
        handles = files_of(pending.document)
        missing = [handle for handle in handles if handle.key not in self._stored]
        delay, longest = _POLL_SECONDS
        checked_at = self._run.now
        check_every = self._run.job.settings.requests.fence_interval.total_seconds()
        while missing := [handle for handle in missing if not self._is_stored(handle)]:
            if self._is_overdue(pending.ordinal, self._run.now):
                raise _overdue(pending, missing)
            if self._run.now - checked_at >= check_every:
                checked_at = self._run.now
                # A newer run collects files that this one has stored and not committed; they would never be complete.
                self._run.guard.check()
            if self._cancelled.wait(delay):
                raise _UploadsCancelled
            delay = min(longest, 2 * delay)
        self._stored = {handle.key for handle in handles}

    def _is_stored(self, handle: FileHandle) -> bool:
        size = self._run.job.root.storage.durable_size(handle.key)
        if size is not None:
            check_content(handle, size, handle.sha256)
        return size is not None


def _overdue(pending: PendingCheckpoint, missing: list[FileHandle]) -> BatchFailed:
    return BatchFailed(
        "the files of a checkpoint were not stored within checkpoints.timeout",
        hint="check for lost hosts and a slow storage: the logs of the task processes name failed uploads; "
        "raise checkpoints.timeout if uploads need longer",
        setting="checkpoints.timeout",
        barrier=pending.ordinal,
        missing=[handle.key for handle in missing[:_NAMED]],
    )


@dataclass
class _Stages:
    """Durations of the stages of a checkpoint that follow its barrier, in milliseconds.

    Attributes:
        since: start of the current stage, in seconds of the monotonic clock.
        async_ms: waiting for uploads.
        commit_ms: writing the manifest and the log entry.
        publish_ms: publishing the output.
    """

    since: float
    async_ms: float = 0.0
    commit_ms: float = 0.0
    publish_ms: float = 0.0

    def lap(self, now: float) -> float:
        """Ends the current stage at `now`; returns its duration in milliseconds."""
        took, self.since = (now - self.since) * 1000, now
        return round(took, 3)


def _new_record(run: RunContext, head: Head, pending: PendingCheckpoint, async_ms: float) -> CheckpointRecord:
    """Returns the record of a checkpoint before its COMMIT, without the id that the COMMIT assigns.

    Args:
        head: the log entry that the COMMIT follows.
        async_ms: duration of the wait for uploads.
    """
    manifest, metrics = pending.document, pending.metrics
    files = files_of(manifest)
    prefixes = data_prefixes(manifest.generation, range(head.entry.ordinal + 1, pending.ordinal + 1))
    return CheckpointRecord(
        checkpoint_id=0,
        generation=manifest.generation,
        ordinal=manifest.ordinal,
        run=head.entry.runs,
        base_checkpoint_id=head.checkpoint_id,
        branch=max((step.seq for step in head.entry.ancestry.restores), default=0),
        ended_at=run.timestamp,
        duration_ms=_duration_ms(run, pending),
        increment_bytes=manifest.increment_bytes,
        compaction_bytes=manifest.compaction_bytes,
        full_bytes=manifest.full_bytes,
        files=len(files),
        rows_in=pending.rows_in,
        rows_out=pending.rows_out,
        driver=run.job.root.writer,
        reason=run.note,
        new_files=sum(h.key.startswith(prefixes) for h in files),
        triggered_at=metrics.triggered_at,
        trigger_ms=metrics.trigger_ms,
        start_delay_ms=metrics.start_delay_ms,
        alignment_ms=metrics.alignment_ms,
        sync_ms=metrics.sync_ms,
        subtasks=dict(metrics.subtasks),
        async_ms=async_ms,
        code_hash=manifest.code,
        operators=dict(pending.operators),
        sinks=dict(pending.sinks),
    )


def _duration_ms(run: RunContext, pending: PendingCheckpoint) -> float:
    """Returns how long a checkpoint has taken so far, its batches included, in milliseconds."""
    return round((pending.seconds + run.now - pending.triggered_at) * 1000, 1)


def report_metrics(recorder: Recorder, record: CheckpointRecord) -> None:
    """Reports a completed checkpoint as metrics with Flink's names."""
    recorder.count("number_of_completed_checkpoints")
    recorder.gauge("last_completed_checkpoint_id", record.checkpoint_id)
    recorder.gauge("last_checkpoint_size", record.increment_bytes + record.compaction_bytes)
    recorder.gauge("last_checkpoint_compaction_size", record.compaction_bytes)
    recorder.gauge("last_checkpoint_full_size", record.full_bytes)
    recorder.gauge("last_checkpoint_duration", record.duration_ms / 1000)
    recorder.gauge("last_checkpoint_manifest_size", record.manifest_bytes)
    recorder.gauge("last_checkpoint_files", record.files)
    recorder.gauge("last_checkpoint_new_files", record.new_files)
    for uid, operator in record.operators.items():
        _report(recorder, "operator", uid, operator)
    for uid, sink in record.sinks.items():
        _report(recorder, "sink", uid, sink)
    recorder.count("stateflow.cpu.time", record.cpu_ms / 1000)
    recorder.count("stateflow.storage.requests", record.storage_requests)
    recorder.count("stateflow.storage.read", record.storage_read_bytes)
    recorder.count("stateflow.storage.written", record.storage_written_bytes)


def _report(recorder: Recorder, kind: str, uid: str, metrics: OperatorMetrics | SinkMetrics) -> None:
    """Reports the metrics of an operator or sink: one series each, with its uid as an attribute."""
    for name, field_name in METRIC_FIELDS[kind].items():
        value = getattr(metrics, field_name)
        if value is None:
            continue
        if METRICS[name].unit == "s":
            # Durations are in seconds in OpenTelemetry, and in milliseconds in records.
            value /= 1000
        if METRICS[name].kind is MetricKind.COUNTER:
            recorder.count(name, value, **{kind: uid})
        else:
            recorder.gauge(name, value, **{kind: uid})
