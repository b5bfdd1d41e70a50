"""Brings a claimed job to the state that its first batch starts from: tables, pending output, restored state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stateflow.checkpoint.garbage_collector import is_past
from stateflow.checkpoint.history import read_pending_records
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import CheckpointRecord, Manifest
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.restore.source_positions import with_added_sources
from stateflow.checkpoint.restore.state_assignment import StateAssignment
from stateflow.observability import RESTORE, span
from stateflow.runtime.driver.background import RunContext, Work
from stateflow.runtime.job import CheckedHead, Job, StartChecks
from stateflow.runtime.publisher import Publisher
from stateflow.runtime.restore.plan_execution import complete_rewind, recover_pending_output
from stateflow.storage.paths import DataKey


@dataclass(frozen=True)
class RestoredJob:
    """A job whose older output is published and whose state is assigned to its operators.

    Attributes:
        head: the newest log entry.
        manifest: the manifest of its checkpoint, with the positions of sources that the job did not have then; None
            without a checkpoint.
        state: the state that each operator starts from.
        pending_records: history that only the manifest holds.
        publisher: publishes the run's output.
    """

    head: Head
    manifest: Manifest | None
    state: StateAssignment
    pending_records: list[CheckpointRecord]
    publisher: Publisher


def restore_job(job: Job, checks: StartChecks, checked: CheckedHead, claim: Head, guard: FenceGuard) -> RestoredJob:
    """Publishes pending output and restores the newest checkpoint; rewinds to an older one if output was deleted.

    A rewind claims the job again: the generation of the run is that of the returned head.

    Args:
        job: the job to restore.
        checks: the checks of this start.
        checked: the result of the checks before the CLAIM.
        claim: the run's CLAIM.
        guard: the run's fence guard; it follows a second CLAIM.

    Raises:
        MissingFile, CorruptFile: a file of the checkpoint is missing or damaged.
        ConfigError: job and state do not fit.
        ForeignRows, SinkDiverged: as for `complete_rewind`; or another job root writes to a table.
    """
    root, publisher = job.root, Publisher(job.root, job.sinks)
    # Read now, because the restore may return to an older checkpoint. A start that fails leaves nothing but its CLAIM.
    is_same = checked.checkpoint_id == claim.checkpoint_id
    records = list(checked.pending_records) if is_same else read_pending_records(root, claim)
    _prepare_sinks(job, claim)
    with span(RESTORE, job=root.job.job, generation=claim.entry.generation, checkpoint=claim.checkpoint_id):
        head = complete_rewind(root, job.sinks, claim)
        head = recover_pending_output(publisher, root, job.sinks, head, guard)
        manifest = root.checkpoints.manifest_at(head)
        state = checks.match_state(head, manifest, checked.files)
        if manifest is not None:
            manifest = with_added_sources(manifest, job.sources)
    return RestoredJob(head, manifest, state, records, publisher)


def _prepare_sinks(job: Job, head: Head) -> None:
    """Creates missing tables, except one that the log knows: an empty new table would hide the loss of its rows."""
    for uid, bound in job.sinks.items():
        if uid not in head.entry.published:
            bound.check_unshared()
            bound.sink.prepare(bound.context)


def sweep_sinks(run: RunContext, head: Head) -> None:
    """Removes files that older runs wrote to sinks and never published.

    Called when pending output is published, and before this run writes anything.

    Args:
        head: the newest log entry of the run.
    """

    def is_leftover(generation: int, ordinal: int, path: str) -> bool:
        return is_past(DataKey(generation, ordinal, "", path), head.entry)

    for bound in run.job.sinks.values():
        # Unlike a sweep, it must succeed: otherwise later runs would not find the files of this one.
        bound.sink.begin_run(bound.context, head.entry.generation)
        sweep = partial(bound.sink.sweep, bound.context, is_leftover)
        run.background.attempt(Work.CLEANUP, sweep, at_once=True)
