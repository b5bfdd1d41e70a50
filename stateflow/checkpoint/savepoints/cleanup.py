"""Selects savepoints that have expired, and deletes savepoints: disposed, unfinished, and left over by requests."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta

from stateflow import failpoints
from stateflow.checkpoint.job_requests import read_answer
from stateflow.checkpoint.log.documents import Origin, RequestAnswer, Savepoint
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import get_or_none, write_bytes
from stateflow.checkpoint.savepoints.catalog import (
    TOMBSTONE,
    StoredSavepoint,
    put_marker,
    read_savepoint,
    record_savepoint,
)
from stateflow.checkpoint.savepoints.claim_slots import Disposal, reserve_deletion
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, CorruptFile
from stateflow.helpers import check_name
from stateflow.storage import Storage
from stateflow.storage.paths import (
    CLAIMS,
    DISPOSED,
    SAVEPOINT,
    SAVEPOINT_FILES,
    SAVEPOINTS,
    STARTED,
    claim_slot,
    savepoint_file,
    savepoint_folder,
)

log = logging.getLogger(__name__)


_MARKERS = (SAVEPOINT, STARTED, DISPOSED)
DAMAGED = "damaged"
"""Content of `_disposed` of a savepoint whose document cannot be read; of others, it is the savepoint's id."""
_MARKER = re.compile(rb"[0-9a-f]{32}|damaged")
_LONGEST_MARKER = 32


def finish_savepoint(
    root: JobRoot, made: StoredSavepoint, given: RequestAnswer, duration_ms: float | None = None
) -> None:
    """Keeps a run's savepoint if the answer names it, and deletes it if another answer was written first.

    Args:
        root: the job root.
        made: the savepoint.
        given: the answer that counts.
        duration_ms: duration of the savepoint's creation; None if it is not known.
    """
    if given.savepoint_id == made.document.id:
        # If the run is killed here, a sweep completes both steps.
        record_savepoint(root, made, duration_ms)
        root.storage.delete([f"{made.folder}{STARTED}"])
    elif made.document.generation:
        _delete_savepoint(root.storage, made.folder, made.document.id)
    # Otherwise the requester withdrew the request and created this savepoint itself, before the run saw the request.


def sweep_savepoints(root: JobRoot) -> list[str]:
    """Deletes files of abandoned and of partly deleted savepoints; returns the names of their folders.

    This is safe while savepoints are created.
    """
    # List before reading the pins: a listed creator had its pin before, and has finished if the pin is gone.
    found = _sizes_by_folder(root.storage)
    swept = [f for f, files in found.items() if _sweep_leftovers(root.storage, savepoint_folder(f), files)]
    started = [f for f, files in found.items() if STARTED in files and f not in swept]
    if not started:
        return swept
    pins = {p.id for p in root.head().entry.pinned}
    return swept + [f for f in started if _sweep(root, savepoint_folder(f), pins)]


def leftover_keys(root: JobRoot) -> frozenset[str]:
    """Returns the keys that `sweep_savepoints` would delete now."""
    found = _sizes_by_folder(root.storage)
    pins = {p.id.encode() for p in root.head().entry.pinned} if found else set()
    return frozenset(
        f"{savepoint_folder(folder)}{name}"
        for folder, files in found.items()
        for name in _left_over_in(root.storage, savepoint_folder(folder), files, pins)
    )


def _left_over_in(storage: Storage, folder: str, files: Mapping[str, int], pins: Set[bytes]) -> Set[str]:
    if _has_only_claims(files) or _is_disposed(storage, folder, files):
        return files.keys()
    is_abandoned = _is_abandoned(storage, folder, files)
    is_complete = SAVEPOINT in files and not is_abandoned
    if is_complete or (STARTED in files and get_or_none(storage, f"{folder}{STARTED}") in pins):
        return frozenset()
    # The tombstone stays: a creator that is only paused must not complete the savepoint.
    return files.keys() - {SAVEPOINT} if is_abandoned or STARTED in files else frozenset()


