"""Deletion of savepoints, inside and outside of a job root."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote, urlsplit

from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.records import ActionRecord
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, savepoint_uri
from stateflow.checkpoint.savepoints.cleanup import dispose_damaged, dispose_external, dispose_savepoint
from stateflow.operations.job_root import now, open_root
from stateflow.operations.savepoints import SavepointReport, describe_savepoint
from stateflow.requesters import by_process
from stateflow.storage import open_location, open_storage
from stateflow.storage.paths import FORMAT, SAVEPOINTS


def dispose(job_root: str, name: str, by: str = "", reason: str = "") -> SavepointReport:
    """Deletes a savepoint in a job root, by its name or folder; a damaged one by its folder.

    Raises ConfigError when it does not exist.
    """
    root = open_root(job_root)
    freed = dispose_damaged(root, name)
    if freed is None:
        deleted = describe_savepoint(dispose_savepoint(root, name))
    else:
        deleted = _unreadable(name, f"{root.storage.uri}/{SAVEPOINTS}{name}", root.job.job, freed)
    head = root.log.read_head()
    record = ActionRecord(
        seq=head.entry.seq if head else 0,
        kind="dispose",
        at=now(root),
        by=by or by_process(root.writer),
        reason=reason,
        bytes=deleted.bytes,
        facts={"savepoint": deleted.name, "id": deleted.id},
    )
    write_action(root.storage, record, root.clock.new_id())
    return deleted


def _unreadable(name: str, path: str, job: str, freed: int) -> SavepointReport:
    """Returns the report of a deleted savepoint whose document could not be read."""
    return SavepointReport(
        name=name, id="", path=path, job=job, checkpoint_id=0, offsets={}, bytes=freed, origin="", made_at=""
    )


def dispose_path(path: str, by: str = "", reason: str = "") -> SavepointReport:
    """Deletes the savepoint at a path or URI. In a job root this is the same as `dispose` by name.

    Raises ConfigError when it does not exist.
    """
    storage = open_location(savepoint_uri(path))
    job_root, _, folder = storage.uri.rpartition(f"/{SAVEPOINTS}")
    if job_root and "/" not in folder and open_storage(job_root).size(FORMAT) is not None:
        return dispose(job_root, folder, by, reason)
    uri = storage.uri.rstrip("/")
    parent, _, name = uri.rpartition("/")
    # Through the parent folder, so that the empty folder is deleted as well; the root of a bucket has no parent.
    name = unquote(name) if uri.startswith("file:") else name
    location = (open_storage(parent), f"{name}/") if urlsplit(parent).path.strip("/") else (storage, "")
    document, freed = dispose_external(*location)
    if document is None:
        return _unreadable(name, uri, job="", freed=freed)
    return replace(describe_savepoint(StoredSavepoint(*location, document, "")), bytes=freed)
