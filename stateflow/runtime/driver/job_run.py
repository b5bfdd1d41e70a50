"""One run of a job, on Spark or without it: start, batches, checkpoints, requests, end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from stateflow import failpoints
from stateflow.checkpoint.history import FAILURE, LONGEST_SENTENCE, RUN_START, record_run, record_run_failure
from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    ActionRecord,
    LogEntry,
    Manifest,
    Origin,
    Request,
    RequestKind,
    RunProgress,
    SourcePosition,
)
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.progress import write_progress
from stateflow.checkpoint.restore.state_assignment import StateAssignment
from stateflow.clock import epoch_milliseconds
from stateflow.config.settings import AT_LEAST_ONCE
from stateflow.errors import DataError, Fenced, RequestTimeout, StateflowError, StorageError
from stateflow.helpers import installed_version
from stateflow.observability import BATCH, set_log_context, span
from stateflow.outputs import utc_text
from stateflow.runtime.backlog import (
    LONGEST,
    JobBacklog,
    measure,
    read_positions,
    record_backlog,
    rows_per_second,
    write_backlog,
)
from stateflow.runtime.driver.background import BackgroundWork, Maintenance, RunContext, Work
from stateflow.runtime.driver.batch_runner import Batch, BatchRunner, CompletedBarrier, StartingPoint
from stateflow.runtime.driver.checkpointing import CheckpointPipeline
from stateflow.runtime.driver.job_restore import RestoredJob, restore_job, sweep_sinks
from stateflow.runtime.driver.request_server import PublishedCheckpoint, RequestServer
from stateflow.runtime.executor import Executor
from stateflow.runtime.job import BatchResult, Job, LaunchFacts, PositionCapture, RunTotals, StartChecks
from stateflow.runtime.watermarks import waiting_for_others
from stateflow.state.handles import Committable
from stateflow.storage.paths import BACKLOG, backlog_generation, backlog_key, progress_key

log = logging.getLogger(__name__)


_POLL = timedelta(seconds=0.1)
_BACKLOG_EVERY = timedelta(minutes=1)
"""Shortest time between two measurements of the backlog."""
_LONGEST_AT_END = timedelta(seconds=5)
"""How long the sources of a run that ends may take to tell their backlog."""
_BACKLOG_SHARE = 100
"""So many times as long as a measurement has taken, no other one begins: they take 1 % of a run at most."""
_PROGRESS_EVERY = timedelta(seconds=15)
"""How long a batch takes before its progress is stored, and how often it is stored then."""
_ACKNOWLEDGE = timedelta(seconds=5)
"""How long an active run may take to confirm that it has seen the request."""


def end_active_run(root: JobRoot, timeout: timedelta, note: str) -> bool:
    """Requests the active run of a job to end with a checkpoint, and waits for that; returns whether none is active.

    The request is addressed to one generation: if this process dies before it claims the job, no other run ends by it.
    Only the CLAIM that follows protects the job; without an end in time, that fences the run.

    Args:
        root: the job root.
        timeout: how long the run may take to end.
        note: the requester of the newer run.

    Raises:
        StorageError: the log or the requests cannot be read or written.
    """
    deadline = root.clock.monotonic() + timeout.total_seconds()
    while (generation := active_generation(root)) and (remaining := deadline - root.clock.monotonic()) > 0:
        if not _submit(root, generation, timedelta(seconds=remaining), note):
            break
        while active_generation(root) == generation and root.clock.monotonic() < deadline:
            root.clock.sleep(_POLL)
    return not generation


def active_generation(root: JobRoot) -> int:
    """Returns the generation of the newest run if it has not recorded its end; 0 otherwise."""
    head = root.log.read_head()
    return 0 if head is None or head.entry.ended else head.entry.generation


def _submit(root: JobRoot, generation: int, timeout: timedelta, note: str) -> bool:
    """Requests a stop of one run, and waits for its answer; returns False if that run does not end by it."""
    client = RequestClient(root, RequestTimeouts(min(_ACKNOWLEDGE, timeout), timeout))
    request = client.submit(
        Request(
            id=root.clock.new_id(),
            kind=RequestKind.STOP,
            savepoint="",
            origin=Origin.STOP,
            by=root.requester,
            reason=f"taken over by a newer run: {note}".removesuffix(": "),
            at=root.clock.now().isoformat(timespec="milliseconds"),
            generation=generation,
            takes_over=True,
        )
    )
    failpoints.hit("request.posted")
    try:
        answer = client.wait(request)
    except RequestTimeout as e:
        # A run that has restarted has another generation, and withdraws the request; then it is repeated.
        log.warning("the active run has not ended: generation=%d: %s", generation, e)
        return True
    except DataError as e:
        log.warning("the active run could not end with a checkpoint: generation=%d: %s", generation, e)
        return False
    return answer is not None


class FenceWatch:
    """Reads the log's head at an interval, in a thread: one LIST and one small GET each time.

    Only the log fences a run, when the run next appends an entry. The watch shortens the time for which a fenced run
    does useless work, so a failed check is logged and the next one follows.

    Args:
        guard: the run's fence guard.
        interval: between two checks.
        on_fenced: called once, in the thread; interrupts what the run is doing.
        on_check: called in the thread after each check that has found no newer run.
    """

    def __init__(
        self,
        guard: FenceGuard,
        interval: timedelta,
        on_fenced: Callable[[], None],
        on_check: Callable[[], object] = lambda: None,
    ) -> None:
        self._guard = guard
        self._interval = interval
        self._on_fenced = on_fenced
        self._on_check = on_check
        self._ended = threading.Event()
        self._fenced: Fenced | None = None
        self._thread = threading.Thread(target=self._watch, name="stateflow-fence", daemon=True)

    def begin(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread. May be called more than once, and before `begin`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raises Fenced once the watch has found a newer run."""
        if self._fenced is not None:
            raise self._fenced

    def is_fenced(self) -> bool:
        """Reads the log's head once, unless a newer run is known; returns whether one has claimed the job."""
        if self._fenced is None:
            self._fenced = self._guard.find()
        return self._fenced is not None

    def _watch(self) -> None:
        while not self._ended.wait(self._interval.total_seconds()):
            try:
                if self.is_fenced():
                    self._on_fenced()
                    return
                self._on_check()
            except Exception:
                # Any error of a storage client: the next check may succeed, and the log fences the run in any case.
                log.warning("the check for a newer run failed", exc_info=True)