def _sizes_by_folder(storage: Storage, within: str = SAVEPOINTS) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for blob in storage.list(within):
        if place := savepoint_file(blob.key, within):
            found.setdefault(place[0], {})[place[1]] = blob.size
    return found


def _is_abandoned(storage: Storage, folder: str, files: Mapping[str, int]) -> bool:
    # Compare the size first: it needs no read.
    has_size = files.get(SAVEPOINT) == len(TOMBSTONE)
    return has_size and get_or_none(storage, f"{folder}{SAVEPOINT}") == TOMBSTONE


def _is_disposed(storage: Storage, folder: str, files: Mapping[str, int]) -> bool:
    """Returns whether the deletion of a savepoint has begun: `_disposed` contains its id, or says that it is damaged.

    Any other content was not written by a deletion: then the savepoint stays, and the file is logged.
    """
    size = files.get(DISPOSED)
    if size is None:
        return False
    marker = get_or_none(storage, f"{folder}{DISPOSED}") if 0 < size <= _LONGEST_MARKER else b""
    if marker is None:
        return False  # Another collection has completed the deletion.
    try:
        stored = read_savepoint(storage, folder)
        is_expected = marker.decode() == stored.document.id if stored else bool(_MARKER.fullmatch(marker))
    except CorruptFile:
        is_expected = marker == DAMAGED.encode()
    except (ConfigError, UnicodeDecodeError):
        is_expected = False
    if not is_expected:
        log.warning("skipped %s%s: no deletion has written its content", folder, DISPOSED)
    return is_expected


def _has_only_claims(files: Iterable[str]) -> bool:
    """Returns whether a savepoint was deleted while a process claimed it, or undid a claim."""
    return all(name.startswith(CLAIMS) for name in files)


def _sweep_leftovers(storage: Storage, folder: str, files: Mapping[str, int]) -> bool:
    if _has_only_claims(files):
        storage.delete(f"{folder}{name}" for name in files)
        return True
    if _is_disposed(storage, folder, files):
        _finish_deletion(storage, folder)
        return True
    # A creator that was paused while its savepoint was abandoned may have continued to copy files.
    if len(files) > 1 and STARTED not in files and _is_abandoned(storage, folder, files):
        storage.delete(f"{folder}{name}" for name in files if name != SAVEPOINT)
        return True
    return False


def _sweep(root: JobRoot, folder: str, pins: set[str]) -> bool:
    storage = root.storage
    pin = get_or_none(storage, f"{folder}{STARTED}")
    if pin is None or pin.decode(errors="replace") in pins:
        return False
    if not _abandon(storage, folder):
        _sweep_complete(root, folder)
        return False
    return True


def _abandon(storage: Storage, folder: str) -> bool:
    """Writes the tombstone of an unfinished savepoint and deletes its files; returns False when it is complete.

    After the tombstone, its creator can no longer complete it.
    """
    if not put_marker(storage, folder, TOMBSTONE):
        return False
    failpoints.hit("savepoint.given-up")
    kept_keys = {f"{folder}{SAVEPOINT}", f"{folder}{STARTED}"}
    storage.delete(b.key for b in storage.list(folder) if b.key not in kept_keys)
    storage.delete([f"{folder}{STARTED}"])
    return True


def sweep_external(storage: Storage, pins: Set[str]) -> None:
    """Deletes unfinished savepoints outside of the job root, and `_started` of complete ones.

    Their creators died or failed.

    Args:
        storage: the folder with savepoints. Other jobs may create savepoints there concurrently.
        pins: ids of the creators' pins. They are removed afterwards: without them, no later attempt finds the files.
    """
    for folder, files in _sizes_by_folder(storage, "").items():
        prefix = savepoint_folder(folder, "")
        pin = get_or_none(storage, f"{prefix}{STARTED}") if STARTED in files else None
        if pin is not None and pin.decode(errors="replace") in pins and not _abandon(storage, prefix):
            storage.delete([f"{prefix}{STARTED}"])


