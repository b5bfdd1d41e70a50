"""Finds the key groups whose state may differ between two snapshots, from the names of the files alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from stateflow.state.handles import SubtaskState
from stateflow.types.key_groups import KeyGroupRange


@dataclass(frozen=True)
class SubtaskPair:
    """Key groups that one subtask of each snapshot owns.

    Attributes:
        groups: the key groups.
        old: the subtask of the first snapshot; None if no subtask of it has state in these key groups.
        new: the same for the second snapshot.
    """

    groups: KeyGroupRange
    old: SubtaskState | None
    new: SubtaskState | None

    @property
    def is_equal(self) -> bool:
        """Whether both subtasks consist of the same files, so that no key group of both can differ.

        An entry of a RocksDB carries its sequence number, so which entry of a key is visible depends on the set of the
        files alone. After a change of parallelism the files may have more key groups than the subtask owns.
        """
        return _content(self.old) == _content(self.new)


def pair_subtasks(old: Iterable[SubtaskState], new: Iterable[SubtaskState]) -> Iterator[SubtaskPair]:
    """Yields the key groups of all subtasks in order, divided wherever a subtask of either snapshot begins or ends."""
    sides = [sorted(each, key=lambda subtask: subtask.first_group) for each in (old, new)]
    starts = sorted({start for side in sides for each in side for start in (each.first_group, each.last_group + 1)})
    for first, after in pairwise(starts):
        before, later = (_owner(side, first) for side in sides)
        if before is not None or later is not None:
            yield SubtaskPair(KeyGroupRange(first, after - 1), before, later)


def join_ranges(ranges: Iterable[KeyGroupRange]) -> list[KeyGroupRange]:
    """Returns ranges that follow each other as one; the given ones are in order."""
    joined: list[KeyGroupRange] = []
    for groups in ranges:
        if joined and joined[-1].last + 1 == groups.first:
            joined[-1] = KeyGroupRange(joined[-1].first, groups.last)
        else:
            joined.append(groups)
    return joined


def _owner(subtasks: Iterable[SubtaskState], group: int) -> SubtaskState | None:
    return next((each for each in subtasks if group in each.groups), None)


def _content(subtask: SubtaskState | None) -> tuple[frozenset[str], bytes]:
    if subtask is None:
        return frozenset(), b""
    # Older snapshots have the manifest of RocksDB among their files.
    files = (file for file in subtask.files if not file.local_name.startswith("MANIFEST-"))
    return frozenset(file.sha256 for file in files), subtask.inline or b""
