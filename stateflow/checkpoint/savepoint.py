"""Savepoints: a checkpoint's files in a folder of their own, which belongs to the user.

A savepoint exists when `_savepoint` does, and that is written last. While one is made, its checkpoint is pinned and
`_started` names the pin. Whoever finds `_started` without its pin knows that the maker is gone, or can never finish:
it takes the slot of `_savepoint` with a tombstone first, so that a maker that only slept fails there, and then removes
the files. What a run makes for a request keeps `_started` until the answer decides whether it stays. `_disposed` marks
one that is being taken away, for a collection to complete. ``docs/design/0007-savepoints.md`` has the histories.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.documents import (
    Answer,
    EntryRef,
    Manifest,
    Origin,
    PublishedOutput,
    Savepoint,
)
from stateflow.checkpoint.entries import pending_of
from stateflow.checkpoint.envelope import LIMIT, seal, unseal
from stateflow.checkpoint.files import check_stored, files_of, write_bytes
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.requests import read_answer
from stateflow.errors import ConfigError, DataError, MissingFile, StorageError
from stateflow.ids import check_name
from stateflow.state.handles import FileHandle
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import (
    DISPOSED,
    SAVEPOINT,
    SAVEPOINTS,
    STARTED,
    savepoint_file,
    savepoint_folder,
)

VERSION = 1
_GIVEN_UP = b"given up\n"
_THREADS = 4


@dataclass(frozen=True)
class Order:
    """What savepoint to make.

    Attributes:
        sinks: where each sink stood with the checkpoint's output published.
        request: the request that it answers; making it again for the same one gives what is there.
        generation: of the run that makes it; 0 outside of runs.
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


@dataclass(frozen=True)
class StoredSavepoint:
    """A complete savepoint and where it is.

    Attributes:
        folder: key prefix below `storage`; empty, or ends with a slash.
        sha256: of its document, which names every file with its hash.
    """

    storage: Storage
    folder: str
    document: Savepoint
    sha256: str

    @property
    def uri(self) -> str:
        """Where it is, for people and for other jobs."""
        return f"{self.storage.uri.rstrip('/')}/{self.folder}".rstrip("/")

    @property
    def size(self) -> int:
        """Bytes of its files, each counted once."""
        return sum({f.key: f.size for f in files_of(self.document.manifest)}.values())

    def verify(self) -> None:
        """Raises MissingFile or CorruptFile unless every file is there with its size and hash."""
        check_stored(self.storage, self.files())

    def files(self) -> Iterator[FileHandle]:
        """Its files, with the keys that they have in `storage`."""
        unique = {f.key: f for f in files_of(self.document.manifest)}
        return (replace(f, key=f"{self.folder}{f.key}") for f in unique.values())


def settled_checkpoint(head: Head) -> EntryRef:
    """The newest checkpoint all of whose output is published, as far as `head` knows.

    Raises DataError when there is none.
    """
    unpublished = min((p.checkpoint_id for p in pending_of(head)), default=head.entry.seq + 1)
    # Not those that are only pinned: a restore may have left them behind on a branch that is undone.
    line = [*head.entry.retained, *([head.checkpoint] if head.checkpoint else [])]
    settled = [ref for ref in line if ref.id < unpublished]
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
    check_name("a savepoint's name", order.name)
    began = root.clock.monotonic()
    called = _called(root.storage, order.name)
    for made in called:
        if order.request and made.document.request == order.request:
            return made
    if called:
        raise ConfigError("there is a savepoint of this name", hint="choose another name, or dispose of it",
                          name=order.name, made_at=called[0].document.made_at)  # fmt: skip
    pin = root.pin(order.checkpoint, order.by or root.writer, f"savepoint {order.name}", order.generation)
    try:
        failpoints.hit("savepoint.pinned")
        made = _make_pinned(root, order, pin.id)
    finally:
        root.unpin(pin.id)
    _note(root, made, round((root.clock.monotonic() - began) * 1000, 1))
    return made


def _note(root: JobRoot, made: StoredSavepoint, took_ms: float) -> None:
    document = made.document
    facts = {"savepoint": document.name, "id": document.id, "origin": document.origin.value, "path": made.uri}
    write_action(root.storage, ActionRecord(
        seq=document.checkpoint_id, kind="savepoint", at=document.made_at, by=document.by, reason=document.reason,
        took_ms=took_ms, bytes=made.size, facts=facts,
    ), document.id)  # fmt: skip


