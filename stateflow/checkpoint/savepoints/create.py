"""Creates savepoints: copies of a checkpoint's files in a separate folder, which belongs to the user.

The state files of a native savepoint are copied into a limited number of files.

A savepoint is complete when its folder contains `_savepoint`, which is written last. During creation, the checkpoint is
pinned and `_started` contains the id of the pin. If `_started` exists without its pin, the creator died or can never
finish: cleanup first writes a tombstone in place of `_savepoint`, so that a creator that was only paused fails, and
then deletes the files. A savepoint that a run creates for a request keeps `_started` until the answer decides whether
it is kept. `_disposed` marks a savepoint whose deletion has begun, for a collection to complete.
``docs/design/0007-savepoints.md`` describes the failure cases.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.job_requests import read_answer
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, Manifest, Origin, PublishedOutput, Savepoint, SavepointFormat
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, seal, write_bytes
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.checkpoint.savepoints.canonical.writer import Destination, shards_of, with_canonical_files
from stateflow.checkpoint.savepoints.catalog import (
    VERSION,
    StoredSavepoint,
    find_savepoints,
    is_confirmed,
    put_marker,
    record_savepoint,
)
from stateflow.checkpoint.savepoints.cleanup import finish_savepoint, sweep_external
from stateflow.checkpoint.savepoints.names import check_savepoint_name
from stateflow.config.settings import SavepointSettings
from stateflow.errors import ConfigError, CorruptFile, DataError, StateflowError
from stateflow.helpers import installed_version
from stateflow.private_files import ScratchFolder, open_private
from stateflow.state.handles import FileHandle, FilePart, StateFile, SubtaskState
from stateflow.state.host_cache import check_content
from stateflow.storage import Storage, open_location
from stateflow.storage.paths import SAVEPOINT_FILES, SAVEPOINTS, STARTED, savepoint_folder

log = logging.getLogger(__name__)


_THREADS = 4
_LOCAL = LocalWorkers()


@dataclass(frozen=True)
class SavepointSpec:
    """The savepoint to create.

    Attributes:
        name: name of the savepoint.
        checkpoint: the checkpoint to copy.
        sinks: position of each sink's table after the checkpoint's output was published, by uid.
        origin: why the savepoint is taken.
        by: who requested it; empty for this process.
        requested_by: who requested it, if `by` is another person, who approved it.
        reason: why it was requested, for display.
        note: what the person entered who approved it.
        request: id of the request that it answers; creating it again for the same request returns the existing one.
        drained: whether all event-time timers were fired before the checkpoint.
        generation: generation of the run that creates it; 0 outside of runs.
        into: URI of the folder that gets the savepoint's folder; empty for the job root's own.
        format: how it stores keyed state.
        settings: number of workers and of files.
    """

    name: str
    checkpoint: EntryRef
    sinks: dict[str, PublishedOutput]
    origin: Origin = Origin.MANUAL
    by: str = ""
    requested_by: str = ""
    reason: str = ""
    note: str = ""
    request: str = ""
    drained: bool = False
    generation: int = 0
    into: str = ""
    format: SavepointFormat = SavepointFormat.NATIVE
    settings: SavepointSettings = field(default_factory=SavepointSettings)

    @property
    def is_canonical(self) -> bool:
        """Whether keyed state is stored in the canonical format."""
        return self.format is SavepointFormat.CANONICAL

    @property
    def purpose(self) -> str:
        """The reason of the checkpoint's pin during creation."""
        return f"savepoint {self.name}" + (f" into {self.into}" if self.into else "")

    def destination(self, root: JobRoot) -> tuple[Storage, str]:
        """Returns the storage of the savepoint, and the prefix of the savepoints' folders there."""
        return (open_location(self.into, root.storage.uri), "") if self.into else (root.storage, SAVEPOINTS)


def newest_published_checkpoint(root: JobRoot, head: Head) -> EntryRef:
    """Returns the newest checkpoint whose output is completely published, according to `head`.

    Raises DataError when no checkpoint qualifies.
    """
    unpublished = min((p.checkpoint_id for p in pending_of(head)), default=head.entry.seq + 1)
    published = [ref for ref in root.checkpoints.restorable(head) if ref.id < unpublished]
    if not published:
        raise DataError(
            "the job has no checkpoint whose output is known to be published",
            hint="wait for the next checkpoint, or start the job",
            checkpoint_id=head.checkpoint_id,
        )
    return max(published, key=lambda ref: ref.id)


