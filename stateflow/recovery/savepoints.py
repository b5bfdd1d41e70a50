"""Taking savepoints, of a job that runs and of one that does not; stopping; listing and disposing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from stateflow.checkpoint.asking import (
    Patience,
    ask_run,
    is_same,
    post_request,
    take_back,
    wait_for_answer,
)
from stateflow.checkpoint.documents import Answer, EntryRef, Origin, PublishedOutput, Request, RequestKind
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
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
    savepoint_at,
)
from stateflow.environment import RunRequest, open_existing, run_job
from stateflow.errors import ConfigError, DataError, Fenced, MissingFile
from stateflow.recovery.job_roots import JobCode, now, open_root, pins_of
from stateflow.runtime.publishing import Publisher
from stateflow.runtime.rewinding import complete_rewind
from stateflow.storage import open_storage
from stateflow.storage.paths import SAVEPOINTS


@dataclass(frozen=True)
class SavepointAsk:
    """What savepoint somebody wants.

    Attributes:
        name: of the savepoint; made up when empty.
        request: id; asking again with the same one gives the same savepoint.
        earlier: ids of what the same asker has asked before. Of a stop: the savepoint of this name that one of them has
            made is the one that is wanted, as long as the job has not gone on since.
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
    earlier: tuple[str, ...] = ()
    from_head: bool = False
    code: JobCode | None = None
    drain: bool = False
    patience: timedelta = timedelta(seconds=5)
    timeout: timedelta = timedelta(minutes=10)


