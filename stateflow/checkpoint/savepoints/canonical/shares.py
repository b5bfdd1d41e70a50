"""Divides the writing of a canonical savepoint among workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.config.settings import SavepointSettings
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.handles import Document, SubtaskState
from stateflow.types.key_groups import KeyGroupRange

T = TypeVar("T")
WORTH_A_WORKER = 16 << 20
"""Bytes of state below which another worker costs more time than it saves."""


class Shard(Document, frozen=True, kw_only=True):
    """A range of key groups of one subtask's state, which becomes one canonical file."""

    operator: int
    """Index of the operator in the manifest."""
    header: CanonicalHeader
    """Header of the file, with the operator and the key groups."""
    state: SubtaskState
    """The state of the subtask."""
    bytes: int
    """Size of the state that it reads; a part of the subtask's size."""

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups to write."""
        return KeyGroupRange(self.header.first_group, self.header.last_group)


def shards_of(manifest: Manifest, max_parallelism: int, settings: SavepointSettings) -> list[Shard]:
    """Returns the shards of all keyed state, in order of operators, subtasks and key groups.

    A subtask has min(⌈size / worker_bytes⌉, max_workers) shards of contiguous key groups; one without entries has none.
    """
    return [
        shard
        for index, operator in enumerate(manifest.operators)
        for state in operator.subtasks
        if state.files or state.inline
        for shard in _shards(index, operator, state, max_parallelism, settings)
    ]


def _shards(
    index: int, operator: OperatorState, state: SubtaskState, max_parallelism: int, settings: SavepointSettings
) -> Iterator[Shard]:
    size = sum(f.size for f in state.files) + len(state.inline or b"")
    workers = min(-(-size // settings.worker_bytes), settings.max_workers)
    ranges = divide_key_groups(state.groups, max(1, workers))
    for groups in ranges:
        header = CanonicalHeader(
            uid=operator.uid,
            key_types=operator.key_types,
            max_parallelism=max_parallelism,
            first_group=groups.first,
            last_group=groups.last,
            states=operator.states,
        )
        yield Shard(operator=index, header=header, state=state, bytes=size // len(ranges))


def divide_key_groups(groups: KeyGroupRange, count: int) -> list[KeyGroupRange]:
    """Returns `count` contiguous ranges of about equal length; fewer if there are fewer key groups.

    Key groups 1 to 100 in three are 1 to 33, 34 to 66, and 67 to 100.
    """
    size = groups.last - groups.first + 1
    count = min(count, size)
    bounds = [groups.first + size * number // count for number in range(count + 1)]
    return [KeyGroupRange(first, after - 1) for first, after in pairwise(bounds)]


def shares_of(shards: Iterable[Shard], worth_a_worker: int = WORTH_A_WORKER) -> list[list[Shard]]:
    """Returns what each worker writes: one large shard, or small ones that follow each other.

    Args:
        shards: all shards.
        worth_a_worker: total size up to which small shards share a worker, in bytes.
    """
    shares: list[list[Shard]] = []
    size = 0
    for shard in shards:
        if not shares or size + shard.bytes > worth_a_worker:
            shares.append([])
            size = 0
        shares[-1].append(shard)
        size += shard.bytes
    return shares


def divided(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Returns the items in at most `parts` contiguous groups of about equal number, none of them empty."""
    parts = min(parts, len(items))
    bounds = [len(items) * number // parts for number in range(parts + 1)] if parts else []
    return [items[first:after] for first, after in pairwise(bounds)]