def sink_positions_at(head: Head, ref: EntryRef) -> dict[str, PublishedOutput]:
    """Returns the position of each sink's table after the output of `ref` was published, by uid.

    The version is -1 where the log no longer has it; the table still does.
    """
    known = head.entry.published.items()
    return {u: p if p.checkpoint_id <= ref.id else replace(p, version=-1, checkpoint_id=ref.id) for u, p in known}


def make_savepoint(root: JobRoot, spec: SavepointSpec, workers: SavepointWorkers = _LOCAL) -> StoredSavepoint:
    """Copies a checkpoint into a savepoint; safe while a run commits.

    Args:
        root: the job root.
        spec: the savepoint to create.
        workers: the workers that write a canonical savepoint.

    Raises:
        ConfigError: a savepoint with this name exists.
        DataError: the checkpoint is no longer retained, or the unfinished savepoint was abandoned concurrently.
    """
    check_savepoint_name(spec.name)
    began = root.clock.monotonic()
    if found := _created_before(root, spec):
        return found
    with root.admin.hold_pin(spec.checkpoint, spec.by or root.requester, spec.purpose, spec.generation) as pin:
        failpoints.hit("savepoint.pinned")
        try:
            made = _make_pinned(root, spec, workers, pin.id)
        except BaseException:
            if spec.into:
                _remove_external(root, spec, pin.id)
            raise
    # A run's savepoint is recorded when the answer names it: until then it may still be deleted.
    if not spec.generation:
        record_savepoint(root, made, round((root.clock.monotonic() - began) * 1000, 1))
    return made


def _created_before(root: JobRoot, spec: SavepointSpec) -> StoredSavepoint | None:
    """Returns the savepoint that the same request created earlier. Raises ConfigError when another one has the name."""
    storage, within = spec.destination(root)
    called = find_savepoints(storage, spec.name, within)
    if spec.into:
        # Other jobs may use the same folder, and the same names.
        called = [s for s in called if s.document.job_uuid == root.job.job_uuid]
    own = [s for s in called if spec.request and s.document.request == spec.request]
    for made in own:
        # A run's savepoint may still be deleted, depending on the answer to its request: only a run, whose answer then
        # names it, continues with it.
        if spec.generation or is_confirmed(storage, made):
            return made
    taken = [s for s in called if spec.into or not _delete_if_refused(root, s)]
    if taken:
        raise ConfigError(
            "a savepoint with this name exists",
            hint="choose another name, or delete it: stateflow savepoint dispose",
            name=spec.name,
            made_at=taken[0].document.made_at,
        )
    return None


def _delete_if_refused(root: JobRoot, stored: StoredSavepoint) -> bool:
    """Returns whether a savepoint was deleted because the answer to its request names another one, or none."""
    if is_confirmed(root.storage, stored):
        return False
    given = read_answer(root.storage, stored.document.request)
    if given is None:
        return False
    finish_savepoint(root, stored, given)
    return given.savepoint_id != stored.document.id


def _make_pinned(root: JobRoot, spec: SavepointSpec, workers: SavepointWorkers, pin: str) -> StoredSavepoint:
    # The folder's name is unique, so that no other attempt, even with the same savepoint name, writes or deletes in it.
    storage, within = spec.destination(root)
    folder = savepoint_folder(f"{spec.name}-{root.clock.new_id()[:8]}", within)
    write_bytes(storage, f"{folder}{STARTED}", pin.encode())
    failpoints.hit("savepoint.started")
    source = ManifestFiles(root.storage, root.checkpoints.manifest_of(spec.checkpoint), root.job.max_parallelism)
    copy = ManifestCopy(source, storage, folder)
    manifest = copy.canonical(spec.settings, workers) if spec.is_canonical else copy.native(spec.settings.native_files)
    if spec.into:
        # An external savepoint may be the only remaining copy one day.
        check_hashes(storage, [replace(f, key=f"{folder}{f.key}") for f in files_of(manifest)])
    failpoints.hit("savepoint.copied")
    document = Savepoint(
        version=VERSION,
        id=root.clock.new_id(),
        name=spec.name,
        origin=spec.origin,
        made_at=root.clock.now().isoformat(timespec="milliseconds"),
        committed_at=spec.checkpoint.at,
        by=spec.by or root.requester,
        requested_by=spec.requested_by,
        reason=spec.reason,
        note=spec.note,
        request=spec.request,
        generation=spec.generation,
        drained=spec.drained,
        format=spec.format,
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        max_parallelism=root.job.max_parallelism,
        checkpoint_id=spec.checkpoint.id,
        manifest=manifest,
        sinks=spec.sinks,
        stateflow=installed_version(),
    )
    data, digest = seal(document)
    if not put_marker(storage, folder, data):
        raise DataError(
            "the savepoint was abandoned during its creation",
            hint="check whether its pin was removed; create it again",
            name=spec.name,
        )
    failpoints.hit("savepoint.complete")
    if not spec.generation:
        _remove_started(storage, folder)
    return StoredSavepoint(storage, folder, document, digest)


