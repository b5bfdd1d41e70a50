"""Savepoints, stops, restores and forks: one implementation for the command line and for Airflow."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow import failpoints
from stateflow.checkpoint.asking import Patience, ask_run, is_same, take_back
from stateflow.checkpoint.documents import (
    Answer,
    EntryRef,
    JobFormat,
    Origin,
    PublishedOutput,
    Request,
    RequestKind,
)
from stateflow.checkpoint.entries import Adoption, pending_of
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot, read_format
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.probe import probe_storage
from stateflow.checkpoint.proposal import Proposal
from stateflow.checkpoint.savepoint import (
    Order,
    check_savepoint_name,
    make_savepoint,
    settled_checkpoint,
    standing_with,
)
from stateflow.checkpoint.savepoint_cleanup import dispose_damaged, dispose_savepoint
from stateflow.checkpoint.stored_savepoints import (
    StoredSavepoint,
    find_savepoint,
    list_savepoints,
    open_savepoint,
)
from stateflow.checkpoint.targets import Target, is_moving, kept_checkpoint, resolve_target
from stateflow.clock import SystemClock
from stateflow.environment import open_existing
from stateflow.errors import ConfigError, DataError
from stateflow.runtime.proposing import RestoreOptions, propose
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.restoring import RestoreOrder, execute
from stateflow.runtime.rewinding import complete_rewind
from stateflow.runtime.state_import import Place, import_state
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import FORMAT, PROBE, SAVEPOINTS


@dataclass(frozen=True)
class JobCode:
    """The job file and its settings, for what needs the job's sinks and operators."""

    file: Path
    layers: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class SavepointAsk:
    """What savepoint somebody wants.

    Attributes:
        name: of the savepoint; made up when empty.
        request: id; asking again with the same one gives the same savepoint.
        from_head: do not ask the run: take the newest checkpoint whose output is known to be published.
        code: needed when no run works on the job and output is not published yet.
        patience: how long to wait for a sign that there is a run, and for each later sign that it still is.
        timeout: how long to wait for a run's barrier.
    """

    name: str = ""
    origin: Origin = Origin.MANUAL
    by: str = ""
    reason: str = ""
    request: str = ""
    from_head: bool = False
    code: JobCode | None = None
    drain: bool = False
    patience: timedelta = timedelta(seconds=5)
    timeout: timedelta = timedelta(minutes=10)


@dataclass(frozen=True)
class SavepointReport:
    """A savepoint that is complete.

    Attributes:
        taken_by: ``run``, or ``head`` when it was copied from the newest checkpoint without asking a run.
    """

    name: str
    id: str
    path: str
    job: str
    checkpoint_id: int
    offsets: dict[str, str]
    bytes: int
    origin: str
    made_at: str
    taken_by: str = ""


def create_savepoint(job_root: str, ask: SavepointAsk) -> SavepointReport:
    """Makes a savepoint: at the next barrier of the run, or from the head when there is no run.

    Raises:
        RequestTimeout: the run did not reach a barrier in time; nothing was made.
        ConfigError: the name is taken, or output is not published and the job file was not given.
        DataError: the job has no checkpoint; or what the run answered.
    """
    root = _open(job_root)
    ask = _named(root, ask)
    if made := _made_before(root, ask):
        return made
    if not ask.from_head and not root.head().entry.ended:
        given = _ask_run(root, ask, RequestKind.SAVEPOINT)
        if given is not None:
            return describe_savepoint(open_savepoint(open_storage(given.savepoint)), "run")
    return _without_run(root, ask)


def _without_run(root: JobRoot, ask: SavepointAsk) -> SavepointReport:
    """A savepoint from the head. What an earlier try has asked of a run is not waited for any more."""
    if not take_back(root, ask.request) and (made := _made_before(root, ask)):
        return made
    return describe_savepoint(_from_head(root, ask), "head")


