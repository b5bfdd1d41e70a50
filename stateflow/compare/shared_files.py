"""Compares two RocksDB stores that share files, by the files that only one of them has.

The visible value of a key can only differ between two stores if the key occurs, as an entry or as a deletion, in a
file that only one of them has. So these files are read, and their keys are looked up in the files that both have.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Self

from stateflow.compare.merge import Difference, pack_list
from stateflow.errors import CorruptFile
from stateflow.state.backends.rocksdb.manifest import StoreFile, StoreManifest
from stateflow.state.backends.rocksdb.tables import DeletedRange, KeyRange, PartFile, TableEntry, TableReader
from stateflow.state.handles import StateFile, SubtaskState, check_position
from stateflow.state.stored_key import STATE_PART, after_key, encode_group, list_key
from stateflow.storage import Storage
from stateflow.storage.paths import check_key
from stateflow.types.key_groups import KeyGroupRange

_TRAILER = 8


@dataclass(frozen=True)
class StoreDataFile:
    """A data file of a store.

    Attributes:
        stored: the stored file.
        listed: its entry in the manifest of the store.
    """

    stored: StateFile
    listed: StoreFile

    @property
    def identity(self) -> tuple[str, tuple[int, int]]:
        """Equal for two files that have the same entries in the same order of age."""
        return self.stored.sha256, self.listed.sequences

    @property
    def largest_sequence(self) -> int:
        """The largest sequence number of its entries."""
        return self.listed.sequences[1]

    def may_have(self, first: bytes, end: bytes) -> bool:
        """Returns whether it may have keys from `first` on that are less than `end`."""
        if end <= self.listed.smallest[:-_TRAILER]:
            return False
        # The prefix of a bound is less than the bound.
        return self.listed.prefixes[1] or first <= self.listed.largest[:-_TRAILER]


@dataclass(frozen=True)
class FileSets:
    """The data files of two stores that have some key groups.

    Attributes:
        shared: the files that both stores have, those with the largest sequence numbers first.
        old, new: the files that only one store has.
    """

    shared: tuple[StoreDataFile, ...]
    old: tuple[StoreDataFile, ...]
    new: tuple[StoreDataFile, ...]

    @property
    def own_bytes(self) -> int:
        """Bytes of the files that only one store has."""
        return sum(file.stored.size for file in (*self.old, *self.new))

    @property
    def all_bytes(self) -> int:
        """Bytes of the files of both stores, shared ones twice."""
        return self.own_bytes + 2 * sum(file.stored.size for file in self.shared)


def data_files(state: SubtaskState, manifest: StoreManifest, groups: KeyGroupRange) -> list[StoreDataFile]:
    """Returns the files of a subtask's store that may have some key groups.

    Args:
        state: the subtask's state, which has every file of the manifest.
        manifest: the manifest of its store.
        groups: the key groups.
    """
    stored = {file.local_name: file for file in state.files}
    return [StoreDataFile(stored[file.name], file) for file in manifest.files if file.groups.overlap(groups)]


def divide_files(old: Iterable[StoreDataFile], new: Iterable[StoreDataFile]) -> FileSets:
    """Returns the files of two stores, divided."""
    before, after = ({file.identity: file for file in files} for files in (old, new))
    shared = sorted(
        (file for identity, file in before.items() if identity in after), key=lambda file: -file.largest_sequence
    )
    return FileSets(
        tuple(shared),
        tuple(file for identity, file in before.items() if identity not in after),
        tuple(file for identity, file in after.items() if identity not in before),
    )


MOST_OPEN = 64
"""Number of shared files that are open at a time."""


class OpenFiles:
    """Data files that are open until the end of a ``with`` block, or until too many others were opened.

    The index of an open file is in memory. No file is read as a whole, so its SHA-256 is not verified; the checksum of
    each block that is read is.

    Args:
        storage: the storage with the files.
        most_open: number of files that are open at a time; None for any number.
    """

    def __init__(self, storage: Storage, most_open: int | None = None) -> None:
        self._storage = storage
        self._most_open = most_open
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._closed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._close_oldest()

    @property
    def read_bytes(self) -> int:
        """Bytes that were read."""
        return self._closed_bytes + sum(each.parts.read_bytes for each in self._open.values())

    def entries(self, file: StoreDataFile, ranges: Sequence[KeyRange]) -> Iterator[TableEntry]:
        """Yields the entries in some ranges in order of keys; raises as `deleted_ranges`."""
        with _translated(file):
            yield from self._opened(file).table.entries(ranges)

    def deleted_ranges(self, file: StoreDataFile) -> list[DeletedRange]:
        """Returns the deleted ranges of a file.

        Raises:
            MissingFile: the file does not exist.
            CorruptFile: it is damaged.
        """
        with _translated(file):
            return self._opened(file).table.deleted_ranges

    def _opened(self, file: StoreDataFile) -> _OpenFile:
        name = file.stored.sha256
        if name not in self._open:
            self._open[name] = _OpenFile(self._storage, file)
        self._open.move_to_end(name)
        while self._most_open is not None and len(self._open) > self._most_open:
            self._close_oldest()
        return self._open[name]

    def _close_oldest(self) -> None:
        _, oldest = self._open.popitem(last=False)
        self._closed_bytes += oldest.parts.read_bytes
        oldest.stack.close()


class _OpenFile:
    def __init__(self, storage: Storage, file: StoreDataFile) -> None:
        stored, part = file.stored, file.stored.part
        offset = 0
        if part is not None:
            check_position(stored.handle, part)
            offset = part.offset
        with ExitStack() as stack:
            read = stack.enter_context(storage.open_parts(check_key(stored.handle.key)))
            self.parts = PartFile(lambda at, size: read(offset + at, size))
            self.table = TableReader(self.parts, stored.size, file.largest_sequence, storage.part_gap)
            self.stack = stack.pop_all()


@contextmanager
def _translated(file: StoreDataFile) -> Iterator[None]:
    try:
        yield
    except ValueError as e:
        raise CorruptFile(
            "a data file of a snapshot is damaged",
            hint="restore an older checkpoint",
            file=file.stored.handle.key,
            reason=str(e)[:300],
        ) from e


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

    def is_settled(self, file: StoreDataFile) -> bool:
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
        self._keys: KeyRange = encode_group(groups.first), encode_group(groups.last + 1)

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
            state = key[STATE_PART]
            if state in ids.internal:
                continue
            is_list = state in ids.lists
            owner = list_key(key) if is_list else key
            if not chunk or chunk[-1].key != owner:
                if len(chunk) >= _CHUNK_KEYS or size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
                # The namespace of another list may continue with 0xff where the position of an element begins.
                chunk.append(_Candidate(owner, after_key(owner) if is_list else owner + b"\0", is_list))
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

    def _own(self) -> tuple[tuple[OpenFiles, tuple[StoreDataFile, ...]], ...]:
        return (self._opened.old, self._files.old), (self._opened.new, self._files.new)


def _of_side(side: int, entries: Iterator[TableEntry]) -> Iterator[tuple[bytes, int, TableEntry]]:
    return ((entry.key, side, entry) for entry in entries)


def _look_up(chunk: Sequence[_Candidate], file: StoreDataFile, opened: OpenFiles) -> None:
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
