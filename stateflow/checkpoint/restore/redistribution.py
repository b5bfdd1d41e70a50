"""Redistributes operator state from the subtasks that wrote it to those that restore it. Pure functions.

The rules are those of Flink's ``RoundRobinOperatorStateRepartitioner``:

- Even-split list: the elements of all subtasks, in their order, are cut into ranges whose lengths differ by at most
  one. The longer ranges of a list begin after those of the list before it, so that many short lists do not all go to
  subtask 0.
- Union list: every subtask sees all elements, but each element is stored by one subtask only, so that it does not
  multiply.
- Broadcast state: any one subtask's copy is used by all.
- Raw keyed state follows its key groups.

At the parallelism of the checkpoint, every subtask restores what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from stateflow.errors import CorruptFile
from stateflow.state.handles import OperatorContent
from stateflow.types.key_groups import range_of

T = TypeVar("T")


@dataclass(frozen=True)
class WrittenState:
    """Operator state as the subtasks of an operator wrote it at a barrier.

    Attributes:
        contents: content by subtask, without subtasks that had none.
        parallelism: number of subtasks.
    """

    contents: Mapping[int, OperatorContent] = field(default_factory=dict)
    parallelism: int = 0


@dataclass(frozen=True)
class AssignedState:
    """Operator state that one subtask restores.

    Attributes:
        own: the content that this subtask stores again.
        unions: elements of all subtasks, by name of the union list.
        broadcasts: entries of broadcast states, by name.
    """

    own: OperatorContent = field(default_factory=OperatorContent)
    unions: Mapping[str, list[bytes]] = field(default_factory=dict)
    broadcasts: Mapping[str, dict[bytes, bytes]] = field(default_factory=dict)


def assign(written: WrittenState, subtask: int, parallelism: int, max_parallelism: int) -> AssignedState:
    """Returns the operator state that one subtask restores.

    Args:
        written: the state at the checkpoint.
        subtask: index of the subtask.
        parallelism: number of subtasks that restore.
        max_parallelism: number of key groups.

    Raises:
        CorruptFile: raw keyed state has a key group that does not exist.
    """
    contents = [written.contents[at] for at in sorted(written.contents)]
    _check_key_groups(contents, max_parallelism)
    if parallelism == written.parallelism:
        own = written.contents.get(subtask, OperatorContent())
    else:
        own = _share(contents, subtask, parallelism, max_parallelism)
    unions = _concatenated([content.unions for content in contents])
    return AssignedState(own, unions, _any_copy(contents))


def even_split(items: Sequence[T], parts: int, first: int = 0) -> list[list[T]]:
    """Cuts `items`, in their order, into ranges whose lengths differ by at most one.

    Args:
        items: the elements.
        parts: number of ranges.
        first: index of the first of the longer ranges; the others follow it, and range 0 follows the last range.
    """
    length, rest = divmod(len(items), parts)
    ends = list(accumulate(length + ((part - first) % parts < rest) for part in range(parts)))
    return [list(items[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


class _EvenSplit:
    """Splits lists in sequence; the longer ranges of each begin where those of the list before ended."""

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask = subtask
        self._parallelism = parallelism
        self._first = 0

    def share(self, items: Sequence[T]) -> list[T]:
        """Returns the subtask's share of the next list."""
        found = even_split(items, self._parallelism, self._first)[self._subtask]
        self._first = (self._first + len(items)) % self._parallelism
        return found

    def shares(self, lists: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Returns the subtask's share of each list, in the order of `lists`, without empty shares."""
        found = {name: self.share(elements) for name, elements in lists.items()}
        return {name: elements for name, elements in found.items() if elements}


def _check_key_groups(contents: Sequence[OperatorContent], max_parallelism: int) -> None:
    # No subtask owns such a group, so a rescaled operator would lose its bytes without an error.
    last = max((piece[0] for content in contents for piece in content.raw_keyed), default=0)
    if last >= max_parallelism:
        raise CorruptFile(
            "raw keyed state has a key group that does not exist",
            hint="restore an older checkpoint",
            key_group=last,
            max_parallelism=max_parallelism,
        )


def _share(
    contents: Sequence[OperatorContent], subtask: int, parallelism: int, max_parallelism: int
) -> OperatorContent:
    owned = range_of(subtask, parallelism, max_parallelism)
    keyed = [piece for content in contents for piece in content.raw_keyed if piece[0] in owned]
    split = _EvenSplit(subtask, parallelism)
    # Every subtask must split the lists in this order: the split of each depends on those before it.
    return OperatorContent(
        lists=split.shares(_concatenated([content.lists for content in contents])),
        unions=split.shares(_concatenated([content.unions for content in contents])),
        raw=split.share([piece for content in contents for piece in content.raw]),
        broadcasts=_any_copy(contents) if subtask == 0 else {},
        raw_keyed=sorted(keyed, key=lambda piece: piece[0]),
    )


def _concatenated(lists: Sequence[Mapping[str, list[bytes]]]) -> dict[str, list[bytes]]:
    names = sorted({name for named in lists for name in named})
    return {name: [element for named in lists for element in named.get(name, ())] for name in names}


def _any_copy(contents: Sequence[OperatorContent]) -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    for content in contents:
        for name, entries in content.broadcasts.items():
            found.setdefault(name, dict(entries))
    return found
