"""Builds the history record of a checkpoint, and reports it as metrics."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.log.records import CheckpointRecord
from stateflow.observability.metrics import Recorder
from stateflow.runtime.driver.checkpointing.pending_checkpoint import PendingCheckpoint
from stateflow.runtime.driver.run_context import RunContext
from stateflow.storage.paths import data_prefixes


@dataclass
class Stages:
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


def new_record(run: RunContext, head: Head, pending: PendingCheckpoint, async_ms: float) -> CheckpointRecord:
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
        committed_at=run.timestamp,
        duration_ms=duration_ms(run, pending),
        increment_bytes=manifest.increment_bytes,
        compaction_bytes=manifest.compaction_bytes,
        full_bytes=manifest.full_bytes,
        files=len(files),
        rows_in=pending.rows_in,
        rows_out=pending.rows_out,
        by=run.job.root.writer,
        reason=run.note,
        new_files=sum(h.key.startswith(prefixes) for h in files),
        triggered_at=metrics.triggered_at,
        trigger_ms=metrics.trigger_ms,
        start_delay_ms=metrics.start_delay_ms,
        alignment_ms=metrics.alignment_ms,
        sync_ms=metrics.sync_ms,
        subtasks=dict(metrics.subtasks),
        async_ms=async_ms,
        code=manifest.code,
    )


def duration_ms(run: RunContext, pending: PendingCheckpoint) -> float:
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
