"""Deletion of savepoints, inside and outside of a job root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from urllib.parse import unquote

from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.catalog import (
    StoredSavepoint,
    find_savepoint,
    folder_at,
    read_savepoint,
    savepoint_uri,
)
from stateflow.checkpoint.savepoints.claim_slots import Disposal
from stateflow.checkpoint.savepoints.cleanup import dispose_damaged, dispose_external, dispose_savepoint
from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, PlanOutdated
from stateflow.operations.job_root import open_root, open_root_in
from stateflow.operations.job_savepoints import SavepointReport, describe_savepoint
from stateflow.requesters import os_user
from stateflow.storage import open_if_allowed, open_location
from stateflow.storage.paths import FORMAT, SAVEPOINTS, savepoint_folder


def dispose(
    job_root: str, name: str, by: str = "", reason: str = "", *, claimed: bool = False, expected_id: str = ""
) -> SavepointReport:
    """Deletes a savepoint in a job root, by its name or folder; a damaged one by its folder.

    Args:
        job_root: URI of the job root.
        name: name or folder of the savepoint.
        by: the user, as in `stateflow.requesters`; empty for this process.
        reason: for the job's history.
        claimed: whether a savepoint that a job has claimed is deleted as well; the job does not need its files.
        expected_id: the id of the savepoint, such as an approved one; empty for any. A damaged one has none.

    Raises:
        ConfigError: it does not exist.
        PlanOutdated: the savepoint of this name has another id than `expected_id`; nothing was changed.
        SavepointClaimed: a job has claimed it, and `claimed` is false.
    """
    root = open_root(job_root)
    disposal = _disposal(root.clock, by or root.requester, claimed)
    if not expected_id:
        return _dispose(root, name, lambda: find_savepoint(root.storage, name), disposal, reason)
    found = find_savepoint(root.storage, name)
    if found and found.document.id != expected_id:
        raise PlanOutdated(
            "another savepoint has this name by now",
            hint="list savepoints: stateflow savepoint list",
            name=name,
            found=found.document.id,
            expected=expected_id,
        )
    return _delete(root, found, name, disposal, reason)


def _dispose(
    root: JobRoot, name: str, find: Callable[[], StoredSavepoint | None], disposal: Disposal, reason: str
) -> SavepointReport:
    """Deletes the damaged savepoint in the folder `name`, else the one that `find` returns."""

    def unreadable(freed: int) -> SavepointReport:
        return _unreadable(name, f"{root.storage.uri}/{SAVEPOINTS}{name}", root.job.job, freed)

    key = savepoint_folder(name)
    freed = dispose_damaged(root, name, disposal, lambda freed: _record(root, unreadable(freed), key, disposal, reason))
    return _delete(root, find(), name, disposal, reason) if freed is None else unreadable(freed)


def _record(root: JobRoot, deleted: SavepointReport, folder: str, disposal: Disposal, reason: str) -> None:
    """Stores the deletion of the savepoint in a folder in the job's history."""
    head = root.log.read_head()
    record = ActionRecord(
        seq=head.entry.seq if head else 0,
        kind="dispose",
        ended_at=disposal.at,
        by=disposal.by,
        reason=reason,
        size_bytes=deleted.size_bytes,
        facts={"savepoint": deleted.name, "savepoint_id": deleted.id},
    )
    # A folder is never used again, and a repeated deletion has the record of the first one.
    write_action(root.storage, record, sha256(folder.encode()).hexdigest())


def _disposal(clock: Clock, by: str, claimed: bool) -> Disposal:
    return Disposal(by, clock.now().isoformat(timespec="milliseconds"), claimed)


def _delete(
    root: JobRoot, stored: StoredSavepoint | None, name: str, disposal: Disposal, reason: str
) -> SavepointReport:
    if stored is None:
        raise ConfigError("the savepoint does not exist", hint="list savepoints: stateflow savepoint list", name=name)
    deleted = describe_savepoint(stored)
    dispose_savepoint(stored, disposal, lambda: _record(root, deleted, stored.folder, disposal, reason))
    return deleted


def _unreadable(name: str, path: str, job: str, freed: int) -> SavepointReport:
    """Returns the report of a deleted savepoint whose document could not be read."""
    return SavepointReport(
        name=name, id="", path=path, job=job, checkpoint_id=0, offsets={}, size_bytes=freed, origin="", made_at=""
    )


def dispose_path(path: str, by: str = "", reason: str = "", *, claimed: bool = False) -> SavepointReport:
    """Deletes the savepoint at a path or URI. In a job root this is the same as `dispose` by folder.

    A job root that the environment does not allow is not opened: only the savepoint's own folder is, and the job's
    history has no record of the deletion.

    Raises:
        ConfigError: it does not exist, or its location is not allowed.
        SavepointClaimed: as `dispose`.
    """
    storage = open_location(savepoint_uri(path))
    job_root, _, folder = storage.uri.rpartition(f"/{SAVEPOINTS}")
    above = open_if_allowed(job_root) if job_root and "/" not in folder else None
    if above and above.size(FORMAT) is not None:
        root = open_root_in(above)
        disposal = _disposal(root.clock, by or root.requester, claimed)
        # By its folder: the name of another savepoint may be the name of this folder.
        return _dispose(root, folder, lambda: read_savepoint(root.storage, savepoint_folder(folder)), disposal, reason)
    location = folder_at(storage.uri)
    document, freed = dispose_external(*location, _disposal(SystemClock(), by or os_user(), claimed))
    if document is None:
        uri = storage.uri.rstrip("/")
        return _unreadable(unquote(uri.rpartition("/")[2]), uri, job="", freed=freed)
    return replace(describe_savepoint(StoredSavepoint(*location, document, "")), size_bytes=freed)
