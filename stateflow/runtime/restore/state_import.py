"""Bringing a manifest, and the files that it names, into a job root."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.documents import Manifest
from stateflow.checkpoint.files import check_stored, files_of, write_manifest
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.savepoint import take_all, with_keys
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import data_folder


@dataclass(frozen=True)
class Place:
    """Where files are: a storage, and the prefix of their keys in it.

    Attributes:
        checked: whether they were read and compared with their hashes just now.
    """

    storage: Storage
    folder: str = ""
    checked: bool = False


def import_state(root: JobRoot, manifest: Manifest, place: Place | None, generation: int) -> FileHandle:
    """Makes a manifest, and the files that it names, part of a job root; every file is verified.

    Args:
        place: where the files are; None when they are in this root already.
        generation: of the run that does it, which must not have committed yet.

    Raises MissingFile or CorruptFile naming a file.
    """
    ordinal = 1
    into = data_folder(generation, ordinal, f"restore{root.clock.new_id()[:12]}")
    if place is not None:
        names = {f.key: f"{into}{f.sha256}" for f in files_of(manifest)}
        take_all(place.storage, [(f"{place.folder}{key}", to) for key, to in names.items()], root.storage)
        manifest = with_keys(manifest, names)
        unique = {f.key: f for f in files_of(manifest)}.values()
        linked = {to for key, to in names.items() if place.checked and _is_link(place, key, root, to)}
        check_stored(root.storage, [f for f in unique if f.key not in linked])
    manifest = replace(
        manifest, job_uuid=root.job.job_uuid, generation=generation, ordinal=ordinal, record=None, history=[]
    )
    return write_manifest(root.storage, into, manifest)


def _is_link(place: Place, key: str, root: JobRoot, to: str) -> bool:
    """Whether what came into the root is the very file that was checked at its place: nothing can differ then."""
    there, here = place.storage.local_path(f"{place.folder}{key}"), root.storage.local_path(to)
    return here is not None and there is not None and there.is_file() and here.samefile(there)
