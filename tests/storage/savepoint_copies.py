"""Savepoints and imports of manifests whose files have equal bytes, over any storage."""

from __future__ import annotations

import random

import pytest

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourceFile, SparkPosition
from stateflow.checkpoint.log.entry_lists import RetentionLimits
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_bytes, write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.clock import ManualClock
from stateflow.runtime.restore.state_import import StateLocation, import_state
from stateflow.state.handles import FileHandle, OperatorPart, StateFile, SubtaskState
from stateflow.storage import MemoryStorage, Storage
from stateflow.storage.paths import data_folder


class SavepointCopies:
    """Tests for a class that has the fixture `storage`, as `StorageConformance` has."""

    @pytest.mark.parametrize("seed", range(4))
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
            uid=f"operator-{n}",
            parallelism=4,
            key_types=[],
            key_names=[],
            states=[],
            subtasks=[subtask(s) for s in range(4)],
            parts=[OperatorPart(subtask=s, memory=0, handle=write()) for s in range(4)],
        )
        for n in range(2)
    ]
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
