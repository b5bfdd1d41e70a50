"""Copies the state files of a native savepoint into a limited number of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest
from stateflow.errors import CorruptFile
from stateflow.private_files import open_private
from stateflow.scratch_folder import ScratchFolder
from stateflow.state.files.host_cache import check_content
from stateflow.state.handles import FileHandle, FilePart, StateFile, SubtaskState
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT_FILES

_THREADS = 2
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
    with ThreadPoolExecutor(_THREADS) as pool:
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
            "a file is recorded as a part outside of its object",
            hint="use an older checkpoint",
            file=file.handle.key,
            size=file.size,
        )
    if file.size == place.handle.size:
        return replace(file, handle=place.handle, part=None)
    return replace(file, handle=place.handle, part=FilePart(offset=offset, size=file.size, sha256=file.sha256))