def _sweep_complete(root: JobRoot, folder: str) -> None:
    """Completes a savepoint whose creator died before it deleted `_started`; a run's savepoint waits for its answer."""
    try:
        made = read_savepoint(root.storage, folder)
    except CorruptFile as e:
        log.warning("skipped a damaged savepoint: %s", e)
        return
    if made is None or not made.document.generation:
        root.storage.delete([f"{folder}{STARTED}"])
    elif given := read_answer(root.storage, made.document.request):
        finish_savepoint(root, made, given)


def dispose_savepoint(stored: StoredSavepoint, disposal: Disposal, record: Callable[[], object]) -> None:
    """Deletes a complete savepoint of a job root.

    Args:
        stored: the savepoint.
        disposal: the user's request.
        record: stores the deletion in the history, each time in the same record. It is called once the savepoint can
            only be deleted, and before that: a process that repeats the deletion after a kill may find nothing.

    Raises SavepointClaimed as `reserve_deletion` does.
    """
    reserve_deletion(stored.storage, stored.folder, disposal)
    record()
    _delete_savepoint(stored.storage, stored.folder, stored.document.id)


def dispose_damaged(root: JobRoot, folder: str, disposal: Disposal, record: Callable[[int], object]) -> int | None:
    """Deletes the savepoint in a folder if its document is damaged; arguments as for `dispose_savepoint`.

    Returns the freed bytes, which `record` gets, too; None when the savepoint is not damaged or does not exist. Raises
    SavepointClaimed as `reserve_deletion` does.
    """
    key = savepoint_folder(check_name("a savepoint's folder", folder))
    try:
        read_savepoint(root.storage, key)
        return None
    except CorruptFile:
        freed = sum(blob.size for blob in root.storage.list(key))
    reserve_deletion(root.storage, key, disposal)
    record(freed)
    _delete_savepoint(root.storage, key, DAMAGED)
    return freed


def dispose_external(storage: Storage, folder: str, disposal: Disposal | None) -> tuple[Savepoint | None, int]:
    """Deletes the savepoint in a folder outside of its job root.

    The savepoint may be complete, damaged, unfinished (its creator fails then) or partly deleted. Other files in the
    folder stay.

    Args:
        storage: the storage.
        folder: key prefix; empty, or ends with a slash.
        disposal: the user's request; None for the job that has claimed the savepoint.

    Returns the savepoint's document, if it can be read, and the freed bytes.

    Raises:
        ConfigError: the folder is not that of a savepoint.
        SavepointClaimed: as `reserve_deletion`.
    """
    markers = {name: size for name in _MARKERS if (size := storage.size(f"{folder}{name}")) is not None}
    files = {blob.key: blob.size for blob in storage.list(f"{folder}{SAVEPOINT_FILES}")}
    if not markers or (not files and _is_abandoned(storage, folder, markers)):
        raise ConfigError(
            "no savepoint exists here",
            hint="a savepoint's folder contains the file _savepoint",
            path=f"{storage.uri}/{folder}".rstrip("/"),
        )
    document = _document(storage, folder)
    if not markers.keys() & {SAVEPOINT, DISPOSED}:
        # Its creator cannot complete it from here on; if it just has, it is deleted like any complete savepoint.
        put_marker(storage, folder, TOMBSTONE)
    if get_or_none(storage, f"{folder}{SAVEPOINT}") == TOMBSTONE:
        storage.delete([*files, f"{folder}{STARTED}"])
    else:
        if disposal is not None:
            reserve_deletion(storage, folder, disposal)
        _delete_savepoint(storage, folder, document.id if document else DAMAGED, files)
    return document, sum(files.values()) + sum(markers.values())


def _document(storage: Storage, folder: str) -> Savepoint | None:
    try:
        stored = read_savepoint(storage, folder)
    except (ConfigError, CorruptFile):
        return None
    return stored.document if stored else None