@dataclass(frozen=True)
class ManifestFiles:
    """A manifest, the storage with its files, and the number of key groups."""

    storage: Storage
    manifest: Manifest
    max_parallelism: int


@dataclass(frozen=True)
class ManifestCopy:
    """A manifest whose files are copied into a folder of the target, the folder of a savepoint."""

    source: ManifestFiles
    target: Storage
    folder: str

    def native(self, files: int) -> Manifest:
        """Copies all files as they are, keyed state into `files` files unless that is 0; returns the new manifest."""
        source = self.source
        if not files:
            return self._copied(source.manifest)
        return self._with_subtasks(merge_files(source.storage, source.manifest, self.target, self.folder, files))

    def canonical(self, settings: SavepointSettings, workers: SavepointWorkers) -> Manifest:
        """Writes keyed state in the canonical format, and copies all other files; returns the new manifest."""
        source = self.source
        shards = shards_of(source.manifest, source.max_parallelism, settings)
        to = Destination(folder=self.folder)
        files = workers.write(shards, source.storage, self.target, to)
        return self._with_subtasks(with_canonical_files(source.manifest, shards, files))

    def _with_subtasks(self, states: list[list[SubtaskState]]) -> Manifest:
        """Copies all files but those of keyed state; returns the manifest with the given states of subtasks."""
        manifest = self.source.manifest
        others = replace(manifest, operators=[replace(o, subtasks=[]) for o in manifest.operators])
        copied = self._copied(others)
        operators = [replace(o, subtasks=s) for o, s in zip(copied.operators, states, strict=True)]
        return replace(copied, operators=operators)

    def _copied(self, manifest: Manifest) -> Manifest:
        names = _names(files_of(manifest))
        copy_objects(self.source.storage, [(key, f"{self.folder}{name}") for key, name in names.items()], self.target)
        return replace_keys(manifest, names)


def _remove_external(root: JobRoot, spec: SavepointSpec, pin: str) -> None:
    """Deletes the files of a failed creation outside of the job root, which no collection finds without its pin."""
    try:
        sweep_external(spec.destination(root)[0], {pin})
    except StateflowError as e:
        log.warning("could not delete the files of savepoint %s in %s: %s", spec.name, spec.into, e)


def _remove_started(storage: Storage, folder: str) -> None:
    """Deletes `_started` of a complete savepoint. A failure is logged only, because the savepoint is usable."""
    try:
        storage.delete([f"{folder}{STARTED}"])
    except StateflowError as e:
        log.warning("could not delete %s%s: %s", folder, STARTED, e)


def copy_objects(source: Storage, names: Iterable[tuple[str, str]], target: Storage) -> None:
    """Copies objects concurrently.

    Target keys are derived from the content, so that objects with equal bytes become one.

    Args:
        source: the storage to read.
        names: (key in `source`, key in `target`) of each object.
        target: the storage to write.

    Raises MissingFile or StorageError for the first object that cannot be copied.
    """
    unique = {to: key for key, to in names}
    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(target.copy_from, source, key, to) for to, key in unique.items()]:
            done.result()


