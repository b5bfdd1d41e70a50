"""The savepoints that a job has claimed, according to its log: they are deleted, or their claim is undone.

The log names a savepoint before its folder does: a CLAIM announces it, then the job creates a slot in the folder
(`claim_slots`), copies the files, and appends the CLAIM that adopts them. The job never needs the savepoint's own files
after that.
"""

from __future__ import annotations

import logging

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, ClaimedSavepoint, ClaimState, SavepointClaim
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import get_or_none
from stateflow.checkpoint.savepoints import claim_slots
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, folder_at, read_savepoint
from stateflow.checkpoint.savepoints.cleanup import dispose_external
from stateflow.errors import CorruptFile, Fenced, SavepointClaimed, StateflowError
from stateflow.storage import Storage
from stateflow.storage.paths import DISPOSED, SAVEPOINTS

log = logging.getLogger(__name__)


def claimed_savepoint(root: JobRoot, stored: StoredSavepoint) -> ClaimedSavepoint:
    """Returns the log's record of a savepoint that the job claims; one in the job root moves with it."""
    own = f"{root.storage.uri.rstrip('/')}/"
    inside = stored.uri.startswith(f"{own}{SAVEPOINTS}")
    folder = f"{stored.uri.removeprefix(own)}/" if inside else stored.uri
    return ClaimedSavepoint(folder=folder, id=stored.document.id, name=stored.document.name, generation=0)


def check_claim_of_job(root: JobRoot, head: Head, stored: StoredSavepoint) -> None:
    """Raises an error if the job cannot claim the savepoint now; changes nothing.

    Args:
        root: the job root.
        head: its newest entry.
        stored: the savepoint.

    Raises:
        SavepointClaimed: this or another job has claimed it.
        ConfigError: a user is deleting it.
    """
    own = claim_slots.check_claimable(stored.storage, stored.folder, root.job.job_uuid)
    # By the claim, not by its folder, which may have several paths.
    if own and any(c.generation == own.generation and c.checkpoint for c in head.entry.claimed_savepoints):
        raise SavepointClaimed(
            "the job already owns the savepoint", hint="use --claim-mode no-claim", savepoint=stored.uri
        )


def announce_claim(root: JobRoot, head: Head, stored: StoredSavepoint) -> ClaimedSavepoint:
    """Returns the record, in the CLAIM before a restore, of the savepoint that the restore will claim.

    All checks are made here, because that CLAIM fences a run: a restore that cannot claim must not end one.

    Raises ConfigError when the savepoint's folder is read-only; otherwise as `check_claim_of_job`.
    """
    check_claim_of_job(root, head, stored)
    claim_slots.check_writable(stored.storage, stored.folder, root.clock.new_id())
    return claimed_savepoint(root, stored)


def take_over(root: JobRoot, stored: StoredSavepoint, generation: int, by: str) -> ClaimedSavepoint:
    """Makes the job the owner of the savepoint, and returns what the adopting log entry says about it.

    Args:
        root: the job root.
        stored: the savepoint.
        generation: the generation that claims it, whose CLAIM has announced that; 0 for a new job root.
        by: the requester.

    Raises as `claim_slots.claim_savepoint`.
    """
    slot = _slot(root, ClaimState.CLAIMED, generation, by or root.requester)
    claim_slots.claim_savepoint(stored.storage, stored.folder, slot)
    failpoints.hit("savepoint.claimed")
    return replace(claimed_savepoint(root, stored), generation=generation)


def settle_claims(root: JobRoot, head: Head) -> None:
    """Deletes claimed savepoints that no kept checkpoint needs, and undoes claims of processes that were fenced.

    Neither depends on time: a checkpoint that a verified entry does not keep is never kept again, and a process of an
    older generation can append no entry. A failure is logged, and the next start or collection tries again.

    Args:
        root: the job root.
        head: a verified newest entry.

    Raises MissingFile or CorruptFile when the list of retained checkpoints cannot be read.
    """
    if not head.entry.claimed_savepoints:
        return
    kept = {ref.id for ref in root.checkpoints.list_kept(head)}
    for claimed in head.entry.claimed_savepoints:
        if claimed.checkpoint in kept or (not claimed.checkpoint and claimed.generation >= head.entry.generation):
            continue
        try:
            _settle(root, head, claimed)
        except Fenced:
            raise
        except StateflowError as e:
            log.warning("the claimed savepoint %s is left for the next collection: %s", claimed.name, e)


def _settle(root: JobRoot, head: Head, claimed: ClaimedSavepoint) -> None:
    storage, folder = _location(root, claimed)
    if claimed.checkpoint:
        if _is_owned(root, storage, folder, claimed):
            _, freed = dispose_external(storage, folder, None)
            _record_deletion(root, claimed, freed)
            failpoints.hit("savepoint.collected")
    else:
        release = _slot(root, ClaimState.RELEASED, head.entry.generation, root.requester)
        claim_slots.release_claim(storage, folder, release, claimed.generation)
        failpoints.hit("savepoint.released")
    root.admin.end_claim(claimed)


def undo_claim(root: JobRoot, stored: StoredSavepoint) -> None:
    """Undoes the claim of an earlier attempt to begin the job root with the savepoint, which no entry has adopted."""
    try:
        is_claimed = claim_slots.is_claimed_by(stored.storage, stored.folder, root.job.job_uuid, 0)
    except CorruptFile as e:
        log.warning("the owner of savepoint %s is unknown: %s", stored.document.name, e)
        return
    if is_claimed:
        release = _slot(root, ClaimState.RELEASED, 0, root.requester)
        claim_slots.release_claim(stored.storage, stored.folder, release, 0)


def _is_owned(root: JobRoot, storage: Storage, folder: str, claimed: ClaimedSavepoint) -> bool:
    """Returns whether the job still owns the savepoint in the folder, or its deletion has begun."""
    if get_or_none(storage, f"{folder}{DISPOSED}") == claimed.id.encode():
        return True
    if not claim_slots.is_claimed_by(storage, folder, root.job.job_uuid, claimed.generation):
        return False
    try:
        stored = read_savepoint(storage, folder)
    except CorruptFile:
        return True
    # A user may have copied another savepoint over the claimed one, and left its slots.
    return stored is not None and stored.document.id == claimed.id


def _location(root: JobRoot, claimed: ClaimedSavepoint) -> tuple[Storage, str]:
    if claimed.folder.startswith(SAVEPOINTS):
        return root.storage, claimed.folder
    return folder_at(claimed.folder, root.storage.uri)


def _slot(root: JobRoot, state: ClaimState, generation: int, by: str) -> SavepointClaim:
    return SavepointClaim(
        state=state,
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        job_root=root.storage.uri,
        generation=generation,
        by=by,
        at=root.clock.now().isoformat(timespec="milliseconds"),
    )


def _record_deletion(root: JobRoot, claimed: ClaimedSavepoint, freed: int) -> None:
    """Writes the history record of a deletion; a repeated one has the same name."""
    record = ActionRecord(
        seq=claimed.checkpoint,
        kind="dispose",
        ended_at=root.clock.now().isoformat(timespec="milliseconds"),
        by=root.requester,
        reason="claimed, and no retained checkpoint needs it",
        size_bytes=freed,
        facts={"savepoint": claimed.name, "savepoint_id": claimed.id},
    )
    write_action(root.storage, record, claimed.id)
