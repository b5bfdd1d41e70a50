"""Who owns a savepoint: numbered slots in its folder, each created once, of which the last one counts.

Without a slot the savepoint belongs to the user. A job that claims it, a start that undoes the claim of a killed
process, and a user who deletes the savepoint each create the next slot, by put-if-absent: one of them wins, and the
others read its slot. A slot is never changed, and deleted only with the savepoint. So no process that was paused can
remove or replace what another one has written since: ``docs/design/0035-claim-modes.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stateflow.checkpoint.log.documents import ClaimState, SavepointClaim
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import ConfigError, CorruptFile, DataError, Fenced, MissingFile, SavepointClaimed, StorageError
from stateflow.requesters import describe_requester
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import CLAIMS, SAVEPOINT, claim_number, claim_slot

log = logging.getLogger(__name__)

_LIMIT = 64 << 10
"""Size of the largest slot, in bytes."""
_MOST = 1000
"""Number of slots of a savepoint. Each claim and each undone claim adds one, so many of them mean a forged folder."""


class ClaimMode(StrEnum):
    """Who owns the savepoint from which a job starts, or to which it is restored."""

    NO_CLAIM = "no-claim"
    """The user, as before: the job copies or links its files, and never deletes it."""
    CLAIM = "claim"
    """The job, which deletes it once no retained checkpoint needs it."""


@dataclass(frozen=True)
class Disposal:
    """A user's request to delete a savepoint.

    Attributes:
        by: the user.
        at: timestamp, ISO 8601.
        is_claimed_too: whether a savepoint that a job has claimed is deleted as well.
    """

    by: str
    at: str
    is_claimed_too: bool = False


def current_claim(storage: Storage, folder: str) -> SavepointClaim | None:
    """Returns the claim of the savepoint's owner; None for a savepoint that belongs to the user.

    Args:
        storage: the storage of the savepoint.
        folder: key prefix of its folder; empty, or ends with a slash.

    Raises CorruptFile for a damaged slot.
    """
    slots = _read_slots(storage, folder)
    return slots[-1] if slots and slots[-1].state is ClaimState.CLAIMED else None


def owner_of(storage: Storage, folder: str) -> SavepointClaim | None:
    """Returns the claim of the job that owns the savepoint, for display.

    Returns None for a savepoint that belongs to the user, and for one whose owner cannot be read, which is logged.
    """
    try:
        return current_claim(storage, folder)
    except CorruptFile as e:
        log.warning("the owner of the savepoint in %s is unknown: %s", _uri(storage, folder), e)
        return None


def is_claimed(storage: Storage, folder: str) -> bool:
    """Returns whether a job may own the savepoint: also true if that cannot be read."""
    try:
        return current_claim(storage, folder) is not None
    except CorruptFile:
        return True


def is_claimed_by(storage: Storage, folder: str, job_uuid: str, generation: int) -> bool:
    """Returns whether this generation of the job owns the savepoint, or a user is deleting what it owned."""
    slots = _read_slots(storage, folder)
    own = [s for s in slots if s.state is not ClaimState.DELETED]
    return bool(own) and own[-1].state is ClaimState.CLAIMED and _writer(own[-1]) == (job_uuid, generation)


def check_claimable(storage: Storage, folder: str, job_uuid: str) -> SavepointClaim | None:
    """Raises an error if another job owns the savepoint, or it is being deleted; changes nothing.

    Returns the claim of the job itself, if there is one.

    Raises:
        SavepointClaimed: another job has claimed it.
        ConfigError: a user is deleting it.
    """
    slots = _read_slots(storage, folder)
    _check(storage, folder, slots, job_uuid)
    return slots[-1] if slots and slots[-1].state is ClaimState.CLAIMED else None


def check_writable(storage: Storage, folder: str, unique: str) -> None:
    """Writes and deletes an object in the savepoint's folder.

    Args:
        unique: an id for its name.

    Raises ConfigError when the location is read-only.
    """
    key = f"{folder}{CLAIMS}probe-{unique}"
    try:
        storage.put_new(key, b"")
        storage.delete([key])
    except ConfigError as e:
        raise ConfigError(
            "the savepoint cannot be claimed: access to its folder was denied",
            hint="use --claim-mode no-claim, which only reads it, or get permission to write and delete there",
            **{**e.facts, "savepoint": _uri(storage, folder)},
        ) from e


def claim_savepoint(storage: Storage, folder: str, claim: SavepointClaim) -> None:
    """Makes the job the owner of the savepoint; does nothing if this generation of it is.

    A claim of an older generation of the same job is replaced: the caller has checked, at the entry that its CLAIM
    follows, that no entry has adopted it.

    Raises:
        SavepointClaimed: another job has claimed it.
        Fenced: a newer run of the job has undone this claim, or claimed the savepoint.
        ConfigError: the savepoint was deleted, or a user is deleting it.
    """

    def is_owner(slots: Sequence[SavepointClaim]) -> bool:
        _check(storage, folder, slots, claim.job_uuid)
        newest = max((s.generation for s in slots if s.job_uuid == claim.job_uuid), default=claim.generation)
        if newest > claim.generation:
            raise Fenced("a newer run of the job has undone this claim", generation=claim.generation, newer=newest)
        return bool(slots) and slots[-1].state is ClaimState.CLAIMED and _writer(slots[-1]) == _writer(claim)

    _check_exists(storage, folder)
    _append(storage, folder, claim, is_owner)
    _remove_late(storage, folder)
    _check_exists(storage, folder)


def release_claim(storage: Storage, folder: str, release: SavepointClaim, claimed_by: int) -> None:
    """Undoes a claim of the job; does nothing if it is undone, or the savepoint deleted.

    The slot is written also if the claim has none yet: the claiming process may only be paused.

    Args:
        storage: the storage of the savepoint.
        folder: key prefix of its folder.
        release: the slot to write.
        claimed_by: the generation that claims it.
    """

    def is_done(slots: Sequence[SavepointClaim]) -> bool:
        if not slots:
            return False
        own, last = [s for s in slots if s.job_uuid == release.job_uuid], slots[-1]
        if last.state is ClaimState.RELEASED:
            return any(s.generation >= release.generation for s in own)
        return last.state is ClaimState.DELETED or last not in own or last.generation > claimed_by

    if storage.size(f"{folder}{SAVEPOINT}") is not None:
        _append(storage, folder, release, is_done)
        _remove_late(storage, folder)


def reserve_deletion(storage: Storage, folder: str, disposal: Disposal) -> None:
    """Ensures that no job can claim the savepoint from here on, before a user deletes it.

    Raises SavepointClaimed when a job has claimed it, unless `disposal` includes such savepoints.
    """

    def is_reserved(slots: Sequence[SavepointClaim]) -> bool:
        if slots and slots[-1].state is ClaimState.CLAIMED and not disposal.is_claimed_too:
            raise _claimed(
                storage,
                folder,
                slots[-1],
                "the job deletes it once the checkpoint that adopted its state is no longer retained; to delete it "
                "now, or if the job no longer exists, pass --claimed: no job needs its files",
            )
        return bool(slots) and slots[-1].state is ClaimState.DELETED

    _append(storage, folder, SavepointClaim(state=ClaimState.DELETED, by=disposal.by, at=disposal.at), is_reserved)


def _remove_late(storage: Storage, folder: str) -> None:
    """Removes the slots of a savepoint that was deleted while one was created: the deletion lists them only once.

    Outside of job roots no collection does. The folder's name is never used again.
    """
    if storage.size(f"{folder}{SAVEPOINT}") is None:
        storage.delete([blob.key for blob in storage.list(f"{folder}{CLAIMS}")])


def _check_exists(storage: Storage, folder: str) -> None:
    if storage.size(f"{folder}{SAVEPOINT}") is None:
        raise _deleted(storage, folder)


def _check(storage: Storage, folder: str, slots: Sequence[SavepointClaim], job_uuid: str) -> None:
    last = slots[-1] if slots else None
    if last is None or last.state is ClaimState.RELEASED:
        return
    if last.state is ClaimState.DELETED:
        raise _deleted(storage, folder)
    if last.job_uuid != job_uuid:
        raise _claimed(
            storage,
            folder,
            last,
            "use --claim-mode no-claim, which copies its files; if that job no longer exists, delete the savepoint "
            "afterwards: stateflow savepoint dispose --claimed PATH",
        )


def _claimed(storage: Storage, folder: str, claim: SavepointClaim, hint: str) -> SavepointClaimed:
    return SavepointClaimed(
        "a job has claimed the savepoint",
        hint=hint,
        savepoint=_uri(storage, folder),
        job=claim.job,
        job_uuid=claim.job_uuid,
        job_root=claim.job_root,
        by=describe_requester(claim.by),
        claimed_at=claim.at,
    )


def _deleted(storage: Storage, folder: str) -> ConfigError:
    return ConfigError(
        "the savepoint was deleted, or a user is deleting it",
        hint="use another savepoint",
        savepoint=_uri(storage, folder),
    )


def _uri(storage: Storage, folder: str) -> str:
    return f"{storage.uri.rstrip('/')}/{folder}".rstrip("/")


def _writer(slot: SavepointClaim) -> tuple[str, int]:
    return slot.job_uuid, slot.generation


def _append(
    storage: Storage, folder: str, slot: SavepointClaim, is_done: Callable[[Sequence[SavepointClaim]], bool]
) -> None:
    """Creates the slot after the last one, again each time that another process was first, unless that is done."""
    data, _ = seal(slot, _LIMIT)
    while True:
        numbers = _numbers(storage, folder)
        if is_done(_read_slots(storage, folder, numbers)):
            return
        key = claim_slot(folder, numbers[-1] + 1 if numbers else 1)
        result = storage.put_new(key, data)
        if result is PutResult.CREATED:
            return
        found = _content(storage, key)
        if found == data and storage.durable_size(key) is not None:
            return
        if found is None:
            raise StorageError(
                "the storage does not confirm whether a savepoint was claimed", hint="try again", key=key
            )


def _read_slots(storage: Storage, folder: str, numbers: Sequence[int] | None = None) -> list[SavepointClaim]:
    """Returns the slots in order; without those of a savepoint that is being deleted concurrently."""
    numbers = _numbers(storage, folder) if numbers is None else numbers
    keys = [claim_slot(folder, number) for number in numbers]
    try:
        contents = [(key, _content(storage, key)) for key in keys]
        return [unseal(data, SavepointClaim, key)[0] for key, data in contents if data is not None]
    except CorruptFile as e:
        raise CorruptFile(
            "the owner of the savepoint cannot be read",
            hint="restore the file from a copy; or delete it if no job owns the savepoint",
            file=e.facts.get("file") or e.facts.get("path"),
            savepoint=_uri(storage, folder),
        ) from e


def _numbers(storage: Storage, folder: str) -> list[int]:
    found = (claim_number(folder, blob.key) for blob in storage.list(f"{folder}{CLAIMS}"))
    numbers = [number for number in found if number is not None]
    if len(numbers) > _MOST:
        raise CorruptFile(
            "the savepoint has too many claims",
            hint="delete its claims if no job owns the savepoint",
            file=f"{folder}{CLAIMS}",
            found=len(numbers),
            limit=_MOST,
        )
    return numbers


def _content(storage: Storage, key: str) -> bytes | None:
    try:
        return storage.get(key, _LIMIT)
    except MissingFile:
        return None
    except CorruptFile:
        raise
    except DataError as e:
        raise CorruptFile("a claim of the savepoint is too large", file=key) from e