def _make_pinned(root: JobRoot, order: Order, pin: str) -> StoredSavepoint:
    # No other attempt, also none of the same name, ever writes or deletes in this folder.
    folder = savepoint_folder(f"{order.name}-{root.clock.new_id()[:8]}")
    write_bytes(root.storage, f"{folder}{STARTED}", pin.encode())
    failpoints.hit("savepoint.started")
    entry = root.log.read_checkpoint(order.checkpoint)
    assert entry.manifest is not None
    manifest = root.read_manifest(entry.manifest)
    names = _names(files_of(manifest))
    take_all(root.storage, [(key, f"{folder}{name}") for key, name in names.items()], root.storage)
    failpoints.hit("savepoint.copied")
    document = Savepoint(
        version=VERSION, id=root.clock.new_id(), name=order.name, origin=order.origin,
        made_at=root.clock.now().isoformat(timespec="milliseconds"), by=order.by or root.writer, reason=order.reason,
        request=order.request, generation=order.generation, drained=order.drained,
        job=root.job.job, job_uuid=root.job.job_uuid, max_parallelism=root.job.max_parallelism,
        checkpoint_id=order.checkpoint.id,
        manifest=with_keys(manifest, names), sinks=order.sinks, stateflow=_version(),
    )  # fmt: skip
    data, digest = seal(document)
    if not _put_marker(root.storage, folder, data):
        raise DataError("the savepoint was given up while it was made", hint="was its pin dropped? make it again",
                        name=order.name)  # fmt: skip
    failpoints.hit("savepoint.complete")
    if not order.generation:
        root.storage.delete([f"{folder}{STARTED}"])
    return StoredSavepoint(root.storage, folder, document, digest)


def _put_marker(storage: Storage, folder: str, data: bytes) -> bool:
    """Writes `_savepoint`; False when somebody else has."""
    key = f"{folder}{SAVEPOINT}"
    if storage.put_new(key, data) is PutResult.CREATED:
        return True
    found = _get(storage, key)
    if found is None:
        raise StorageError("the storage does not say whether a savepoint is complete", hint="look at it with "
                           "stateflow savepoint list", key=key)  # fmt: skip
    return found == data


def take_all(source: Storage, names: Iterable[tuple[str, str]], target: Storage) -> None:
    """Stores objects of `source` in `target`, a few at a time. Raises MissingFile or StorageError for the first one
    that cannot be."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(target.take, source, key, to) for key, to in names]:
            done.result()


def with_keys(manifest: Manifest, names: dict[str, str]) -> Manifest:
    """The manifest with every file's key replaced."""

    def moved(handle: FileHandle) -> FileHandle:
        return replace(handle, key=names[handle.key])

    operators = [
        replace(o, subtasks=[
            replace(s, files=[replace(f, handle=moved(f.handle)) for f in s.files]) for s in o.subtasks
        ]) for o in manifest.operators
    ]  # fmt: skip
    spark = manifest.spark and replace(manifest.spark, source_files=[
        replace(f, handle=moved(f.handle)) if f.handle else f for f in manifest.spark.source_files
    ])  # fmt: skip
    return replace(manifest, operators=operators, spark=spark)


def _names(files: Iterable[FileHandle]) -> dict[str, str]:
    """What each file is called in a savepoint: by its content, because a name says nothing elsewhere."""
    return {f.key: f"files/{f.sha256}" for f in files}


def settle_savepoint(root: JobRoot, made: StoredSavepoint, given: Answer) -> None:
    """Keeps what a run has made when the answer names it; when another answer was first, nobody knows of it."""
    if given.savepoint_id == made.document.id:
        root.storage.delete([f"{made.folder}{STARTED}"])
    else:
        _take_away(root.storage, made.folder, made.document.id)


def sweep_savepoints(root: JobRoot) -> list[str]:
    """Removes what savepoints that were never completed, or not taken away wholly, have left; safe beside their makers.
    Returns the folders."""
    # The listing comes before the pins: who is listed had its pin before, and has completed when it is gone.
    found: dict[str, dict[str, int]] = {}
    for blob in root.storage.list(SAVEPOINTS):
        if place := savepoint_file(blob.key):
            found.setdefault(place[0], {})[place[1]] = blob.size
    swept = [f for f, files in found.items() if _sweep_leftovers(root.storage, savepoint_folder(f), files)]
    started = [f for f, files in found.items() if STARTED in files and f not in swept]
    if not started:
        return swept
    pins = {p.id for p in root.head().entry.pinned}
    return swept + [f for f in started if _sweep(root, savepoint_folder(f), pins)]


def _sweep_leftovers(storage: Storage, folder: str, files: dict[str, int]) -> bool:
    if DISPOSED in files:
        _finish_taking_away(storage, folder)
        return True
    # A maker that slept while its savepoint was given up may have gone on copying.
    late = len(files) > 1 and STARTED not in files and files.get(SAVEPOINT) == len(_GIVEN_UP)
    if late and _get(storage, f"{folder}{SAVEPOINT}") == _GIVEN_UP:
        storage.delete(f"{folder}{name}" for name in files if name != SAVEPOINT)
        return True
    return False


