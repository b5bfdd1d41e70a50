"""Import of a manifest and its state files into a job root."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_manifest
from stateflow.checkpoint.savepoints.canonical.rekeyed_state import rekey
from stateflow.checkpoint.savepoints.canonical.writer import Destination
from stateflow.checkpoint.savepoints.create import copy_objects, replace_keys
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder


@dataclass(frozen=True)
class StateLocation:
    """Storage and key prefix of state files.

    Attributes:
        folder: prefix of the files' keys.
        checked: whether the caller has just verified the files' hashes.
        max_parallelism: number of key groups of the state; None for that of the job root which imports it.
    """

    storage: Storage
    folder: str = ""
    checked: bool = False
    max_parallelism: int | None = None


@dataclass(frozen=True)
class ImportTarget:
    """Where state is imported.

    Attributes:
        storage: the storage.
        max_parallelism: the number of key groups there.
        prefix: prefix of the files' keys in the manifest.
        folder: prefix of all keys in the storage, which the manifest does not have.
    """

    storage: Storage
    max_parallelism: int
    prefix: str
    folder: str = ""


def import_state(root: JobRoot, manifest: Manifest, location: StateLocation | None, generation: int) -> FileHandle:
    """Copies the files of a manifest into a job root, verifies every file, and stores the manifest there.

    State with another max parallelism gets that of the job root.

    Args:
        location: where the files are; None for files that the root has already.
        generation: the generation of the importing process, which must not have committed yet.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
        IncompatibleState: the state has another max parallelism, and its keys are not known.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    if location is not None:
        manifest = import_files(ImportTarget(root.storage, root.job.max_parallelism, into), manifest, location)
    manifest = replace(
        manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal, record=None, history=[]
    )
    return write_manifest(root.storage, into, manifest)


def import_files(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    """Copies the files of a manifest, and verifies every file; raises as `import_state` does.

    Returns:
        The manifest with the keys of the copies, without the target's folder.
    """
    if location.max_parallelism in (None, target.max_parallelism):
        return _copied(target, manifest, location)
    return _rekeyed(target, manifest, location)


def _copied(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    names = {f.key: f"{target.prefix}{f.sha256}" for f in files_of(manifest)}
    copies = [(f"{location.folder}{key}", f"{target.folder}{to}") for key, to in names.items()]
    copy_objects(location.storage, copies, target.storage)
    linked = {to for key, to in copies if location.checked and _is_same_file(location.storage, key, target.storage, to)}
    manifest = replace_keys(manifest, names)
    stored = {f"{target.folder}{f.key}": f for f in files_of(manifest)}
    check_hashes(target.storage, [replace(f, key=key) for key, f in stored.items() if key not in linked])
    return manifest


def _rekeyed(target: ImportTarget, manifest: Manifest, location: StateLocation) -> Manifest:
    complete = replace_keys(manifest, {f.key: f"{location.folder}{f.key}" for f in files_of(manifest)})
    to = Destination(folder=target.folder, files=1, prefix=target.prefix)
    rekeyed = rekey(location.storage, complete, target.storage, to, target.max_parallelism)
    others = replace(manifest, operators=[replace(o, subtasks=[]) for o in manifest.operators])
    copied = _copied(target, others, location)
    both = zip(copied.operators, rekeyed.operators, strict=True)
    return replace(copied, operators=[replace(other, subtasks=keyed.subtasks) for other, keyed in both])


def _is_same_file(source: Storage, key: str, target: Storage, copy: str) -> bool:
    """Returns whether the copy is a hard link of the verified file, so that it need not be read again."""
    found = target.file_id(copy)
    return found is not None and source.file_id(key) == found
