"""Deletion of periodic savepoints by a retention rule."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.records import ActionRecord
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, find_savepoint, list_savepoints
from stateflow.checkpoint.savepoints.cleanup import dispose_savepoint
from stateflow.checkpoint.savepoints.retention import SavepointRule, expired_savepoints
from stateflow.operations.job_root import open_root
from stateflow.requesters import by_process


@dataclass(frozen=True)
class PruneReport:
    """Result of applying a retention rule, or of its dry run.

    Attributes:
        deleted: names of the deleted periodic savepoints, oldest first.
        kept: names of all other savepoints of the job root.
    """

    job: str
    deleted: tuple[str, ...]
    kept: tuple[str, ...]
    bytes_freed: int
    dry_run: bool


def prune_savepoints(job_root: str, rule: SavepointRule, *, dry_run: bool = False, by: str = "") -> PruneReport:
    """Deletes the periodic savepoints that a rule expires, and no others; see `checkpoint.savepoints.retention`."""
    root = open_root(job_root)
    # A folder that a user copied or renamed is not deleted.
    stored = [s for s in list_savepoints(root.storage) if s.is_original]
    expired = expired_savepoints([s.document for s in stored], root.job.job_uuid, rule, root.clock.now())
    ids = {s.id for s in expired}
    freed = 0
    for savepoint in [s for s in stored if s.document.id in ids]:
        freed += savepoint.size
        if not dry_run:
            _dispose(root, savepoint, by)
    kept_names = tuple(s.document.name for s in stored if s.document.id not in ids)
    return PruneReport(root.job.job, tuple(s.name for s in expired), kept_names, freed, dry_run)


def _dispose(root: JobRoot, savepoint: StoredSavepoint, by: str) -> None:
    # By its folder, which no other savepoint has ever used, not even one of the same name.
    folder = savepoint.folder_name
    if find_savepoint(root.storage, folder) is None:
        return  # deleted by a concurrent retention
    dispose_savepoint(root, folder)
    document = savepoint.document
    write_action(
        root.storage,
        ActionRecord(
            seq=root.head().entry.seq,
            kind="dispose",
            at=root.clock.now().isoformat(timespec="milliseconds"),
            by=by or by_process(root.writer),
            reason="retention",
            bytes=savepoint.size,
            facts={"savepoint": document.name, "id": document.id},
        ),
        document.id,
    )
