"""Savepoints outside of their job's root: written there, listed and deleted."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote, urlsplit

from stateflow.checkpoint.asking import ask_run, is_same
from stateflow.checkpoint.documents import EntryRef, Origin, PublishedOutput, Request, RequestKind
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.savepoint import Order, check_savepoint_name, make_savepoint, standing_with
from stateflow.checkpoint.savepoint_cleanup import dispose_elsewhere, sweep_elsewhere
from stateflow.checkpoint.stored_savepoints import (
    StoredSavepoint,
    list_savepoints,
    savepoint_uri,
    savepoints_called,
)
from stateflow.errors import ConfigError, DataError
from stateflow.recovery.job_roots import now, open_root, pins_of
from stateflow.recovery.savepoints import (
    SavepointAsk,
    SavepointReport,
    describe_savepoint,
    dispose,
    named,
    patience_of,
    settled_head,
)
from stateflow.storage import open_storage
from stateflow.storage.paths import FORMAT, SAVEPOINTS

_TRIES = 5


def create_savepoint_into(job_root: str, ask: SavepointAsk, into: str) -> SavepointReport:
    """Writes a savepoint to a new folder below `into`, on any storage; all files are read again there.

    A run is asked for a checkpoint, which this process copies, so the run needs no access to `into`. Asking again with
    the same request id gives the same savepoint. Raises as `create_savepoint` does.
    """
    root = open_root(job_root)
    ask, into = named(root, ask), _outside(root, into)
    check_savepoint_name(ask.name)
    order = Order(
        name=ask.name, checkpoint=EntryRef(id=0, sha256=""), sinks={}, origin=ask.origin, by=ask.by or root.writer,
        reason=ask.reason, request=ask.request, into=into,
    )  # fmt: skip
    _remove_half_made(root, order)
    if made := _made_before(root, order):
        return describe_savepoint(made, "head")
    if not ask.from_head and not root.head().entry.ended and (made := _of_run(root, ask, order)):
        return describe_savepoint(made, "run")
    checkpoint, sinks = settled_head(root, ask)
    return describe_savepoint(
        make_savepoint(root, replace(order, checkpoint=checkpoint, sinks=sinks)), "head"
    )


def list_savepoints_in(folder: str) -> list[SavepointReport]:
    """Every complete savepoint in a folder that is no job root, of any job, oldest first."""
    return [describe_savepoint(s) for s in list_savepoints(open_storage(folder), "")]


def dispose_path(path: str, by: str = "", reason: str = "") -> SavepointReport:
    """Deletes the savepoint at a path, wherever it is. Below a job root this is the same as `dispose` by name.

    Raises ConfigError when there is none.
    """
    storage = open_storage(savepoint_uri(path))
    above, _, folder = storage.uri.rpartition(f"/{SAVEPOINTS}")
    if above and "/" not in folder and open_storage(above).size(FORMAT) is not None:
        return dispose(above, folder, by, reason)
    uri = storage.uri.rstrip("/")
    above, _, name = uri.rpartition("/")
    # From the folder above, so that an empty folder goes as well; the root of a bucket has none.
    name = unquote(name) if uri.startswith("file:") else name
    place = (open_storage(above), f"{name}/") if urlsplit(above).path.strip("/") else (storage, "")
    document, freed = dispose_elsewhere(*place)
    if document is None:
        return SavepointReport(name, "", uri, "", 0, {}, freed, "", "")
    return replace(describe_savepoint(StoredSavepoint(*place, document, "")), bytes=freed)


def _outside(root: JobRoot, into: str) -> str:
    """The URI of a folder for savepoints. Raises ConfigError for one in the job root."""
    uri, own = open_storage(into).uri.rstrip("/"), root.storage.uri.rstrip("/")
    if f"{uri}/".startswith(f"{own}/"):
        raise ConfigError("the folder is in the job root", hint="leave --into out for a savepoint in the job root; "
                          "choose another folder otherwise", into=uri, root=own)  # fmt: skip
    return uri


def _made_before(root: JobRoot, order: Order) -> StoredSavepoint | None:
    """What the same request has made there. Other jobs may use the same folder, and the same names."""
    storage, within = order.place(root)
    called = savepoints_called(storage, order.name, within)
    own = [s for s in called if s.document.job_uuid == root.job.job_uuid]
    return next((s for s in own if is_same(s.document.request, order.request)), None)


def _remove_half_made(root: JobRoot, order: Order) -> None:
    """Drops the pins of earlier tries that were killed, and deletes what these left. One that only sleeps fails."""
    pins = pins_of(root, order.by, order.purpose)
    for pin in pins:
        root.unpin(pin)
    if pins:
        sweep_elsewhere(order.place(root)[0], frozenset(pins))


def _of_run(root: JobRoot, ask: SavepointAsk, order: Order) -> StoredSavepoint | None:
    """A savepoint of a checkpoint that the run makes now; None when there is no run."""
    for number in range(_TRIES):
        request = f"{ask.request}-{number}" if number else ask.request
        asked = Request(id=request, kind=RequestKind.CHECKPOINT, savepoint="", origin=Origin.MANUAL, by=order.by,
                        reason=ask.reason, at=now(root))  # fmt: skip
        given = ask_run(root, asked, patience_of(ask))
        if given is None:
            return None
        if checkpoint := _published(root, root.head(), given.checkpoint_id):
            sinks = _standing(root.head(), checkpoint)
            try:
                return make_savepoint(root, replace(order, checkpoint=checkpoint, sinks=sinks))
            except DataError:
                # The run may have let the checkpoint go before it was pinned.
                if any(ref == checkpoint for ref in root.line(root.head())):
                    raise
    raise DataError("the run lets its checkpoints go before they can be copied", hint="set checkpoints.retained to 2 "
                    "or more, or take an older checkpoint: --from-head", tries=_TRIES)  # fmt: skip


def _published(root: JobRoot, head: Head, asked: int) -> EntryRef | None:
    """The newest checkpoint, from the asked one on, whose output is published. Of the asked one the run's answer says
    so, and the log may not."""
    unpublished = min((p.checkpoint_id for p in pending_of(head) if p.checkpoint_id > asked), default=0)
    fitting = [
        ref for ref in root.line(head) if ref.id >= asked and (not unpublished or ref.id < unpublished)
    ]
    return max(fitting, key=lambda ref: ref.id, default=None)


def _standing(head: Head, checkpoint: EntryRef) -> dict[str, PublishedOutput]:
    known = standing_with(head, checkpoint)
    just = {p.sink for p in pending_of(head) if p.checkpoint_id <= checkpoint.id} & known.keys()
    return {
        **known,
        **{uid: PublishedOutput(table_id=known[uid].table_id, version=-1, checkpoint_id=checkpoint.id) for uid in just},
    }  # fmt: skip