@dataclass(frozen=True)
class SavepointReport:
    """A savepoint that is complete.

    Attributes:
        taken_by: ``run``, or ``head`` when it was copied from the newest checkpoint without a run's help.
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
    root = open_root(job_root)
    ask = named(root, ask)
    if made := _made_before(root, ask):
        return made
    if not ask.from_head and not root.head().entry.ended:
        given = _ask_run(root, ask, RequestKind.SAVEPOINT)
        if given is not None:
            return describe_savepoint(savepoint_at(given.savepoint), "run")
    return _without_run(root, ask)


def _without_run(root: JobRoot, ask: SavepointAsk) -> SavepointReport:
    """A savepoint from the head. What an earlier try has asked of a run is not waited for any more."""
    if not take_back(root, ask.request) and (made := _made_before(root, ask)):
        return made
    return describe_savepoint(_from_head(root, ask), "head")


def why_no_run(job_root: str, ask: SavepointAsk) -> str:
    """For people: why no run has taken what was asked for."""
    return "no run was asked" if ask.from_head else _no_run(open_root(job_root).head(), ask)


def _no_run(head: Head, ask: SavepointAsk) -> str:
    """What is known of runs when none has answered: one that is busy or stopped gives no sign either."""
    if head.entry.ended:
        return "no run works on the job"
    return f"no run gave a sign within {ask.patience.total_seconds():g} s"


def stop(
    job_root: str, ask: SavepointAsk, *, savepoint: bool, may_run: bool = False
) -> SavepointReport | None:
    """Ends the job's run after its next checkpoint, with a savepoint of it when that is wanted.

    The run commits and publishes the checkpoint, makes the savepoint, answers, and ends; a run that is killed on the
    way is followed by one that does the rest before any batch. Returns the savepoint; None without one. An `ask` of
    origin *manual* gives a savepoint of origin *stop*.

    Args:
        may_run: whether this process may run the job of `ask.code`, when event-time timers are to be fired and no run
            is there that could. That run reads nothing: it starts from the newest checkpoint, fires them, and ends.

    Raises: as `create_savepoint`. ConfigError when nothing runs and no savepoint is wanted.
    """
    root = open_root(job_root)
    ask = named(root, ask if ask.origin is not Origin.MANUAL else replace(ask, origin=Origin.STOP))
    if savepoint and (made := _made_before(root, ask)):
        return made
    given, head = None, root.head()
    if savepoint and head.entry.ended and (made := _stopped_before(root, ask, head)):
        return made
    if not head.entry.ended:
        given = _ask_run(root, ask if savepoint else _nameless(ask), RequestKind.STOP)
    if given is None and savepoint and may_run and ask.drain and ask.code and _undrained(root):
        given = _drain_in_a_run(root, ask, ask.code)
    if given is not None:
        return describe_savepoint(savepoint_at(given.savepoint), "run") if savepoint else None
    if not savepoint:
        hint = (
            "there is nothing to stop" if head.entry.ended else "if one is at work, wait longer: --patience"
        )
        raise ConfigError(_no_run(head, ask), hint=hint, root=job_root)  # fmt: skip
    return _without_run(root, ask)


def _drain_in_a_run(root: JobRoot, ask: SavepointAsk, code: JobCode) -> Answer | None:
    """Runs the job for the request alone: a run serves an open stop before it reads anything."""
    patience = Patience(ask.patience, ask.timeout)
    posted = post_request(root, _request(root, ask, RequestKind.STOP), patience)
    try:
        run_job(RunRequest(code.file, root.storage.uri, code.layers, note=f"stop {ask.name}"))
    except Fenced:
        # The newer run finds the request, and serves it.
        return wait_for_answer(root, posted, patience)
    except BaseException:
        # Otherwise the next run, which reads its input, would be stopped by it.
        take_back(root, ask.request)
        raise
    return wait_for_answer(root, posted, patience)


def withdraw(job_root: str, request: str) -> bool:
    """Takes back a request that no run has answered yet: nobody waits for it. Whether there was one."""
    return take_back(open_root(job_root), request)


def list_all(job_root: str) -> list[SavepointReport]:
    """Every complete savepoint below a job root, oldest first; damaged ones are left out."""
    return [describe_savepoint(s) for s in list_savepoints(open_storage(job_root))]


def find(job_root: str, name_or_path: str) -> StoredSavepoint:
    """The savepoint of this name below the job root, or at this path, or with this ``_savepoint``, wherever it is.

    Raises ConfigError when there is none.
    """
    if "/" in name_or_path:
        return savepoint_at(name_or_path)
    stored = find_savepoint(open_storage(job_root), name_or_path)
    if stored is None:
        names = [s.document.name for s in list_savepoints(open_storage(job_root))]
        raise ConfigError("there is no such savepoint", hint=f"there are {names}", name=name_or_path)
    return stored


def dispose(job_root: str, name: str, by: str = "", reason: str = "") -> SavepointReport:
    """Deletes a savepoint below a job root, by its name or folder; a damaged one by its folder.

    Raises ConfigError when there is none.
    """
    root = open_root(job_root)
    freed = dispose_damaged(root, name)
    gone = describe_savepoint(dispose_savepoint(root, name)) if freed is None else _damaged(root, name, freed)
    _note(root, ActionRecord(seq=_newest(root), kind="dispose", at=now(root), by=by or root.writer, reason=reason,
                             bytes=gone.bytes, facts={"savepoint": gone.name, "id": gone.id}))  # fmt: skip
    return gone


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
    return ask_run(root, _request(root, ask, kind), patience_of(ask))


def _request(root: JobRoot, ask: SavepointAsk, kind: RequestKind) -> Request:
    return Request(
        id=ask.request, kind=kind, savepoint=ask.name, origin=ask.origin, by=ask.by or root.writer, reason=ask.reason,
        drain=ask.drain, at=now(root),
    )  # fmt: skip


def patience_of(ask: SavepointAsk) -> Patience:
    """How long to wait for a run."""
    return Patience(ask.patience, ask.timeout)


def _made_before(root: JobRoot, ask: SavepointAsk) -> SavepointReport | None:
    """The savepoint that an earlier try of the same request has made, whoever made it then."""
    stored = find_savepoint(root.storage, check_savepoint_name(ask.name))
    if stored is None or not is_same(stored.document.request, ask.request):
        return None
    if stored.document.generation:
        return describe_savepoint(stored, "run")
    _drop_pins(root, ask.by or root.writer, ask.name)
    return describe_savepoint(stored, "head")


def _stopped_before(root: JobRoot, ask: SavepointAsk, head: Head) -> SavepointReport | None:
    """The savepoint with which the same asker has stopped the job before, if it still is where the job stands."""
    for request in ask.earlier:
        made = _made_before(root, replace(ask, request=request))
        if made is not None and made.checkpoint_id == settled_checkpoint(root, head).id:
            return made
    return None


def _drop_pins(root: JobRoot, by: str, name: str) -> None:
    """Drops what an earlier try that was killed has pinned; should it only sleep, it finds its savepoint given up."""
    for pin in pins_of(root, by, f"savepoint {name}"):
        root.unpin(pin)


def _from_head(root: JobRoot, ask: SavepointAsk) -> StoredSavepoint:
    by = ask.by or root.writer
    if ask.drain:
        _check_drained(root)
    _drop_pins(root, by, ask.name)
    checkpoint, sinks = settled_head(root, ask)
    return make_savepoint(root, Order(
        name=ask.name, checkpoint=checkpoint, sinks=sinks, origin=ask.origin, by=by,
        reason=ask.reason, request=ask.request, drained=ask.drain,
    ))  # fmt: skip


def _undrained(root: JobRoot) -> list[str]:
    """Uids of the operators that have event-time timers, which only a run can fire."""
    manifest = root.manifest(root.head())
    operators = manifest.operators if manifest else []
    return [o.uid for o in operators if any(s.event_timer is not None for s in o.subtasks)]


def _check_drained(root: JobRoot) -> None:
    """Raises ConfigError when there are event-time timers."""
    if pending := _undrained(root):
        raise ConfigError("the job has event-time timers, and no run is there to fire them", hint="give the job file "
                          "to `stateflow stop`, which then fires them in a run of its own: --job JOB.py; or let a run "
                          "of the job fire them first: stateflow run --drain", operators=pending)  # fmt: skip


def settled_head(root: JobRoot, ask: SavepointAsk) -> tuple[EntryRef, dict[str, PublishedOutput]]:
    """A checkpoint whose output is published, and where the sinks stand with it."""
    while True:
        head = root.head()
        try:
            return _settled_at(root, head, ask)
        except MissingFile:
            # A run that began meanwhile publishes what was pending, and then deletes the list of it.
            if root.head() == head:
                raise


def _settled_at(root: JobRoot, head: Head, ask: SavepointAsk) -> tuple[EntryRef, dict[str, PublishedOutput]]:
    unfinished = bool(pending_of(head)) or head.entry.rewind is not None
    if ask.from_head or not unfinished:
        checkpoint = settled_checkpoint(root, head)
        return checkpoint, standing_with(head, checkpoint)
    if ask.code is None:
        raise _unfinished(head, ask)
    job = open_existing(ask.code.file, root.storage.uri, ask.code.layers)
    head = complete_rewind(root, job.sinks, head)
    publisher = Publisher(root, job.sinks)
    publisher.publish_pending(head)
    if head.checkpoint is None:
        raise DataError("the job has no checkpoint to make a savepoint of", hint="run it first")
    return head.checkpoint, {**standing_with(head, head.checkpoint), **publisher.published}


def _unfinished(head: Head, ask: SavepointAsk) -> ConfigError:
    older = "stateflow savepoint create --from-head takes an older checkpoint"
    if (rewind := head.entry.rewind) is not None:
        to = rewind.restore.label if rewind.restore else head.stand
        return ConfigError(f"a restore to {to} is not completed", hint="the job's next start completes it, and so does "
                           "this command with the job file: --job JOB.py; stateflow status shows it",
                           tables=sorted(rewind.sinks))  # fmt: skip
    return ConfigError(f"output of the newest checkpoint may not be published yet, and {_no_run(head, ask)}",
                       hint="if a run is at work, wait longer for its sign: --patience; if none is, give the job file, "
                       f"so that the output can be published: --job JOB.py; or {older}",
                       checkpoint=head.checkpoint_id)  # fmt: skip


def named(root: JobRoot, ask: SavepointAsk) -> SavepointAsk:
    """The same with a name and a request id."""
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
