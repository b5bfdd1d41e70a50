"""Savepoints: a checkpoint's files in a folder of their own, which belongs to the user.

A savepoint exists when `_savepoint` does, and that is written last. While one is made, its checkpoint is pinned and
`_started` names the pin. Whoever finds `_started` without its pin knows that the maker is gone, or can never finish:
it takes the slot of `_savepoint` with a tombstone first, so that a maker that only slept fails there, and then removes
the files. What a run makes for a request keeps `_started` until the answer decides whether it stays. `_disposed` marks
one that is being taken away, for a collection to complete. ``docs/design/0007-savepoints.md`` has the histories.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.documents import EntryRef, Manifest, Origin, PublishedOutput, Savepoint
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.envelope import seal
from stateflow.checkpoint.files import check_stored, files_of, write_bytes
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.requests import read_answer
from stateflow.checkpoint.savepoint_cleanup import settle_savepoint
from stateflow.checkpoint.stored_savepoints import (
    VERSION,
    StoredSavepoint,
    is_told,
    note_savepoint,
    put_marker,
    savepoints_called,
)
from stateflow.errors import ConfigError, DataError, StateflowError
from stateflow.ids import check_name
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage, open_storage
from stateflow.storage.paths import SAVEPOINT_FILES, SAVEPOINTS, STARTED, savepoint_folder

log = logging.getLogger(__name__)

_THREADS = 4
LATEST = "latest"
"""Means a checkpoint where a target is named, so no savepoint is called this."""


@dataclass(frozen=True)
class Order:
    """What savepoint to make.

    Attributes:
        sinks: where each sink stood with the checkpoint's output published.
        request: the request that it answers; making it again for the same one gives what is there.
        generation: of the run that makes it; 0 outside of runs.
        into: URI of the folder that gets the savepoint's folder; empty for the job root's own.
    """

    name: str
    checkpoint: EntryRef
    sinks: dict[str, PublishedOutput]
    origin: Origin = Origin.MANUAL
    by: str = ""
    reason: str = ""
    request: str = ""
    drained: bool = False
    generation: int = 0
    into: str = ""

    @property
    def purpose(self) -> str:
        """Why its checkpoint is pinned while it is made."""
        return f"savepoint {self.name}" + (f" into {self.into}" if self.into else "")

    def place(self, root: JobRoot) -> tuple[Storage, str]:
        """The storage that gets it, and the prefix of the savepoints' folders there."""
        return (open_storage(self.into), "") if self.into else (root.storage, SAVEPOINTS)


def settled_checkpoint(root: JobRoot, head: Head) -> EntryRef:
    """The newest checkpoint all of whose output is published, as far as `head` knows.

    Raises DataError when there is none.
    """
    unpublished = min((p.checkpoint_id for p in pending_of(head)), default=head.entry.seq + 1)
    settled = [ref for ref in root.line(head) if ref.id < unpublished]
    if not settled:
        raise DataError("the job has no checkpoint whose output is known to be published", hint="wait for the next "
                        "one, or start the job", checkpoint=head.checkpoint_id)  # fmt: skip
    return max(settled, key=lambda ref: ref.id)


def standing_with(head: Head, ref: EntryRef) -> dict[str, PublishedOutput]:
    """Where each sink stood when the output of `ref` was published. Version -1 where the log does not know it any
    more: the table does."""
    known = head.entry.published.items()
    return {
        u: p if p.checkpoint_id <= ref.id else replace(p, version=-1, checkpoint_id=ref.id) for u, p in known
    }


def make_savepoint(root: JobRoot, order: Order) -> StoredSavepoint:
    """Copies a checkpoint into a savepoint; works beside a run.

    Raises:
        ConfigError: there is a savepoint of this name.
        DataError: the checkpoint is not retained any more, or somebody gave the savepoint up meanwhile.
    """
    check_savepoint_name(order.name)
    began = root.clock.monotonic()
    if found := _made_before(root, order):
        return found
    with root.pinned(order.checkpoint, order.by or root.writer, order.purpose, order.generation) as pin:
        failpoints.hit("savepoint.pinned")
        made = _make_pinned(root, order, pin.id)
    # What a run has made is in the history when its answer names it: until then nobody has it.
    if not order.generation:
        note_savepoint(root, made, round((root.clock.monotonic() - began) * 1000, 1))
    return made


def check_savepoint_name(name: str) -> str:
    """Returns a name that a savepoint may have. Raises ConfigError for one that means a checkpoint as a target."""
    if check_name("a savepoint's name", name) == LATEST or name.isdigit():
        raise ConfigError("a savepoint's name may not be what a checkpoint is called", hint="give it a name with "
                          "letters, other than latest", name=name)  # fmt: skip
    return name


