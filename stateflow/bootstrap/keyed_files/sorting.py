"""Sorts the entries of an operator on local disk, and writes the canonical files of its subtasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from stateflow.bootstrap.layout import KeyedOperator, Layout, Target
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file
from stateflow.checkpoint.savepoints.canonical.rekey import NewSubtask
from stateflow.checkpoint.savepoints.canonical.shares import divide_key_groups, divided
from stateflow.checkpoint.savepoints.canonical.worker_tasks import SortBuckets
from stateflow.checkpoint.savepoints.canonical.workers import LocalWorkers, Volume
from stateflow.checkpoint.savepoints.canonical.writer import Destination, LocalCopies, Storages, in_files
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.handles import CANONICAL, StateFile, SubtaskState
from stateflow.state.rehash import Rehash

_FOLDER = "0"
"""The folder of the only operator, as `SortBuckets` names it."""


class EntrySorter:
    """Divides the entries of some subtasks among buckets on local disk, and writes them in order of keys.

    Args:
        operator: the operator.
        layout: its subtasks.
        numbers: the subtasks whose entries are added.
        buckets: the number of buckets: entries of a bucket are sorted together, in memory if they are few.
        scratch: an empty local folder.
    """

    def __init__(
        self, operator: KeyedOperator, layout: Layout, numbers: Sequence[int], buckets: int, scratch: Path
    ) -> None:
        each = -(-buckets // len(numbers))
        self._scratch = scratch
        self._subtasks = [_subtask(operator, layout, number, each) for number in numbers]
        names = [schema.name for schema in self._subtasks[0].header.states]
        starts = [first for subtask in self._subtasks for first in subtask.buckets]
        rehash = Rehash(operator.key.types, names, layout.max_parallelism)
        self._writer = BucketWriter(scratch / _FOLDER, rehash, starts)

    def add(self, parts: Iterable[EntryColumns]) -> None:
        """Adds entries in any order, with any key groups, which are replaced by those of their keys."""
        self._writer.add_columns(parts)

    def write_with_workers(self, target: Target) -> list[SubtaskState]:
        """Writes the files in processes of this host if they are large; returns the subtasks that have entries.

        Raises:
            DataError: a key occurs twice.
        """
        present, workers = self._present(), LocalWorkers()
        volume = Volume(target.storage, target.storage, sum(map(self._size, present)))
        works = [self._work(share, target) for share in divided(present, workers.count)]
        return _in_files(present, workers.do(works, volume))

    def write(self, target: Target) -> list[SubtaskState]:
        """Writes the files in this process; as `write_with_workers`."""
        present = self._present()
        with LocalCopies() as copies:
            storages = Storages(target.storage, copies, target.storage)
            files = self._work(present, target).run(storages) if present else []
        return _in_files(present, files)

    def _present(self) -> list[NewSubtask]:
        self._writer.flush()
        return [subtask for subtask in self._subtasks if self._size(subtask)]

    def _work(self, subtasks: Sequence[NewSubtask], target: Target) -> SortBuckets:
        to = Destination(folder=target.folder, files=1)
        return SortBuckets(subtasks=list(subtasks), folders=[str(self._scratch)], to=to, of_rows=True)

    def _size(self, subtask: NewSubtask) -> int:
        files = [bucket_file(self._scratch / _FOLDER, bucket) for bucket in subtask.buckets]
        return sum(file.stat().st_size for file in files if file.exists())


def _subtask(operator: KeyedOperator, layout: Layout, number: int, buckets: int) -> NewSubtask:
    groups = layout.groups_of(number)
    return NewSubtask(
        operator=int(_FOLDER),
        state=SubtaskState(subtask=number, first_group=groups.first, last_group=groups.last, snapshot=""),
        header=operator.header(groups, layout),
        buckets=[each.first for each in divide_key_groups(groups, buckets)],
    )


def _in_files(subtasks: Sequence[NewSubtask], files: Sequence[StateFile]) -> list[SubtaskState]:
    return [
        in_files(subtask.state, [replace(file, local_name=f"{CANONICAL}-0")])
        for subtask, file in zip(subtasks, files, strict=True)
    ]