@dataclass
class _RunningBatch:
    """A batch that is being processed.

    Attributes:
        ordinal: its number.
        began_at: when it began, as a timestamp.
        report_at: when its progress is stored next, in seconds of the monotonic clock.
    """

    ordinal: int
    began_at: str
    report_at: float


class JobRun:
    """One run of a job: claims it, runs its batches, and ends.

    `start` sets all attributes but `job`, `totals` and `is_claimed`.

    Args:
        job: the job to run.
        executor: runs the tasks of the batches.
        totals: counts of the same launch before a restart, which this run continues.

    Attributes:
        is_claimed: whether the run has claimed the job.
        guard: detects that a newer run has claimed the job.
        batches: runs batches, and holds the state of the newest barrier.
        restored: the state that the run started from.
        start_label: the restored checkpoint in words, such as ``savepoint before-upgrade (checkpoint 7)``.
        backlog: the input that waited at the end of the run; None before.
    """

    guard: FenceGuard
    batches: BatchRunner
    restored: StateAssignment
    start_label: str
    _context: RunContext
    _maintenance: Maintenance
    _pipeline: CheckpointPipeline
    _requests: RequestServer
    _fence_watch: FenceWatch

    def __init__(self, job: Job, executor: Executor, totals: RunTotals | None = None) -> None:
        self.job = job
        self.totals = totals or RunTotals()
        self._executor = executor
        self.savepoint_workers = executor.savepoint_workers
        self._checks = StartChecks(job, executor.reads_by_spark)
        self.is_claimed = self._is_restored = False
        self.backlog: JobBacklog | None = None
        self._backlog_at = 0.0
        self._backlog_reports = 0
        self._batch: _RunningBatch | None = None
        self._reports = 0

    @property
    def head(self) -> Head:
        """The newest log entry of this run; from its CLAIM on."""
        newest = self._pipeline.committer.head if self._is_restored else self.guard.claim
        assert newest is not None
        return newest

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the newest barrier, or else of the restored checkpoint."""
        return self.batches.manifest

    @property
    def positions(self) -> list[SourcePosition]:
        """Where the next batch reads the sources; another run reads again what is not committed."""
        manifest = self.batches.manifest
        return manifest.sources if manifest is not None and self.batches.ordinal else self.head.entry.sources

    @property
    def ended_sources(self) -> frozenset[str]:
        """Uids of the sources that end once the run has caught up: bounded ones, and all of them when it drains."""
        plan = self.job.plan
        return frozenset(s.uid for s in plan.sources) if self.job.settings.run.drain else plan.bounded

    @property
    def stopped(self) -> str:
        """The kind of the request to stop that the run has confirmed; empty for none."""
        return self._requests.stopped

    def start(self, note: str = "") -> None:
        """Claims the job, checks every file of its newest checkpoint, publishes pending output and restores.

        Args:
            note: requester of the run, or reason; for the log and the history.

        Raises:
            Fenced: a newer run has claimed the job.
            MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
            ConfigError: job and state do not fit.
        """
        checked = self._checks.before_claim()
        root = self.job.root
        claim = root.claim(note)
        generation, checkpoint = claim.entry.generation, claim.checkpoint_id
        self.guard = FenceGuard(root.log, generation)
        self.guard.follow(claim)
        self.is_claimed = True
        set_log_context(
            job=root.job.job, run_id=note or root.writer, generation=generation, ordinal=0, checkpoint_id=checkpoint
        )
        with self.guard.translate_errors():
            restored = restore_job(self.job, self._checks, checked, claim, self.guard)
        self._create_components(restored, note)
        with self.guard.translate_errors():
            self._begin(restored)

    def _create_components(self, restored: RestoredJob, note: str) -> None:
        job, generation = self.job, restored.head.entry.generation
        root, settings = job.root, job.settings
        background = BackgroundWork(root, job.recorder, generation)
        self._context = RunContext(job, generation, restored.publisher, self.guard, background, note)
        self._maintenance = Maintenance(self._context)
        self._pipeline = CheckpointPipeline(self._context, restored, self._maintenance, self._keep_workers_alive)
        self._requests = RequestServer(root, generation, settings, self, background, observer=job.observer)
        self._fence_watch = FenceWatch(
            self.guard, settings.requests.fence_interval, self._executor.cancel, self._report_progress
        )
        start = StartingPoint(generation, restored.state.operators, restored.manifest)
        self.batches = BatchRunner(job, self._executor, start)
        self.restored, self.start_label = restored.state, restored.head.checkpoint_label
        self._is_restored = True

    def _begin(self, restored: RestoredJob) -> None:
        sweep_sinks(self._context, restored.head)
        now = epoch_milliseconds(self.job.root.clock.now())
        self.job.recorder.gauge("last_checkpoint_restore_timestamp", now)
        self._maintenance.start(restored.head, restored.pending_records)
        self._record_start()
        self._requests.open(self._committed_point())
        self._fence_watch.begin()
        self._backlog_at = self._context.now + _BACKLOG_EVERY.total_seconds()

    def _record_start(self) -> None:
        """Adds the start of the run to the job's history."""
        job, launch = self.job, self.job.launch
        if launch is not None:
            file, record = launch.file, _start_record(self._context, self.head, launch)
            store = partial(record_run, job.root.storage, record, file.text if file else b"", launch.graph)
            self._context.background.attempt(Work.HISTORY, store)

    def _report_progress(self) -> None:
        """Stores how far the run is if its batch takes long; called in the thread of the fence watch."""
        batch, run = self._batch, self._context
        if batch is None or run.now < batch.report_at:
            return
        progress = RunProgress(
            reported_at=run.timestamp,
            ordinal=batch.ordinal,
            batch_started_at=batch.began_at,
            batches=self.totals.batches,
            rows_in=self.totals.rows_in,
            driver=self.job.root.writer,
            reason=run.note,
        )
        self._reports += 1
        store = partial(write_progress, self.job.root.storage, run.generation, self._reports, progress)
        run.background.attempt(Work.HISTORY, store)
        batch.report_at = run.now + _PROGRESS_EVERY.total_seconds()

    def run_batch(self, rows: object, capture: PositionCapture) -> BatchResult:
        """Runs one micro-batch up to its barrier; with synchronous checkpoints, up to its published checkpoint.

        Args:
            rows: the input rows, as the executor takes them.
            capture: called before any task runs, so that the positions are those of the barrier, never later ones.

        Raises:
            Fenced: a newer run has claimed the job.
            BatchFailed: the reports are incomplete; nothing of the batch is committed.
            StateflowError: a task failed, or too many checkpoints did.
        """
        with self.guard.translate_errors():
            result = self._process(Batch(rows, capture, self.batches.watermarks()))
            self._serve_requests(result)
            failpoints.hit("batch.end")
            self._observe_backlog()
        return result

    def run_tick(self, ended: frozenset[str] = frozenset()) -> BatchResult:
        """Runs a batch without rows that fires due timers; raises as `run_batch` does.

        Args:
            ended: uids of sources that count as ended, as for `BatchRunner.tick`.
        """
        with self.guard.translate_errors():
            result = self._process(self.batches.tick(ended))
            self._serve_requests(result)
        return result

    def poll(self) -> None:
        """Does what is due although no input arrives: makes checkpoints and serves requests.

        Raises as `run_batch` does, also for a checkpoint that has failed in the background.
        """
        with self.guard.translate_errors():
            self._fence_watch.check()
            self._pipeline.checkpoint_if_idle()
            self._observe_backlog()
            if self._requests.is_waiting:
                self.commit_pending()
                self._requests.serve(self._committed_point())

    def measure_backlog(self, longest: timedelta = LONGEST) -> JobBacklog:
        """Returns how much input waits after the newest barrier; stores it, and reports it as metrics.

        See `measure`.
        """
        root, sources = self.job.root, {node.uid: node.source for node in self.job.plan.sources}
        began = self._context.now
        rate = rows_per_second(self._maintenance.recent)
        found = measure(read_positions(sources, self.manifest, root.storage), rate, root.clock, longest)
        record_backlog(self.job.recorder, found, root.clock.now())
        self._context.background.attempt(Work.BACKLOG, partial(self._report_backlog, found))
        ended = self._context.now
        self._backlog_at = ended + max(_BACKLOG_EVERY.total_seconds(), _BACKLOG_SHARE * (ended - began))
        return found

    def _report_backlog(self, found: JobBacklog) -> None:
        """Stores how much input waits, for the pages; the first time, in place of the reports of earlier runs."""
        storage, generation = self.job.root.storage, self._context.generation
        self._backlog_reports += 1
        key = backlog_key(generation, self._backlog_reports)
        if self._backlog_reports > 1:
            former = [backlog_key(generation, self._backlog_reports - 1)]
        else:
            # A newer run may have reported already, if this one has been fenced and does not know it yet.
            keys = (blob.key for blob in storage.list(BACKLOG))
            former = [each for each in keys if each < key and backlog_generation(each)]
        write_backlog(storage, key, found, former)

    def _observe_backlog(self) -> None:
        # Between batches: a source is called from two threads at once only if it does not answer in time.
        if self._context.now >= self._backlog_at:
            self.measure_backlog()

    def drain(self) -> PublishedCheckpoint:
        """Fires every event-time timer; returns the checkpoint of that batch."""
        return self._process_for_request(self.batches.drain)

    def take_full_snapshot(self) -> PublishedCheckpoint:
        """Stores all state again; returns the checkpoint of that batch, which shares no file with others."""
        return self._process_for_request(self.batches.full_snapshot)

    def commit_pending(self) -> None:
        """Makes the newest barrier a checkpoint unless it is one, and waits until none is pending."""
        self._pipeline.commit_pending()

    def record_failure(self, error: StateflowError) -> None:
        """Adds the error that ends the run to the job's history.

        Nothing is recorded before the CLAIM, for a run that a newer one has fenced, or after a storage error: another
        attempt to write there would only delay the end.
        """
        # Another job root has taken over a table, and no newer run: this one is the newest that the status describes.
        overtaken = isinstance(error, Fenced) and "by_root" not in error.facts
        if not self.is_claimed or overtaken or isinstance(error, StorageError):
            return
        root = self.job.root
        record_run_failure(root.storage, _failure_record(root, self.head.entry, error))

    def abandon(self) -> None:
        """Stops the background threads. Called after a failure; harmless after `finish`."""
        if not self._is_restored:
            return
        self._fence_watch.end()
        self._requests.abandon()
        self._pipeline.abandon()

    def finish(self) -> None:
        """Ends the run: commits, answers all requests, and records in the log that all output is published.

        After that record, a sink may be removed from the job. Raises as `run_batch` does.
        """
        with self.guard.translate_errors():
            self.commit_pending()
            # Before the last entry, with which whoever follows the log reads the job root again. A source that hangs
            # delays the end of the run by no more than this, during which requests are still accepted.
            self.backlog = self.measure_backlog(_LONGEST_AT_END)
            self._requests.close(self._committed_point)
            self._maintenance.before_last_entry(self.head)
            self._maintenance.after_last_entry(self._pipeline.committer.settle())
            if self._reports:
                last = progress_key(self._context.generation, self._reports)
                self._context.background.attempt(Work.HISTORY, partial(self.job.root.storage.delete, [last]))
            self._context.background.finish()
        failpoints.hit("run.end")

    def _process(self, batch: Batch) -> BatchResult:
        """Runs a batch to its barrier, then makes that a checkpoint if one is due."""
        self._fence_watch.check()
        self._pipeline.check()
        began = self._context.now
        ordinal = self.batches.ordinal + 1
        self._batch = _RunningBatch(ordinal, self._context.timestamp, began + _PROGRESS_EVERY.total_seconds())
        with span(BATCH, job=self.job.root.job.job, generation=self._context.generation, ordinal=ordinal):
            barrier = self.batches.run(batch, self.head.checkpoint_id)
            output = self._publish_early(barrier)
            # Only now: after a failure the next batch starts from the state before, which still has the fired timers.
            self.batches.advance(barrier)
            self._pipeline.add(barrier, output, self._context.now - began)
            self._pipeline.checkpoint_if_due(requested=self._requests.is_waiting)
        result = _result(self.head, barrier, self._context.now - began)
        self._batch = None
        self._count(result, barrier)
        return result

    def _process_for_request(self, batch: Callable[[], Batch]) -> PublishedCheckpoint:
        if self.manifest is not None:
            self._process(batch())
            self.commit_pending()
        return self._committed_point()

    def _serve_requests(self, result: BatchResult) -> None:
        # A request that arrives between two checkpoints makes the next barrier one.
        if result.committed:
            self._requests.serve(self._committed_point())

    def _publish_early(self, barrier: CompletedBarrier) -> dict[str, list[Committable]]:
        """Publishes the output before its checkpoint in mode at-least-once; returns what is left to publish."""
        if self.job.settings.checkpoints.mode != AT_LEAST_ONCE:
            return barrier.output
        self._context.publisher.publish_early(self.head, barrier.output)
        return {}

    def _committed_point(self) -> PublishedCheckpoint:
        return PublishedCheckpoint(self.head.checkpoint, self.head.entry.published | self._context.publisher.published)

    def _keep_workers_alive(self) -> None:
        info = self.batches.info(self.batches.ordinal, self.head.checkpoint_id)
        self._executor.keep_workers_alive(self.job.plan, info)

    def _count(self, result: BatchResult, barrier: CompletedBarrier) -> None:
        recorder, skipped, late = self.job.recorder, barrier.quarantined, barrier.late_rows_dropped
        self.totals.count(result.rows_in, result.rows_out)
        self.totals.skip(skipped, late)
        for name, number in (("num_files_quarantined", len(skipped)), ("num_late_records_dropped", late)):
            if number:
                recorder.count(name, number)
        recorder.count("num_records_in", result.rows_in)
        recorder.count("num_records_out", sum(result.rows_out.values()))
        recorder.gauge("last_batch_duration", result.seconds)
        self.totals.heat(barrier.hot_keys)
        recorder.gauge("hot_key_pairs", max((each.pairs for each in barrier.hot_keys), default=0))
        waiting = waiting_for_others(barrier.manifest.waiting)
        recorder.gauge("num_records_waiting", sum(each.rows for each in waiting))