def _made_before(root: JobRoot, order: Order) -> StoredSavepoint | None:
    """What the same request has made. Raises ConfigError when another has the name."""
    storage, within = order.place(root)
    called = savepoints_called(storage, order.name, within)
    if order.into:
        # Other jobs may use the same folder, and the same names.
        called = [s for s in called if s.document.job_uuid == root.job.job_uuid]
    own = [s for s in called if order.request and s.document.request == order.request]
    for made in own:
        # A run's savepoint may still be taken away, by the answer to its request: only a run, whose answer names it
        # then, goes on with it.
        if order.generation or is_told(storage, made):
            return made
    taken = [s for s in called if order.into or not _is_refused(root, s)]
    if taken:
        raise ConfigError("there is a savepoint of this name", hint="choose another name, or dispose of it",
                          name=order.name, made_at=taken[0].document.made_at)  # fmt: skip
    return None


def _is_refused(root: JobRoot, stored: StoredSavepoint) -> bool:
    """Takes a savepoint away that nobody was told of, and nobody will be."""
    if is_told(root.storage, stored):
        return False
    given = read_answer(root.storage, stored.document.request)
    if given is None:
        return False
    settle_savepoint(root, stored, given)
    return given.savepoint_id != stored.document.id


def _make_pinned(root: JobRoot, order: Order, pin: str) -> StoredSavepoint:
    # No other attempt, also none of the same name, ever writes or deletes in this folder.
    storage, within = order.place(root)
    folder = savepoint_folder(f"{order.name}-{root.clock.new_id()[:8]}", within)
    write_bytes(storage, f"{folder}{STARTED}", pin.encode())
    failpoints.hit("savepoint.started")
    checkpoint = root.resolved(order.checkpoint)
    manifest = root.manifest_of(checkpoint)
    names = _names(files_of(manifest))
    take_all(root.storage, [(key, f"{folder}{name}") for key, name in names.items()], storage)
    manifest = with_keys(manifest, names)
    if order.into:
        # It may be all that is left one day.
        check_stored(storage, [replace(f, key=f"{folder}{f.key}") for f in files_of(manifest)])
    failpoints.hit("savepoint.copied")
    document = Savepoint(
        version=VERSION, id=root.clock.new_id(), name=order.name, origin=order.origin,
        made_at=root.clock.now().isoformat(timespec="milliseconds"), committed_at=checkpoint.at,
        by=order.by or root.writer, reason=order.reason,
        request=order.request, generation=order.generation, drained=order.drained,
        job=root.job.job, job_uuid=root.job.job_uuid, max_parallelism=root.job.max_parallelism,
        checkpoint_id=order.checkpoint.id,
        manifest=manifest, sinks=order.sinks, stateflow=_version(),
    )  # fmt: skip
    data, digest = seal(document)
    if not put_marker(storage, folder, data):
        raise DataError("the savepoint was given up while it was made", hint="was its pin dropped? make it again",
                        name=order.name)  # fmt: skip
    failpoints.hit("savepoint.complete")
    if not order.generation:
        _remove_started(storage, folder)
    return StoredSavepoint(storage, folder, document, digest)


def _remove_started(storage: Storage, folder: str) -> None:
    """Removes the mark of a savepoint that is being made. The savepoint is complete, so a failure is logged only."""
    try:
        storage.delete([f"{folder}{STARTED}"])
    except StateflowError as e:
        log.warning("%s%s is left: %s", folder, STARTED, e)


def take_all(source: Storage, names: Iterable[tuple[str, str]], target: Storage) -> None:
    """Stores objects of `source` in `target`, a few at a time. Names are made of the content, so objects with equal
    bytes become one. Raises MissingFile or StorageError for the first one that cannot be stored."""
    unique = {to: key for key, to in names}
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(target.take, source, key, to) for to, key in unique.items()]:
            done.result()


def with_keys(manifest: Manifest, names: dict[str, str]) -> Manifest:
    """The manifest with every file's key replaced."""

    def moved(handle: FileHandle) -> FileHandle:
        return replace(handle, key=names[handle.key])

    operators = [
        replace(o, subtasks=[
            replace(s, files=[replace(f, handle=moved(f.handle)) for f in s.files]) for s in o.subtasks
        ], parts=[replace(p, handle=moved(p.handle)) if p.handle else p for p in o.parts]) for o in manifest.operators
    ]  # fmt: skip
    spark = manifest.spark and replace(manifest.spark, source_files=[
        replace(f, handle=moved(f.handle)) if f.handle else f for f in manifest.spark.source_files
    ])  # fmt: skip
    return replace(manifest, operators=operators, spark=spark)


def _names(files: Iterable[FileHandle]) -> dict[str, str]:
    """What each file is called in a savepoint: by its content, because a name says nothing elsewhere."""
    return {f.key: f"{SAVEPOINT_FILES}{f.sha256}" for f in files}


def _version() -> str:
    try:
        return metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        return ""
