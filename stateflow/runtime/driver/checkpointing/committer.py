"""Commits and publishes checkpoints one after the other: uploads, manifest, COMMIT, output."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Head, Overtaken
from stateflow.checkpoint.log.documents import PendingOutput
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.manifest_files import write_manifest
from stateflow.checkpoint.log.records import ABORTED, CheckpointRecord
from stateflow.checkpoint.log.retained import RetentionLimits
from stateflow.checkpoint.log.transitions import Commit, Settlement
from stateflow.errors import BatchFailed, Fenced, StateflowError, StorageError
from stateflow.observability.logging import log_event, set_log_context
from stateflow.observability.tracing import CHECKPOINT, span
from stateflow.runtime.driver.checkpointing.pending_checkpoint import PendingCheckpoint
from stateflow.runtime.driver.checkpointing.record import Stages, duration_ms, new_record, report_metrics
from stateflow.runtime.driver.checkpointing.upload_waiter import UploadsCancelled, UploadWaiter
from stateflow.runtime.driver.maintenance import Maintenance
from stateflow.runtime.driver.run_context import RunContext
from stateflow.state.handles import FileHandle

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedCheckpoint:
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
        self.head = head
        self.finished: deque[FinishedCheckpoint] = deque()
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
        except UploadsCancelled:
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
        stages = Stages(self._run.now)
        try:
            if self._settings.asynchronous:
                self._uploads.wait(pending)
            failpoints.hit("commit.stored")
            stages.async_ms = stages.lap(self._run.now)
            record = new_record(self._run, self.head, pending, stages.async_ms)
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
        self.finished.append(FinishedCheckpoint(pending.ordinal, self._run.now))
        self._record(
            replace(
                record,
                checkpoint_id=self.head.checkpoint_id,
                committed_at=self._run.timestamp,
                duration_ms=duration_ms(self._run, pending),
                commit_ms=stages.commit_ms,
                publish_ms=stages.publish_ms,
                manifest_bytes=handle.size,
            )
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

    def _abort(self, pending: PendingCheckpoint, stages: Stages, error: StateflowError) -> None:
        log.warning("the checkpoint of barrier %d is aborted: %s", pending.ordinal, error)
        self._aborted = pending
        record = new_record(self._run, self.head, pending, stages.async_ms)
        before = self.head.checkpoint_id
        self._maintenance.add_record(replace(record, checkpoint_id=before, status=ABORTED, failure=error.sentence))
        self.finished.append(FinishedCheckpoint(pending.ordinal, self._run.now, error))
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
        set_log_context(checkpoint=self.head.checkpoint_id)
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
                checkpoint=lost,
            )
        publisher.publish_pending(self.head)

    def _record(self, record: CheckpointRecord) -> None:
        """Reports the newest checkpoint, then does the maintenance that is due after it."""
        self._maintenance.add_record(record)
        report_metrics(self._run.job.recorder, record)
        if self._settings.asynchronous:
            log_event(
                log,
                logging.INFO,
                "committed",
                checkpoint=record.checkpoint_id,
                batch=record.ordinal,
                rows=record.rows_in,
                rows_out=record.rows_out,
                seconds=round(record.duration_ms / 1000, 3),
                increment_bytes=record.increment_bytes,
                full_bytes=record.full_bytes,
            )
        self._maintenance.after_checkpoint(self.head)