def stop(job_root: str, ask: SavepointAsk, *, savepoint: bool) -> SavepointReport | None:
    """Ends the job's run after its next checkpoint, with a savepoint of it when that is wanted.

    The run commits and publishes the checkpoint, makes the savepoint, answers, and ends; a run that is killed on the
    way is followed by one that does the rest before any batch. Returns the savepoint; None without one. An `ask` of
    origin *manual* gives a savepoint of origin *stop*.

    Raises: as `create_savepoint`. ConfigError when nothing runs and no savepoint is wanted.
    """
    root = _open(job_root)
    ask = _named(root, ask if ask.origin is not Origin.MANUAL else replace(ask, origin=Origin.STOP))
    if savepoint and (made := _made_before(root, ask)):
        return made
    given = None
    if not root.head().entry.ended:
        given = _ask_run(root, ask if savepoint else _nameless(ask), RequestKind.STOP)
    if given is not None:
        return describe_savepoint(open_savepoint(open_storage(given.savepoint)), "run") if savepoint else None
    if not savepoint:
        raise ConfigError("no run works on the job", hint="there is nothing to stop", root=job_root)
    return _without_run(root, ask)


def withdraw(job_root: str, request: str) -> bool:
    """Takes back a request that no run has answered yet: nobody waits for it. Whether there was one."""
    return take_back(_open(job_root), request)


def list_all(job_root: str) -> list[SavepointReport]:
    """Every complete savepoint below a job root, oldest first; damaged ones are left out."""
    return [describe_savepoint(s) for s in list_savepoints(open_storage(job_root))]


def find(job_root: str, name_or_path: str) -> StoredSavepoint:
    """The savepoint of this name below the job root, or at this path wherever it is. Raises ConfigError."""
    if "/" in name_or_path:
        return open_savepoint(open_storage(name_or_path))
    stored = find_savepoint(open_storage(job_root), name_or_path)
    if stored is None:
        names = [s.document.name for s in list_savepoints(open_storage(job_root))]
        raise ConfigError("there is no such savepoint", hint=f"there are {names}", name=name_or_path)
    return stored


def dispose(job_root: str, name: str, by: str = "", reason: str = "") -> SavepointReport:
    """Deletes a savepoint below a job root, by its name or folder; a damaged one by its folder.

    Raises ConfigError when there is none.
    """
    root = _open(job_root)
    freed = dispose_damaged(root, name)
    gone = describe_savepoint(dispose_savepoint(root, name)) if freed is None else _damaged(root, name, freed)
    _note(root, ActionRecord(seq=_newest(root), kind="dispose", at=_now(root), by=by or root.writer, reason=reason,
                             bytes=gone.bytes, facts={"savepoint": gone.name, "id": gone.id}))  # fmt: skip
    return gone


def plan_restore(job_root: str, code: JobCode, target: str, options: RestoreOptions) -> Proposal:
    """What going back to `target` would mean; changes nothing. See `runtime.proposing.propose`."""
    return propose(open_existing(code.file, job_root, code.layers), target, options)


@dataclass(frozen=True)
class RestoreReport:
    """A restore that is done.

    Attributes:
        stands_at: where the job is, in words: after a repeated request that may be further on than the plan went.
        repeated: whether it was done before, and this time nothing was.
    """

    job: str
    request: str
    label: str
    generation: int
    checkpoint_id: int
    offsets: dict[str, str]
    tables: dict[str, int]
    stands_at: str
    repeated: bool = False