def _delete_savepoint(storage: Storage, folder: str, savepoint_id: str, files: Iterable[str] | None = None) -> None:
    """Deletes a savepoint's folder.

    Args:
        storage: the storage.
        folder: key prefix of the savepoint.
        savepoint_id: content of the deletion marker.
        files: keys of the savepoint's files; None for all files in the folder.
    """
    # If the process is killed from here on, a collection or the same command completes the deletion.
    marker = f"{folder}{DISPOSED}"
    if storage.size(marker) is None:
        write_bytes(storage, marker, savepoint_id.encode())
    failpoints.hit("savepoint.disposing")
    _finish_deletion(storage, folder, files)


def _finish_deletion(storage: Storage, folder: str, files: Iterable[str] | None = None) -> None:
    storage.delete([f"{folder}{SAVEPOINT}"])
    failpoints.hit("savepoint.disposed")
    own = f"{folder}{CLAIMS}"
    found = [b.key for b in storage.list(own if files is not None else folder)]
    found += [] if files is None else [*files, f"{folder}{STARTED}"]
    # Also without slots: a process that was killed before it created one may have left the empty folder.
    found.append(claim_slot(folder, 1))
    storage.delete(key for key in found if key != f"{folder}{DISPOSED}")
    storage.delete([f"{folder}{DISPOSED}"])


@dataclass(frozen=True)
class SavepointRule:
    """The retention of periodic savepoints. Without limits, none expires.

    Attributes:
        keep: number of the newest savepoints that are kept; None for no limit.
        max_age: maximum age of kept savepoints; None for no limit.
    """

    keep: int | None = None
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ConfigError("at least one savepoint must be kept", hint="use keep=1 or more", keep=self.keep)
        if self.max_age is not None and self.max_age <= timedelta():
            raise ConfigError("a maximum age must be positive", hint="for example 7d", max_age=str(self.max_age))


def find_expired_savepoints(
    complete: Sequence[StoredSavepoint], job_uuid: str, rule: SavepointRule, now: datetime
) -> list[StoredSavepoint]:
    """Returns the expired savepoints, oldest first: periodic savepoints of this job beyond the number or age limit.

    The newest periodic savepoint never expires: a job whose savepoints fail for weeks keeps its last one. Manual
    savepoints, those of stops and upgrades, and those of other jobs never expire.

    Args:
        complete: every complete savepoint that can be counted (see `find_uncounted_savepoints`), in any order.
        job_uuid: the job.
        rule: the limits.
        now: timestamp with time zone.
    """
    periodic = [s for s in complete if s.document.origin is Origin.PERIODIC and s.document.job_uuid == job_uuid]
    newest_first = sorted(periodic, key=lambda s: (_made_at(s), s.document.id), reverse=True)
    expired = []
    for position, savepoint in enumerate(newest_first):
        too_many = rule.keep is not None and position >= rule.keep
        too_old = rule.max_age is not None and now - _made_at(savepoint) > rule.max_age
        if position > 0 and (too_many or too_old):
            expired.append(savepoint)
    return expired[::-1]


def find_uncounted_savepoints(complete: Sequence[StoredSavepoint], now: datetime) -> list[StoredSavepoint]:
    """Returns the savepoints that retention neither deletes nor counts, because they can be copies or forgeries.

    Such a savepoint could make genuine ones expire: its folder was renamed, its id is that of another one, or it was
    made in the future. One that a host with a wrong clock has made counts as soon as its time has come.

    Args:
        complete: every complete savepoint, in any order.
        now: timestamp with time zone.
    """
    count = Counter(s.document.id for s in complete if s.is_original)
    return [s for s in complete if not s.is_original or count[s.document.id] > 1 or _made_at(s) > now]


def _made_at(stored: StoredSavepoint) -> datetime:
    return parse_timestamp(stored.document.made_at)
