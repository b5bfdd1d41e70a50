"""Garbage collection of a job root, and the reasons why its files are kept or deleted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from stateflow import failpoints
from stateflow.checkpoint.garbage_collector import Collector, FileStatus
from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.log.transitions import drop_expired
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, list_savepoints
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.errors import ConfigError, CorruptFile, MissingFile
from stateflow.helpers import DaemonExecutor
from stateflow.operations.job_root import open_root
from stateflow.operations.savepoint_retention import divide_savepoints
from stateflow.outputs import Inline
from stateflow.storage import BlobInfo, open_storage
from stateflow.storage.paths import SAVEPOINTS


@dataclass(frozen=True)
class GarbageReport:
    """Result of a garbage collection, or of its dry run.

    Attributes:
        job: name of the job.
        head_seq: sequence number of the log entry that decided what is garbage.
        retained_checkpoint_ids: ids of the retained checkpoints.
        deleted_files: number of deleted files.
        freed_bytes: size of the deleted files.
        unknown_keys: keys that stateflow does not recognise and does not delete.
        dry_run: whether nothing was deleted.
    """

    job: str
    head_seq: int
    retained_checkpoint_ids: tuple[int, ...]
    deleted_files: int
    freed_bytes: int
    unknown_keys: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True)
class RetentionReport:
    """Result of a task that applies a retention and then collects garbage, or of its preview.

    Attributes:
        collected: what the collection has deleted.
        deleted_savepoints: names of the deleted savepoints: the one that a user has named, then the periodic ones,
            oldest first.
        kept_savepoints: names of the other savepoints of the job root.
        savepoints_freed_bytes: size of the deleted savepoints.
    """

    collected: Inline[GarbageReport]
    deleted_savepoints: tuple[str, ...]
    kept_savepoints: tuple[str, ...]
    savepoints_freed_bytes: int


@dataclass(frozen=True)
class RetentionOrder:
    """Who applies a retention, and why.

    Attributes:
        by: who applies or approved it; empty for this process.
        requested_by: who requested it, if another person approved it.
        reason: why.
        note: what the person entered who approved it.
    """

    by: str = ""
    requested_by: str = ""
    reason: str = ""
    note: str = ""


def collect_garbage(
    job_root: str,
    *,
    retain: int | None = None,
    upto: int | None = None,
    dry_run: bool = False,
    order: RetentionOrder = RetentionOrder(),
) -> GarbageReport:
    """Deletes files that nothing refers to; safe while a run or another collection is active.

    Args:
        retain: number of checkpoints to keep, until the next run applies its own setting; None for no change.
        upto: id of the newest checkpoint that may be released, such as the newest one approved; None for any.
        dry_run: whether nothing is deleted.
        order: who applies the retention, and why; for the record of it.
    """
    root = open_root(job_root)
    if dry_run:
        found = Collector(root).preview(retain)
    else:
        # An entry decides that a pin is over, and so what is garbage: not the clock of a collector.
        root.admin.end_leases()
        if retain is not None:
            # Before the checkpoints are released: a kill in between loses neither who did it nor why. Only
            # recorded checkpoints are released, although a run may make further ones meanwhile.
            newest = _record_retention(root, retain, upto, order)
            failpoints.hit("gc.recorded")
            root.admin.retain(retain, newest)
        found = Collector(root).collect()
    return GarbageReport(
        root.job.job, found.head_seq, found.retained, found.files, found.bytes_freed, found.unknown, found.dry_run
    )


def _record_retention(root: JobRoot, retain: int, upto: int | None, order: RetentionOrder) -> int:
    """Stores in the job's history which checkpoints a retention releases; nothing if it releases none.

    Returns the id of the newest one that it releases; 0 if it releases none.
    """
    head = root.head()
    released = root.admin.released(head, retain, upto) if retain >= 1 else []
    if not released:
        return 0
    record = ActionRecord(
        seq=head.entry.seq,
        kind="retention",
        ended_at=root.clock.now().isoformat(timespec="milliseconds"),
        by=order.by or root.requester,
        requested_by=order.requested_by,
        reason=order.reason,
        note=order.note,
        facts={"retain": retain, "checkpoints": len(released), "upto_checkpoint_id": released[-1].id},
    )
    # A repetition after a kill, at the same entry and by the same person, has the record of the first attempt.
    unique = hashlib.sha256(f"{record.by} {retain} {released[-1].id}".encode()).hexdigest()[:12]
    write_action(root.storage, record, unique)
    return released[-1].id


def explain_files(job_root: str) -> list[FileStatus]:
    """Returns for every object of a job root whether it is kept, and for what; changes nothing."""
    root = open_root(job_root)
    # Listed first: an object that a run stores concurrently is not explained.
    return Collector(root).explain(root.storage.list(""))


def can_delete(job_root: str, path: str) -> FileStatus:
    """Returns whether one object is kept, and for what.

    Args:
        path: path relative to the job root or to the working directory, an absolute path, or a URI.

    Raises:
        ConfigError: the object does not exist, or is not in the job root.
    """
    root = open_root(job_root)
    key = _key_below(root, path)
    size = root.storage.size(key)
    if size is None:
        raise ConfigError(
            "the file does not exist in the job root",
            hint="give its path in the job root, as `stateflow gc --dry-run --files` shows it, an absolute path, or a "
            "URI",
            path=path,
            root=root.storage.uri,
        )
    (found,) = Collector(root).explain([BlobInfo(key, size)])
    return found


def _key_below(root: JobRoot, path: str) -> str:
    folder = root.storage.local_path("x")
    if "://" in path:
        uri, below = open_storage(path).uri, f"{root.storage.uri.rstrip('/')}/"
        if uri.startswith(below):
            return unquote(uri.removeprefix(below))
    elif folder is not None and (path.startswith("/") or os.path.exists(path)):
        # Symbolic links are resolved on both sides: a shell may complete a path with or without them.
        file = Path(path).resolve()
        if file.is_relative_to(folder.parent.resolve()):
            return file.relative_to(folder.parent.resolve()).as_posix()
    if "://" in path or path.startswith("/"):
        raise ConfigError(
            "the file is not in this job root", hint="name a file below the root", path=path, root=root.storage.uri
        )
    return path


_MOST_CHECKPOINTS = 200
_MOST_SAVEPOINTS = 200
_READERS = 8


@dataclass(frozen=True)
class RetentionEffect:
    """What a retention would delete.

    Attributes:
        checkpoints: ids of the checkpoints that could no longer be restored, oldest first. Pinned ones stay.
        savepoints: names of the periodic savepoints, oldest first; None if the job root has too many to read them.
        freed_bytes: size of their files that nothing else needs; None if it is not known: the job has too many
            checkpoints or savepoints, or a manifest is damaged. Garbage that is deleted with them is not counted.
    """

    checkpoints: tuple[int, ...]
    savepoints: tuple[str, ...] | None
    freed_bytes: int | None


def preview_retention(root: JobRoot, retain: int | None, rule: SavepointRule) -> RetentionEffect:
    """Returns what a retention would delete; changes nothing, and reads at most 200 manifests and 200 savepoints.

    Args:
        root: the job root.
        retain: number of checkpoints to keep; None for no change.
        rule: the limits of periodic savepoints.

    Raises:
        DataError: the log is damaged.
        StorageError: the job root cannot be read.
    """
    expired: list[StoredSavepoint] | None = None
    if rule == SavepointRule():
        expired = []
    elif len(folders := root.storage.folders(SAVEPOINTS)) <= _MOST_SAVEPOINTS:
        expired, _, _ = divide_savepoints(root, list_savepoints(root.storage, names=folders), rule)
    gone, released_bytes = root.read_kept(lambda head: _released(root, head, retain))
    names = None if expired is None else tuple(s.document.name for s in expired)
    if expired is None or released_bytes is None:
        return RetentionEffect(gone, names, None)
    return RetentionEffect(gone, names, released_bytes + sum(s.size for s in expired))


def _released(root: JobRoot, head: Head, retain: int | None) -> tuple[tuple[int, ...], int | None]:
    """Returns the checkpoints that a number of checkpoints to keep releases, and the size of what only they have."""
    refs = root.checkpoints.restorable(head)
    beyond = refs[:-retain] if retain is not None else []
    pinned = {pin.checkpoint.id for pin in drop_expired(head.entry.pinned, root.clock.now().isoformat())}
    gone = [ref for ref in beyond if ref.id not in pinned]
    ids = tuple(ref.id for ref in gone)
    if not gone:
        return ids, 0
    kept = {ref.id: ref for ref in root.checkpoints.list_kept(head) if ref.id not in ids}
    if len(gone) + len(kept) > _MOST_CHECKPOINTS:
        return ids, None
    try:
        released, needed = (_files_of(root, refs) for refs in (gone, kept.values()))
    except (MissingFile, CorruptFile) as e:
        if root.is_released(head, e):
            raise
        return ids, None
    return ids, sum(size for key, size in released.items() if key not in needed)


def _files_of(root: JobRoot, refs: Iterable[EntryRef]) -> dict[str, int]:
    """Returns the size of each file that checkpoints refer to, with their manifests, by key."""
    refs = list(refs)
    with DaemonExecutor(_READERS) as pool:
        manifests = list(pool.map(root.checkpoints.manifest_of, refs))
    found = {file.key: file.size for manifest in manifests for file in files_of(manifest)}
    return found | {ref.manifest.key: ref.manifest.size for ref in refs}
