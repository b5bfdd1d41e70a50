"""Making a new job of an old one's state and positions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from stateflow import failpoints
from stateflow.checkpoint.documents import JobFormat
from stateflow.checkpoint.entries import Adoption
from stateflow.checkpoint.history import MADE, ActionRecord, write_action
from stateflow.checkpoint.job_format import check_vacant, read_format
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.probe import probe_storage
from stateflow.checkpoint.stored_savepoints import list_savepoints
from stateflow.checkpoint.targets import Target, is_moving, kept_checkpoint, resolve_target
from stateflow.errors import ConfigError
from stateflow.recovery.job_roots import now, open_root, pins_of
from stateflow.runtime.state_import import Place, import_state
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import FORMAT


@dataclass(frozen=True)
class ForkReport:
    """A new job made of an old one's state."""

    job: str
    job_uuid: str
    root: str
    label: str
    shadow: bool
    bytes: int


@dataclass(frozen=True)
class ForkAsk:
    """What fork somebody wants.

    Attributes:
        into: the new job root; must be empty, or hold the same fork half made.
        foreign: whether the savepoint may be another job's; then the new job is a fork of that one.
        shadow: every run of the new job publishes to ``…_shadow`` tables. Otherwise give it tables of its own.
    """

    target: str
    into: str
    shadow: bool = False
    by: str = ""
    reason: str = ""
    foreign: bool = False


def fork(job_root: str, ask: ForkAsk) -> ForkReport:
    """Makes a new job, with its own uuid, that begins with a target's state and positions.

    A try after one that died goes on with the point that the first one has taken, also where the target, as *latest*,
    would be a later one by now.

    Raises ConfigError when the new root is not empty, or the target is not there; MissingFile or CorruptFile.
    """
    source, storage = open_root(job_root), open_storage(ask.into)
    if done := _forked_before(source, storage, ask):
        return done
    began, head = source.clock.monotonic(), source.head()
    point = _fork_point(source, head, storage, ask)
    _check_foreign(source, point, ask)
    with _pinned(source, point, ask):
        failpoints.hit("fork.pinned")
        root = _fork_root(source, storage, point, ask.shadow)
        failpoints.hit("fork.created")
        if root.log.read_head() is not None:
            return _forked(root, point)  # by an earlier try of the same fork
        place = Place(source.storage)
        if point.savepoint:
            place = Place(point.savepoint.storage, point.savepoint.folder)
        manifest = import_state(root, point.manifest, place, 0)
        failpoints.hit("fork.imported")
        note = f"fork of {source.job.job} at {point.label}" + (f": {ask.reason}" if ask.reason else "")
        label = point.label if point.savepoint else f"{point.label} of {source.job.job}"
        adoption = Adoption(upto=0, manifest=manifest, sources=point.manifest.sources, savepoint=label)
        _note_fork(root, source, point, ask, _ms(root, began))
        root.adopt(None, adoption, note)
        failpoints.hit("fork.adopted")
    return _forked(root, point)


def _note_fork(root: JobRoot, source: JobRoot, point: Target, ask: ForkAsk, took_ms: float) -> None:
    """In both histories, before the fork has its first entry: a try that comes later finds it done. Under names that a
    second try after a kill uses again."""
    record = ActionRecord(
        seq=1, kind="fork", at=now(root), by=ask.by or root.writer, reason=ask.reason, took_ms=took_ms,
        bytes=point.manifest.full_bytes,
        facts={"of": root.job.forked_from, "at": point.label, "shadow": str(ask.shadow), **_parent(source, point)},
    )  # fmt: skip
    write_action(root.storage, record, MADE)
    own = point.job_uuid == source.job.job_uuid
    here = ActionRecord(
        seq=point.checkpoint_id if own else source.head().entry.seq, kind="fork",
        at=record.at, by=record.by, reason=ask.reason, took_ms=took_ms,
        bytes=record.bytes, facts={"into": ask.into, "base": str(point.checkpoint_id if own else 0)},
    )  # fmt: skip
    write_action(source.storage, here, root.job.job_uuid)


def _parent(source: JobRoot, point: Target) -> dict[str, str]:
    """The job that the state is of, and where it was found."""
    if point.savepoint is None:
        return {"parent_job": f"{source.job.job} {source.job.job_uuid}", "parent_root": source.storage.uri}
    document = point.savepoint.document
    own = {"parent_root": source.storage.uri} if point.job_uuid == source.job.job_uuid else {}
    return {"parent_job": f"{document.job} {document.job_uuid}", **own, "savepoint_path": point.savepoint.uri}


