"""Decides whether a start has nothing to do, so that Spark need not be started. Changes nothing.

A run without new input, due timers, pending output and requests makes no batch: it claims the job, restores it, and
ends. Such a start is *idle*. Whatever is uncertain makes it a normal start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from stateflow.api.source import LocalSource, Source, local_position
from stateflow.checkpoint.history import background_failures
from stateflow.checkpoint.job_requests import open_requests
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import NOT_BEGUN, EntryKind, Manifest, SparkPosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock, epoch_milliseconds
from stateflow.config.settings import RunSettings
from stateflow.errors import StateflowError
from stateflow.runtime.job import Job, StartChecks
from stateflow.runtime.job_loader import open_job
from stateflow.runtime.planning.state_discovery import source_columns
from stateflow.runtime.preflight import StartContext
from stateflow.runtime.spark.checkpoint_location import missing_entries, source_log
from stateflow.runtime.watermarks import SeenTimes, advance_source_watermarks, operator_watermarks
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class IdleStart:
    """A start that has nothing to do.

    Attributes:
        job: the opened job.
        head: the newest log entry, which the start has not changed.
    """

    job: Job
    head: Head


def find_idle(start: StartContext) -> IdleStart | str:
    """Returns the idle start, or why a run is needed.

    Args:
        start: a job on Spark whose root is known; no session is needed.
    """
    assert start.storage is not None
    reason = _needed_by_settings(start.settings.run)
    if reason:
        return reason
    if not start.has_root:
        return "the job is new"
    try:
        job = open_job(start.graph, start.settings, start.storage, start.clock)
        StartChecks(job, start.on_spark).without_files()
        head = job.root.log.read_head()
        reason = "the job has no checkpoint" if head is None else _why_needed(job, head)
    except StateflowError as e:
        # The normal start makes the same checks, and raises what is still wrong then.
        return f"a check failed: {e.code}: {e.sentence}"
    if reason:
        return reason
    assert head is not None
    return IdleStart(job, head)


def need_without_job(storage: Storage, clock: Clock, settings: RunSettings) -> str:
    """Returns why a run is needed, as far as that is known without the job file; empty if the job has to be loaded.

    Args:
        storage: that of the job root.
        settings: as the user gave them. They override those of the job file.

    Raises:
        StateflowError: the job root cannot be read.
    """
    reason = _needed_by_settings(settings)
    if reason:
        return reason
    if storage.size(FORMAT) is None:
        return "the job is new"
    head = JobRoot.open(storage, clock).log.read_head()
    if head is None:
        return "the job has no checkpoint"
    return unfinished_work(head) or ("a request waits for a run" if open_requests(storage) else "")


def _needed_by_settings(settings: RunSettings) -> str:
    if not settings.skip_idle:
        return "run.skip_idle is off"
    if settings.drain:
        return "the run drains"
    return "the run waits for more input" if settings.end.continuous else ""


def _why_needed(job: Job, head: Head) -> str:
    """Returns why a run is needed; empty if there is nothing to do."""
    reason = unfinished_work(head)
    if reason:
        return reason
    storage, manifest = job.root.storage, job.root.checkpoints.manifest_at(head)
    if open_requests(storage):
        return "a request waits for a run"
    if background_failures(storage, head.entry.generation):
        return "background work of the last run has failed"
    if manifest is None:
        return "the job has no checkpoint"
    return changed_job(job, head, manifest) or due_timers(job, manifest, job.root.clock) or _input(job, manifest)


def unfinished_work(head: Head) -> str:
    """Returns what an earlier run or command has left to do; empty if nothing. Pure.

    Args:
        head: the newest log entry.
    """
    entry = head.entry
    if entry.claimed_for or entry.rewind is not None:
        return "a restore is not completed"
    if entry.kind is not EntryKind.ADMIN or not entry.ended:
        return "the last run has not ended normally, or the job was restored or begun from a savepoint"
    if entry.pending:
        return "output is not published"
    if any(not claimed.checkpoint for claimed in entry.claimed_savepoints):
        return "the claim of a savepoint is not completed"
    return ""


def changed_job(job: Job, head: Head, manifest: Manifest) -> str:
    """Returns how the job differs from its newest checkpoint, as far as the checkpoint shows; empty if it does not.

    Pure. A run without input would change nothing for a changed job either, but it makes all checks of a start.
    """
    positions = [(position.uid, position.description) for position in manifest.sources]
    if positions != list(job.sources) or head.entry.sources != manifest.sources:
        return "the sources have changed"
    if manifest.columns != source_columns(job.plan):
        return "the columns of the sources have changed" if manifest.columns else "the sources were not read yet"
    stored = {operator.uid: (operator.parallelism, operator.key_types) for operator in manifest.operators}
    declared = {uid: (job.plan.parallelism, types) for uid, types in job.plan.key_types.items()}
    if stored != declared:
        return "the operators, their keys or their parallelism have changed"
    return ""


def due_timers(job: Job, manifest: Manifest, clock: Clock) -> str:
    """Returns whether timers may be due, as text; empty if none is.

    As `BatchRunner.has_due_timers` computes it at the end of a run.
    """
    before = {operator.uid: operator.watermark for operator in manifest.operators}
    now = epoch_milliseconds(clock.now())
    # A source may have become idle since its last row.
    sources = advance_source_watermarks(manifest.watermarks, job.plan.strategies, SeenTimes(), now)
    watermarks = operator_watermarks(job.plan.chains, before, sources)
    due = any(
        subtask.earliest_timers.due(watermarks.get(operator.uid), now)
        for operator in manifest.operators
        for subtask in operator.subtasks
    )
    return "timers are due" if due else ""


def _input(job: Job, manifest: Manifest) -> str:
    """Returns which source may have new input; empty if none has."""
    if job.plan.bounded:
        # Its end fires all event-time timers.
        return "a source is bounded"
    if manifest.spark is None or not _is_complete(manifest.spark):
        return "positions are not complete ones of Spark"
    for number, (node, position) in enumerate(zip(job.plan.sources, manifest.sources, strict=True)):
        if position.offset == NOT_BEGUN:
            return f"source {node.uid} was not read yet"
        files = [file for file in manifest.spark.source_files if file.path.startswith(f"{number}/")]
        logs = [source_log(job.root.storage, file) for file in files]
        found = has_new_input(node.source, position.offset, logs)
        if found is not False:
            return f"source {node.uid} {'has new input' if found else 'may have new input'}"
    return ""


def _is_complete(position: SparkPosition) -> bool:
    try:
        return not missing_entries(position)
    except ValueError:
        return False


def has_new_input(source: Source | LocalSource, offset: str, logs: Sequence[bytes]) -> bool | None:
    """Returns whether a source has input after a position that Spark has stored; None if unknown, or if it fails.

    Args:
        source: the source as the job declares it.
        offset: its position, as in Spark's offset log.
        logs: contents of the files of Spark's log of the source.
    """
    try:
        if isinstance(source, Source):
            return source.has_new_input(offset, logs)
        position = local_position(offset)
        return None if position is None else source.has_new_input(position)
    except Exception as e:
        # A client's library or a user's source may raise anything. The run that follows reads the source anyway.
        log.warning(
            "asking a source for new input failed: source=%s error=%s: %s", source.description, type(e).__name__, e
        )
        return None
