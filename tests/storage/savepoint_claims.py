"""Claims of one savepoint by many processes, over any storage."""

from __future__ import annotations

from functools import partial

from stateflow.checkpoint.log.documents import ClaimState, SavepointClaim
from stateflow.checkpoint.savepoints.claim_slots import (
    Disposal,
    check_writable,
    claim_savepoint,
    current_claim,
    is_claimed,
    release_claim,
    reserve_deletion,
)
from stateflow.errors import ConfigError
from stateflow.storage import Storage
from stateflow.storage.paths import SAVEPOINT
from stateflow.testing.conformance.storage import at_once

FOLDER = "savepoints/mine-00000000/"


def slot(job: str, generation: int, state: ClaimState = ClaimState.CLAIMED) -> SavepointClaim:
    """Returns the slot that a job writes."""
    return SavepointClaim(state=state, job="flights", job_uuid=job, generation=generation, by="a test", at="2026-01-01")


class SavepointClaims:
    """Tests for a class that has the fixture `storage`, as `StorageConformance` has."""

    def test_one_of_many_concurrent_claims_and_deletions_of_a_savepoint_wins(self, storage: Storage) -> None:
        for number in range(5):
            folder = f"savepoints/mine-{number:08d}/"
            storage.put_new(f"{folder}{SAVEPOINT}", b"complete")
            claims = [partial(claim_savepoint, storage, folder, slot(f"job-{n}", 1)) for n in range(5)]
            deletion = partial(reserve_deletion, storage, folder, Disposal("a user", "2026-01-01"))
            won = at_once([partial(_is_granted, work) for work in (*claims, deletion)])
            assert sum(won) == 1
            owner = current_claim(storage, folder)
            assert (owner.job_uuid if owner else "") == ([f"job-{n}" for n in range(5)] + [""])[won.index(True)]

    def test_an_undone_claim_can_be_made_by_another_job(self, storage: Storage) -> None:
        storage.put_new(f"{FOLDER}{SAVEPOINT}", b"complete")
        check_writable(storage, FOLDER, "0" * 32)
        claim_savepoint(storage, FOLDER, slot("one", 1))
        release_claim(storage, FOLDER, slot("one", 2, ClaimState.RELEASED), claimed_by=1)
        assert not is_claimed(storage, FOLDER)
        claim_savepoint(storage, FOLDER, slot("other", 1))
        owner = current_claim(storage, FOLDER)
        assert owner is not None and owner.job_uuid == "other"


def _is_granted(work: partial[None]) -> bool:
    try:
        work()
    except ConfigError:
        return False
    return True
