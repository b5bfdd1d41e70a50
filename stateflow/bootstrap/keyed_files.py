"""Writes keyed state from Arrow frames, without Spark: sorts entries on local disk and writes canonical files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from stateflow.bootstrap.frames import ArrowFrame, Frame, batches_of, is_spark, without_dictionaries
from stateflow.bootstrap.layout import GivenOperator, Layout, SavepointFolder, StateRows
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, NewSubtask, bucket_file
from stateflow.checkpoint.savepoints.canonical.worker import SortBuckets
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, Volume
from stateflow.checkpoint.savepoints.canonical.writer import (
    Destination,
    LocalCopies,
    Storages,
    divide_evenly,
    divide_key_groups,
    replace_files,
)
from stateflow.private_files import ScratchFolder
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.state.handles import CANONICAL, StateFile, SubtaskState
from stateflow.state.rehash import Rehash
from stateflow.state.stored_key import TimeDomain

BUCKET_BYTES = 8 << 20
MOST_BUCKETS = 256


def write_local(
    operator: GivenOperator, layout: Layout, target: SavepointFolder, kept: Iterable[EntryColumns] = ()
) -> list[SubtaskState]:
    """Writes the keyed state of an operator in canonical files; returns the state of each subtask that has entries.

    Local disk has all entries, and memory a part of them.

    Args:
        operator: the operator.
        layout: its subtasks.
        target: where it is written.
        kept: stored entries, which are written as they are.

    Raises:
        DataError: a key occurs twice, or a value is null.
        SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored.
    """
    with ScratchFolder() as scratch:
        sorter = EntrySorter(operator, layout, range(layout.parallelism), _buckets(operator), scratch.path)
        sorter.add(kept)
        for rows in operator.states:
            states = operator.state_encoder(rows, layout)
            sorter.add(states.encode(batch) for batch in batches_of(_ordered(rows)))
        earliest = _add_timers(operator, sorter)
        return [with_timers(state, earliest) for state in sorter.write_with_workers(target)]


def with_timers(state: SubtaskState, earliest: Mapping[TimeDomain, int]) -> SubtaskState:
    """Returns the state of a subtask with lower bounds of the times of its timers, by domain."""
    event, processing = (earliest.get(domain) for domain in (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME))
    return replace(state, event_timer=event, processing_timer=processing)


def _add_timers(operator: GivenOperator, sorter: EntrySorter) -> dict[TimeDomain, int]:
    if operator.timers is None:
        return {}
    timers = operator.timer_encoder()
    parts: Iterator[EntryColumns] = (timers.encode(batch) for batch in batches_of(_arrow(operator.timers)))
    sorter.add(parts)
    return timers.earliest


def _buckets(operator: GivenOperator) -> int:
    """Returns the number of buckets: of about 8 MiB each, if the size of the frames is known."""
    frames = operator.frames
    if any(isinstance(frame, pa.RecordBatchReader) for frame in frames):
        return MOST_BUCKETS
    size: int = sum(_arrow(frame).nbytes for frame in frames)
    return min(MOST_BUCKETS, size // BUCKET_BYTES + 1)


def _ordered(rows: StateRows) -> ArrowFrame:
    """Returns a state's frame in the order of its elements, which needs all of it in memory if columns order them."""
    frame = _arrow(rows.frame)
    if not rows.columns.order_by:
        return frame
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    table = frame if isinstance(frame, pa.Table) else frame.read_all()
    table = without_dictionaries(table)
    # A stable sort: rows with equal values stay in their order.
    return table.sort_by([(name, "ascending") for name in rows.columns.order_by])


def _arrow(frame: Frame) -> ArrowFrame:
    assert not is_spark(frame)
    return frame


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
        self, operator: GivenOperator, layout: Layout, numbers: Sequence[int], buckets: int, scratch: Path
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

    def write_with_workers(self, target: SavepointFolder) -> list[SubtaskState]:
        """Writes the files in processes of this host if they are large; returns the subtasks that have entries.

        Raises:
            DataError: a key occurs twice.
        """
        present, workers = self._present(), LocalWorkers()
        volume = Volume(target.storage, target.storage, sum(map(self._size, present)))
        works = [self._work(share, target) for share in divide_evenly(present, workers.count)]
        return _in_files(present, workers.do(works, volume))

    def write(self, target: SavepointFolder) -> list[SubtaskState]:
        """Writes the files in this process; as `write_with_workers`."""
        present = self._present()
        with LocalCopies() as copies:
            storages = Storages(target.storage, copies, target.storage)
            files = self._work(present, target).run(storages) if present else []
        return _in_files(present, files)

    def _present(self) -> list[NewSubtask]:
        self._writer.flush()
        return [subtask for subtask in self._subtasks if self._size(subtask)]

    def _work(self, subtasks: Sequence[NewSubtask], target: SavepointFolder) -> SortBuckets:
        to = Destination(folder=target.folder)
        return SortBuckets(subtasks=list(subtasks), folders=[str(self._scratch)], to=to, of_rows=True)

    def _size(self, subtask: NewSubtask) -> int:
        files = [bucket_file(self._scratch / _FOLDER, bucket) for bucket in subtask.buckets]
        return sum(file.stat().st_size for file in files if file.exists())


def _subtask(operator: GivenOperator, layout: Layout, number: int, buckets: int) -> NewSubtask:
    groups = layout.groups_of(number)
    return NewSubtask(
        operator=int(_FOLDER),
        state=SubtaskState(subtask=number, first_group=groups.first, last_group=groups.last, snapshot=""),
        header=operator.header(groups, layout),
        buckets=[each.first for each in divide_key_groups(groups, buckets)],
    )


def _in_files(subtasks: Sequence[NewSubtask], files: Sequence[StateFile]) -> list[SubtaskState]:
    return [
        replace_files(subtask.state, [replace(file, local_name=f"{CANONICAL}-0")])
        for subtask, file in zip(subtasks, files, strict=True)
    ]
