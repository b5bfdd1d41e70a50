"""Savepoints and imports of manifests whose files have equal bytes, over any storage."""

from __future__ import annotations

import random

import pytest

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourceFile, SourcePosition, SparkPosition
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_bytes, write_manifest
from stateflow.checkpoint.log.retained import Retention
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
        contents = _Contents(random.Random(seed), storage)
        root = _committed(storage, contents)
        head = root.head()
        assert head.checkpoint is not None
        made = make_savepoint(root, SavepointSpec(name="mine", checkpoint=head.checkpoint, sinks={}))
        made.verify()
        assert _read(made.storage, made.document.manifest, made.folder) == contents.expected
        fork = JobRoot.create_or_open(MemoryStorage(), ManualClock(seed), NewJob("other", 128, {}), "test")
        handle = import_state(fork, made.document.manifest, StateLocation(made.storage, made.folder), 0)
        imported = fork.checkpoints.read_manifest(handle)
        check_hashes(fork.storage, files_of(imported))
        assert _read(fork.storage, imported) == contents.expected


class _Contents:
    """Writes objects under names of their own, of which many have the same bytes."""

    def __init__(self, dice: random.Random, storage: Storage) -> None:
        self.dice = dice
        self.expected: list[bytes] = []
        self._storage = storage
        self._choices = [dice.randbytes(size) for size in (0, 1, 5000)]

    def write(self) -> FileHandle:
        data = self.dice.choice(self._choices)
        self.expected.append(data)
        key = f"{data_folder(1, 1, 'task')}{len(self.expected)}"
        return write_bytes(self._storage, key, data)


def _committed(storage: Storage, contents: _Contents) -> JobRoot:
    root = JobRoot.create_or_open(storage, ManualClock(1), NewJob("job", 128, {}), "test")
    head = root.claim()
    manifest = _manifest(root, contents)
    handle = write_manifest(storage, data_folder(1, 1, "driver"), manifest)
    commit = Commit(ordinal=1, manifest=handle, sources=[])
    assert isinstance(root.commit(head, commit, Retention(1)), Appended)
    return root


def _manifest(root: JobRoot, contents: _Contents) -> Manifest:
    operators = [
        OperatorState(
            uid=f"operator-{n}",
            parallelism=4,
            key_types=[],
            states=[],
            subtasks=[
                SubtaskState(
                    subtask=s,
                    first_group=32 * s,
                    last_group=32 * s + 31,
                    snapshot=f"{n}-{s}",
                    files=[
                        StateFile(handle=contents.write(), local_name=f"{f}.sst")
                        for f in range(contents.dice.randrange(3))
                    ],
                )
                for s in range(4)
            ],
            parts=[OperatorPart(subtask=s, handle=contents.write()) for s in range(4)],
        )
        for n in range(2)
    ]
    spark = SparkPosition(
        batch_id=3,
        offsets=b"",
        previous_offsets=None,
        commit=b"",
        source_files=[SourceFile(path=f"{n}/2", handle=contents.write()) for n in range(3)],
    )
    sources = [SourcePosition(uid="rows", description="rows", offset="3")]
    return Manifest(
        job_uuid=root.job.job_uuid, generation=1, ordinal=1, operators=operators, sources=sources, spark=spark
    )


def _read(storage: Storage, manifest: Manifest, folder: str = "") -> list[bytes]:
    """What each reference of the manifest leads to, in the order in which they were written."""
    handles = [h for o in manifest.operators for h in o.files]
    assert manifest.spark is not None
    handles += [f.handle for f in manifest.spark.source_files if f.handle]
    return [storage.get(f"{folder}{handle.key}") for handle in handles]
