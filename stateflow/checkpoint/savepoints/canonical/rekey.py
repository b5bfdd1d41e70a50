"""Writes keyed state with another max parallelism, in the canonical format.

A key's group depends on the max parallelism, so every new subtask may have keys of every old one. Workers first divide
the entries of their shares among buckets of new key groups, which are files on local disk. Then each new subtask sorts
its buckets, one after the other, and writes its canonical file. Memory is bounded; disk is that of the whole state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, read_sorted_columns
from stateflow.checkpoint.savepoints.canonical.shares import Shard, divide_key_groups
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.handles import Document, SubtaskState
from stateflow.state.rehash import Rehash
from stateflow.types.key_groups import range_of

_BUCKET_BYTES = 8 << 20
_MOST_BUCKETS = 256

ShardReader = Callable[[Shard], Iterable[EntryBlock]]


class NewSubtask(Document, frozen=True, kw_only=True):
    """A subtask of an operator with the new max parallelism."""

    operator: int
    """Index of the operator in the manifest."""
    state: SubtaskState
    """Its number, key groups and timers; without files."""
    header: CanonicalHeader
    buckets: list[int]
    """First key group of each of its buckets; the entries of a bucket are sorted together."""


def new_subtasks(manifest: Manifest, max_parallelism: int) -> list[NewSubtask]:
    """Returns the subtasks of all operators with keyed state, with another number of key groups.

    An operator has as many subtasks as before, or as many as there are key groups.
    """
    return [
        subtask
        for index, operator in enumerate(manifest.operators)
        if operator.subtasks
        for subtask in _new_subtasks(index, operator, max_parallelism)
    ]


def _new_subtasks(index: int, operator: OperatorState, max_parallelism: int) -> Iterator[NewSubtask]:
    parallelism = min(operator.parallelism, max_parallelism)
    size = sum(file.size for state in operator.subtasks for file in state.files)
    buckets = min(_MOST_BUCKETS, -(-size // _BUCKET_BYTES)) or 1
    timers = [state.earliest_timers for state in operator.subtasks]
    for number in range(parallelism):
        groups = range_of(number, parallelism, max_parallelism)
        state = SubtaskState(
            subtask=number,
            first_group=groups.first,
            last_group=groups.last,
            snapshot="",
            event_timer=min((t.event for t in timers if t.event is not None), default=None),
            processing_timer=min((t.processing for t in timers if t.processing is not None), default=None),
        )
        header = CanonicalHeader(
            uid=operator.uid,
            key_types=operator.key_types,
            max_parallelism=max_parallelism,
            first_group=groups.first,
            last_group=groups.last,
            states=operator.states,
        )
        ranges = divide_key_groups(groups, -(-buckets // parallelism))
        yield NewSubtask(operator=index, state=state, header=header, buckets=[r.first for r in ranges])


def divide(shards: Sequence[Shard], subtasks: Sequence[NewSubtask], read: ShardReader, folder: Path) -> None:
    """Divides the entries of shards among buckets.

    Args:
        shards: what one worker reads.
        subtasks: all new subtasks.
        read: returns the entries of a shard.
        folder: local folder of this worker.

    Raises:
        CorruptFile: an entry belongs to no state of its operator, or a file is damaged.
    """
    for operator, same in groupby(shards, lambda shard: shard.operator):
        headers = [s.header for s in subtasks if s.operator == operator]
        starts = [first for s in subtasks if s.operator == operator for first in s.buckets]
        rehash = Rehash(headers[0].key_types, [s.name for s in headers[0].states], headers[0].max_parallelism)
        writer = BucketWriter(folder / str(operator), rehash, starts)
        for shard in same:
            writer.add(read(shard))
        writer.flush()


def sorted_entries(subtask: NewSubtask, folders: Sequence[Path], scratch: Path) -> Iterator[EntryColumns]:
    """Yields the entries of a new subtask in order of keys, in parts.

    Args:
        subtask: the subtask.
        folders: the folders of all workers that have divided entries.
        scratch: an empty local folder.
    """
    for bucket in subtask.buckets:
        files = [bucket_file(folder / str(subtask.operator), bucket) for folder in folders]
        yield from read_sorted_columns(files, scratch)
        for file in files:
            # The canonical file that is being written needs about as much disk.
            file.unlink(missing_ok=True)
