"""Claims and copies of savepoints, over any storage."""

from __future__ import annotations

import random
from functools import partial

import pytest

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import (
    ClaimState,
    Manifest,
    OperatorState,
    SavepointClaim,
    SourceFile,
    SparkPosition,
)
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_bytes, write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.checkpoint.savepoints.claim_slots import (
    Disposal,
    check_writable,
    claim_savepoint,
    current_claim,
    is_claimed,
    release_claim,
    reserve_deletion,
)
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError
from stateflow.runtime.restore.state_import import StateLocation, import_state
from stateflow.state.handles import FileHandle, OperatorPart, StateFile, SubtaskState
from stateflow.storage import MemoryStorage, Storage
from stateflow.storage.paths import SAVEPOINT, data_folder
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


class SavepointCopies:
    """Tests for a class that has the fixture `storage`, as `StorageConformance` has."""

    @pytest.mark.parametrize("seed", range(2))
    def test_files_with_equal_bytes_make_a_savepoint_and_a_fork(self, storage: Storage, seed: int) -> None:
        root = JobRoot.create_or_open(storage, ManualClock(1), NewJob("job", 128, {}), "test")
        head = root.claim()
        manifest, expected = _manifest(root, random.Random(seed))
        handle = write_manifest(storage, data_folder(1, 1, "driver"), manifest)
        assert isinstance(root.commit(head, Commit(1, handle, []), RetentionLimits(1)), Appended)
        checkpoint = root.head().checkpoint
        assert checkpoint is not None
        made = make_savepoint(root, SavepointSpec(name="mine", checkpoint=checkpoint, sinks={}))
        made.verify()
        assert _contents(made.storage, made.document.manifest, made.folder) == expected
        fork = JobRoot.create_or_open(MemoryStorage(), ManualClock(seed), NewJob("other", 128, {}), "test")
        handle = import_state(fork, made.document.manifest, StateLocation(made.storage, made.folder), 0)
        imported = fork.checkpoints.read_manifest(handle)
        check_hashes(fork.storage, files_of(imported))
        assert _contents(fork.storage, imported) == expected


def _manifest(root: JobRoot, rng: random.Random) -> tuple[Manifest, list[bytes]]:
    """A manifest and the contents of its files, of which many are equal."""
    choices = [rng.randbytes(size) for size in (0, 1, 5000)]
    written: list[bytes] = []

    def write() -> FileHandle:
        written.append(rng.choice(choices))
        return write_bytes(root.storage, f"{data_folder(1, 1, 'task')}{len(written)}", written[-1])

    def subtask(number: int) -> SubtaskState:
        files = [StateFile(handle=write(), local_name=f"{f}.sst") for f in range(rng.randrange(3))]
        first = 32 * number
        return SubtaskState(subtask=number, first_group=first, last_group=first + 31, snapshot=f"{number}", files=files)

    operators = [
        OperatorState(
            uid=f"operator-{n}", parallelism=4, key_types=[], key_names=[], states=[],
            subtasks=[subtask(s) for s in range(2)],
            parts=[OperatorPart(subtask=s, memory=0, handle=write()) for s in range(2)],
        )
        for n in range(2)
    ]  # fmt: skip
    files = [SourceFile(path=f"{n}/2", handle=write()) for n in range(3)]
    spark = SparkPosition(batch_id=3, offsets=b"", previous_offsets=None, commit=b"", source_files=files)
    manifest = Manifest(
        job_uuid=root.job.job_uuid, generation=1, ordinal=1, operators=operators, sources=[], spark=spark
    )
    return manifest, written


def _contents(storage: Storage, manifest: Manifest, folder: str = "") -> list[bytes]:
    """The content of each file of the manifest, in the order in which they were written."""
    assert manifest.spark is not None
    handles = [handle for operator in manifest.operators for handle in operator.files]
    handles += [file.handle for file in manifest.spark.source_files if file.handle]
    return [storage.get(f"{folder}{handle.key}") for handle in handles]
