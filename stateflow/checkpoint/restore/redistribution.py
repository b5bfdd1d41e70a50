"""Operator state from the subtasks that wrote it to those that go on with it. Pure; the rules are Flink's.

An even-split list: the elements of all subtasks, in their order, cut into runs whose lengths differ by at most one.
The longer runs of a list begin after those of the list before it, so that many short lists do not all go to subtask 0.
A union list: everybody sees all elements; each is still kept by one subtask only, so that it does not multiply.
Broadcast state: any one subtask's copy is everybody's. Raw keyed streams go with their key groups. At the parallelism
of the checkpoint, every subtask goes on with what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from stateflow.keygroups import range_of
from stateflow.state.handles import OperatorContent

T = TypeVar("T")


@dataclass(frozen=True)
class Written:
    """What the subtasks of an operator wrote at a barrier.

    Attributes:
        contents: by subtask, in order; without those that had nothing.
        parallelism: how many subtasks there were.
    """

    contents: Mapping[int, OperatorContent] = field(default_factory=dict)
    parallelism: int = 0


@dataclass(frozen=True)
class Assigned:
    """What one subtask starts from.

    Attributes:
        own: what is its own to keep.
        unions: union lists as it sees them: everybody's elements.
        broadcasts: entries of broadcast states.
    """

    own: OperatorContent = field(default_factory=OperatorContent)
    unions: Mapping[str, list[bytes]] = field(default_factory=dict)
    broadcasts: Mapping[str, dict[bytes, bytes]] = field(default_factory=dict)


def assign(written: Written, subtask: int, parallelism: int, max_parallelism: int) -> Assigned:
    """What `subtask` of `parallelism` gets."""
    contents = [written.contents[at] for at in sorted(written.contents)]
    if parallelism == written.parallelism:
        own = written.contents.get(subtask, OperatorContent())
    else:
        own = _share(contents, subtask, parallelism, max_parallelism)
    unions = _together([content.unions for content in contents])
    return Assigned(own, unions, _any_copy(contents))


def even_split(items: Sequence[T], parts: int, first: int = 0) -> list[list[T]]:
    """Cuts `items`, in their order, into `parts` runs whose lengths differ by at most one.

    Args:
        first: the part that gets the first of the longer runs; the parts after it get the others, and part 0 follows
            the last part.
    """
    length, rest = divmod(len(items), parts)
    ends = list(accumulate(length + ((part - first) % parts < rest) for part in range(parts)))
    return [list(items[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


class _EvenSplit:
    """Divides one list after the other; the longer runs of each begin where those of the list before ended."""

    def __init__(self, subtask: int, parallelism: int) -> None:
        self._subtask = subtask
        self._parallelism = parallelism
        self._first = 0

    def share(self, items: Sequence[T]) -> list[T]:
        """The subtask's share of the next list."""
        found = even_split(items, self._parallelism, self._first)[self._subtask]
        self._first = (self._first + len(items)) % self._parallelism
        return found

    def shares(self, lists: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
        """The subtask's share of each list, in the order of `lists`; without the empty ones."""
        found = {name: self.share(elements) for name, elements in lists.items()}
        return {name: elements for name, elements in found.items() if elements}


def _share(
    contents: Sequence[OperatorContent], subtask: int, parallelism: int, max_parallelism: int
) -> OperatorContent:
    owned = range_of(subtask, parallelism, max_parallelism)
    keyed = [piece for content in contents for piece in content.raw_keyed if piece[0] in owned]
    split = _EvenSplit(subtask, parallelism)
    # Every subtask divides the lists in this order: the start of each depends on those before it.
    return OperatorContent(
        lists=split.shares(_together([content.lists for content in contents])),
        unions=split.shares(_together([content.unions for content in contents])),
        raw=split.share([piece for content in contents for piece in content.raw]),
        broadcasts=_any_copy(contents) if subtask == 0 else {},
        raw_keyed=sorted(keyed, key=lambda piece: piece[0]),
    )


def _together(lists: Sequence[Mapping[str, list[bytes]]]) -> dict[str, list[bytes]]:
    names = sorted({name for each in lists for name in each})
    return {name: [element for each in lists for element in each.get(name, ())] for name in names}


def _any_copy(contents: Sequence[OperatorContent]) -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    for content in contents:
        for name, entries in content.broadcasts.items():
            found.setdefault(name, dict(entries))
    return found