def _result(head: Head, barrier: CompletedBarrier, seconds: float) -> BatchResult:
    manifest = barrier.manifest
    return BatchResult(
        checkpoint_id=head.checkpoint_id,
        ordinal=manifest.ordinal,
        rows_in=barrier.rows_in,
        rows_out=barrier.rows_out,
        increment_bytes=manifest.increment_bytes,
        compaction_bytes=manifest.compaction_bytes,
        full_bytes=manifest.full_bytes,
        seconds=seconds,
        committed=head.entry.ordinal == manifest.ordinal,
    )


def _start_record(run: RunContext, head: Head, launch: LaunchFacts) -> ActionRecord:
    root, file = run.job.root, launch.file
    facts: dict[str, object] = {
        "run": head.entry.runs,
        "checkpoint_id": head.checkpoint_id or None,
        "driver": root.writer,
        "stateflow": installed_version(),
        "parallelism": run.job.plan.parallelism,
        "code_hash": run.job.code or None,
        "job_file": file.name if file else None,
        "job_file_modified_at": utc_text(file.modified_at) if file else None,
    }
    return ActionRecord(
        seq=run.generation,
        kind=RUN_START,
        ended_at=run.timestamp,
        by=root.requester,
        reason=run.note,
        duration_ms=round((run.now - launch.began_at) * 1000, 1),
        facts=facts,
    )


def _failure_record(root: JobRoot, entry: LogEntry, error: StateflowError) -> ActionRecord:
    return ActionRecord(
        seq=entry.generation,
        kind=FAILURE,
        ended_at=root.clock.now().isoformat(timespec="milliseconds"),
        by=root.requester,
        reason=error.sentence[:LONGEST_SENTENCE],
        facts={"code": error.code, "run": entry.runs},
    )
