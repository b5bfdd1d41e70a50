"""Gives all keyed state of a manifest another max parallelism, with several workers of this host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import NewSubtask, new_subtasks
from stateflow.checkpoint.savepoints.canonical.worker import DivideShare, SortBuckets
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, Volume
from stateflow.checkpoint.savepoints.canonical.writer import Destination, Shard, divide_evenly, replace_files, shards_of
from stateflow.config.settings import SavepointSettings
from stateflow.private_files import ScratchFolder
from stateflow.state.handles import CANONICAL, StateFile
from stateflow.storage import Storage


def rekey(source: Storage, manifest: Manifest, target: Storage, to: Destination, max_parallelism: int) -> Manifest:
    """Writes the keyed state of a manifest with another max parallelism, in the canonical format.

    Operator state stays as it is; the caller has checked that no raw keyed state is in it.

    Args:
        source: the storage with the files of the manifest.
        manifest: the manifest, with complete keys.
        target: the storage for the new files.
        to: prefixes of their keys, and the number of files of a worker.
        max_parallelism: the new number of key groups.

    Returns:
        The manifest with the new state of subtasks; all other files are where they were.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    workers = LocalWorkers()
    shards = shards_of(manifest, max_parallelism, SavepointSettings())
    subtasks = new_subtasks(manifest, max_parallelism)
    volume = Volume(source, target, sum(shard.bytes for shard in shards))
    with ScratchFolder() as scratch:
        divisions = _divisions(divide_evenly(shards, workers.count), subtasks, scratch.path)
        workers.do(divisions, volume)
        folders = [division.folder for division in divisions]
        shares = divide_evenly(subtasks, workers.count)
        files = workers.do([SortBuckets(subtasks=list(s), folders=folders, to=to) for s in shares], volume)
    return _with_files(manifest, subtasks, files)


def _divisions(shares: Sequence[Sequence[Shard]], subtasks: Sequence[NewSubtask], scratch: Path) -> list[DivideShare]:
    return [
        DivideShare(share=list(share), subtasks=list(subtasks), folder=str(scratch / str(number)))
        for number, share in enumerate(shares)
    ]


def _with_files(manifest: Manifest, subtasks: Sequence[NewSubtask], files: Sequence[StateFile]) -> Manifest:
    operators: list[OperatorState] = []
    for index, operator in enumerate(manifest.operators):
        states = [
            replace_files(subtask.state, [replace(file, local_name=f"{CANONICAL}-0")])
            for subtask, file in zip(subtasks, files, strict=True)
            if subtask.operator == index
        ]
        operators.append(replace(operator, subtasks=states))
    return replace(manifest, operators=operators)
