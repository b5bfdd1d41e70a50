"""Making barriers checkpoints, one after the other: files, manifest, COMMIT, publishing; beside the batches or not."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.coordinator import CheckpointCoordinator, Due
from stateflow.checkpoint.documents import Manifest, PendingOutput
from stateflow.checkpoint.entries import Commit, Settlement
from stateflow.checkpoint.files import files_of, write_manifest
from stateflow.checkpoint.history import ABORTED, CheckpointRecord, trim_history, write_records
from stateflow.checkpoint.log import Head, Overtaken
from stateflow.checkpoint.retained import Retention
from stateflow.errors import BatchFailed, Fenced, StateflowError, StorageError
from stateflow.events import log_event, log_within
from stateflow.metrics import Recorder
from stateflow.runtime.background import BackgroundWork, Work
from stateflow.runtime.job import Job
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.uncommitted import Uncommitted
from stateflow.state.handles import FileHandle
from stateflow.state.transfer import check_content
from stateflow.storage.paths import data_prefixes
from stateflow.traces import CHECKPOINT, span

log = logging.getLogger(__name__)

NOT_IN_TIME = "its files were not stored in time"
_TELL_EVERY, _TRIM_EVERY = 20, 100
MOST_UNTOLD = 100
"""Each manifest carries the records that are not stored yet. Of a history that cannot be written the oldest go."""
_POLL_SECONDS = (0.002, 0.25)
_TEND_SECONDS, _LOOK_SECONDS = 20, 5.0


class _Cancelled(Exception):
    """The run ends with an error; what is not committed is not needed any more."""


@dataclass(frozen=True)
class _Ended:
    """How a checkpoint ended, as the thread that works on it tells the thread of the batches.

    Attributes:
        at: seconds of the clock that never goes back.
        error: why there is none.
    """

    ordinal: int
    at: float
    error: StateflowError | None = None


class Committer:
    """Moves a run's head from checkpoint to checkpoint, in the order of their barriers.

    Asynchronously, a thread waits for the files of a checkpoint, commits and publishes it, while the next batch works;
    the thread of the batches learns by `check` what became of it. A checkpoint that is aborted leaves all that it
    would have published to the next one.

    Attributes:
        note: who or what asked for the run; for the history.
    """

    head: Head
    """The newest log entry of the run; from its CLAIM on."""
    background: BackgroundWork
    """From the CLAIM on."""

    def __init__(self, job: Job, publisher: Publisher) -> None:
        self._job = job
        self._settings = job.settings.checkpoints
        self._coordinator = CheckpointCoordinator(self._settings, job.root.clock.monotonic())
        self._publisher = publisher
        self._collector = Collector(job.root)
        self._pool = ThreadPoolExecutor(1, "stateflow-checkpoints") if self._settings.asynchronous else None
        self._cancelled = threading.Event()
        self._running: deque[Future[None]] = deque()
        self._ended: deque[_Ended] = deque()
        self._error: Exception | None = None
        self._aborted = Uncommitted()
        self._stored: set[str] = set()
        self._completed = 0
        self._untold: list[CheckpointRecord] = []
        self._collected = 0
        self.note = ""

    def restored(self, manifest: Manifest | None) -> None:
        """A run starts from `manifest`, whose files are all stored."""
        self._stored = {handle.key for handle in files_of(manifest)} if manifest else set()

    # -- in the thread of the batches ---------------------------------------------------------------------------

    def is_due(self, ordinal: int, asked: bool) -> bool:
        """Whether the barrier that was reached becomes a checkpoint; then `submit` follows."""
        verdict = self._coordinator.at_barrier(ordinal, self._now(), asked)
        return isinstance(verdict, Due)

    def submit(self, unit: Uncommitted) -> None:
        """Makes `unit` a checkpoint: at once, or when everything before it is one or aborted. An empty one stands for
        what was aborted, and nothing may be pending then."""
        if unit.manifest is None:
            # Here, not in the other thread: the coordinator must know the barrier that is tried again by its number, or
            # it would neither end nor be overdue.
            unit, self._aborted = unit.behind(self._aborted), Uncommitted()
        unit.reached_at = self._now()
        self._coordinator.triggered(unit.ordinal, unit.reached_at)
        if self._pool is None:
            self._complete(unit)
        else:
            self._running.append(self._pool.submit(self._work, unit))
        self._gauge_pending()

    def check(self) -> None:
        """Raises what went wrong beside the batches: what no checkpoint survives, and one failure too many."""
        while self._running and self._running[0].done():
            self._running.popleft()
        if self._error is not None:
            raise self._error
        while self._ended:
            self._hear(self._ended.popleft())
        self._gauge_pending()

    def wait(self, tend: Callable[[], None]) -> None:
        """Until no checkpoint is pending; raises as `check` does.

        Args:
            tend: called now and then while it takes long.
        """
        while self._running:
            try:
                self._running[0].result(_TEND_SECONDS)
            except TimeoutError:
                tend()
            else:
                self._running.popleft()
        self.check()

    @property
    def has_aborted(self) -> bool:
        """Whether what was aborted is left, for the next checkpoint to take; nothing may be pending."""
        return self._aborted.manifest is not None

    def abandon(self) -> None:
        """Ends; a checkpoint that is being committed is completed, others are not."""
        self._coordinator.shut_down()
        self._cancelled.set()
        if self._pool is not None:
            # A run that starts again in this process must not find this one at work.
            self._pool.shutdown(wait=True, cancel_futures=True)

    def collect(self, at_once: bool = False) -> None:
        """Collects garbage. Neither a storage that does not delete nor a damaged older checkpoint is a reason to fail
        a run whose own data is safe; `stateflow gc` fails for them."""
        self.background.attempt(Work.COLLECTION, self._collect, at_once)

    def collect_if_due(self, at_once: bool = False) -> None:
        """Collects garbage when enough was written since the last time, else only what runs leave; errors as for
        `collect`."""
        self.background.attempt(Work.COLLECTION, self._collect_if_due, at_once)

    def collect_of_runs(self, at_once: bool = False) -> None:
        """Deletes what this run and older ones have left in the log, in ``spark/`` and in ``probe/``; errors as for
        `collect`."""
        self.background.attempt(Work.COLLECTION, self._collector.collect_of_runs, at_once)

    def settle(self) -> None:
        """Writes to the log that the run ends, and what is published since its last COMMIT. A newer run that claimed
        the job meanwhile learns it by itself."""
        publisher = self._publisher
        self._job.root.settle(self.head, Settlement(publisher.published, publisher.settled, self._collected))

    def _collect(self) -> None:
        self._collected = self._collector.collect().head_seq

    def _collect_if_due(self) -> None:
        if self._collector.is_due(self.head, max(self._collected, self.head.entry.collected)):
            self._collect()
        else:
            self._collector.collect_of_runs()

    def tell_history(self, at_once: bool = False) -> None:
        """Stores what only manifests have of the history."""
        records, root = self._untold, self._job.root
        write = partial(write_records, root.storage, records, root.clock.new_id())
        if self.background.attempt(Work.HISTORY, write, at_once):
            self._untold = self._untold[len(records) :]

    def trim_history(self) -> None:
        """Removes history beyond what the settings keep."""
        storage, keep = self._job.root.storage, self._job.settings.history.retained
        self.background.attempt(Work.HISTORY, partial(trim_history, storage, keep))

    def _hear(self, ended: _Ended) -> None:
        if ended.error is None:
            self._coordinator.completed(ended.ordinal, ended.at)
            return
        self._coordinator.aborted(ended.ordinal)
        if self._coordinator.has_failed_too_often:
            raise ended.error

    def _gauge_pending(self) -> None:
        self._job.recorder.gauge("number_of_in_progress_checkpoints", len(self._coordinator.pending))

    def _now(self) -> float:
        return self._job.root.clock.monotonic()

    # -- in the thread of the checkpoints -----------------------------------------------------------------------

    def _work(self, unit: Uncommitted) -> None:
        if self._error is not None:
            # Commits stay in order: behind one that failed there is none.
            return
        root = self._job.root
        try:
            with span(
                CHECKPOINT, job=root.job.job, generation=unit.document.generation, ordinal=unit.ordinal
            ):
                self._complete(unit)
        except _Cancelled:
            log.info("the checkpoint of barrier %d is given up: the run ends", unit.ordinal)
        except Exception as e:
            self._error = e

    def _complete(self, unit: Uncommitted) -> None:
        unit, self._aborted = unit.behind(self._aborted), Uncommitted()
        stages = _Stages(self._now())
        try:
            if self._pool is not None:
                self._await_files(unit)
            failpoints.hit("commit.stored")
            stages.async_ms = stages.lap(self._now())
            record = self._record(unit, stages)
            handle = self._written(unit, record)
            output = self._stored_output(unit)
        except (StorageError, BatchFailed) as e:
            self._abort(unit, stages, e)
            return
        # Whether an append that has no answer happened is not known: nothing may go on from here.
        self._commit(unit, handle, output)
        stages.commit_ms = stages.lap(self._now())
        self._publish()
        stages.publish_ms = stages.lap(self._now())
        self._ended.append(_Ended(unit.ordinal, self._now()))
        self._tell(replace(
            record, checkpoint_id=self.head.checkpoint_id, committed_at=self._date(), duration_ms=self._duration(unit),
            commit_ms=stages.commit_ms, publish_ms=stages.publish_ms, manifest_bytes=handle.size,
        ))  # fmt: skip

    def _await_files(self, unit: Uncommitted) -> None:
        """Returns when each file is stored. Raises BatchFailed when one is not in time."""
        handles = files_of(unit.document)
        missing = [handle for handle in handles if handle.key not in self._stored]
        delay, longest = _POLL_SECONDS
        looked = self._now()
        while missing := [handle for handle in missing if not self._is_stored(handle)]:
            if self._coordinator.overdue(unit.ordinal, self._now()):
                raise BatchFailed(NOT_IN_TIME, hint="was a host lost, or is the storage slow? the logs of "
                                  "the tasks' processes tell; checkpoints.timeout is how long it may take",
                                  barrier=unit.ordinal, missing=[h.key for h in missing[:3]])  # fmt: skip
            if self._now() - looked >= _LOOK_SECONDS:
                looked = self._now()
                self._check_fenced()
            if self._cancelled.wait(delay):
                raise _Cancelled
            delay = min(longest, 2 * delay)
        self._stored = {handle.key for handle in handles}

    def _check_fenced(self) -> None:
        # A newer run collects what this one has stored and not committed: it would be waited for in vain.
        newest, own = self._job.root.log.read_head(), self.head.entry.generation
        if newest is not None and newest.entry.generation > own:
            raise Fenced("a newer run has claimed the job", hint="let the other run work", generation=own,
                         newer=newest.entry.generation)  # fmt: skip

    def _is_stored(self, handle: FileHandle) -> bool:
        size = self._job.root.storage.durable_size(handle.key)
        if size is not None:
            check_content(handle, size, handle.sha256)
        return size is not None

    def _written(self, unit: Uncommitted, record: CheckpointRecord) -> FileHandle:
        document = replace(unit.document, record=record, history=self._untold)
        # The try before may have arrived all the same, and had another record in it.
        name = f"manifest-{unit.tries + 1}.json" if unit.tries else "manifest.json"
        handle = write_manifest(self._job.root.storage, unit.folder, document, name)
        failpoints.hit("commit.manifest")
        return handle

    def _stored_output(self, unit: Uncommitted) -> list[PendingOutput]:
        """The output as the COMMIT names it; what is too large for a log entry is stored here."""
        return self._job.root.output.stored(unit.folder, f"output-{unit.tries + 1}", unit.output)

    def _abort(self, unit: Uncommitted, stages: _Stages, error: StateflowError) -> None:
        log.warning("the checkpoint of barrier %d is aborted: %s", unit.ordinal, error)
        self._job.recorder.count("number_of_failed_checkpoints")
        self._aborted = unit
        record = self._record(unit, stages)
        before = self.head.checkpoint_id
        self._untold = [
            *self._untold[1 - MOST_UNTOLD :],
            replace(record, checkpoint_id=before, status=ABORTED, failure=error.sentence)
        ]  # fmt: skip
        self._ended.append(_Ended(unit.ordinal, self._now(), error))

    def _commit(self, unit: Uncommitted, handle: FileHandle, output: list[PendingOutput]) -> None:
        publisher = self._publisher
        new = Commit(
            unit.ordinal, handle, unit.document.sources, output, publisher.published, publisher.settled,
            self._collected,
        )  # fmt: skip
        kept = Retention(self._settings.retained, self._settings.max_age)
        outcome = self._job.root.commit(self.head, new, kept)
        if isinstance(outcome, Overtaken):
            raise Fenced("a newer run has claimed the job", hint="let the other run work; the log decides whether this "
                         "one's last batch exists", generation=self.head.entry.generation,
                         ordinal=unit.ordinal)  # fmt: skip
        self.head = outcome.head
        log_within(checkpoint=self.head.checkpoint_id)
        publisher.forget_settled(self.head)
        failpoints.hit("commit.after")

    def _publish(self) -> None:
        # All sinks are looked at before one gets anything: what is published in one cannot be replayed for another.
        lost = self._publisher.lost_checkpoint(self.head)
        if lost is not None:
            raise BatchFailed("output was deleted before it was published", hint="was a table vacuumed? a new run goes "
                              "back to the checkpoint before it", checkpoint=lost)  # fmt: skip
        self._publisher.publish_pending(self.head)

    def _record(self, unit: Uncommitted, stages: _Stages) -> CheckpointRecord:
        """As far as it is known by now; without the id, which the COMMIT brings."""
        root, manifest, took = self._job.root, unit.document, unit.measures
        files = files_of(manifest)
        prefixes = data_prefixes(manifest.generation, range(self.head.entry.ordinal + 1, unit.ordinal + 1))
        return CheckpointRecord(
            checkpoint_id=0, generation=manifest.generation, ordinal=manifest.ordinal, run=self.head.entry.runs,
            committed_at=self._date(), duration_ms=self._duration(unit),
            increment_bytes=manifest.increment_bytes, compaction_bytes=manifest.compaction_bytes,
            full_bytes=manifest.full_bytes, files=len(files), rows_in=unit.rows_in, rows_out=unit.rows_out,
            by=root.writer, reason=self.note, new_files=sum(h.key.startswith(prefixes) for h in files),
            triggered_at=took.triggered_at, trigger_ms=took.trigger_ms, start_delay_ms=took.start_delay_ms,
            alignment_ms=took.alignment_ms, sync_ms=took.sync_ms, subtasks=dict(took.subtasks),
            async_ms=stages.async_ms,
        )  # fmt: skip

    def _date(self) -> str:
        return self._job.root.clock.now().isoformat(timespec="milliseconds")

    def _duration(self, unit: Uncommitted) -> float:
        return round((unit.seconds + self._now() - unit.reached_at) * 1000, 1)

    def _tell(self, record: CheckpointRecord) -> None:
        """What there is to tell of the newest checkpoint, and what is done now and then behind one."""
        self._untold = [*self._untold, record][-MOST_UNTOLD:]
        self._completed += 1
        record_checkpoint(self._job.recorder, record)
        if self._pool is not None:
            log_event(log, logging.INFO, "committed", checkpoint=record.checkpoint_id, batch=record.ordinal,
                      rows=record.rows_in, rows_out=record.rows_out, seconds=round(record.duration_ms / 1000, 3),
                      increment_bytes=record.increment_bytes, full_bytes=record.full_bytes)  # fmt: skip
        if len(self._untold) >= _TELL_EVERY:
            self.tell_history()
        if self._completed % self._settings.collect_every == 0:
            self.collect_if_due()
        if self._completed % _TRIM_EVERY == 0:
            self.trim_history()


@dataclass
class _Stages:
    """How long the parts of a checkpoint took that follow each other behind its barrier, in milliseconds.

    Attributes:
        since: when the one that is under way began, in seconds of the clock that never goes back.
    """

    since: float
    async_ms: float = 0.0
    commit_ms: float = 0.0
    publish_ms: float = 0.0

    def lap(self, now: float) -> float:
        """How long the one that is over took."""
        took, self.since = (now - self.since) * 1000, now
        return round(took, 3)


def record_checkpoint(recorder: Recorder, record: CheckpointRecord) -> None:
    """Counts a completed checkpoint, with Flink's names."""
    recorder.count("number_of_completed_checkpoints")
    recorder.gauge("last_completed_checkpoint_id", record.checkpoint_id)
    recorder.gauge("last_checkpoint_size", record.increment_bytes + record.compaction_bytes)
    recorder.gauge("last_checkpoint_compaction_size", record.compaction_bytes)
    recorder.gauge("last_checkpoint_full_size", record.full_bytes)
    recorder.gauge("last_checkpoint_duration", record.duration_ms / 1000)
    recorder.gauge("last_checkpoint_manifest_size", record.manifest_bytes)
    recorder.gauge("last_checkpoint_files", record.files)
    recorder.gauge("last_checkpoint_new_files", record.new_files)
