"""Deletion of periodic savepoints by a retention rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.documents import ActionRecord, Origin
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, list_savepoints, read_savepoint
from stateflow.checkpoint.savepoints.claim_slots import Disposal, is_claimed
from stateflow.checkpoint.savepoints.cleanup import (
    SavepointRule,
    dispose_savepoint,
    find_expired_savepoints,
    find_uncounted_savepoints,
)
from stateflow.errors import SavepointClaimed
from stateflow.operations.job_root import open_root


@dataclass(frozen=True)
class PruneReport:
    """Result of applying a retention rule, or of its dry run.

    Attributes:
        job: name of the job.
        deleted: names of the deleted periodic savepoints, oldest first.
        kept: names of the other savepoints of the job root.
        uncounted: paths of savepoints that were neither deleted nor counted: their folder was renamed, their id is that
            of another savepoint, they were made in the future, or a job has claimed them.
        freed_bytes: size of the deleted ones.
        dry_run: whether nothing was deleted.
    """

    job: str
    deleted: tuple[str, ...]
    kept: tuple[str, ...]
    freed_bytes: int
    dry_run: bool
    uncounted: tuple[str, ...] = ()


def prune_savepoints(
    job_root: str,
    rule: SavepointRule,
    *,
    dry_run: bool = False,
    by: str = "",
    only: Collection[str] | None = None,
    without: str = "",
) -> PruneReport:
    """Deletes the periodic savepoints that a rule expires, and no others; see `checkpoint.savepoints.retention`.

    Args:
        job_root: the job root.
        rule: the limits.
        dry_run: whether nothing is deleted.
        by: who deletes them; empty for this process.
        only: names of savepoints that may be deleted, such as the approved ones; None for any.
        without: folder, as in `StoredSavepoint`, of a savepoint that is to be deleted otherwise: it is not counted.
    """
    root = open_root(job_root)
    found = [s for s in list_savepoints(root.storage) if s.folder != without]
    expired, kept, uncounted = divide_savepoints(root, found, rule, only)
    for savepoint in [] if dry_run else expired:
        _dispose(root, savepoint, by)
    return PruneReport(
        root.job.job,
        tuple(s.document.name for s in expired),
        tuple(s.document.name for s in kept),
        sum(s.size for s in expired),
        dry_run,
        tuple(s.uri for s in uncounted),
    )


def divide_savepoints(
    root: JobRoot, found: Sequence[StoredSavepoint], rule: SavepointRule, only: Collection[str] | None = None
) -> tuple[list[StoredSavepoint], list[StoredSavepoint], list[StoredSavepoint]]:
    """Returns the savepoints of a job root that a rule expires, those that it keeps, and those that it does not count.

    Args:
        root: the job root.
        found: its savepoints.
        rule: the limits.
        only: names of savepoints that may expire; None for any.
    """
    now = root.clock.now()
    # Not by id: another user may have planted a document with the id of a manual savepoint.
    uncounted = {s.folder for s in find_uncounted_savepoints(found, now)}
    uncounted |= {s.folder for s in found if s.document.origin is Origin.PERIODIC and is_claimed(s.storage, s.folder)}
    stored = [s for s in found if s.folder not in uncounted]
    expired = find_expired_savepoints(stored, root.job.job_uuid, rule, now)
    expired = [s for s in expired if only is None or s.document.name in only]
    folders = {s.folder for s in expired}
    return expired, [s for s in stored if s.folder not in folders], [s for s in found if s.folder in uncounted]


def _dispose(root: JobRoot, savepoint: StoredSavepoint, by: str) -> None:
    # By its folder, which no other savepoint has ever used, not even one of the same name.
    if read_savepoint(root.storage, savepoint.folder) is None:
        return  # deleted by a concurrent retention
    now, document = root.clock.now().isoformat(timespec="milliseconds"), savepoint.document
    record = ActionRecord(
        seq=root.head().entry.seq,
        kind="dispose",
        ended_at=now,
        by=by or root.requester,
        reason="retention",
        size_bytes=savepoint.size,
        facts={"savepoint": document.name, "savepoint_id": document.id},
    )
    # A savepoint that was claimed concurrently stays: the job deletes it.
    with suppress(SavepointClaimed):
        disposal = Disposal(by or root.requester, now)
        dispose_savepoint(savepoint, disposal, lambda: write_action(root.storage, record, document.id))
