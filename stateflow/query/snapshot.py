"""Opens a checkpoint or a savepoint for reading, outside of a run and concurrently with one."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Manifest, OperatorState, Pin
from stateflow.checkpoint.log.job_root import LEASE, JobRoot, hold_lease
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.restore.targets import Target, find_kept_checkpoint, resolve_target
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, read_savepoint, savepoint_uri
from stateflow.checkpoint.savepoints.create import replace_keys
from stateflow.checkpoint.savepoints.names import LATEST
from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError
from stateflow.helpers import did_you_mean
from stateflow.requesters import by_process
from stateflow.storage import Storage, open_location, open_storage
from stateflow.storage.paths import FORMAT

_CHECKPOINT = re.compile(r"[0-9]{1,18}")
"""Attempts to pin the newest checkpoint: a run may release it between the read of the log and the pin."""


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint or savepoint whose files can be read.

    Attributes:
        storage: the storage with its files.
        manifest: its files and operators; the keys of files are keys of `storage`.
        job: name of the job.
        job_uuid: uuid of the job.
        max_parallelism: number of key groups.
        checkpoint_id: id of the checkpoint, or of the checkpoint that the savepoint was made from.
        name: name of the savepoint; empty for a checkpoint.
    """

    storage: Storage
    manifest: Manifest
    job: str
    job_uuid: str
    max_parallelism: int
    checkpoint_id: int
    name: str = ""

    @property
    def label(self) -> str:
        """Its kind and id or name, for display."""
        return f"savepoint {self.name}" if self.name else f"checkpoint {self.checkpoint_id}"

    def operator(self, uid: str) -> OperatorState:
        """Returns the state of an operator. Raises ConfigError with the uids found when it has none."""
        found = {operator.uid: operator for operator in self.manifest.operators}
        if uid not in found:
            raise ConfigError(
                f"the {self.label} has no state of such an operator",
                hint=did_you_mean(uid, found) if found else "no operator of the job has state",
                uid=uid,
                found=sorted(found),
            )
        return found[uid]


@contextmanager
def open_snapshot(location: str, snapshot: int | str | None = None, clock: Clock | None = None) -> Iterator[Snapshot]:
    """Opens a checkpoint or savepoint for the time of a ``with`` block.

    A checkpoint is pinned in the job's log within the block, so that no collection deletes its files. The pin has an
    end, which a thread renews: a reader that is killed leaves none for longer than `LEASE`. A savepoint has no pin: it
    stays until a user or its owner deletes it.

    Args:
        location: a job root, or the folder of a savepoint; a path or URI.
        snapshot: in a job root, the id of a retained or pinned checkpoint, the name or path of a savepoint, or another
            target of a restore, such as ``latest`` or ``before:TIME``; None for the newest checkpoint. For the folder
            of a savepoint, None, or its name or checkpoint id.
        clock: gives ids and timestamps; the system's by default.

    Raises:
        ConfigError: the location is neither a job root nor the folder of a complete savepoint, or has no such
            checkpoint or savepoint; the error lists the existing ones.
        MissingFile, CorruptFile: the manifest, or the savepoint's document, is missing or damaged; or the block has
            missed a file after the pin has ended, because the process was suspended or the clocks of hosts differ.
    """
    found = open_job_or_savepoint(location, clock)
    if isinstance(found, StoredSavepoint):
        yield _only_savepoint(found, snapshot)
        return
    target, pin = _resolve(found, snapshot, pins=True)
    with hold_lease(found, pin) if pin else nullcontext():
        yield _snapshot_of(found, target)


def describe_snapshot(location: str, snapshot: int | str | None = None, clock: Clock | None = None) -> Snapshot:
    """Returns a checkpoint or savepoint without a pin: its manifest is read, its files may be deleted at any time.

    Arguments and errors as for `open_snapshot`.
    """
    found = open_job_or_savepoint(location, clock)
    if isinstance(found, StoredSavepoint):
        return _only_savepoint(found, snapshot)
    target, _ = _resolve(found, snapshot, pins=False)
    return _snapshot_of(found, target)


def open_job_or_savepoint(location: str, clock: Clock | None = None) -> JobRoot | StoredSavepoint:
    """Returns what a location contains: a job root, or a savepoint in its folder.

    Raises ConfigError when it contains neither; CorruptFile for a damaged savepoint.
    """
    uri = savepoint_uri(location)
    storage = open_storage(uri)
    if storage.size(FORMAT) is not None:
        return JobRoot.open(storage, clock or SystemClock(), f"{socket.gethostname()}:{os.getpid()}")
    stored = read_savepoint(open_location(uri), "")
    if stored is None:
        raise ConfigError(
            "the location is neither a job root nor the folder of a complete savepoint",
            hint="a job root contains the file FORMAT, the folder of a savepoint the file _savepoint",
            location=uri,
        )
    return stored


def savepoint_snapshot(stored: StoredSavepoint) -> Snapshot:
    """Returns a stored savepoint as a snapshot."""
    document = stored.document
    keys = {file.key: f"{stored.folder}{file.key}" for file in files_of(document.manifest)}
    return Snapshot(
        stored.storage,
        replace_keys(document.manifest, keys),
        document.job,
        document.job_uuid,
        document.max_parallelism,
        document.checkpoint_id,
        document.name,
    )


def _only_savepoint(stored: StoredSavepoint, snapshot: int | str | None) -> Snapshot:
    found = savepoint_snapshot(stored)
    if snapshot not in (None, found.name, found.checkpoint_id, str(found.checkpoint_id)):
        raise ConfigError(
            "the folder contains another savepoint",
            hint="leave the snapshot out, or give the job root as the location",
            location=stored.uri,
            wanted=snapshot,
            found=found.name,
            checkpoint_id=found.checkpoint_id,
        )
    return found


def _snapshot_of(root: JobRoot, target: Target) -> Snapshot:
    if target.savepoint is not None:
        return savepoint_snapshot(target.savepoint)
    job = root.job
    return Snapshot(root.storage, target.manifest, job.job, job.job_uuid, job.max_parallelism, target.checkpoint_id)


def _resolve(root: JobRoot, snapshot: int | str | None, pins: bool) -> tuple[Target, Pin | None]:
    """Returns the target and, for a checkpoint if `pins`, its pin."""

    def find(head: Head) -> tuple[Target, Pin | None]:
        target = _find(root, head, snapshot)
        if target.ref is None or not pins:
            return target, None
        return target, root.admin.pin(target.ref, by_process(root.writer), "reading state", lease=LEASE)

    return root.read_kept(find)


def _find(root: JobRoot, head: Head, snapshot: int | str | None) -> Target:
    text = LATEST if snapshot is None else str(snapshot)
    if not _CHECKPOINT.fullmatch(text):
        return resolve_target(root, head, text)
    return find_kept_checkpoint(root, head, int(text), "use one of the ids kept, or the name of a savepoint")