def _sweep(root: JobRoot, folder: str, pins: set[str]) -> bool:
    storage = root.storage
    pin = _get(storage, f"{folder}{STARTED}")
    if pin is None or pin.decode(errors="replace") in pins:
        return False
    if not _put_marker(storage, folder, _GIVEN_UP):
        _sweep_complete(root, folder)
        return False
    failpoints.hit("savepoint.given-up")
    kept_keys = {f"{folder}{SAVEPOINT}", f"{folder}{STARTED}"}
    storage.delete(b.key for b in storage.list(folder) if b.key not in kept_keys)
    storage.delete([f"{folder}{STARTED}"])
    return True


def _sweep_complete(root: JobRoot, folder: str) -> None:
    """Its maker died before it removed `STARTED`; what a run has made waits for its answer."""
    made = _read(root.storage, folder)
    if made is None or not made.document.generation:
        root.storage.delete([f"{folder}{STARTED}"])
    elif given := read_answer(root.storage, made.document.request):
        settle_savepoint(root, made, given)


def dispose_savepoint(root: JobRoot, name: str) -> StoredSavepoint:
    """Deletes a savepoint of this job root. Raises ConfigError when there is none."""
    stored = find_savepoint(root.storage, name)
    if stored is None:
        raise ConfigError("there is no such savepoint", hint="stateflow savepoint list shows them", name=name)
    _take_away(root.storage, stored.folder, stored.document.id)
    return stored


def _take_away(storage: Storage, folder: str, savepoint_id: str) -> None:
    # Killed from here on, a collection completes it.
    write_bytes(storage, f"{folder}{DISPOSED}", savepoint_id.encode())
    failpoints.hit("savepoint.disposing")
    _finish_taking_away(storage, folder)


def _finish_taking_away(storage: Storage, folder: str) -> None:
    storage.delete([f"{folder}{SAVEPOINT}"])
    failpoints.hit("savepoint.disposed")
    storage.delete(b.key for b in storage.list(folder) if not b.key.endswith(f"/{DISPOSED}"))
    storage.delete([f"{folder}{DISPOSED}"])


def list_savepoints(storage: Storage) -> list[StoredSavepoint]:
    """Every complete savepoint below a job root, oldest first. Raises CorruptFile for a damaged one."""
    suffix = f"/{SAVEPOINT}"
    folders = [b.key.removesuffix(SAVEPOINT) for b in storage.list(SAVEPOINTS) if b.key.endswith(suffix)]
    found = [s for folder in folders if (s := _read(storage, folder))]
    return sorted(found, key=lambda s: s.document.made_at)


def find_savepoint(storage: Storage, name: str) -> StoredSavepoint | None:
    """The complete savepoint of this name, or in the folder of this name, below a job root.

    Raises ConfigError when several have the name, which only happens when they were made at the same moment.
    """
    found = _called(storage, name)
    if len(found) > 1:
        raise ConfigError("several savepoints have this name", hint="name the folder of one", name=name,
                          folders=[s.folder.split("/")[1] for s in found])  # fmt: skip
    return found[0] if found else None


def _called(storage: Storage, name: str) -> list[StoredSavepoint]:
    suffix = f"/{SAVEPOINT}"
    keys = [b.key for b in storage.list(f"{SAVEPOINTS}{name}") if b.key.endswith(suffix)]
    stored = [s for key in keys if (s := _read(storage, key.removesuffix(SAVEPOINT)))]
    return [s for s in stored if name in (s.document.name, s.folder.split("/")[1])]


def open_savepoint(storage: Storage, folder: str = "") -> StoredSavepoint:
    """The savepoint at this place, wherever it was moved or copied. Raises ConfigError when there is none."""
    stored = _read(storage, folder)
    if stored is None:
        raise ConfigError("there is no complete savepoint here", hint="a complete one has a file _savepoint",
                          path=f"{storage.uri}/{folder}".rstrip("/"))  # fmt: skip
    return stored


def _read(storage: Storage, folder: str) -> StoredSavepoint | None:
    data = _get(storage, f"{folder}{SAVEPOINT}")
    if data is None or data == _GIVEN_UP:
        return None
    document, digest = unseal(data, Savepoint, f"{folder}{SAVEPOINT}")
    if document.version != VERSION:
        raise ConfigError("the savepoint has a format that this version does not know", hint="use the version of "
                          "stateflow that wrote it", found=document.version, known=VERSION,
                          written_by=document.stateflow)  # fmt: skip
    return StoredSavepoint(storage, folder, document, digest)


def _get(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key, LIMIT)
    except MissingFile:
        return None


def _version() -> str:
    try:
        return metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        return ""
