"""Which savepoints stay: those that nobody completed, was told of, or wants any more are taken away."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set

from stateflow import failpoints
from stateflow.checkpoint.documents import Answer, Savepoint
from stateflow.checkpoint.files import get_or_none, write_bytes
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.requests import read_answer
from stateflow.checkpoint.stored_savepoints import (
    GIVEN_UP,
    StoredSavepoint,
    find_savepoint,
    note_savepoint,
    put_marker,
    read_savepoint,
)
from stateflow.errors import ConfigError, CorruptFile
from stateflow.ids import check_name
from stateflow.storage import Storage
from stateflow.storage.paths import (
    DISPOSED,
    SAVEPOINT,
    SAVEPOINT_FILES,
    SAVEPOINTS,
    STARTED,
    savepoint_file,
    savepoint_folder,
)

log = logging.getLogger(__name__)

_MARKERS = (SAVEPOINT, STARTED, DISPOSED)


def settle_savepoint(root: JobRoot, made: StoredSavepoint, given: Answer, took_ms: float = 0) -> None:
    """Keeps what a run has made when the answer names it; when another answer was first, nobody knows of it."""
    if given.savepoint_id == made.document.id:
        # Killed before it, whoever sweeps does both.
        note_savepoint(root, made, took_ms)
        root.storage.delete([f"{made.folder}{STARTED}"])
    elif made.document.generation:
        _take_away(root.storage, made.folder, made.document.id)
    # Else whoever asked has withdrawn the request and made it without the run, which came to the request only then.


def sweep_savepoints(root: JobRoot) -> list[str]:
    """Removes what savepoints that were never completed, or not taken away wholly, have left; safe beside their makers.
    Returns the folders."""
    # The listing comes before the pins: who is listed had its pin before, and has completed when it is gone.
    found = _sizes_by_folder(root.storage)
    swept = [f for f, files in found.items() if _sweep_leftovers(root.storage, savepoint_folder(f), files)]
    started = [f for f, files in found.items() if STARTED in files and f not in swept]
    if not started:
        return swept
    pins = {p.id for p in root.head().entry.pinned}
    return swept + [f for f in started if _sweep(root, savepoint_folder(f), pins)]


def left_over(root: JobRoot) -> frozenset[str]:
    """Keys of what a sweep would remove now; removes nothing."""
    found = _sizes_by_folder(root.storage)
    pins = {p.id.encode() for p in root.head().entry.pinned} if found else set()
    return frozenset(
        f"{savepoint_folder(folder)}{name}"
        for folder, files in found.items()
        for name in _left_over_in(root.storage, savepoint_folder(folder), files, pins)
    )


def _left_over_in(storage: Storage, folder: str, files: Mapping[str, int], pins: Set[bytes]) -> Set[str]:
    if DISPOSED in files:
        return files.keys()
    given_up = _is_given_up(storage, folder, files)
    is_complete = SAVEPOINT in files and not given_up
    if is_complete or (STARTED in files and get_or_none(storage, f"{folder}{STARTED}") in pins):
        return frozenset()
    # That a savepoint was given up stays told: its maker may be asleep, and must not complete it.
    return files.keys() - {SAVEPOINT} if given_up or STARTED in files else frozenset()


def _sizes_by_folder(storage: Storage, within: str = SAVEPOINTS) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for blob in storage.list(within):
        if place := savepoint_file(blob.key, within):
            found.setdefault(place[0], {})[place[1]] = blob.size
    return found


def _is_given_up(storage: Storage, folder: str, files: Mapping[str, int]) -> bool:
    # The size first: it is in the listing already.
    told = files.get(SAVEPOINT) == len(GIVEN_UP)
    return told and get_or_none(storage, f"{folder}{SAVEPOINT}") == GIVEN_UP


def _sweep_leftovers(storage: Storage, folder: str, files: Mapping[str, int]) -> bool:
    if DISPOSED in files:
        _finish_taking_away(storage, folder)
        return True
    # A maker that slept while its savepoint was given up may have gone on copying.
    if len(files) > 1 and STARTED not in files and _is_given_up(storage, folder, files):
        storage.delete(f"{folder}{name}" for name in files if name != SAVEPOINT)
        return True
    return False


def _sweep(root: JobRoot, folder: str, pins: set[str]) -> bool:
    storage = root.storage
    pin = get_or_none(storage, f"{folder}{STARTED}")
    if pin is None or pin.decode(errors="replace") in pins:
        return False
    if not _give_up(storage, folder):
        _sweep_complete(root, folder)
        return False
    return True


def _give_up(storage: Storage, folder: str) -> bool:
    """Deletes what a maker has written, which can never complete it from here on; False when it is complete."""
    if not put_marker(storage, folder, GIVEN_UP):
        return False
    failpoints.hit("savepoint.given-up")
    kept_keys = {f"{folder}{SAVEPOINT}", f"{folder}{STARTED}"}
    storage.delete(b.key for b in storage.list(folder) if b.key not in kept_keys)
    storage.delete([f"{folder}{STARTED}"])
    return True


def sweep_elsewhere(storage: Storage, pins: Set[str]) -> None:
    """Removes what makers that died have left of savepoints outside of the job root, or takes their mark away from
    what they completed.

    Args:
        pins: theirs, dropped by now. Savepoints of other jobs may be under way in the same place.
    """
    for folder, files in _sizes_by_folder(storage, "").items():
        prefix = savepoint_folder(folder, "")
        pin = get_or_none(storage, f"{prefix}{STARTED}") if STARTED in files else None
        if pin is not None and pin.decode(errors="replace") in pins and not _give_up(storage, prefix):
            storage.delete([f"{prefix}{STARTED}"])


def _sweep_complete(root: JobRoot, folder: str) -> None:
    """Its maker died before it removed `STARTED`; what a run has made waits for its answer."""
    try:
        made = read_savepoint(root.storage, folder)
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
        read_savepoint(root.storage, key)
        return None
    except CorruptFile:
        freed = sum(blob.size for blob in root.storage.list(key))
    _take_away(root.storage, key, "damaged")
    return freed


def dispose_elsewhere(storage: Storage, folder: str) -> tuple[Savepoint | None, int]:
    """Deletes the savepoint in a folder outside of its job root: complete, damaged, half made (its maker fails then),
    or not wholly deleted by an earlier call. Other files in the folder stay.

    Args:
        folder: key prefix; empty, or ends with a slash.

    Returns the savepoint's document, if it can be read, and the bytes that this frees. Raises ConfigError when there is
    no savepoint.
    """
    markers = {name: size for name in _MARKERS if (size := storage.size(f"{folder}{name}")) is not None}
    files = {blob.key: blob.size for blob in storage.list(f"{folder}{SAVEPOINT_FILES}")}
    if not markers or (not files and _is_given_up(storage, folder, markers)):
        raise ConfigError("there is no savepoint here", hint="a savepoint's folder has a file _savepoint",
                          path=f"{storage.uri}/{folder}".rstrip("/"))  # fmt: skip
    document = _document(storage, folder)
    if not markers.keys() & {SAVEPOINT, DISPOSED}:
        # From here on its maker cannot complete it; where it just has, it is deleted like any complete one.
        put_marker(storage, folder, GIVEN_UP)
    if get_or_none(storage, f"{folder}{SAVEPOINT}") == GIVEN_UP:
        storage.delete([*files, f"{folder}{STARTED}"])
    else:
        _take_away(storage, folder, document.id if document else "damaged", files)
    return document, sum(files.values()) + sum(markers.values())


def _document(storage: Storage, folder: str) -> Savepoint | None:
    try:
        stored = read_savepoint(storage, folder)
    except (ConfigError, CorruptFile):
        return None
    return stored.document if stored else None


def _take_away(storage: Storage, folder: str, savepoint_id: str, files: Iterable[str] | None = None) -> None:
    """Deletes a savepoint's folder.

    Args:
        files: keys, when others than the savepoint's may be in the folder.
    """
    # Killed from here on, a collection, or the same command again, completes it.
    marker = f"{folder}{DISPOSED}"
    if storage.size(marker) is None:
        write_bytes(storage, marker, savepoint_id.encode())
    failpoints.hit("savepoint.disposing")
    _finish_taking_away(storage, folder, files)


def _finish_taking_away(storage: Storage, folder: str, files: Iterable[str] | None = None) -> None:
    storage.delete([f"{folder}{SAVEPOINT}"])
    failpoints.hit("savepoint.disposed")
    found = [b.key for b in storage.list(folder)] if files is None else [*files, f"{folder}{STARTED}"]
    storage.delete(key for key in found if key != f"{folder}{DISPOSED}")
    storage.delete([f"{folder}{DISPOSED}"])
