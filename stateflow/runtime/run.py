"""One run of a job: claim, restore, publish what is pending, then batch after batch; with Spark or without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stateflow import failpoints
from stateflow.checkpoint.barrier import PendingBarrier
from stateflow.checkpoint.documents import (
    Manifest,
    OperatorState,
    SourcePosition,
    SourceWatermark,
)
from stateflow.checkpoint.fencing import fenced_by
from stateflow.checkpoint.files import state_bytes
from stateflow.checkpoint.garbage import is_past
from stateflow.checkpoint.history import FAILURE, ActionRecord, record_run_failure
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.requests import trim_requests
from stateflow.checkpoint.restore import RestorePlan
from stateflow.checkpoint.untold import store_pending_records, told_at
from stateflow.errors import Fenced, StateflowError, StorageError
from stateflow.events import log_within
from stateflow.runtime.background import BackgroundWork, Work
from stateflow.runtime.barriers import operators_behind, run_to_barrier
from stateflow.runtime.committing import Committer
from stateflow.runtime.declared import source_columns
from stateflow.runtime.executors import BatchWork, Executor
from stateflow.runtime.fence_watch import FenceWatch
from stateflow.runtime.job import BatchResult, Capture, Job, Positions, Totals
from stateflow.runtime.measures import measured
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.quarantine import quarantine_after
from stateflow.runtime.rewinding import complete_rewind, restore_order
from stateflow.runtime.serving import Point, RequestDesk
from stateflow.runtime.specs import BatchInfo
from stateflow.runtime.start_checks import StartChecks
from stateflow.runtime.uncommitted import Uncommitted
from stateflow.runtime.watermarks import advanced, milliseconds, of_operators
from stateflow.settings import AT_LEAST_ONCE
from stateflow.state.timers import MAX_WATERMARK
from stateflow.storage import Credentials
from stateflow.storage.paths import DataKey, data_folder
from stateflow.traces import BATCH, RESTORE, span

log = logging.getLogger(__name__)

DRIVER_ATTEMPT = "driver"
_LONGEST_SENTENCE = 2000
"""Characters of an error that its record has."""


@dataclass(frozen=True)
class _Batch:
    """What there is to work off.

    Attributes:
        rows: what the executor takes.
        capture: gives the positions at its end.
        watermarks: of each operator.
        full: whether all state is stored anew.
        drains: whether sources that may get more rows count as ended.
    """

    rows: Any
    capture: Capture
    watermarks: dict[str, int | None]
    full: bool = False
    drains: bool = False


class JobRun:
    """One generation of a job, from its CLAIM on.

    Args:
        totals: of the generations before it that the same run has started; they go on.
    """

    def __init__(self, job: Job, executor: Executor, totals: Totals | None = None) -> None:
        self.job = job
        self.totals = totals or Totals()
        self._executor = executor
        self._publisher = Publisher(job.root, job.sinks)
        self._checks = StartChecks(job, executor.reads_by_spark)
        self._committer = Committer(job, self._publisher)
        self._uncommitted = Uncommitted()
        self._ordinal = 0
        self._epoch = 0
        self._base: dict[str, OperatorState] = {}
        self._sources: list[SourceWatermark] = []
        self._desk: RequestDesk
        self._background: BackgroundWork
        self._fence: FenceWatch | None = None
        self._is_claimed = False
        self.restored: RestorePlan
        self.stood_at: str
        self.manifest: Manifest | None = None

    @property
    def head(self) -> Head:
        """The newest log entry of this run; from its CLAIM on."""
        return self._committer.head

    def start(self, note: str = "") -> None:
        """Claims the job, checks every file of its newest checkpoint, and publishes what is pending.

        Raises Fenced; MissingFile or CorruptFile naming a damaged file; ConfigError when job and state do not fit.
        """
        found = self._checks.before_claim()
        self._committer.note = note
        self._committer.head = self.job.root.claim(note)
        self._is_claimed = True
        root, head = self.job.root, self.head
        self._background = BackgroundWork(root, self.job.recorder, head.entry.generation)
        self._committer.background = self._background
        log_within(job=root.job.job, run=note or root.writer, generation=head.entry.generation, batch=0,
                   checkpoint=head.checkpoint_id)  # fmt: skip
        with self.fenced_first():
            # Read now, because a start may go back by itself; a start that fails leaves nothing but its CLAIM.
            is_same = found.checkpoint_id == self.head.checkpoint_id
            told = found.untold if is_same else told_at(self.job.root, self.head)
            self._prepare_sinks()
            with span(RESTORE, **self._facts(), checkpoint=self.head.checkpoint_id):
                self._restore(found.files)
            self.job.recorder.gauge(
                "last_checkpoint_restore_timestamp", milliseconds(self.job.root.clock.now())
            )
            self._background.attempt(Work.HISTORY, partial(store_pending_records, root, self.head, told))
            # Here as well as at the end: a job whose runs all end badly has a history, and leaves something, too.
            self._committer.trim_history()
            self._committer.collect_of_runs()
            interval = self.job.settings.requests.interval
            self._desk = RequestDesk(root, head.entry.generation, interval, self, self._background)
            self._desk.open(self._point())
            self._fence = FenceWatch(
                root.log,
                self.head.entry.generation,
                self.job.settings.requests.fence_interval,
                self._executor.cancel,
            )
            self._fence.begin()

    def _restore(self, checked: frozenset[str]) -> None:
        root, sinks, head = self.job.root, self.job.sinks, self.head
        head = complete_rewind(root, sinks, head)
        self._committer.head = restore_order(self._publisher, root, sinks, head)
        self.manifest = root.manifest(self.head)
        self._committer.restored(self.manifest)
        self.restored = self._checks.restorable(self.head, self.manifest, checked)
        self.stood_at = self.head.stand
        self._base = self.restored.operators
        self._epoch = self.manifest.epoch if self.manifest else 0
        self._sources = self.manifest.watermarks if self.manifest else []
        self._sweep_sinks()

    def run_batch(self, rows: Any, capture: Capture) -> BatchResult:
        """Runs one micro-batch up to its barrier; up to its published checkpoint, when those are not asynchronous.

        Args:
            rows: what the executor takes.
            capture: called first, before any task runs: positions are those of the barrier, never later ones.

        Raises:
            Fenced: a newer run owns the job.
            BatchFailed: the batch did not come back whole; nothing of it exists.
        """
        with self.fenced_first():
            return self._run_batch(rows, capture)

    @property
    def ended_sources(self) -> frozenset[str]:
        """Uids of the sources that have ended, once the run is caught up: bounded ones, and all when it drains."""
        plan = self.job.plan
        return frozenset(s.uid for s in plan.sources) if self.job.settings.run.drain else plan.bounded

    def has_due_timers(self, ended: frozenset[str] = frozenset()) -> bool:
        """Whether a batch without rows would fire timers, as far as that is known; `ended` as for `run_tick`."""
        watermarks, now = self._watermarks(ended), milliseconds(self.job.root.clock.now())
        fired = [u.uid for u in self.job.plan.units if u.operator]
        return any(
            subtask.earliest_timers.due(watermarks[uid], now)
            for uid in fired
            if uid in self._base
            for subtask in self._base[uid].subtasks
        )

    def run_tick(self, ended: frozenset[str] = frozenset()) -> BatchResult:
        """Runs a batch without rows, at the positions of the batch before; raises as `run_batch` does.

        Args:
            ended: uids of sources that have no more rows. Their watermark is the highest, for this batch: it is not
                kept, so a row that comes all the same, in a later run, is not late for that.
        """
        with self.fenced_first():
            result = self._run_tick(self._watermarks(ended), drains=not ended <= self.job.plan.bounded)
            self._serve(result)
        return result

    def drain(self) -> Point:
        """Fires every event-time timer: the watermark is as high as can be, for one batch without rows."""
        if self.manifest is not None:
            subtasks = [subtask for operator in self._base.values() for subtask in operator.subtasks]
            pending = any(subtask.earliest_timers.event is not None for subtask in subtasks)
            self._run_tick(dict.fromkeys(self._watermarks(), MAX_WATERMARK), drains=pending)
            self.settle()
        return self._point()

    def take_full(self) -> Point:
        """Stores all state anew, in one batch without rows: the checkpoint has no file in common with others."""
        if self.manifest is not None:
            self._run_tick(self._watermarks(), full=True)
            self.settle()
        return self._point()

    def _run_tick(
        self, watermarks: dict[str, int | None], *, full: bool = False, drains: bool = False
    ) -> BatchResult:
        assert self.manifest is not None  # without a barrier before there is nothing to fire, or to store
        here = Positions(self.manifest.sources, self.manifest.spark)
        no_rows = self._executor.no_rows(self.job.plan)
        return self._run_to_end(_Batch(no_rows, lambda _: here, watermarks, full, drains))

    def _watermarks(self, ended: frozenset[str] = frozenset()) -> dict[str, int | None]:
        """That of each operator in the next batch."""
        before = {uid: operator.watermark for uid, operator in self._base.items()}
        return of_operators(self.job.plan.units, before, self._sources, ended)

    def _run_batch(self, rows: Any, capture: Capture) -> BatchResult:
        result = self._run_to_end(_Batch(rows, capture, self._watermarks()))
        self._serve(result)
        failpoints.hit("batch.end")
        return result

    def _serve(self, result: BatchResult) -> None:
        # What is asked for between two checkpoints makes the next barrier one.
        if result.committed:
            self._desk.serve(self._point())

    def _run_to_end(self, batch: _Batch) -> BatchResult:
        if self._fence is not None:
            self._fence.check()
        self._committer.check()
        with span(BATCH, **self._facts(), ordinal=self._ordinal + 1):
            return self._run_to_barrier(batch)

    def _facts(self) -> dict[str, str | int]:
        return {"job": self.job.root.job.job, "generation": self.head.entry.generation}

    def _run_to_barrier(self, batch: _Batch) -> BatchResult:
        clock = self.job.root.clock
        began, began_at = clock.monotonic(), clock.now()
        ordinal = self._ordinal + 1
        log_within(batch=ordinal)
        folder = data_folder(self.head.entry.generation, ordinal, DRIVER_ATTEMPT)
        positions = batch.capture(folder)
        trigger_ms = round((clock.monotonic() - began) * 1000, 3)
        failpoints.hit("batch.begin")
        info = replace(self.batch_info(ordinal), full=batch.full)
        pending = self._execute(batch.rows, info, batch.watermarks)
        failpoints.hit("batch.reported")
        drained = self._is_drained(batch, self._rows_in(pending))
        manifest = self._manifest(pending, positions, info, drained)
        self._advance(pending, manifest, folder)
        measures = measured(began_at, trigger_ms, pending.reports.values())
        self._uncommitted.count(
            self._rows_in(pending), _rows_out(pending), clock.monotonic() - began, measures
        )
        self._checkpoint_if_due()
        result = self._result(pending, manifest, clock.monotonic() - began)
        self.totals.count(result.rows_in, result.rows_out)
        self.totals.quarantined += positions.quarantined
        if positions.quarantined:
            self.job.recorder.count("num_files_quarantined", len(positions.quarantined))
        self._record(result)
        return result

    def _record(self, result: BatchResult) -> None:
        recorder = self.job.recorder
        recorder.count("num_records_in", result.rows_in)
        recorder.count("num_records_out", sum(result.rows_out.values()))
        recorder.gauge("last_batch_duration", result.seconds)

    def _checkpoint_if_due(self) -> None:
        asked = self._desk.is_waiting
        self._committer.check()
        if self._committer.is_due(self._ordinal, asked):
            self._submit()
        if asked:
            # Whoever asked gets what is committed and published, never what is on its way.
            self.settle()
        else:
            self._committer.check()

    def _submit(self) -> None:
        unit, self._uncommitted = self._uncommitted, Uncommitted()
        self._committer.submit(unit)

    def _advance(self, pending: PendingBarrier, manifest: Manifest, folder: str) -> None:
        """The next batch starts from here, whether this barrier becomes a checkpoint or not."""
        output = pending.output()
        if self.job.settings.checkpoints.mode == AT_LEAST_ONCE:
            self._publisher.publish_early(self.head, output)
            output = {}
        self._uncommitted.add(manifest, folder, output)
        self._ordinal = pending.ordinal
        self._base = {o.uid: o for o in manifest.operators}
        self._epoch = manifest.epoch
        self._sources = manifest.watermarks
        self.manifest = manifest

    def settle(self) -> None:
        """Makes the newest barrier a checkpoint unless it is one, and waits until none is pending."""
        self._wait()
        while self._uncommitted.manifest is not None or self._committer.has_aborted:
            self._submit()
            self._wait()

    def _wait(self) -> None:
        self._committer.wait(lambda: self._executor.tend(self.job.plan, self.batch_info(self._ordinal)))

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the run to stop, and got the answer that it does."""
        return self._desk.stopped

    def record_failure(self, error: StateflowError) -> None:
        """Adds the error that the run ends with to the job's history.

        Nothing is recorded before the CLAIM, for a fenced run, or of a storage that fails: trying again to write there
        would only delay the end.
        """
        if not self._is_claimed or isinstance(error, (Fenced, StorageError)):
            return
        root, entry = self.job.root, self.head.entry
        record_run_failure(root.storage, ActionRecord(
            seq=entry.generation, kind=FAILURE, at=root.clock.now().isoformat(timespec="milliseconds"), by=root.writer,
            reason=error.sentence[:_LONGEST_SENTENCE], facts={"code": error.code, "run": str(entry.runs)},
        ))  # fmt: skip

    def abandon(self) -> None:
        """Stops the background threads; for a run that ends with an error."""
        if self._fence is not None:
            self._fence.end()
        self._desk.abandon()
        self._committer.abandon()

    def _point(self) -> Point:
        known = {**self.head.entry.published, **self._publisher.published}
        return Point(self.head.checkpoint, known)

    def collect(self) -> None:
        """Collects garbage now."""
        self._committer.collect(at_once=True)

    def finish(self) -> None:
        """Ends the run in good order: the log learns that everything is published, so that a sink may be removed from
        the job, and garbage is collected. A newer run that claimed the job meanwhile learns it by itself."""
        with self.fenced_first():
            self.settle()
            self._desk.close(self._point)
            self._committer.tell_history(at_once=True)
            # Before the last entry, which says when data was collected, and again what only that entry makes garbage.
            self._committer.collect_if_due(at_once=True)
            self._committer.settle()
            self._committer.collect_of_runs(at_once=True)
            self._committer.trim_history()
            self._background.attempt(
                Work.CLEANUP, partial(trim_requests, self.job.root.storage), at_once=True
            )
            self._background.finish()
        failpoints.hit("run.end")

    @property
    def positions(self) -> list[SourcePosition]:
        """Up to where the sources are read; what is not committed is read again by another run."""
        return (
            self.manifest.sources if self.manifest is not None and self._ordinal else self.head.entry.sources
        )

    @contextmanager
    def fenced_first(self) -> Iterator[None]:
        """What a newer run sweeps or collects fails this one in many ways; that it is fenced is the reason of all."""
        try:
            yield
        except Exception as e:
            fenced = fenced_by(self.job.root.log, self.head.entry.generation)
            if fenced is None:
                raise
            raise fenced from e

    def _prepare_sinks(self) -> None:
        """Creates missing tables. One that the log knows is not created anew: its rows would silently be gone."""
        known = self.head.entry.published
        for uid, bound in self.job.sinks.items():
            if uid not in known:
                bound.sink.prepare(bound.context)

    def _sweep_sinks(self) -> None:
        """Removes what older runs wrote to sinks and never published. Pending output is published by now, and of this
        run nothing is written yet."""
        head = self.head.entry

        def is_leftover(generation: int, ordinal: int, path: str) -> bool:
            return is_past(DataKey(generation, ordinal, "", path), head)

        for bound in self.job.sinks.values():
            sweep = partial(bound.sink.sweep, bound.context, is_leftover)
            self._background.attempt(Work.CLEANUP, sweep, at_once=True)

    def _execute(self, rows: Any, info: BatchInfo, watermarks: dict[str, int | None]) -> PendingBarrier:
        before = {source.uid: source.watermark for source in self._sources}
        work = BatchWork(self.job.plan, info, self._base, watermarks, before)
        return run_to_barrier(self._executor, rows, work)

    def batch_info(self, ordinal: int) -> BatchInfo:
        """What tasks of the batch with this ordinal know of it and of the job."""
        root, settings = self.job.root, self.job.settings
        return BatchInfo(
            job_uuid=root.job.job_uuid, root_uri=root.storage.uri, generation=self.head.entry.generation,
            ordinal=ordinal, processing_time=root.clock.now(), max_parallelism=root.job.max_parallelism,
            local_folder=settings.local_folder, rocksdb=settings.rocksdb, epoch=self._epoch + 1,
            checkpoint_id=self.head.checkpoint_id,
            state=settings.state.shared_by(len(self.job.plan.participants())),
            sort_memory_bytes=settings.shuffle.sort_memory_bytes, credentials=Credentials.of_process(),
            upload_patience=settings.checkpoints.timeout if settings.checkpoints.asynchronous else None,
            telemetry=settings.telemetry,
        )  # fmt: skip

    def _manifest(
        self, pending: PendingBarrier, positions: Positions, info: BatchInfo, drained: bool
    ) -> Manifest:
        # Also behind a draining batch, which went far ahead: rows that come all the same are not late for that.
        watermarks = self._watermarks()
        limit = self.job.settings.state.memory_limit_bytes
        operators = operators_behind(pending, self._base, watermarks, limit)
        return Manifest(
            job_uuid=self.job.root.job.job_uuid, generation=pending.generation, ordinal=pending.ordinal,
            operators=operators, sources=positions.sources, spark=positions.spark,
            increment_bytes=sum(r.increment_bytes for r in pending.reports.values()),
            compaction_bytes=sum(r.compaction_bytes for r in pending.reports.values()),
            full_bytes=state_bytes(operators),
            epoch=self._epoch + 1, columns=source_columns(self.job.plan), watermarks=advanced(
                self._sources, self.job.plan.strategies, pending.event_times(), milliseconds(info.processing_time)
            ), drained=drained, **quarantine_after(self.manifest, positions.quarantined),
        )  # fmt: skip

    def _is_drained(self, batch: _Batch, rows_in: int) -> bool:
        """Whether every event-time timer has fired early; warns of rows that follow a drain."""
        drained = self.manifest is not None and self.manifest.drained
        if drained and rows_in:
            log.warning(
                "checkpoint %d was drained: its timers fired before their time", self.head.checkpoint_id
            )
        return batch.drains or (drained and not rows_in)

    def _result(self, pending: PendingBarrier, manifest: Manifest, seconds: float) -> BatchResult:
        return BatchResult(
            checkpoint_id=self.head.checkpoint_id, ordinal=pending.ordinal, rows_in=self._rows_in(pending),
            rows_out=_rows_out(pending), increment_bytes=manifest.increment_bytes,
            compaction_bytes=manifest.compaction_bytes, full_bytes=manifest.full_bytes, seconds=seconds,
            committed=self.head.entry.ordinal == pending.ordinal,
        )  # fmt: skip

    def _rows_in(self, pending: PendingBarrier) -> int:
        first = self.job.plan.first_units
        return sum(r.rows_in for r in pending.reports.values() if r.uid in first)


def _rows_out(pending: PendingBarrier) -> dict[str, int]:
    return {sink: sum(c.rows for c in files) for sink, files in pending.output().items()}
