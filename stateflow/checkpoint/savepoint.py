"""Savepoints: a checkpoint's files in a folder of their own, which belongs to the user.

A savepoint exists when `_savepoint` does, and that is written last. While one is made, its checkpoint is pinned and
`_started` names the pin. Whoever finds `_started` without its pin knows that the maker is gone, or can never finish:
it takes the slot of `_savepoint` with a tombstone first, so that a maker that only slept fails there, and then removes
the files. What a run makes for a request keeps `_started` until the answer decides whether it stays. `_disposed` marks
one that is being taken away, for a collection to complete. ``docs/design/0007-savepoints.md`` has the histories.
"""

from __future__ import annotations

import logging
import re
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
from stateflow.checkpoint.jobroot import JobRoot, line
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.requests import read_answer
from stateflow.errors import ConfigError, CorruptFile, DataError, MissingFile, StorageError
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

log = logging.getLogger(__name__)

VERSION = 1
_GIVEN_UP = b"given up\n"
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
    def place(self) -> str:
        """The name of its folder."""
        return self.folder.rstrip("/").rpartition("/")[2]

    @property
    def is_original(self) -> bool:
        """Whether its folder has the name that its maker gave it: not one that somebody renamed or copied."""
        return re.fullmatch(rf"{re.escape(self.document.name)}-[0-9a-f]{{8}}", self.place) is not None

    @property
    def uri(self) -> str:
        """Where it is, for people and for other jobs."""
        return f"{self.storage.uri.rstrip('/')}/{self.folder}".rstrip("/")

    @property
    def size(self) -> int:
        """Bytes of its files, each counted once, and of the state in its document."""
        operators = self.document.manifest.operators
        inline = sum(len(s.inline) for o in operators for s in o.subtasks if s.inline is not None)
        return inline + sum({f.key: f.size for f in files_of(self.document.manifest)}.values())

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
    settled = [ref for ref in line(head) if ref.id < unpublished]
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
    pin = root.pin(order.checkpoint, order.by or root.writer, f"savepoint {order.name}", order.generation)
    try:
        failpoints.hit("savepoint.pinned")
        made = _make_pinned(root, order, pin.id)
    finally:
        root.unpin(pin.id)
    # What a run has made is in the history when its answer names it: until then nobody has it.
    if not order.generation:
        _note(root, made, round((root.clock.monotonic() - began) * 1000, 1))
    return made


def check_savepoint_name(name: str) -> str:
    """Returns a name that a savepoint may have. Raises ConfigError for one that means a checkpoint as a target."""
    if check_name("a savepoint's name", name) == LATEST or name.isdigit():
        raise ConfigError("a savepoint's name may not be what a checkpoint is called", hint="give it a name with "
                          "letters, other than latest", name=name)  # fmt: skip
    return name


def _made_before(root: JobRoot, order: Order) -> StoredSavepoint | None:
    """What the same request has made. Raises ConfigError when another has the name."""
    called = _called(root.storage, order.name)
    own = [s for s in called if order.request and s.document.request == order.request]
    for made in own:
        # A run's savepoint may still be taken away, by the answer to its request: only a run, whose answer names it
        # then, goes on with it.
        if order.generation or is_told(root.storage, made):
            return made
    taken = [s for s in called if not _is_refused(root, s)]
    if taken:
        raise ConfigError("there is a savepoint of this name", hint="choose another name, or dispose of it",
                          name=order.name, made_at=taken[0].document.made_at)  # fmt: skip
    return None


def is_told(storage: Storage, stored: StoredSavepoint) -> bool:
    """Whether it stays: what a run has made for a request can go until the answer names it."""
    document = stored.document
    if not document.generation:
        return True
    given = read_answer(storage, document.request)
    if given is None and storage.size(f"{stored.folder}{STARTED}") is not None:
        return False
    # The answer may have come, and the whole folder have been taken away for it, between the two.
    given = given or read_answer(storage, document.request)
    return given is None or given.savepoint_id == document.id


