"""Compares two stores by the keys in the files that only one of them has."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from stateflow.compare.merge import Difference, list_key, pack_list
from stateflow.compare.shared_files.file_sets import DataFile, FileSets
from stateflow.compare.shared_files.open_files import OpenFiles
from stateflow.state.backends.entry_stream import GROUP_BYTES, first_key
from stateflow.state.backends.rocksdb.tables.reader import DeletedRange, KeyRange, TableEntry
from stateflow.state.kinds.key_context import KEY_OFFSET
from stateflow.types.key_groups import KeyGroupRange

_CHUNK_KEYS = 8192
_CHUNK_BYTES = 16 << 20
Found = dict[bytes, TableEntry]
"""The newest entry of each key."""


@dataclass
class _Candidate:
    """A key, or a list, whose value may differ.

    Attributes:
        key: the stored key; of a list, without a position.
        end: the end of its entries, exclusive.
        is_list: whether it is a list.
        found: its newest entries in the files of each store that were read so far.
    """

    key: bytes
    end: bytes
    is_list: bool
    found: tuple[Found, Found] = field(default_factory=lambda: ({}, {}))

    def add(self, side: int, entry: TableEntry) -> None:
        """Adds an entry of a store, unless a newer one is known."""
        known = self.found[side].get(entry.key)
        if known is None or known.sequence < entry.sequence:
            self.found[side][entry.key] = entry

    def is_settled(self, file: DataFile) -> bool:
        """Returns whether no entry of a file can be newer than those known."""
        if self.is_list:
            return False
        return all(self.key in found and found[self.key].sequence >= file.largest_sequence for found in self.found)

    def difference(self, deleted: Sequence[DeletedRange]) -> Difference | None:
        """Returns the difference; None if both stores have the same entries.

        Args:
            deleted: the deleted ranges of the files that both stores have.
        """
        old, new = (_visible(found, deleted) for found in self.found)
        if old == new:
            return None
        if self.is_list:
            return Difference(self.key, pack_list(old) if old else None, pack_list(new) if new else None)
        return Difference(self.key, old[0] if old else None, new[0] if new else None)


def _visible(found: Found, deleted: Sequence[DeletedRange]) -> list[bytes]:
    """Returns the values that a store shows, in order of keys."""
    return [
        entry.value
        for _, entry in sorted(found.items())
        if entry.value is not None
        and not any(each.keys[0] <= entry.key < each.keys[1] and each.sequence > entry.sequence for each in deleted)
    ]


@dataclass(frozen=True)
class StateIds:
    """Ids of states in stored keys.

    Attributes:
        lists: those of list states.
        internal: those of entries that are not compared.
    """

    lists: Collection[bytes]
    internal: Collection[bytes]


@dataclass(frozen=True)
class OpenStores:
    """Open data files of two stores.

    Attributes:
        old, new: those that only one store has. All of them are read at the same time, and stay open.
        shared: those that both stores have.
    """

    old: OpenFiles
    new: OpenFiles
    shared: OpenFiles

    @property
    def read_bytes(self) -> int:
        """Bytes that were read."""
        return self.old.read_bytes + self.new.read_bytes + self.shared.read_bytes


class CandidateComparison:
    """Compares two stores by the keys in the files that only one of them has.

    Args:
        files: the data files of both stores.
        opened: reads them.
        groups: the key groups to compare.
    """

    def __init__(self, files: FileSets, opened: OpenStores, groups: KeyGroupRange) -> None:
        self._files = files
        self._opened = opened
        self._keys: KeyRange = first_key(groups.first), _after(groups.last)

    @property
    def has_deleted_ranges(self) -> bool:
        """Whether a file that only one store has deletes a range of the key groups: any key in it may differ.

        Only a change of parallelism deletes ranges, and only of key groups that the subtask does not own.
        """
        own = chain(*(map(opened.deleted_ranges, files) for opened, files in self._own()))
        return any(each.keys[0] < self._keys[1] and each.keys[1] > self._keys[0] for ranges in own for each in ranges)

    def differences(self, ids: StateIds) -> Iterator[Difference]:
        """Yields the keys whose stored values differ, in order.

        Args:
            ids: the ids of both snapshots; none is that of a list in one of them and of another state in the other.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        shared = self._opened.shared
        deleted = [each for file in self._files.shared for each in shared.deleted_ranges(file)]
        for chunk in self._chunks(ids):
            for file in self._files.shared:
                _look_up(chunk, file, shared)
            for candidate in chunk:
                found = candidate.difference(deleted)
                if found is not None:
                    yield found

    def _chunks(self, ids: StateIds) -> Iterator[list[_Candidate]]:
        chunk: list[_Candidate] = []
        size = 0
        for key, side, entry in self._own_entries():
            state = key[GROUP_BYTES:KEY_OFFSET]
            if state in ids.internal:
                continue
            is_list = state in ids.lists
            owner = list_key(key) if is_list else key
            if not chunk or chunk[-1].key != owner:
                if len(chunk) >= _CHUNK_KEYS or size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
                # The namespace of another list may continue with 0xff where the position of an element begins.
                chunk.append(_Candidate(owner, owner + (b"\xff" if is_list else b"\0"), is_list))
            chunk[-1].add(side, entry)
            size += len(key) + len(entry.value or b"")
        if chunk:
            yield chunk

    def _own_entries(self) -> Iterator[tuple[bytes, int, TableEntry]]:
        """Yields key, store and entry of the files that only one store has, in order of keys."""
        streams = [
            _of_side(side, opened.entries(file, [self._keys]))
            for side, (opened, files) in enumerate(self._own())
            for file in files
        ]
        return heapq.merge(*streams, key=lambda each: each[0])

    def _own(self) -> tuple[tuple[OpenFiles, tuple[DataFile, ...]], ...]:
        return (self._opened.old, self._files.old), (self._opened.new, self._files.new)


def _of_side(side: int, entries: Iterator[TableEntry]) -> Iterator[tuple[bytes, int, TableEntry]]:
    return ((entry.key, side, entry) for entry in entries)


def _look_up(chunk: Sequence[_Candidate], file: DataFile, opened: OpenFiles) -> None:
    """Adds the entries of a shared file to the candidates whose value they may be."""
    wanted = [each for each in chunk if file.may_have(each.key, each.end) and not each.is_settled(file)]
    if not wanted:
        return
    position = 0
    for entry in opened.entries(file, [(each.key, each.end) for each in wanted]):
        while wanted[position].end <= entry.key:
            position += 1
        for side in (0, 1):
            wanted[position].add(side, entry)


def _after(group: int) -> bytes:
    return first_key(group + 1)
