"""One run of a job: claim, restore, publish what is pending, then batch after batch; with Spark or without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stateflow import failpoints
from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.coordinator import PendingCheckpoint
from stateflow.checkpoint.documents import (
    Manifest,
    OperatorState,
    SourcePosition,
    SourceWatermark,
)
from stateflow.checkpoint.entries import Commit
from stateflow.checkpoint.files import files_of, state_bytes, write_manifest
from stateflow.checkpoint.garbage import is_past
from stateflow.checkpoint.history import CheckpointRecord, trim_history, write_record
from stateflow.checkpoint.log import Head, Overtaken
from stateflow.checkpoint.requests import trim_requests
from stateflow.checkpoint.restore import RestorePlan
from stateflow.checkpoint.schedule import CheckpointSchedule, Due
from stateflow.errors import BatchFailed, DataError, Fenced, StateflowError
from stateflow.metrics import Recorder
from stateflow.runtime.barriers import operators_behind, run_to_barrier
from stateflow.runtime.declared import source_columns
from stateflow.runtime.executors import BatchWork, Executor
from stateflow.runtime.job import BatchResult, Capture, Job, Positions, Totals
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.rewinding import complete_rewind, restore_order
from stateflow.runtime.serving import Point, RequestDesk
from stateflow.runtime.specs import BatchInfo
from stateflow.runtime.start_checks import StartChecks
from stateflow.runtime.uncommitted import Uncommitted
from stateflow.runtime.watermarks import advanced, combined, milliseconds
from stateflow.state.timers import MAX_WATERMARK
from stateflow.storage import Credentials
from stateflow.storage.paths import DataKey, data_folder

log = logging.getLogger(__name__)

DRIVER_ATTEMPT = "driver"
_TRIM_EVERY = 100


class JobRun:
    """One generation of a job, from its CLAIM on.

    Args:
        totals: of the generations before it that the same run has started; they go on.
    """

    def __init__(self, job: Job, executor: Executor, totals: Totals | None = None) -> None:
        self.job = job
        self.totals = totals or Totals()
        self._executor = executor
        self._collector = Collector(job.root)
        self._publisher = Publisher(job.root, job.sinks)
        self._checks = StartChecks(job, executor.reads_by_spark)
        self._note = ""
        self._schedule = CheckpointSchedule(job.settings.checkpoints, job.root.clock.monotonic())
        self._uncommitted = Uncommitted()
        self._committed = Uncommitted()
        self._checkpoints = 0
        self._ordinal = 0
        self._epoch = 0
        self._base: dict[str, OperatorState] = {}
        self._sources: list[SourceWatermark] = []
        self._desk: RequestDesk
        self.head: Head
        self.restored: RestorePlan
        self.stood_at: str
        self.manifest: Manifest | None = None

    def start(self, note: str = "") -> None:
        """Claims the job, checks every file of its newest checkpoint, and publishes what is pending.

        Raises Fenced; MissingFile or CorruptFile naming a damaged file; ConfigError when job and state do not fit.
        """
        checked = self._checks.before_claim()
        self._note = note
        self.head = self.job.root.claim(note)
        with self.fenced_first():
            self._prepare_sinks()
            self._restore(checked)
            # Here as well as at the end: a job whose runs all end badly has a history, too.
            self._trim_history()
            self._desk = RequestDesk(
                self.job.root, self.head.entry.generation, self.job.settings.requests.interval, self._drain
            )
            self._desk.open(self._point())

    def _restore(self, checked: frozenset[str]) -> None:
        root = self.job.root
        self.head = complete_rewind(root, self.job.sinks, self.head)
        self.head = restore_order(self._publisher, root, self.job.sinks, self.head)
        self.manifest = root.manifest(self.head)
        self.restored = self._checks.restorable(self.head, self.manifest, checked)
        self.stood_at = self.head.stand
        self._base = self.restored.operators
        self._epoch = self.manifest.epoch if self.manifest else 0
        self._sources = self.manifest.watermarks if self.manifest else []
        self._sweep_sinks()

    def _trim_history(self) -> None:
        trim_history(self.job.root.storage, self.job.settings.history.retained)

    def run_batch(self, rows: Any, capture: Capture) -> BatchResult:
        """Runs one micro-batch up to its published checkpoint.

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
    def has_due_timers(self) -> bool:
        """Whether a batch without rows would fire timers, as far as that is known."""
        watermarks, now = self._watermarks(), milliseconds(self.job.root.clock.now())
        fired = [u.uid for u in self.job.plan.units if u.operator]
        return any(
            subtask.earliest_timers.due(watermarks[uid], now)
            for uid in fired
            if uid in self._base
            for subtask in self._base[uid].subtasks
        )

    def run_tick(self) -> BatchResult:
        """Runs a batch without rows, at the positions of the batch before; raises as `run_batch` does."""
        with self.fenced_first():
            result = self._run_tick(self._watermarks())
            self._serve(result)
        return result

    def _drain(self) -> Point:
        """Fires every event-time timer: the watermark is as high as can be, for one batch without rows."""
        if self.manifest is not None:
            self._run_tick(dict.fromkeys(self._watermarks(), MAX_WATERMARK))
            self._commit_uncommitted()
        return self._point()

    def _run_tick(self, watermarks: dict[str, int | None]) -> BatchResult:
        assert self.manifest is not None  # without a checkpoint there are no timers
        here = Positions(self.manifest.sources, self.manifest.spark)
        return self._run_to_end(self._executor.no_rows(self.job.plan), lambda _: here, watermarks)

    def _watermarks(self) -> dict[str, int | None]:
        """That of each operator in the next batch."""
        watermarks: dict[str, int | None] = {}
        for unit in self.job.plan.units:
            before = self._base[unit.uid].watermark if unit.uid in self._base else None
            reaching = [s for s in self._sources if s.uid in unit.watermark_sources]
            watermarks[unit.uid] = combined(before, reaching)
        return watermarks

    def _run_batch(self, rows: Any, capture: Capture) -> BatchResult:
        result = self._run_to_end(rows, capture, self._watermarks())
        self._serve(result)
        failpoints.hit("batch.end")
        return result

    def _serve(self, result: BatchResult) -> None:
        # What is asked for between two checkpoints makes the next barrier one.
        if result.committed:
            self._desk.serve(self._point())

    def _run_to_end(self, rows: Any, capture: Capture, watermarks: dict[str, int | None]) -> BatchResult:
        clock = self.job.root.clock
        began = clock.monotonic()
        ordinal = self._ordinal + 1
        folder = data_folder(self.head.entry.generation, ordinal, DRIVER_ATTEMPT)
        positions = capture(folder)
        failpoints.hit("batch.begin")
        info = self.batch_info(ordinal)
        pending = self._execute(rows, info, watermarks)
        failpoints.hit("batch.reported")
        manifest = self._manifest(pending, positions, info)
        self._advance(pending, manifest, folder)
        due = self._schedule.at_barrier(clock.monotonic(), self._desk.is_waiting)
        if isinstance(due, Due):
            self._commit_and_publish()
        result = self._result(pending, manifest, clock.monotonic() - began)
        self._after(result)
        return result

    def _advance(self, pending: PendingCheckpoint, manifest: Manifest, folder: str) -> None:
        """The next batch starts from here, whether this barrier becomes a checkpoint or not."""
        self._uncommitted.add(pending, manifest, folder)
        self._ordinal = pending.ordinal
        self._base = {o.uid: o for o in manifest.operators}
        self._epoch = manifest.epoch
        self._sources = manifest.watermarks
        self.manifest = manifest

    def _commit_uncommitted(self) -> None:
        """Makes the newest barrier a checkpoint unless it is one."""
        if self._uncommitted.manifest is not None:
            self._commit_and_publish()
            self._record()

    def _commit_and_publish(self) -> None:
        self._commit()
        self._publish()
        self._schedule.completed(self.job.root.clock.monotonic())

    @property
    def stopped(self) -> bool:
        """Whether somebody asked the run to stop, and got the answer that it does."""
        return self._desk.stopped

    def abandon(self) -> None:
        """Lets go of what works beside the batches; for a run that ends with an error."""
        self._desk.abandon()

    def _point(self) -> Point:
        known = {**self.head.entry.published, **self._publisher.published}
        return Point(self.head.checkpoint, known)

    def collect(self) -> None:
        """Collects garbage now. A damaged older checkpoint, which stops that, is no reason to fail a run whose own
        data is safe: it is told in the log, and `stateflow gc` fails for it."""
        try:
            self._collector.collect()
        except DataError as e:
            log.warning("nothing was collected: %s", e)

    def finish(self) -> None:
        """Ends the run in good order: the log learns that everything is published, so that a sink may be removed from
        the job, and garbage is collected. A newer run that claimed the job meanwhile learns it by itself."""
        with self.fenced_first():
            self._commit_uncommitted()
            self._desk.close(self._point())
            self.job.root.settle(self.head, self._publisher.published, self._publisher.settled)
            self.collect()
            self._trim_history()
            trim_requests(self.job.root.storage)
        failpoints.hit("run.end")

    @property
    def positions(self) -> list[SourcePosition]:
        """Up to where the sources are read; what is not committed is read again by another run."""
        manifest = self._uncommitted.manifest
        return manifest.sources if manifest is not None else self.head.entry.sources

    @contextmanager
    def fenced_first(self) -> Iterator[None]:
        """What a newer run sweeps or collects fails this one in many ways; that it is fenced is the reason of all."""
        try:
            yield
        except Exception as e:
            newer = 0 if isinstance(e, Fenced) else self._newer_generation()
            if not newer:
                raise
            raise Fenced("a newer run has claimed the job", hint="let the other run work",
                         generation=self.head.entry.generation, newer=newer) from e  # fmt: skip

    def _newer_generation(self) -> int:
        """The generation of a newer run; 0 when there is none, or when the log cannot be read."""
        try:
            newest = self.job.root.log.read_head()
        except StateflowError as e:
            log.warning("the log could not be asked for a newer run: %s", e)
            return 0
        generation = newest.entry.generation if newest else 0
        return generation if generation > self.head.entry.generation else 0

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
        for bound in self.job.sinks.values():
            bound.sink.sweep(bound.context, lambda g, o, path: is_past(DataKey(g, o, "", path), head))

    def _execute(self, rows: Any, info: BatchInfo, watermarks: dict[str, int | None]) -> PendingCheckpoint:
        work = BatchWork(self.job.plan, info, self._base, watermarks)
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
        )  # fmt: skip

    def _manifest(self, pending: PendingCheckpoint, positions: Positions, info: BatchInfo) -> Manifest:
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
            ),
        )  # fmt: skip

    def _commit(self) -> None:
        root, new = self.job.root, self._uncommitted
        handle = write_manifest(root.storage, new.folder, new.document)
        failpoints.hit("commit.manifest")
        outcome = root.commit(self.head, Commit(
            self._ordinal, handle, new.document.sources, new.output, self._publisher.published,
            self._publisher.settled,
        ), self.job.settings.checkpoints.retained)  # fmt: skip
        if isinstance(outcome, Overtaken):
            raise Fenced("a newer run has claimed the job", hint="let the other run work; the log decides whether this "
                         "one's last batch exists", generation=self.head.entry.generation,
                         ordinal=self._ordinal)  # fmt: skip
        self.head = outcome.head
        self._committed, self._uncommitted = new, Uncommitted()
        self._publisher.forget_settled(self.head)
        failpoints.hit("commit.after")

    def _publish(self) -> None:
        # All sinks are looked at before one gets anything: what is published in one cannot be replayed for another.
        lost = self._publisher.lost_checkpoint(self.head)
        if lost is not None:
            raise BatchFailed("output was deleted before it was published", hint="was a table vacuumed? a new run goes "
                              "back to the checkpoint before it", checkpoint=lost)  # fmt: skip
        self._publisher.publish_pending(self.head)

    def _result(self, pending: PendingCheckpoint, manifest: Manifest, seconds: float) -> BatchResult:
        first = self.job.plan.first_units
        written = {sink: sum(c.rows for c in files) for sink, files in pending.output().items()}
        return BatchResult(
            checkpoint_id=self.head.checkpoint_id, ordinal=pending.ordinal,
            rows_in=sum(r.rows_in for r in pending.reports.values() if r.uid in first), rows_out=written,
            increment_bytes=manifest.increment_bytes, compaction_bytes=manifest.compaction_bytes,
            full_bytes=manifest.full_bytes, seconds=seconds, committed=self._uncommitted.manifest is None,
        )  # fmt: skip

    def _after(self, result: BatchResult) -> None:
        self.totals.count(result.rows_in, result.rows_out)
        self.job.recorder.count("num_records_in", result.rows_in)
        batches = self._committed if result.committed else self._uncommitted
        batches.count(result.rows_in, result.rows_out, result.seconds)
        if result.committed:
            self._record()

    def _record(self) -> None:
        """What there is to tell of the newest checkpoint, and what is done now and then behind one."""
        done, manifest = self._committed, self._committed.document
        self._checkpoints += 1
        record_checkpoint(self.job.recorder, self.head.checkpoint_id, manifest, done.seconds)
        write_record(self.job.root.storage, CheckpointRecord(
            checkpoint_id=self.head.checkpoint_id, generation=manifest.generation, ordinal=manifest.ordinal,
            committed_at=self.job.root.clock.now().isoformat(timespec="milliseconds"),
            duration_ms=round(done.seconds * 1000, 1), increment_bytes=manifest.increment_bytes,
            compaction_bytes=manifest.compaction_bytes, full_bytes=manifest.full_bytes,
            files=len(files_of(manifest)), rows_in=done.rows_in, rows_out=done.rows_out, by=self.job.root.writer,
            reason=self._note,
        ))  # fmt: skip
        if self._checkpoints % self.job.settings.checkpoints.collect_every == 0:
            self.collect()
        if self._checkpoints % _TRIM_EVERY == 0:
            self._trim_history()


def record_checkpoint(recorder: Recorder, checkpoint_id: int, manifest: Manifest, seconds: float) -> None:
    """Counts a completed checkpoint, with Flink's names."""
    recorder.count("number_of_completed_checkpoints")
    recorder.gauge("last_completed_checkpoint_id", checkpoint_id)
    recorder.gauge("last_checkpoint_size", manifest.increment_bytes)
    recorder.gauge("last_checkpoint_compaction_size", manifest.compaction_bytes)
    recorder.gauge("last_checkpoint_full_size", manifest.full_bytes)
    recorder.gauge("last_checkpoint_duration", seconds)