def _is_refused(root: JobRoot, stored: StoredSavepoint) -> bool:
    """Takes a savepoint away that nobody was told of, and nobody will be."""
    if is_told(root.storage, stored):
        return False
    given = read_answer(root.storage, stored.document.request)
    if given is None:
        return False
    settle_savepoint(root, stored, given)
    return given.savepoint_id != stored.document.id


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
        made_at=root.clock.now().isoformat(timespec="milliseconds"), committed_at=entry.at,
        by=order.by or root.writer, reason=order.reason,
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
        ], parts=[replace(p, handle=moved(p.handle)) if p.handle else p for p in o.parts]) for o in manifest.operators
    ]  # fmt: skip
    spark = manifest.spark and replace(manifest.spark, source_files=[
        replace(f, handle=moved(f.handle)) if f.handle else f for f in manifest.spark.source_files
    ])  # fmt: skip
    return replace(manifest, operators=operators, spark=spark)


def _names(files: Iterable[FileHandle]) -> dict[str, str]:
    """What each file is called in a savepoint: by its content, because a name says nothing elsewhere."""
    return {f.key: f"files/{f.sha256}" for f in files}


def settle_savepoint(root: JobRoot, made: StoredSavepoint, given: Answer, took_ms: float = 0) -> None:
    """Keeps what a run has made when the answer names it; when another answer was first, nobody knows of it."""
    if given.savepoint_id == made.document.id:
        # Killed before it, whoever sweeps does both.
        _note(root, made, took_ms)
        root.storage.delete([f"{made.folder}{STARTED}"])
    elif made.document.generation:
        _take_away(root.storage, made.folder, made.document.id)
    # Else whoever asked has withdrawn the request and made it without the run, which came to the request only then.


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
    try:
        made = _read(root.storage, folder)
    except CorruptFile as e:
        log.warning("a savepoint is left alone: %s", e)
        return
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


def dispose_damaged(root: JobRoot, folder: str) -> int | None:
    """Deletes the savepoint in this folder if nobody can read what it is any more.

    Returns the bytes that this frees; None when there is nothing damaged.
    """
    key = savepoint_folder(check_name("a savepoint's folder", folder))
    try:
        _read(root.storage, key)
        return None
    except CorruptFile:
        freed = sum(blob.size for blob in root.storage.list(key))
    _take_away(root.storage, key, "damaged")
    return freed


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
    """Every complete savepoint below a job root, oldest first, but those whose request may still be refused. A damaged
    one is told in the log of this process and left out."""
    found = [s for s in _complete(storage) if is_told(storage, s)]
    return sorted(found, key=lambda s: s.document.made_at)


def _complete(storage: Storage) -> Iterator[StoredSavepoint]:
    for blob in storage.list(SAVEPOINTS):
        place = savepoint_file(blob.key)
        if place is None or place[1] != SAVEPOINT:
            continue
        try:
            stored = _read(storage, savepoint_folder(place[0]))
        except (CorruptFile, ConfigError) as e:
            log.warning("savepoint %s is left out: %s", place[0], e)
            continue
        if stored is not None:
            yield stored


def find_savepoint(storage: Storage, name: str) -> StoredSavepoint | None:
    """The complete savepoint of this name, or in the folder of this name, below a job root.

    Raises ConfigError when several have the name, which only happens when they were made at the same moment.
    """
    found = [s for s in _called(storage, name) if is_told(storage, s)]
    if len(found) > 1:
        raise ConfigError("several savepoints have this name", hint="name the folder of one", name=name,
                          folders=[s.place for s in found])  # fmt: skip
    return found[0] if found else None


def _called(storage: Storage, name: str) -> list[StoredSavepoint]:
    found = list(_complete(storage))
    if there := [s for s in found if s.place == name]:
        return there
    called = [s for s in found if s.document.name == name]
    # A copy that somebody made beside it does not take the name away from the original; a folder may be renamed.
    return [s for s in called if s.is_original] or called


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