def restore(job_root: str, code: JobCode, proposal: Proposal, order: RestoreOrder) -> RestoreReport:
    """Carries a plan out, exactly and at most once per request. See `runtime.restoring.execute`."""
    job = open_existing(code.file, job_root, code.layers)
    root = job.root
    done = execute(job, proposal, order)
    head = done.head
    tables = {uid: p.version for uid, p in head.entry.published.items() if uid in job.sinks}
    return RestoreReport(
        root.job.job, order.request, proposal.label, head.entry.generation, head.checkpoint_id,
        {p.uid: p.offset for p in head.entry.sources}, tables, head.stand, done.repeated,
    )  # fmt: skip


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
    source, storage = _open(job_root), open_storage(ask.into)
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
        seq=1, kind="fork", at=_now(root), by=ask.by or root.writer, reason=ask.reason, took_ms=took_ms,
        bytes=point.manifest.full_bytes,
        facts={"of": root.job.forked_from, "at": point.label, "shadow": str(ask.shadow)},
    )  # fmt: skip
    write_action(root.storage, record, "made")
    own = point.job_uuid == source.job.job_uuid
    here = ActionRecord(
        seq=point.checkpoint_id if own else source.head().entry.seq, kind="fork",
        at=record.at, by=record.by, reason=ask.reason, took_ms=took_ms,
        bytes=record.bytes, facts={"into": ask.into, "base": str(point.checkpoint_id if own else 0)},
    )  # fmt: skip
    write_action(source.storage, here, root.job.job_uuid)


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
    if storage.size(FORMAT) is not None:
        return
    others = [blob.key for blob in storage.list("") if not blob.key.startswith(PROBE)]
    if others:
        raise ConfigError("the place for the new job root is not empty", hint="choose another one", root=storage.uri,
                          found=others[0])  # fmt: skip


@contextmanager
def _pinned(source: JobRoot, point: Target, ask: ForkAsk) -> Iterator[None]:
    """Keeps the checkpoint while it is copied, and drops what an earlier try that died has pinned for the same fork.

    Should that one only sleep, it may find files gone, and fails: the new root gets one first entry, from whomever.
    """
    owner, purpose = ask.by or source.writer, f"fork into {ask.into}"
    old = _pins_of(source, owner, purpose)
    pin = source.pin(point.ref, owner, purpose) if point.ref else None
    try:
        for left in old:
            source.unpin(left)
        yield
    finally:
        if pin is not None:
            source.unpin(pin.id)


def _forked_before(source: JobRoot, storage: Storage, ask: ForkAsk) -> ForkReport | None:
    """The fork that an earlier try has completed, when the same target may be another point by now."""
    if not is_moving(ask.target) or storage.size(FORMAT) is None:
        return None
    root = JobRoot.open(storage, source.clock, source.writer)
    head = root.log.read_head()
    if head is None or head.entry.seq > 1 or root.job.shadow != ask.shadow or not _is_ours(source, root.job):
        return None
    manifest = root.manifest(head)
    for left in _pins_of(source, ask.by or source.writer, f"fork into {ask.into}"):
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


def _damaged(root: JobRoot, folder: str, freed: int) -> SavepointReport:
    return SavepointReport(
        folder, "", f"{root.storage.uri}/{SAVEPOINTS}{folder}", root.job.job, 0, {}, freed, "", ""
    )


def describe_savepoint(stored: StoredSavepoint, taken_by: str = "") -> SavepointReport:
    """A savepoint, for people and for other tasks."""
    document = stored.document
    return SavepointReport(
        name=document.name, id=document.id, path=stored.uri, job=document.job, checkpoint_id=document.checkpoint_id,
        offsets={p.uid: p.offset for p in document.manifest.sources}, bytes=stored.size, origin=document.origin.value,
        made_at=document.made_at, taken_by=taken_by,
    )  # fmt: skip


def _ask_run(root: JobRoot, ask: SavepointAsk, kind: RequestKind) -> Answer | None:
    asked = Request(
        id=ask.request, kind=kind, savepoint=ask.name, origin=ask.origin, by=ask.by or root.writer, reason=ask.reason,
        drain=ask.drain, at=_now(root),
    )  # fmt: skip
    return ask_run(root, asked, Patience(ask.patience, ask.timeout))


