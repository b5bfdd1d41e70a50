"""Import of a manifest and its state files into a job root."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_manifest
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
    """

    storage: Storage
    folder: str = ""
    checked: bool = False


def import_state(root: JobRoot, manifest: Manifest, location: StateLocation | None, generation: int) -> FileHandle:
    """Copies the files of a manifest into a job root, verifies every file, and stores the manifest there.

    Args:
        location: where the files are; None for files that the root has already.
        generation: the generation of the importing process, which must not have committed yet.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    if location is not None:
        names = {f.key: f"{into}{f.sha256}" for f in files_of(manifest)}
        copy_objects(location.storage, [(f"{location.folder}{key}", to) for key, to in names.items()], root.storage)
        manifest = replace_keys(manifest, names)
        unique = {f.key: f for f in files_of(manifest)}.values()
        linked = {to for key, to in names.items() if location.checked and _is_same_file(location, key, root, to)}
        check_hashes(root.storage, [f for f in unique if f.key not in linked])
    manifest = replace(
        manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal, record=None, history=[]
    )
    return write_manifest(root.storage, into, manifest)


def _is_same_file(location: StateLocation, key: str, root: JobRoot, copy: str) -> bool:
    """Returns whether the copy is a hard link of the verified file, so that it need not be read again."""
    target = root.storage.file_id(copy)
    return target is not None and location.storage.file_id(f"{location.folder}{key}") == target
