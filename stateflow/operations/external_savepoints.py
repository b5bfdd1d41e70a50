"""Savepoints outside of their job's root: creation, listing, copies, and the beginning of another job root."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import msgspec

from stateflow import failpoints
from stateflow.checkpoint.job_requests import is_same_request
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.completed_checkpoints import is_released
from stateflow.checkpoint.log.documents import EntryRef, Origin, PublishedOutput, Request, RequestKind, SavepointFormat
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import seal
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.savepoints.catalog import (
    StoredSavepoint,
    find_savepoints,
    list_savepoints,
    open_savepoint,
    put_marker,
    read_savepoint,
    savepoint_at,
)
from stateflow.checkpoint.savepoints.cleanup import sweep_external
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint, sink_positions_at
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError
from stateflow.operations.job_root import now, open_root, pins_of
from stateflow.operations.job_savepoints import (
    SavepointReport,
    SavepointRequest,
    describe_savepoint,
    find,
    find_published_checkpoint,
    request_client,
    with_defaults,
)
from stateflow.runtime.restore.new_job_root import InitialSavepoint, is_created
from stateflow.runtime.restore.state_import import ImportTarget, StateLocation, import_files
from stateflow.state.handles import FileHandle
from stateflow.storage import open_location, open_storage
from stateflow.storage.paths import SAVEPOINT_FILES, savepoint_folder
from stateflow.types.key_groups import check_max_parallelism

_MAX_ATTEMPTS = 5
_NOT_CHOSEN = EntryRef(id=0, sha256="", manifest=FileHandle(key="", size=0, sha256=""), at="")
"""In place of the checkpoint until one is chosen."""


def create_savepoint_into(job_root: str, request: SavepointRequest, into: str) -> SavepointReport:
    """Writes a savepoint to a new folder in `into`, on any storage, and verifies all files there.

    The run only makes a checkpoint, which this process copies, so the run needs no access to `into`. A repeated request
    with the same id returns the same savepoint. Raises as `create_savepoint` does.

    Args:
        into: path or URI of a folder outside of the job root.
    """
    root = open_root(job_root)
    request, into = with_defaults(root, request), _folder_outside(root.storage.uri, into)
    check_savepoint_name(request.name)
    order = SavepointSpec(
        name=request.name,
        checkpoint=_NOT_CHOSEN,
        sinks={},
        origin=request.origin,
        by=request.by or root.requester,
        requested_by=request.requested_by,
        reason=request.reason,
        note=request.note,
        request=request.request_id,
        into=into,
        format=request.format or SavepointFormat.NATIVE,
        settings=request.settings,
    )
    _remove_incomplete(root, order)
    if made := _made_before(root, order):
        return describe_savepoint(made, "head")
    if not request.from_head and not root.head().entry.ended and (made := _create_from_run(root, request, order)):
        return describe_savepoint(made, "run")
    while True:
        checkpoint, sinks = find_published_checkpoint(root, request)
        try:
            return describe_savepoint(make_savepoint(root, replace(order, checkpoint=checkpoint, sinks=sinks)), "head")
        except DataError as e:
            # A run that began meanwhile may have released the checkpoint before it was pinned.
            if not is_released(e, checkpoint):
                raise


def list_savepoints_in(folder: str) -> list[SavepointReport]:
    """Returns every complete savepoint, of any job, in a folder that is not a job root, oldest first."""
    return [describe_savepoint(s) for s in list_savepoints(open_location(folder), "")]


def initial_savepoint(job_root: str, savepoint: str) -> SavepointReport | None:
    """Returns the savepoint that ``run --from-savepoint`` would begin a job root with; None for a complete job root.

    Args:
        job_root: URI of the job root, which need not exist.
        savepoint: path or URI of the savepoint.

    Raises ConfigError when the job root holds anything else, or the savepoint does not exist.
    """
    storage = open_storage(job_root)
    if is_created(storage, SystemClock(), InitialSavepoint(savepoint)):
        return None
    return describe_savepoint(savepoint_at(savepoint, storage.uri))


def _folder_outside(job_root: str, into: str) -> str:
    """Returns the URI of a folder for savepoints. Raises ConfigError for a folder in the job root.

    Args:
        job_root: URI of the job root; empty for none.
        into: path or URI of the folder.
    """
    uri, own = open_location(into, job_root).uri.rstrip("/"), job_root.rstrip("/")
    if own and f"{uri}/".startswith(f"{own}/"):
        raise ConfigError(
            "the folder is in the job root",
            hint="omit --into for a savepoint in the job root; otherwise choose another folder",
            into=uri,
            root=own,
        )
    return uri


def _made_before(root: JobRoot, order: SavepointSpec) -> StoredSavepoint | None:
    """Returns the savepoint of the same request. Other jobs may use the same folder, and the same names."""
    storage, within = order.destination(root)
    called = find_savepoints(storage, order.name, within)
    own = [s for s in called if s.document.job_uuid == root.job.job_uuid]
    return next((s for s in own if is_same_request(s.document.request, order.request)), None)


def _remove_incomplete(root: JobRoot, order: SavepointSpec) -> None:
    """Deletes the files of earlier attempts that were killed, and drops their pins.

    An attempt that is only paused fails when it continues.
    """
    pins = pins_of(root, order.by, order.purpose)
    if pins:
        sweep_external(order.destination(root)[0], frozenset(pins))
    # Last: if this process is killed before, the next attempt finds the files by the pins.
    for pin in pins:
        root.admin.unpin(pin)


def _create_from_run(root: JobRoot, request: SavepointRequest, order: SavepointSpec) -> StoredSavepoint | None:
    """Returns a savepoint of a checkpoint that the run makes for it; None when no run is active."""
    client = request_client(root, request)
    for number in range(_MAX_ATTEMPTS):
        checkpoint_request = Request(
            id=f"{request.request_id}-{number}" if number else request.request_id,
            kind=RequestKind.CHECKPOINT,
            savepoint="",
            origin=Origin.MANUAL,
            by=order.by,
            reason=request.reason,
            at=now(root),
        )
        answer = client.wait(client.submit(checkpoint_request))
        if answer is None:
            return None
        if checkpoint := _published(root, root.head(), answer.checkpoint_id):
            sinks = _published_output(root.head(), checkpoint)
            try:
                return make_savepoint(root, replace(order, checkpoint=checkpoint, sinks=sinks))
            except DataError:
                # The run may have released the checkpoint before it was pinned.
                if any(ref == checkpoint for ref in root.checkpoints.restorable(root.head())):
                    raise
    raise DataError(
        "the run releases its checkpoints before they can be copied",
        hint="set checkpoints.retained to 2 or more, or copy an older checkpoint: --from-head",
        tries=_MAX_ATTEMPTS,
    )


def _published(root: JobRoot, head: Head, requested: int) -> EntryRef | None:
    """Returns the newest checkpoint from the requested one on whose output is published; None without one.

    The output of the requested checkpoint is published according to the run's answer, even if the log does not say so.

    Args:
        requested: id of the checkpoint of the run's answer.
    """
    unpublished = min((p.checkpoint_id for p in pending_of(head) if p.checkpoint_id > requested), default=0)
    fitting = [
        ref
        for ref in root.checkpoints.restorable(head)
        if ref.id >= requested and (not unpublished or ref.id < unpublished)
    ]
    return max(fitting, key=lambda ref: ref.id, default=None)


def _published_output(head: Head, checkpoint: EntryRef) -> dict[str, PublishedOutput]:
    known = sink_positions_at(head, checkpoint)
    just_published = {p.sink for p in pending_of(head) if p.checkpoint_id <= checkpoint.id} & known.keys()
    return {
        **known,
        **{
            uid: PublishedOutput(table_id=known[uid].table_id, version=-1, checkpoint_id=checkpoint.id)
            for uid in just_published
        },
    }


@dataclass(frozen=True)
class RekeyRequest:
    """A copy of a savepoint with another max parallelism.

    Attributes:
        savepoint: its name in the job root, or the path or URI of its folder.
        max_parallelism: the number of key groups of the copy.
        into: path or URI of a folder for the copy's folder, outside of the job root.
        name: name of the copy; by default, that of the savepoint.
        by: who requested it.
        reason: why, for display.
    """

    savepoint: str
    max_parallelism: int
    into: str
    name: str = ""
    by: str = ""
    reason: str = ""


def rekey_savepoint(request: RekeyRequest, job_root: str = "") -> SavepointReport:
    """Copies a savepoint, with another max parallelism and in the canonical format.

    A repeated call continues where an earlier one was killed, and returns the same savepoint.

    Args:
        request: the copy.
        job_root: path or URI of the savepoint's job root; empty for a savepoint that is given by its path.

    Raises:
        ConfigError: the savepoint does not exist, a location is not allowed, or the number is out of range.
        MissingFile, CorruptFile: the savepoint is damaged.
        IncompatibleState: an operator has raw keyed state.
    """
    check_max_parallelism(request.max_parallelism)
    own = open_storage(job_root).uri if job_root else ""
    stored, storage = find(own, request.savepoint), open_storage(_folder_outside(own, request.into))
    document = stored.document
    name = request.name or document.name
    check_savepoint_name(name)
    # The same for each attempt, so that a later one completes what a killed one has begun.
    made_from = hashlib.sha256(f"{document.id} {request.max_parallelism} {name}".encode()).hexdigest()
    folder = savepoint_folder(f"{name}-{made_from[:8]}", "")
    if made := read_savepoint(storage, folder):
        return describe_savepoint(made)
    stored.verify()
    location = StateLocation.of(stored, checked=True)
    target = ImportTarget(storage, request.max_parallelism, SAVEPOINT_FILES, folder)
    manifest = import_files(target, document.manifest, location)
    clock = SystemClock()
    failpoints.hit("savepoint.rekeyed")
    copy = msgspec.structs.replace(
        document,
        id=clock.new_id(),
        name=name,
        origin=Origin.MANUAL,
        made_at=clock.now().isoformat(timespec="milliseconds"),
        by=request.by,
        reason=request.reason,
        request=made_from[:32],
        generation=0,
        format=SavepointFormat.CANONICAL,
        max_parallelism=request.max_parallelism,
        manifest=manifest,
    )
    put_marker(storage, folder, seal(copy)[0])
    # Another attempt may have been first; its copy has the same files.
    return describe_savepoint(open_savepoint(storage, folder))
