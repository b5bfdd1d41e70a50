"""What can be asked of, and done to, a job root: one implementation for the command line and for Airflow."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from stateflow.checkpoint.ancestry import came_from
from stateflow.checkpoint.collector import Collector, FileFate
from stateflow.checkpoint.documents import Manifest, Pin, SourcePosition
from stateflow.checkpoint.files import check_stored, files_of, state_bytes
from stateflow.checkpoint.history import (
    ActionRecord,
    CheckpointRecord,
    Record,
    background_failures,
    beginning,
    read_history,
    read_records,
    run_failure,
    write_action,
)
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.replay import is_run_open
from stateflow.checkpoint.retention import SavepointRule, expired_savepoints
from stateflow.checkpoint.savepoint_cleanup import dispose_savepoint
from stateflow.checkpoint.stored_savepoints import StoredSavepoint, find_savepoint, list_savepoints
from stateflow.checkpoint.untold import told_at
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError
from stateflow.storage import BlobInfo, Storage, open_storage
from stateflow.storage.paths import FORMAT

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GarbageReport:
    """What a collection deleted, or would delete."""

    job: str
    head_seq: int
    retained: tuple[int, ...]
    files: int
    bytes_freed: int
    unknown: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True)
class PendingRestore:
    """A restore that was begun, and of which not every table is known to be back.

    Attributes:
        seq: of the CLAIM that brought it; the token of every table that is back.
        tables: by uid of the sink: the version to go back to; None for a table that keeps its content.
    """

    seq: int
    to: str
    by: str
    reason: str
    at: str
    tables: dict[str, int | None]


@dataclass(frozen=True)
class BackgroundFailure:
    """One kind of background work that failed in the newest run.

    Attributes:
        work: ``collection``, ``history``, ``request_watch`` or ``cleanup``.
        generation: that of the run.
        failures: how many tries failed, up to the last record of that.
        at: when the last one of these failed.
        code: of its error.
        message: the error's sentence.
    """

    work: str
    generation: int
    failures: int
    at: str
    code: str
    message: str


@dataclass(frozen=True)
class RunFailure:
    """The error that the newest run ended with.

    Attributes:
        generation: that of the run.
        at: when it failed.
        code: of the error.
        message: the error's sentence.
    """

    generation: int
    at: str
    code: str
    message: str


@dataclass(frozen=True)
class Quarantined:
    """A corrupt input file that a run skipped as a whole."""

    source: str
    file: str
    error: str
    at: str
    generation: int


@dataclass(frozen=True)
class JobDescription:
    """Where a job stands.

    Attributes:
        offsets: by uid of the source: up to where it was read, as the source writes it.
        forked_from: job uuid and checkpoint, or a savepoint's id; empty for a job that is no fork.
        background: background work of the newest run that failed.
        quarantined: corrupt input files that were skipped, oldest first; the newest ones when there are many.
        quarantined_count: how many were skipped.
        drained: whether the newest checkpoint was drained: its timers fired before their time.
        origin: in words, what a fork was made from, or a job root began with; empty for any other job.
        run_open: whether the newest run has not ended in good order: it works, was killed, or failed.
        failure: the error that the newest run ended with; None for one that did not record any.
    """

    job: str
    job_uuid: str
    generation: int
    head_seq: int
    checkpoint_id: int
    stands_at: str
    retained: tuple[int, ...]
    pinned: tuple[str, ...]
    offsets: dict[str, str]
    forked_from: str
    shadow: bool
    restoring: PendingRestore | None
    background: tuple[BackgroundFailure, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    quarantined_count: int = 0
    drained: bool = False
    origin: str = ""
    run_open: bool = False
    failure: RunFailure | None = None


def collect_garbage(job_root: str, *, retain: int | None = None, dry_run: bool = False) -> GarbageReport:
    """Deletes what nothing needs any more; safe beside a run, and beside other collections.

    Args:
        retain: keep only this many checkpoints, from now on until the next run's own setting; None keeps them all.
    """
    root = _open(job_root)
    if dry_run:
        found = Collector(root).preview(retain)
    else:
        if retain is not None:
            root.retain(retain)
        found = Collector(root).collect()
    return GarbageReport(root.job.job, found.head_seq, found.retained, found.files, found.bytes_freed, found.unknown,
                         found.dry_run)  # fmt: skip


@dataclass(frozen=True)
class OperatorDescription:
    """The state of one operator in a checkpoint."""

    uid: str
    subtasks: int
    files: int
    bytes: int
    states: tuple[str, ...]


@dataclass(frozen=True)
class CheckpointDescription:
    """What a checkpoint consists of."""

    checkpoint_id: int
    generation: int
    ordinal: int
    committed_at: str
    offsets: dict[str, str]
    operators: tuple[OperatorDescription, ...]


def describe_checkpoint(job_root: str, checkpoint_id: int) -> CheckpointDescription:
    """One checkpoint that is kept. Raises ConfigError for another one, MissingFile or CorruptFile for a damaged one."""
    root = _open(job_root)
    refs = {ref.id: ref for ref in root.kept(root.head())}
    if checkpoint_id not in refs:
        raise ConfigError("there is no such checkpoint, or not any more", hint=f"kept are {sorted(refs)}",
                          checkpoint=checkpoint_id)  # fmt: skip
    ref = root.resolved(refs[checkpoint_id])
    manifest = root.manifest_of(ref)
    return CheckpointDescription(
        checkpoint_id, manifest.generation, manifest.ordinal, ref.at, _offsets(manifest.sources),
        tuple(OperatorDescription(
            o.uid, len(o.subtasks), len(o.files), state_bytes([o]), tuple(s.name for s in o.states)
        ) for o in manifest.operators),
    )  # fmt: skip


def explain_files(job_root: str) -> list[FileFate]:
    """What becomes of every object of a job root, and who needs it; changes nothing."""
    root = _open(job_root)
    # Listed first: what a run stores meanwhile need not be explained.
    return Collector(root).explain(root.storage.list(""))


def can_delete(job_root: str, path: str) -> FileFate:
    """What becomes of one object.

    Args:
        path: relative to the job root, or to the working folder, or a whole path or address.

    Raises ConfigError for one that is not below the job root, or not there.
    """
    root = _open(job_root)
    key = _key_below(root, path)
    size = root.storage.size(key)
    if size is None:
        raise ConfigError("there is no such file in the job root", hint="give its path below the job root, as "
                          "`stateflow gc --dry-run --files` does, or a whole path or address",
                          path=path, root=root.storage.uri)  # fmt: skip
    (found,) = Collector(root).explain([BlobInfo(key, size)])
    return found


def _key_below(root: JobRoot, path: str) -> str:
    folder = root.storage.local_path("x")
    if "://" in path:
        uri, below = open_storage(path).uri, f"{root.storage.uri.rstrip('/')}/"
        if uri.startswith(below):
            return unquote(uri.removeprefix(below))
    elif folder is not None and (path.startswith("/") or os.path.exists(path)):
        # Without the symbolic links that lead there: a shell completes a path with them, or tells one without.
        file = Path(path).resolve()
        if file.is_relative_to(folder.parent.resolve()):
            return file.relative_to(folder.parent.resolve()).as_posix()
    if "://" in path or path.startswith("/"):
        raise ConfigError("the file is not in this job root", path=path, root=root.storage.uri)
    return path


@dataclass(frozen=True)
class PruneReport:
    """Periodic savepoints that were deleted, or would be, oldest first."""

    job: str
    deleted: tuple[str, ...]
    kept: tuple[str, ...]
    bytes_freed: int
    dry_run: bool


def prune_savepoints(
    job_root: str, rule: SavepointRule, *, dry_run: bool = False, by: str = ""
) -> PruneReport:
    """Deletes the periodic savepoints that a rule lets go, and no other; see `checkpoint.retention`."""
    root = _open(job_root)
    # A folder that somebody copied or renamed is that person's.
    stored = [s for s in list_savepoints(root.storage) if s.is_original]
    gone = expired_savepoints([s.document for s in stored], root.job.job_uuid, rule, root.clock.now())
    ids = {s.id for s in gone}
    freed = 0
    for savepoint in [s for s in stored if s.document.id in ids]:
        freed += savepoint.size
        if not dry_run:
            _dispose(root, savepoint, by)
    kept_names = tuple(s.document.name for s in stored if s.document.id not in ids)
    return PruneReport(root.job.job, tuple(s.name for s in gone), kept_names, freed, dry_run)


def _dispose(root: JobRoot, savepoint: StoredSavepoint, by: str) -> None:
    # By its folder: nobody else, also none of the same name, has ever been in there.
    folder = savepoint.place
    if find_savepoint(root.storage, folder) is None:
        return  # another retention was faster
    dispose_savepoint(root, folder)
    document = savepoint.document
    write_action(root.storage, ActionRecord(
        seq=root.head().entry.seq, kind="dispose", at=root.clock.now().isoformat(timespec="milliseconds"),
        by=by or root.writer, reason="retention", bytes=savepoint.size,
        facts={"savepoint": document.name, "id": document.id},
    ), document.id)  # fmt: skip


@dataclass(frozen=True)
class Verification:
    """Files that were read, every one with the size and the hash that are recorded for it."""

    job: str
    what: str
    checkpoint_id: int
    offsets: dict[str, str]
    files: int
    bytes: int


def verify_savepoint(stored: StoredSavepoint) -> Verification:
    """Reads all files of a savepoint. Raises MissingFile or CorruptFile."""
    stored.verify()
    document = stored.document
    return Verification(document.job, stored.label, document.checkpoint_id,
                        _offsets(document.manifest.sources), len(list(stored.files())), stored.size)  # fmt: skip


def verify_head(job_root: str) -> Verification:
    """Reads all files of the state that the next run begins with.

    Raises MissingFile or CorruptFile; DataError when the job has none, or when a restore is not completed.
    """
    root = _open(job_root)
    head = root.head()
    manifest = root.manifest(head)
    if manifest is None:
        raise DataError("the job has no checkpoint yet", hint="run it first", root=job_root)
    if head.entry.rewind is not None:
        raise DataError("a restore is not completed", hint="try it again, or start the job: either completes it",
                        seq=head.entry.seq)  # fmt: skip
    files = {f.key: f for f in files_of(manifest)}
    check_stored(root.storage, files.values())
    return Verification(root.job.job, head.stand, head.checkpoint_id,
                        _offsets(head.entry.sources), len(files), sum(f.size for f in files.values()))  # fmt: skip


def _offsets(positions: list[SourcePosition]) -> dict[str, str]:
    return {p.uid: p.offset for p in positions}


def describe(job_root: str) -> JobDescription:
    """Where a job stands."""
    root = _open(job_root)
    head = root.head()
    pins = tuple(f"{p.id} {p.owner}: {p.reason}" for p in head.entry.pinned)
    return JobDescription(
        root.job.job, root.job.job_uuid, head.entry.generation, head.entry.seq, head.checkpoint_id, head.stand,
        tuple(dict.fromkeys(ref.id for ref in root.kept(head))), pins, _offsets(head.entry.sources),
        root.job.forked_from, root.job.shadow, _restoring(head), _background(root, head),
        *_of_manifest(_newest(root, head)),
        origin=_origin(root), run_open=is_run_open(head), failure=_failure(root, head),
    )  # fmt: skip


def _origin(root: JobRoot) -> str:
    """In words, as far as it is known: the record of how the root began, which may have been trimmed, has the names."""
    job = root.job
    if not job.forked_from:
        return ""
    record = beginning(root.storage)
    if job.begun_with:
        at = record.facts.get("at", "") if record else ""
        return f"begun with {at or f'the savepoint at {job.begun_with}'}"
    kind = "a shadow fork of" if job.shadow else "a fork of"
    parent = record.facts.get("parent_job", "").partition(" ")[0] if record else ""
    if record is None or not parent:
        return f"{kind} {job.forked_from}"
    return f"{kind} {parent} at {record.facts.get('at', job.forked_from)}"


def _background(root: JobRoot, head: Head) -> tuple[BackgroundFailure, ...]:
    records = background_failures(root.storage, head.entry.generation)
    return tuple(
        BackgroundFailure(r.facts["work"], r.seq, int(r.facts["failures"]), r.at, r.facts["code"], r.reason)
        for r in records
    )


def _failure(root: JobRoot, head: Head) -> RunFailure | None:
    record = run_failure(root.storage, head.entry.generation)
    if record is None:
        return None
    return RunFailure(record.seq, record.at, record.facts["code"], record.reason)


def _newest(root: JobRoot, head: Head) -> Manifest | None:
    try:
        return root.manifest(head)
    except DataError as e:
        # Where the job stands is known all the same; `stateflow verify` reports the damage.
        log.warning("the skipped input files, and whether the job was drained, are not known: %s", e)
        return None


def _of_manifest(manifest: Manifest | None) -> tuple[tuple[Quarantined, ...], int, bool]:
    if manifest is None:
        return (), 0, False
    found = tuple(Quarantined(q.source, q.file, q.error, q.at, q.generation) for q in manifest.quarantined)
    return found, manifest.quarantined_count, manifest.drained


def _restoring(head: Head) -> PendingRestore | None:
    rewind = head.entry.rewind
    if rewind is None:
        return None
    facts = rewind.restore
    tables = {uid: intent.to_version for uid, intent in sorted(rewind.sinks.items())}
    if facts is None:
        return PendingRestore(rewind.seq, head.stand, "", "", "", tables)
    return PendingRestore(rewind.seq, facts.label, facts.by, facts.reason, facts.at, tables)


def undone(job_root: str, records: Iterable[CheckpointRecord]) -> frozenset[int]:
    """Those of the recorded checkpoints that a restore has left behind."""
    root = _open(job_root)
    head = root.head()
    retained = {ref.id for ref in root.line(head)}
    return frozenset(r.checkpoint_id for r in records if came_from(head, r.checkpoint_id, retained) is False)


def list_pins(job_root: str) -> list[Pin]:
    """Checkpoints that somebody outside reads; one whose reader died stays until it is dropped."""
    return _open(job_root).head().entry.pinned


def drop_pin(job_root: str, pin_id: str) -> None:
    """Removes a pin. Raises ConfigError when there is none with this id."""
    root = _open(job_root)
    if all(pin.id != pin_id for pin in root.head().entry.pinned):
        raise ConfigError("there is no such pin", hint="stateflow pins lists them", pin=pin_id)
    root.unpin(pin_id)


def history(job_root: str, newest: int = 1000) -> list[CheckpointRecord]:
    """Records of the newest checkpoints, also of aborted ones, oldest first; none when there is no job."""
    storage = open_storage(job_root)
    return read_records(storage, newest, _told(storage))


def timeline(job_root: str, newest: int = 1000) -> list[Record]:
    """The newest records of checkpoints and of actions, in order. Raises ConfigError when there is no job."""
    root = _open(job_root)
    return read_history(root.storage, _told(root.storage))[-newest:]


def _told(storage: Storage) -> list[CheckpointRecord]:
    """What only the newest manifest says."""
    if storage.size(FORMAT) is None:
        return []
    root = JobRoot.open(storage, SystemClock())
    head = root.log.read_head()
    return told_at(root, head) if head else []


def require_job(job_root: str) -> None:
    """Raises ConfigError when there is no job: nothing found there would only mean that the path is wrong."""
    _open(job_root)


def _open(job_root: str) -> JobRoot:
    return JobRoot.open(open_storage(job_root), SystemClock(), f"{socket.gethostname()}:{os.getpid()}")
