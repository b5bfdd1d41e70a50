"""Merges the stored entries of two snapshots in order of keys, and yields those that differ.

The elements of a list are stored one by one, under positions that depend on the batches in which they were added. So a
list is compared as a whole: its entries become one entry, whose value is the array of its elements.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from stateflow.state.backends.base import after_prefix
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.stored_key import GROUP_BYTES, KEY_OFFSET, STATE_PART, list_key

_elements = msgspec.msgpack.Decoder(list[bytes])


@dataclass(frozen=True)
class Difference:
    """An entry that only one snapshot has, or that has other bytes in the other one.

    Attributes:
        key: the stored key; of a list, without a position.
        old: the stored value in the first snapshot, None without one; of a list, what `pack_list` returns.
        new: the stored value in the second snapshot.
    """

    key: bytes
    old: bytes | None
    new: bytes | None


def differences(
    old: Iterator[EntryBlock], new: Iterator[EntryBlock], *, with_equal: bool = False
) -> Iterator[Difference]:
    """Yields the entries that differ, in order of keys.

    Args:
        old, new: the entries of both snapshots in order of keys.
        with_equal: whether to yield equal entries as well.
    """
    left, right = next(old, None), next(new, None)
    while left is not None and right is not None:
        bound = min(left.keys[-1], right.keys[-1])
        left_head, left = _divide(left, bound)
        right_head, right = _divide(right, bound)
        yield from _compare(left_head, right_head, with_equal)
        left = left or next(old, None)
        right = right or next(new, None)
    while left is not None:
        yield from (Difference(key, value, None) for key, value in zip(left.keys, left.values, strict=True))
        left = next(old, None)
    while right is not None:
        yield from (Difference(key, None, value) for key, value in zip(right.keys, right.values, strict=True))
        right = next(new, None)


def _divide(block: EntryBlock, bound: bytes) -> tuple[EntryBlock, EntryBlock | None]:
    """Returns the entries up to a key, and the others; None without others."""
    end = bisect_right(block.keys, bound)
    if end == len(block.keys):
        return block, None
    return (EntryBlock(block.keys[:end], block.values[:end]), EntryBlock(block.keys[end:], block.values[end:]))


def _compare(old: EntryBlock, new: EntryBlock, with_equal: bool) -> Iterator[Difference]:
    if not with_equal and old.keys == new.keys and old.values == new.values:
        return
    before, after = dict(zip(old.keys, old.values, strict=True)), dict(zip(new.keys, new.values, strict=True))
    keys = before.keys() | after.keys() if with_equal else {key for key, _ in before.items() ^ after.items()}
    for key in sorted(keys):
        yield Difference(key, before.get(key), after.get(key))


def count_states(blocks: Iterable[EntryBlock], counts: Counter[bytes]) -> Iterator[EntryBlock]:
    """Yields the blocks as they are, and adds their entries to `counts`, by state id."""
    for block in blocks:
        first, keys = 0, block.keys
        while first < len(keys):
            # The entries of a key group are in order of states.
            state = keys[first][:KEY_OFFSET]
            after = after_prefix(state)
            end = len(keys) if after is None else bisect_left(keys, after, first)
            counts[state[GROUP_BYTES:]] += end - first
            first = end
        yield block


def fold_lists(blocks: Iterable[EntryBlock], list_ids: Collection[bytes]) -> Iterator[EntryBlock]:
    """Yields the entries with each list as one entry.

    Args:
        blocks: entries in order of keys.
        list_ids: ids of the list states.

    Raises:
        CorruptFile: the key of an element has no position.
    """
    if not list_ids:
        yield from blocks
        return
    pending, elements = b"", list[bytes]()
    for block in blocks:
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, value in zip(block.keys, block.values, strict=True):
            owner = list_key(key) if key[STATE_PART] in list_ids else b""
            if elements and owner != pending:
                keys.append(pending)
                values.append(pack_list(elements))
                elements = []
            if owner:
                pending = owner
                elements.append(value)
            else:
                keys.append(key)
                values.append(value)
        if keys:
            yield EntryBlock(keys, values)
    if elements:
        yield EntryBlock([pending], [pack_list(elements)])


def pack_list(elements: list[bytes]) -> bytes:
    """Returns the stored elements of a list as one value."""
    return msgspec.msgpack.encode(elements)


def unpack_list(data: bytes) -> list[bytes]:
    """Returns the stored elements that `pack_list` has packed."""
    return _elements.decode(data)