def _made_before(root: JobRoot, ask: SavepointAsk) -> SavepointReport | None:
    """The savepoint that an earlier try of the same request has made, whoever made it then."""
    stored = find_savepoint(root.storage, check_savepoint_name(ask.name))
    if stored is None or not is_same(stored.document.request, ask.request):
        return None
    if stored.document.generation:
        return describe_savepoint(stored, "run")
    _drop_pins(root, ask.by or root.writer, ask.name)
    return describe_savepoint(stored, "head")


def _drop_pins(root: JobRoot, by: str, name: str) -> None:
    """Drops what an earlier try that was killed has pinned; should it only sleep, it finds its savepoint given up."""
    for pin in _pins_of(root, by, f"savepoint {name}"):
        root.unpin(pin)


def _pins_of(root: JobRoot, owner: str, purpose: str) -> list[str]:
    pins = root.head().entry.pinned
    return [p.id for p in pins if (p.owner, p.reason, p.generation) == (owner, purpose, 0)]


def _from_head(root: JobRoot, ask: SavepointAsk) -> StoredSavepoint:
    by = ask.by or root.writer
    if ask.drain:
        _check_drained(root)
    _drop_pins(root, by, ask.name)
    checkpoint, sinks = _settled(root, root.head(), ask)
    return make_savepoint(root, Order(
        name=ask.name, checkpoint=checkpoint, sinks=sinks, origin=ask.origin, by=by,
        reason=ask.reason, request=ask.request, drained=ask.drain,
    ))  # fmt: skip


def _check_drained(root: JobRoot) -> None:
    """Raises ConfigError when there are event-time timers, which only a run could fire."""
    manifest = root.manifest(root.head())
    pending = (
        [o.uid for o in manifest.operators if any(s.event_timer is not None for s in o.subtasks)]
        if manifest
        else []
    )
    if pending:
        raise ConfigError("no run is there to fire the job's event-time timers", hint="ask while a run is at work, or "
                          "leave --drain out", operators=pending)  # fmt: skip


def _settled(root: JobRoot, head: Head, ask: SavepointAsk) -> tuple[EntryRef, dict[str, PublishedOutput]]:
    """A checkpoint whose output is published, and where the sinks stand with it."""
    unfinished = bool(pending_of(head)) or head.entry.rewind is not None
    if ask.from_head or not unfinished:
        checkpoint = settled_checkpoint(head)
        return checkpoint, standing_with(head, checkpoint)
    if ask.code is None:
        raise ConfigError("the job's last run died before it published its output", hint="give the job file, so that "
                          "it can be published (--job JOB.py), or take an older checkpoint: --from-head",
                          checkpoint=head.checkpoint_id)  # fmt: skip
    job = open_existing(ask.code.file, root.storage.uri, ask.code.layers)
    head = complete_rewind(root, job.sinks, head)
    publisher = Publisher(root, job.sinks)
    publisher.publish_pending(head)
    if head.checkpoint is None:
        raise DataError("the job has no checkpoint to make a savepoint of", hint="run it first")
    return head.checkpoint, {**standing_with(head, head.checkpoint), **publisher.published}


def _named(root: JobRoot, ask: SavepointAsk) -> SavepointAsk:
    stamp = root.clock.now().strftime("%Y%m%dT%H%M%SZ")
    name, request = ask.name or f"{ask.origin.value}-{stamp}", ask.request or root.clock.new_id()
    return replace(ask, name=name, request=request)


def _nameless(ask: SavepointAsk) -> SavepointAsk:
    return replace(ask, name="")


def _note(root: JobRoot, record: ActionRecord) -> None:
    write_action(root.storage, record, root.clock.new_id())


def _newest(root: JobRoot) -> int:
    head = root.log.read_head()
    return head.entry.seq if head else 0


def _ms(root: JobRoot, began: float) -> float:
    return round((root.clock.monotonic() - began) * 1000, 1)


def _now(root: JobRoot) -> str:
    return root.clock.now().isoformat(timespec="milliseconds")


def _open(job_root: str) -> JobRoot:
    return JobRoot.open(open_storage(job_root), SystemClock(), f"{socket.gethostname()}:{os.getpid()}")
