"""Status of a job: its checkpoints, its newest run, an incomplete restore, and failures.

Nothing here loads the job file, starts Spark, takes a lock or changes the job root.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from stateflow.checkpoint.history import (
    background_failures,
    find_failed_start,
    read_origin,
    read_pending_records,
    read_records,
    run_failure,
)
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, Manifest, RunProgress, SourceWatermark
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.progress import find_restored_tables, read_progress
from stateflow.checkpoint.restore.plan_document import is_restore_open, is_run_open
from stateflow.errors import DataError, MissingFile
from stateflow.launch import open_existing
from stateflow.operations.job_root import JobCode, offsets_of, open_root
from stateflow.outputs import Offset, OptionalId, OptionalText, Person, Timestamp
from stateflow.runtime.backlog import RATE_RECORDS, JobBacklog, measure, read_positions, rows_per_second
from stateflow.runtime.job import Quarantined
from stateflow.runtime.watermarks import Waiting, waiting_for_others
from stateflow.storage.paths import SAVEPOINTS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PendingRestore:
    """A restore that is not completed.

    Attributes:
        seq: sequence number of its CLAIM, which is the token of every restored table.
        target_label: label of its target.
        by: who executed or approved it.
        requested_by: who requested it, if another person approved it.
        reason: why it was requested.
        requested_at: when it was claimed.
        tables: the version to restore, by uid of the sink; None for a table that keeps its content.
        restored_tables: uids of the sinks whose tables the restore has reported as restored; the token in a table
            decides, which `stateflow status --job` reads.
    """

    seq: int
    target_label: str
    by: Person
    requested_by: Person
    reason: OptionalText
    requested_at: Timestamp
    tables: dict[str, int | None]
    restored_tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class BackgroundFailure:
    """A kind of background work that failed in the newest run.

    Attributes:
        work: ``collection``, ``history``, ``request_watch`` or ``cleanup``.
        generation: generation of the run.
        failures: number of failed attempts up to the last record.
        failed_at: when it failed most recently.
        code: error code of the last failure.
        message: error message of the last failure.
    """

    work: str
    generation: int
    failures: int
    failed_at: Timestamp
    code: str
    message: str


@dataclass(frozen=True)
class RunFailure:
    """The error that a run ended with.

    Attributes:
        generation: generation of the run; of one that has not begun, the newest one at that time.
        failed_at: when it failed.
        code: error code.
        message: error message.
    """

    generation: int
    failed_at: Timestamp
    code: str
    message: str


@dataclass(frozen=True)
class Claimed:
    """A savepoint that the job owns, or has begun to claim.

    Attributes:
        name: name of the savepoint.
        path: URI of its folder.
        checkpoint_id: id of the checkpoint that adopted its state: once the job no longer keeps it, the savepoint is
            deleted. 0 for a claim that was not completed, which the next start undoes.
    """

    name: str
    path: str
    checkpoint_id: OptionalId


@dataclass(frozen=True)
class PinReport:
    """A pin: a checkpoint that is kept while a reader uses it.

    Attributes:
        id: id of the pin.
        checkpoint_id: id of the checkpoint.
        owner: who has pinned it.
        reason: why.
        pinned_at: when it was pinned.
        expires_at: when the pin ends unless its owner renews it; empty for a pin without an end.
    """

    id: str
    checkpoint_id: int
    owner: Person
    reason: str
    pinned_at: Timestamp
    expires_at: Timestamp


@dataclass(frozen=True)
class JobDescription:
    """Status of a job.

    Attributes:
        job: name of the job.
        job_uuid: uuid of the job.
        generation: sequence number of the newest CLAIM, which a run or a restore has made.
        head_seq: sequence number of the newest log entry.
        checkpoint_id: the checkpoint that the next run starts from; 0 before the first one.
        restored_checkpoint_id: if a restore has made that checkpoint, the id of the checkpoint that it restored, which
            has the same state; None otherwise, and for another job's.
        label: label of the checkpoint or savepoint that the next run starts from.
        retained_checkpoint_ids: ids of the retained and pinned checkpoints.
        pins: the pins of checkpoints.
        offsets: the position of each source, by uid.
        forked_from: job uuid and checkpoint, or id of a savepoint; empty for a job that is not a fork.
        shadow: whether every run publishes to shadow tables.
        restoring: the restore that is not completed; None without one.
        background: failed background work of the newest run.
        quarantined: the newest skipped corrupt input files, oldest first.
        quarantined_count: number of all skipped input files.
        drained: whether all event-time timers were fired before the newest checkpoint.
        origin: text about the parent of a fork, or the savepoint that the job root was created from; else empty.
        run_open: whether the newest run has not ended normally: it is active, was killed, or failed.
        failure: the error that the newest run ended with; None if it recorded none.
        failed_start: the error of a later run that has not begun; None without one. It is recorded once in an hour.
        claimed_savepoints: the savepoints that the job has claimed.
        code_hash: hash of the job's code that made the newest checkpoint; empty if it is not known.
        waiting: rows that wait for rows of other sources, as of the newest checkpoint.
        progress: how far an open run was in a batch that takes more than 15 seconds; None if it has not reported that
            since its newest checkpoint.
        run: number of the newest run, counted from the job's first; 0 before it.
        restore_open: whether a restore, or a move of a source, has claimed the job and not changed it yet: it works or
            was killed.
    """

    job: str
    job_uuid: str
    generation: int
    head_seq: int
    checkpoint_id: OptionalId
    restored_checkpoint_id: int | None
    label: str
    retained_checkpoint_ids: tuple[int, ...]
    pins: tuple[PinReport, ...]
    offsets: dict[str, Offset]
    forked_from: OptionalText
    shadow: bool
    restoring: PendingRestore | None
    background: tuple[BackgroundFailure, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    quarantined_count: int = 0
    drained: bool = False
    origin: OptionalText = ""
    run_open: bool = False
    failure: RunFailure | None = None
    failed_start: RunFailure | None = None
    claimed_savepoints: tuple[Claimed, ...] = ()
    code_hash: OptionalText = ""
    waiting: tuple[Waiting, ...] = ()
    progress: RunProgress | None = None
    run: OptionalId = 0
    restore_open: bool = False


@dataclass(frozen=True)
class NewestCheckpoint:
    """The checkpoint that the next run starts from.

    Attributes:
        id: its id.
        committed_at: when it was committed, by the clock of the run's host; for imported state, when it was imported.
    """

    id: int
    committed_at: datetime


@dataclass(frozen=True)
class ReadInput:
    """The event time up to which the sources were read at the newest checkpoint.

    Attributes:
        checkpoint: id of the checkpoint.
        watermarks: of the sources with a watermark strategy, ordered by uid.
    """

    checkpoint: int
    watermarks: Sequence[SourceWatermark]


def describe(job_root: str) -> JobDescription:
    """Returns the status of a job. Raises ConfigError when it does not exist."""
    root = open_root(job_root)
    return root.read_kept(lambda head: describe_at(root, head, read_newest_manifest(root, head)))


def describe_at(root: JobRoot, head: Head, manifest: Manifest | None) -> JobDescription:
    """Returns the status of a job as of a log entry.

    Args:
        root: the job root.
        head: its newest entry.
        manifest: that of the entry's checkpoint; None without one, or if it cannot be read.

    Raises MissingFile if a newer entry has released what this one refers to.
    """
    return JobDescription(
        root.job.job,
        root.job.job_uuid,
        head.entry.generation,
        head.entry.seq,
        head.checkpoint_id,
        restored_at(head, head.checkpoint_id),
        head.checkpoint_label,
        tuple(dict.fromkeys(ref.id for ref in root.checkpoints.list_kept(head))),
        _pins(head),
        offsets_of(head.entry.sources),
        root.job.forked_from,
        root.job.shadow,
        _restoring(root, head),
        _background(root, head),
        *_of_manifest(manifest),
        origin=_origin(root),
        run_open=is_run_open(head),
        failure=_failure(run_failure(root.storage, head.entry.generation)),
        failed_start=_failure(find_failed_start(root.storage, head.entry.generation)),
        claimed_savepoints=_claimed(root, head),
        code_hash=manifest.code if manifest else "",
        waiting=waiting_for_others(manifest.waiting if manifest else ()),
        progress=_progress(root, head),
        run=head.entry.runs,
        restore_open=is_restore_open(head),
    )


def _progress(root: JobRoot, head: Head) -> RunProgress | None:
    found = read_progress(root.storage, head.entry.generation) if is_run_open(head) else None
    # The report of an earlier batch stays until the next one.
    return found if found is not None and found.ordinal > head.entry.ordinal else None


def run_name(run: int | None, generation: int) -> str:
    """Returns a run by its number, or by its generation if the number was not recorded."""
    return f"run {run}" if run else f"run of generation {generation}"


def restored_at(head: Head, checkpoint_id: int) -> int | None:
    """Returns the checkpoint whose state a restore has given to the one with this id; None if no restore has."""
    return next((step.base or None for step in head.entry.ancestry.restores if step.seq == checkpoint_id), None)


def list_pins(job_root: str) -> tuple[PinReport, ...]:
    """Returns the pins of checkpoints; a pin without an end whose owner was killed stays until it is dropped."""
    return _pins(open_root(job_root).head())


def _pins(head: Head) -> tuple[PinReport, ...]:
    return tuple(PinReport(p.id, p.checkpoint.id, p.owner, p.reason, p.since, p.until) for p in head.entry.pinned)


def _claimed(root: JobRoot, head: Head) -> tuple[Claimed, ...]:
    own = f"{root.storage.uri.rstrip('/')}/"
    return tuple(
        Claimed(c.name, f"{own if c.folder.startswith(SAVEPOINTS) else ''}{c.folder}".rstrip("/"), c.checkpoint)
        for c in head.entry.claimed_savepoints
    )


def _origin(root: JobRoot) -> str:
    """Returns the origin as text; without names if the history no longer has the first record of the job root."""
    job = root.job
    if not job.forked_from:
        return ""
    record = read_origin(root.storage)
    if job.begun_with:
        at = record.text("target_label") if record else ""
        return f"begun with {at or f'the savepoint at {job.begun_with}'}"
    kind = "a shadow fork of" if job.shadow else "a fork of"
    parent = record.text("parent_job") if record else ""
    if record is None or not parent:
        return f"{kind} {job.forked_from}"
    return f"{kind} {parent} at {record.text('target_label') or job.forked_from}"


def _background(root: JobRoot, head: Head) -> tuple[BackgroundFailure, ...]:
    records = background_failures(root.storage, head.entry.generation)
    return tuple(
        BackgroundFailure(r.text("work"), r.seq, r.number("failures") or 0, r.ended_at, r.text("code"), r.reason)
        for r in records
    )


def _failure(record: ActionRecord | None) -> RunFailure | None:
    if record is None:
        return None
    return RunFailure(record.seq, record.ended_at, record.text("code"), record.reason)


def read_newest_manifest(root: JobRoot, head: Head) -> Manifest | None:
    """Returns the manifest of the checkpoint of `head`; None without one, or if it is damaged, which is logged.

    Raises MissingFile if a newer entry has released it.
    """
    try:
        return root.checkpoints.manifest_at(head)
    except DataError as e:
        if root.is_released(head, e):
            raise
        # The rest of the status does not need the manifest; `stateflow verify` reports the damage.
        log.warning("the status omits skipped files, waiting rows and `drained`: the manifest cannot be read: %s", e)
        return None


def _of_manifest(manifest: Manifest | None) -> tuple[tuple[Quarantined, ...], int, bool]:
    if manifest is None:
        return (), 0, False
    found = tuple(map(Quarantined.of, manifest.quarantined))
    return found, manifest.quarantined_count, manifest.drained


def _restoring(root: JobRoot, head: Head) -> PendingRestore | None:
    rewind = head.entry.rewind
    if rewind is None:
        return None
    facts = rewind.restore
    tables = {uid: intent.to_version for uid, intent in sorted(rewind.sinks.items())}
    restored = tuple(uid for uid in find_restored_tables(root.storage, rewind.seq) if tables.get(uid) is not None)
    if facts is None:
        return PendingRestore(rewind.seq, head.checkpoint_label, "", "", "", "", tables, restored)
    people = facts.by, facts.requested_by
    return PendingRestore(rewind.seq, facts.label, *people, facts.reason, facts.at, tables, restored)


def measure_backlog(job_root: str, code: JobCode) -> JobBacklog:
    """Returns how much input waits after a job's newest checkpoint, also while no run is active; starts no Spark.

    A source that fails, or does not answer in time, is not an error: its backlog is unknown and says why.

    Raises:
        JobDefinitionError, ConfigError: the job file or a setting is invalid, or the job root does not exist.
        DataError: the newest log entry or its manifest is damaged.
        StorageError: the job root cannot be read.
    """
    job = open_existing(code.file, job_root, code.layers)
    root, sources = job.root, {node.uid: node.source for node in job.plan.sources}
    if root.log.read_head() is None:
        return measure(read_positions(sources, None, root.storage), None, root.clock)
    manifest, pending = root.read_kept(lambda h: (root.checkpoints.manifest_at(h), read_pending_records(root, h)))
    rate = rows_per_second(read_records(root.storage, RATE_RECORDS, pending))
    return measure(read_positions(sources, manifest, root.storage), rate, root.clock)


def newest_checkpoint(job_root: str) -> NewestCheckpoint | None:
    """Returns the newest checkpoint, or the one that a restore has made the newest; None before the first one.

    Reads the newest log entry only.

    Raises:
        ConfigError: the job root does not exist.
        StorageError: the storage failed; a retry may succeed.
        DataError: the newest log entry is damaged.
    """
    root = open_root(job_root)
    head = root.log.read_head()
    ref = head.checkpoint if head else None
    return NewestCheckpoint(ref.id, datetime.fromisoformat(ref.at)) if ref else None


def read_input(job_root: str) -> ReadInput | None:
    """Returns how far the sources were read at the newest checkpoint, in event time; None before the first one.

    Reads the newest log entry and the manifest of its checkpoint.

    Raises:
        ConfigError: the job root does not exist.
        StorageError: the storage failed; a retry may succeed.
        DataError: the newest log entry or the manifest is damaged.
    """
    root = open_root(job_root)
    head = root.log.read_head()
    while head is not None:
        try:
            return _read_input(root, head)
        except MissingFile:
            # A newer checkpoint may have released this one, and a collection deleted its manifest.
            newer = root.log.read_head()
            if newer == head:
                raise
            head = newer
    return None


def _read_input(root: JobRoot, head: Head) -> ReadInput | None:
    manifest = root.checkpoints.manifest_at(head)
    return ReadInput(head.checkpoint_id, manifest.watermarks) if manifest else None