def replace_keys(manifest: Manifest, names: dict[str, str]) -> Manifest:
    """Returns the manifest with every file's key replaced.

    Args:
        manifest: the manifest.
        names: the new key of each file, by its key in the manifest.
    """

    def renamed(handle: FileHandle) -> FileHandle:
        return replace(handle, key=names[handle.key])

    operators = [
        replace(
            o,
            subtasks=[replace(s, files=[replace(f, handle=renamed(f.handle)) for f in s.files]) for s in o.subtasks],
            parts=[replace(p, handle=renamed(p.handle)) if p.handle else p for p in o.parts],
        )
        for o in manifest.operators
    ]
    spark = manifest.spark and replace(
        manifest.spark,
        source_files=[replace(f, handle=renamed(f.handle)) if f.handle else f for f in manifest.spark.source_files],
    )
    return replace(manifest, operators=operators, spark=spark)


def _names(files: Iterable[FileHandle]) -> dict[str, str]:
    """Returns the key of each file in a savepoint, derived from its content."""
    return {f.key: f"{SAVEPOINT_FILES}{f.sha256}" for f in files}


_MERGE_THREADS = 2
"""Files that are written concurrently; each takes local disk until it is stored."""


@dataclass(frozen=True)
class _Place:
    """Where an object of the checkpoint is in the savepoint: in an object, from an offset on."""

    handle: FileHandle
    offset: int


def merge_files(
    source: Storage, manifest: Manifest, target: Storage, folder: str, count: int
) -> list[list[SubtaskState]]:
    """Copies the objects of keyed state into at most `count` objects of about equal size.

    Each is first written to local disk.

    Args:
        source: the storage with the checkpoint's files.
        manifest: the manifest of the checkpoint.
        target: the storage of the savepoint.
        folder: prefix of the savepoint's keys.
        count: maximum number of objects.

    Returns:
        The states of each operator's subtasks, in the new objects.

    Raises:
        MissingFile, CorruptFile: an object is missing, or differs from its recorded hash.
    """
    states = [state for operator in manifest.operators for state in operator.subtasks]
    objects = {file.handle.key: file.handle for state in states for file in state.files}
    groups = divide_by_size(list(objects.values()), count)
    places: dict[str, _Place] = {}
    with ThreadPoolExecutor(_MERGE_THREADS) as pool:
        for placed in pool.map(lambda group: _merge(source, group, target, folder), groups):
            places.update(placed)
    return [[_moved(state, places) for state in operator.subtasks] for operator in manifest.operators]


def divide_by_size(objects: Sequence[FileHandle], count: int) -> list[list[FileHandle]]:
    """Returns the objects in at most `count` groups, in their order and of about equal size."""
    total = sum(handle.size for handle in objects) or 1
    groups: dict[int, list[FileHandle]] = {}
    before = 0
    for handle in objects:
        groups.setdefault(min(before * count // total, count - 1), []).append(handle)
        before += handle.size
    return list(groups.values())


def _merge(source: Storage, objects: Iterable[FileHandle], target: Storage, folder: str) -> dict[str, _Place]:
    """Copies objects into one; returns the place of each by its key in `source`."""
    offsets: dict[str, int] = {}
    whole, size = hashlib.sha256(), 0
    with ScratchFolder() as scratch:
        path = scratch.path / "files"
        with open_private(path, must_create=True) as file:
            for handle in objects:
                offsets[handle.key] = size
                own, start = hashlib.sha256(), size
                for chunk in source.chunks(handle.key):
                    own.update(chunk)
                    whole.update(chunk)
                    size += file.write(chunk)
                check_content(handle, size - start, own.hexdigest())
        merged = FileHandle(key=f"{SAVEPOINT_FILES}{whole.hexdigest()}", size=size, sha256=whole.hexdigest())
        target.put_file(f"{folder}{merged.key}", path)
    return {key: _Place(merged, offset) for key, offset in offsets.items()}


def _moved(state: SubtaskState, places: dict[str, _Place]) -> SubtaskState:
    return replace(state, files=[_moved_file(file, places[file.handle.key]) for file in state.files])


def _moved_file(file: StateFile, place: _Place) -> StateFile:
    offset = place.offset + (file.part.offset if file.part else 0)
    if offset + file.size > place.handle.size:
        raise CorruptFile(
            "a file is recorded as a part beyond the end of its object",
            hint="use an older checkpoint",
            file=file.handle.key,
            size_bytes=file.size,
        )
    if file.size == place.handle.size:
        return replace(file, handle=place.handle, part=None)
    return replace(file, handle=place.handle, part=FilePart(offset=offset, size=file.size, sha256=file.sha256))
