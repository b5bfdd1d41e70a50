"""Forks: new jobs that start from the state and source positions of another job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stateflow import failpoints
from stateflow.checkpoint.history import MADE, write_action
from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import ActionRecord, JobFormat, Pin
from stateflow.checkpoint.log.job_root import JobRoot, check_vacant, probe_storage, read_format
from stateflow.checkpoint.log.transitions import Adoption
from stateflow.checkpoint.restore.targets import Target, find_kept_checkpoint, is_relative_target, resolve_target
from stateflow.checkpoint.savepoints.catalog import list_savepoints
from stateflow.errors import ConfigError
from stateflow.operations.job_root import now, open_root, pins_of
from stateflow.runtime.restore.state_import import StateLocation, import_state
from stateflow.storage import Storage, open_location
from stateflow.storage.paths import FORMAT


@dataclass(frozen=True)
class ForkReport:
    """Description of a fork.

    Attributes:
        job: name of the new job.
        job_uuid: uuid of the new job.
        job_root: URI of the new job root.
        target_label: the checkpoint or savepoint that the fork starts from.
        shadow: whether every run of the new job publishes to shadow tables.
        size_bytes: size of its state.
    """

    job: str
    job_uuid: str
    job_root: str
    target_label: str
    shadow: bool
    size_bytes: int


@dataclass(frozen=True)
class ForkRequest:
    """Parameters of a fork.

    Attributes:
        target: a target that `checkpoint.restore.targets.resolve_target` accepts.
        into: the new job root; must be empty, or hold an incomplete attempt of the same fork.
        shadow: whether every run of the new job publishes to ``…_shadow`` tables; otherwise give it its own tables.
        from_other_job: whether the target may be a savepoint of another job, which is then the parent of the fork.
    """

    target: str
    into: str
    shadow: bool = False
    by: str = ""
    reason: str = ""
    from_other_job: bool = False


def fork(job_root: str, request: ForkRequest) -> ForkReport:
    """Creates a new job, with its own uuid, that starts from the state and source positions of a target.

    An attempt after one that was killed uses the same checkpoint, even if the target, such as *latest*, is a newer one
    by now.

    Raises:
        ConfigError: the new root is not empty, or the target does not exist.
        MissingFile, CorruptFile: the target is damaged.
    """
    source, storage = open_root(job_root), open_location(request.into)
    if report := _completed_before(source, storage, request):
        return report
    started = source.clock.monotonic()
    with _pinned_target(source, storage, request) as target:
        failpoints.hit("fork.pinned")
        root = _fork_root(source, storage, target, request.shadow)
        failpoints.hit("fork.created")
        if root.log.read_head() is not None:
            return _report(root, target)  # completed by an earlier attempt
        location = StateLocation(source.storage)
        if target.savepoint:
            location = StateLocation.of(target.savepoint)
        manifest = import_state(root, target.manifest, location, 0)
        failpoints.hit("fork.imported")
        note = f"fork of {source.job.job} at {target.label}" + (f": {request.reason}" if request.reason else "")
        label = target.label if target.savepoint else f"{target.label} of {source.job.job}"
        adoption = Adoption(upto=0, manifest=manifest, sources=target.manifest.sources, savepoint=label)
        _record_fork(root, source, target, request, _elapsed_ms(root, started))
        root.adopt(None, adoption, note)
        failpoints.hit("fork.adopted")
    return _report(root, target)


def _record_fork(root: JobRoot, source: JobRoot, target: Target, request: ForkRequest, duration_ms: float) -> None:
    """Writes the history records of both jobs, under names that an attempt after a kill uses again.

    They are written before the fork's first entry: after it, a later attempt finds the fork complete and writes none.
    """
    record = ActionRecord(
        seq=1,
        kind="fork",
        ended_at=now(root),
        by=request.by or root.requester,
        reason=request.reason,
        duration_ms=duration_ms,
        size_bytes=target.manifest.full_bytes,
        facts={
            "forked_from": root.job.forked_from,
            "target_label": target.label,
            "shadow": request.shadow,
            **_parent(source, target),
        },
    )
    write_action(root.storage, record, MADE)
    own = target.job_uuid == source.job.job_uuid
    source_record = ActionRecord(
        seq=target.checkpoint_id if own else source.head().entry.seq,
        kind="fork",
        ended_at=record.ended_at,
        by=record.by,
        reason=request.reason,
        duration_ms=duration_ms,
        size_bytes=record.size_bytes,
        facts={"into": request.into, "restored_checkpoint_id": target.checkpoint_id if own else 0},
    )
    write_action(source.storage, source_record, root.job.job_uuid)


def _parent(source: JobRoot, target: Target) -> dict[str, object]:
    """Returns the facts about the job whose state it is, and the location of that state."""
    if target.savepoint is None:
        job = source.job
        return {"parent_job": job.job, "parent_job_uuid": job.job_uuid, "parent_job_root": source.storage.uri}
    document = target.savepoint.document
    own = {"parent_job_root": source.storage.uri} if target.job_uuid == source.job.job_uuid else {}
    about = {"parent_job": document.job, "parent_job_uuid": document.job_uuid, "savepoint_path": target.savepoint.uri}
    return {**about, **own}


def _report(root: JobRoot, target: Target) -> ForkReport:
    job = root.job
    return ForkReport(job.job, job.job_uuid, root.storage.uri, target.label, job.shadow, target.manifest.full_bytes)


def _fork_root(source: JobRoot, storage: Storage, target: Target, shadow: bool) -> JobRoot:
    origin = target.savepoint.document.id if target.savepoint else f"{source.job.job_uuid}/{target.checkpoint_id}"
    _check_empty(storage)
    probe_storage(storage, source.clock, 0)
    parent = JobRoot(CheckpointLog(source.storage, _parent_format(source.job, target)), source.clock, source.writer)
    root = JobRoot.create_fork(storage, parent, origin, shadow)
    head = root.log.read_head()
    begun = head is not None and head.entry.seq > 1
    if root.job.forked_from != origin or root.job.shadow != shadow or begun:
        raise ConfigError(
            "the new job root is not empty", hint="choose another one", root=storage.uri, job=root.job.job
        )
    return root


def _check_empty(storage: Storage) -> None:
    """Raises ConfigError for a storage that holds something other than a job root, complete or not."""
    if storage.size(FORMAT) is None:
        check_vacant(storage)


@contextmanager
def _pinned_target(source: JobRoot, storage: Storage, request: ForkRequest) -> Iterator[Target]:
    """Yields the target; a checkpoint is pinned while it is copied, and the pins of an earlier attempt are dropped.

    If that attempt is only paused, it may miss files later and fail: the new root gets exactly one first entry.
    """
    owner, purpose = request.by or source.requester, f"fork into {request.into}"
    earlier = pins_of(source, owner, purpose)

    def pin(head: Head) -> tuple[Target, Pin | None]:
        target = _resolve_target(source, head, storage, request)
        _check_owner(source, target, request)
        return target, source.admin.pin(target.ref, owner, purpose) if target.ref else None

    target, pinned = source.read_kept(pin)
    try:
        for each in earlier:
            source.admin.unpin(each)
        yield target
    finally:
        if pinned is not None:
            source.admin.unpin(pinned.id)


def _completed_before(source: JobRoot, storage: Storage, request: ForkRequest) -> ForkReport | None:
    """Returns the fork that an earlier attempt completed, if the same target may be a newer checkpoint by now."""
    if not is_relative_target(request.target) or storage.size(FORMAT) is None:
        return None
    root = JobRoot.open(storage, source.clock, source.writer)
    head = root.log.read_head()
    if head is None or head.entry.seq > 1 or root.job.shadow != request.shadow or not _is_fork_of(source, root.job):
        return None
    manifest = root.checkpoints.manifest_at(head)
    for pin in pins_of(source, request.by or source.requester, f"fork into {request.into}"):
        source.admin.unpin(pin)
    size = manifest.full_bytes if manifest else 0
    return ForkReport(root.job.job, root.job.job_uuid, storage.uri, head.checkpoint_label, root.job.shadow, size)


def _is_fork_of(source: JobRoot, found: JobFormat) -> bool:
    made = {s.document.id for s in list_savepoints(source.storage)}
    return found.forked_from.partition("/")[0] == source.job.job_uuid or found.forked_from in made


def _resolve_target(source: JobRoot, head: Head, storage: Storage, request: ForkRequest) -> Target:
    """Returns the target; or the checkpoint or savepoint that an earlier, killed attempt took for it."""
    if not is_relative_target(request.target) or storage.size(FORMAT) is None:
        return resolve_target(source, head, request.target)
    origin = read_format(storage).forked_from
    job_uuid, _, checkpoint = origin.partition("/")
    if job_uuid == source.job.job_uuid and checkpoint:
        return find_kept_checkpoint(source, head, int(checkpoint), "start again with another target folder")
    made = [s.folder_name for s in list_savepoints(source.storage) if s.document.id == origin]
    return resolve_target(source, head, made[0] if made else request.target)


def _check_owner(source: JobRoot, target: Target, request: ForkRequest) -> None:
    if target.job_uuid != source.job.job_uuid and not request.from_other_job:
        raise ConfigError(
            "the savepoint belongs to another job",
            hint="to fork that job anyway, pass --from-other-job",
            savepoint=target.label,
            job_uuid=target.job_uuid,
            this_job=source.job.job_uuid,
        )


def _parent_format(source: JobFormat, target: Target) -> JobFormat:
    """Returns the format of the job whose state it is: keys must stay in the same key groups."""
    if target.savepoint is None or target.job_uuid == source.job_uuid:
        return source
    document = target.savepoint.document
    key_types = {o.uid: o.key_types for o in document.manifest.operators}
    return JobFormat(
        version=source.version,
        job=document.job,
        job_uuid=document.job_uuid,
        max_parallelism=document.max_parallelism,
        key_types=key_types,
        shadow=source.shadow,
    )


def _elapsed_ms(root: JobRoot, started: float) -> float:
    return round((root.clock.monotonic() - started) * 1000, 1)