def _forked(root: JobRoot, point: Target) -> ForkReport:
    job = root.job
    return ForkReport(
        job.job, job.job_uuid, root.storage.uri, point.label, job.shadow, point.manifest.full_bytes
    )


def _fork_root(source: JobRoot, storage: Storage, point: Target, shadow: bool) -> JobRoot:
    origin = (
        point.savepoint.document.id if point.savepoint else f"{source.job.job_uuid}/{point.checkpoint_id}"
    )
    _check_empty(storage)
    probe_storage(storage, source.clock, 0)
    parent = JobRoot(source.storage, source.clock, _parent_format(source.job, point), source.writer)
    root = JobRoot.create_fork(storage, parent, origin, shadow)
    head = root.log.read_head()
    begun = head is not None and head.entry.seq > 1
    if root.job.forked_from != origin or root.job.shadow != shadow or begun:
        raise ConfigError("the new job root is not empty", hint="choose another one", root=storage.uri,
                          job=root.job.job)  # fmt: skip
    return root


def _check_empty(storage: Storage) -> None:
    """Raises ConfigError for a place that holds something other than a job root, or the try of one."""
    if storage.size(FORMAT) is None:
        check_vacant(storage)


@contextmanager
def _pinned(source: JobRoot, point: Target, ask: ForkAsk) -> Iterator[None]:
    """Keeps the checkpoint while it is copied, and drops what an earlier try that died has pinned for the same fork.

    Should that one only sleep, it may find files gone, and fails: the new root gets one first entry, from whomever.
    """
    owner, purpose = ask.by or source.writer, f"fork into {ask.into}"
    old = pins_of(source, owner, purpose)
    with source.pinned(point.ref, owner, purpose) if point.ref else nullcontext():
        for left in old:
            source.unpin(left)
        yield


def _forked_before(source: JobRoot, storage: Storage, ask: ForkAsk) -> ForkReport | None:
    """The fork that an earlier try has completed, when the same target may be another point by now."""
    if not is_moving(ask.target) or storage.size(FORMAT) is None:
        return None
    root = JobRoot.open(storage, source.clock, source.writer)
    head = root.log.read_head()
    if head is None or head.entry.seq > 1 or root.job.shadow != ask.shadow or not _is_ours(source, root.job):
        return None
    manifest = root.manifest(head)
    for left in pins_of(source, ask.by or source.writer, f"fork into {ask.into}"):
        source.unpin(left)
    size = manifest.full_bytes if manifest else 0
    return ForkReport(root.job.job, root.job.job_uuid, storage.uri, head.stand, root.job.shadow, size)


def _is_ours(source: JobRoot, found: JobFormat) -> bool:
    made = {s.document.id for s in list_savepoints(source.storage)}
    return found.forked_from.partition("/")[0] == source.job.job_uuid or found.forked_from in made


def _fork_point(source: JobRoot, head: Head, storage: Storage, ask: ForkAsk) -> Target:
    """The target; where an earlier try died that has taken another point for it, that one."""
    if not is_moving(ask.target) or storage.size(FORMAT) is None:
        return resolve_target(source, head, ask.target)
    origin = read_format(storage).forked_from
    job_uuid, _, checkpoint = origin.partition("/")
    if job_uuid == source.job.job_uuid and checkpoint:
        return kept_checkpoint(source, head, int(checkpoint))
    made = [s.place for s in list_savepoints(source.storage) if s.document.id == origin]
    return resolve_target(source, head, made[0] if made else ask.target)


def _check_foreign(source: JobRoot, point: Target, ask: ForkAsk) -> None:
    if point.job_uuid != source.job.job_uuid and not ask.foreign:
        raise ConfigError("the savepoint belongs to another job", hint="to make a fork of that job all the same, say "
                          "--foreign", savepoint=point.label, job_uuid=point.job_uuid,
                          this_job=source.job.job_uuid)  # fmt: skip


def _parent_format(source: JobFormat, point: Target) -> JobFormat:
    """What the job is like that the state is of: rows must find their keys in the same key groups."""
    if point.savepoint is None or point.job_uuid == source.job_uuid:
        return source
    document = point.savepoint.document
    key_types = {o.uid: o.key_types for o in document.manifest.operators}
    return JobFormat(version=source.version, job=document.job, job_uuid=document.job_uuid,
                     max_parallelism=document.max_parallelism, key_types=key_types)  # fmt: skip


def _ms(root: JobRoot, began: float) -> float:
    return round((root.clock.monotonic() - began) * 1000, 1)
