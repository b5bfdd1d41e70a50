"""Compares one operator of two snapshots: keyed state by key group, and operator state.

The names of files alone decide which key groups may differ. The elements of operator lists are compared as multisets
over all subtasks, and broadcast state by key.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

from stateflow import failpoints
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, read_sorted
from stateflow.checkpoint.savepoints.canonical.writer import divide_key_groups
from stateflow.clock import Clock
from stateflow.compare.merge import Difference, count_states, differences, fold_lists
from stateflow.compare.shared_files import (
    MOST_OPEN,
    CandidateComparison,
    FileSets,
    OpenFiles,
    OpenStores,
    StateIds,
    StoreDataFile,
    data_files,
    divide_files,
)
from stateflow.compare.states import StatePair, StatePairs
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import ConfigError, StateError
from stateflow.private_files import make_folders
from stateflow.state.backends.entry_stream import EntryBlock, select_key_groups
from stateflow.state.backends.factory import StoreLocation, read_blocks
from stateflow.state.backends.rocksdb.manifest import StoreManifest, manifest_of
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.operator_content import read_parts
from stateflow.state.rehash import Rehash
from stateflow.state.stored_key import StoredKey
from stateflow.storage import Storage
from stateflow.types.declared_types import NUMBERS
from stateflow.types.key_encoding import decode_key, encode_key
from stateflow.types.key_groups import KeyGroupRange

Found = tuple[StatePair, Difference]


_WORTH_A_MERGE = 16 << 20
_MOST_OWN_FILES = 256


@dataclass
class Readers:
    """Readers of both snapshots.

    Attributes:
        old, new: read whole subtasks.
        part_bytes: bytes of files of which only parts were read.
    """

    old: EntryReader
    new: EntryReader
    part_bytes: int = 0

    @classmethod
    def create(cls, scratch: Path, clock: Clock) -> Readers:
        """Returns readers whose caches are in a folder."""
        old = EntryReader(scratch / "old", clock)
        return cls(old, EntryReader(scratch / "new", clock, [old.cache_folder]))

    @property
    def read_bytes(self) -> int:
        """Bytes that were read."""
        return self.old.read_bytes + self.new.read_bytes + self.part_bytes


@dataclass(frozen=True)
class _Step:
    """Key groups that are compared in one way.

    Attributes:
        groups: the key groups.
        files: the data files, to compare by those that only one snapshot has; None to merge all entries.
    """

    groups: KeyGroupRange
    files: FileSets | None = None


class OperatorComparison:
    """Compares one operator of two snapshots.

    Args:
        old, new: the operator in each snapshot; None in one that does not have it.
        readers: read the entries.
        counts_all: whether to count all keys, which reads all files.
        whole_lists: whether a list is one entry; otherwise each of its elements is one.

    Attributes:
        states: the keyed states.
        totals: after `differences`, the number of entries in both snapshots by state id; None if not all were counted.
    """

    def __init__(
        self,
        old: OperatorSide | None,
        new: OperatorSide | None,
        readers: Readers,
        *,
        counts_all: bool = False,
        whole_lists: bool = True,
    ) -> None:
        self._old, self._new = old, new
        self._readers = readers
        self._counts_all = counts_all
        self.states = StatePairs(old.operator if old else None, new.operator if new else None)
        self._list_ids = [self.states.list_ids(side) if whole_lists else set[bytes]() for side in (0, 1)]
        self.totals: tuple[Counter[bytes], Counter[bytes]] | None = None

    def differences(self) -> Iterator[Found]:
        """Yields what differs: keyed state in order of stored keys, then operator state.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
            ConfigError: the key columns have other types.
        """
        for found in self._keyed():
            yield from self.states.split(found)
        yield from operator_differences(self._old, self._new)

    def _keyed(self) -> Iterator[Difference]:
        old, new = self._old, self._new
        if old is None or new is None:
            self.totals = Counter(), Counter()
            for side in (old, new):
                if side is not None:
                    yield from self._merged(side.keying.groups, side.keying.groups)
            return
        check_comparable(old, new)
        if old.keying != new.keying:
            self.totals = Counter(), Counter()
            rehashed = self._readers.old.rehashed_blocks(old, new.keying)
            yield from self._differences(rehashed, self._readers.new.blocks(new, new.keying.groups))
            return
        if self._counts_all:
            self.totals = Counter(), Counter()
            yield from self._merged(old.keying.groups, new.keying.groups)
            return
        yield from self._by_steps(old, new)

    def stored_differences(self) -> Iterator[Difference]:
        """Yields the keyed state whose stored keys or values differ, whatever they decode to; raises as `differences`.

        Some internal entries are left out.
        """
        old, new = self._old, self._new
        if old is not None and new is not None and old.keying == new.keying:
            yield from self._by_steps(old, new)
        else:
            groups = [side.keying.groups for side in (old, new) if side is not None]
            yield from self._merged(groups[0], groups[-1])

    def _by_steps(self, old: OperatorSide, new: OperatorSide) -> Iterator[Difference]:
        for step in self._steps(old, new):
            if step.files is None:
                yield from self._merged(step.groups, step.groups)
            else:
                yield from self._by_files(old, new, step.groups, step.files)

    def _steps(self, old: OperatorSide, new: OperatorSide) -> Iterator[_Step]:
        merged: list[KeyGroupRange] = []
        manifests = _Manifests(self._readers, old, new)
        for pair in pair_subtasks(old.subtasks, new.subtasks):
            if pair.is_equal:
                continue
            files = manifests.files_of(pair) if self.states.have_same_kinds else None
            if files is None:
                merged = join_ranges([*merged, pair.groups])
                continue
            yield from map(_Step, merged)
            merged = []
            yield _Step(pair.groups, files)
        yield from map(_Step, merged)

    def _by_files(
        self, old: OperatorSide, new: OperatorSide, groups: KeyGroupRange, files: FileSets
    ) -> Iterator[Difference]:
        with OpenFiles(old.storage) as before, OpenFiles(new.storage) as after:
            with OpenFiles(old.storage, MOST_OPEN) as shared:
                opened = OpenStores(before, after, shared)
                comparison = CandidateComparison(files, opened, groups)
                failpoints.hit("diff.opened")
                try:
                    if not comparison.has_deleted_ranges:
                        ids = StateIds(self._list_ids[0] | self._list_ids[1], self.states.internal_ids)
                        yield from comparison.differences(ids)
                        return
                finally:
                    self._readers.part_bytes += opened.read_bytes
        yield from self._merged(groups, groups)

    def _merged(self, old: KeyGroupRange, new: KeyGroupRange) -> Iterator[Difference]:
        readers = self._readers
        before = iter(()) if self._old is None else readers.old.blocks(self._old, old)
        after = iter(()) if self._new is None else readers.new.blocks(self._new, new)
        return self._differences(before, after)

    def _differences(self, old: Iterator[EntryBlock], new: Iterator[EntryBlock]) -> Iterator[Difference]:
        sides = [fold_lists(blocks, self._list_ids[side]) for side, blocks in enumerate((old, new))]
        if self.totals is not None:
            sides = [count_states(blocks, counts) for blocks, counts in zip(sides, self.totals, strict=True)]
        return differences(*sides)


class _Manifests:
    """The data files of the subtasks of two snapshots; the manifest of a store is read once."""

    def __init__(self, readers: Readers, old: OperatorSide, new: OperatorSide) -> None:
        self._sides = ((readers.old, old), (readers.new, new))
        self._known: dict[tuple[int, str], StoreManifest | None] = {}

    def files_of(self, pair: SubtaskPair) -> FileSets | None:
        """Returns the data files of both subtasks; None if all entries are to be merged.

        A merge takes less time per entry, and reads all of them: it is chosen where the files that only one snapshot
        has are the larger part, for example after a compaction of all files.
        """
        found: list[list[StoreDataFile]] = []
        for side, subtask in enumerate((pair.old, pair.new)):
            manifest = StoreManifest((), 0) if subtask is None else self._of(side, subtask)
            if manifest is None:
                return None
            found.append([] if subtask is None else data_files(subtask, manifest, pair.groups))
        files = divide_files(*found)
        is_small = files.own_bytes <= max(_WORTH_A_MERGE, files.all_bytes // 2)
        return files if is_small and len(files.old) + len(files.new) <= _MOST_OWN_FILES else None

    def _of(self, side: int, subtask: SubtaskState) -> StoreManifest | None:
        key = side, subtask.snapshot + str(subtask.subtask)
        if key not in self._known:
            reader, operator = self._sides[side]
            self._known[key] = reader.store_manifest(operator, subtask)
        return self._known[key]


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
    return frozenset(file.sha256 for file in subtask.files), subtask.inline or b""


PREFIX = "_operator/"
"""Prefix of the names of operator states."""
RAW, RAW_KEYED = "_raw", "_raw_keyed"
"""Names of raw operator state, and of raw keyed state, whose key is the key group."""


@dataclass
class _Content:
    """The operator state of all subtasks.

    Attributes:
        lists: the stored elements of list states by name, with their numbers.
        maps: the stored entries of broadcast states by name.
        kinds: kind of each state by name.
        schemas: schemas of the declared states by name.
    """

    lists: dict[str, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    maps: dict[str, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    kinds: dict[str, str] = field(default_factory=dict)
    schemas: dict[str, StateSchema] = field(default_factory=dict)


def operator_differences(old: OperatorSide | None, new: OperatorSide | None) -> Iterator[tuple[StatePair, Difference]]:
    """Yields the elements and entries of operator state that differ, with their state.

    Raises:
        MissingFile, CorruptFile: a file is missing or damaged.
    """
    before, after = _read(old), _read(new)
    kinds = sorted({*before.kinds.items(), *after.kinds.items()})
    for name, kind in kinds:
        # A state whose kind has changed has its content under both kinds.
        pair = StatePair(name, kind, before.schemas.get(name), after.schemas.get(name))
        if before.kinds.get(name, kind) != kind or after.kinds.get(name, kind) != kind:
            pair = StatePair(name, kind)
        found = _of_lists if kind in _LISTS else _of_maps
        for difference in found(pair, before, after):
            yield pair, difference


def decode_operator_key(key: bytes) -> StoredKey:
    """Decodes the key of a difference: that of a broadcast state's entry, a key group, or nothing for a list."""
    return StoredKey((), map_key=decode_key(key)[0] if key else None)


_SPLIT, _UNION, _BROADCAST, _RAW, _RAW_KEYED = "split-list", "union-list", "broadcast", "raw", "raw-keyed"
_LISTS = {_SPLIT, _UNION, _RAW}


def _read(side: OperatorSide | None) -> _Content:
    found = _Content()
    if side is None:
        return found
    found.schemas = {f"{PREFIX}{schema.name}": schema for schema in side.operator.operator_states}
    for _, content in read_parts(side.storage, side.operator.parts):
        for kind, lists in ((_SPLIT, content.lists), (_UNION, content.unions)):
            for name, elements in lists.items():
                found.kinds[f"{PREFIX}{name}"] = kind
                found.lists[f"{PREFIX}{name}"].update(elements)
        for name, entries in content.broadcasts.items():
            found.kinds[f"{PREFIX}{name}"] = _BROADCAST
            found.maps[f"{PREFIX}{name}"].update(entries)
        if content.raw:
            found.kinds[RAW] = _RAW
            found.lists[RAW].update(content.raw)
        if content.raw_keyed:
            found.kinds[RAW_KEYED] = _RAW_KEYED
            found.maps[RAW_KEYED].update({encode_key((group,)): piece for group, piece in content.raw_keyed})
    return found


def _of_lists(pair: StatePair, before: _Content, after: _Content) -> Iterator[Difference]:
    old = before.lists[pair.name] if before.kinds.get(pair.name) == pair.kind else Counter[bytes]()
    new = after.lists[pair.name] if after.kinds.get(pair.name) == pair.kind else Counter[bytes]()
    removed, added = old - new, new - old
    if removed and added and pair.kind != _RAW:
        removed, added = _without_equal(pair, removed, added)
    yield from (Difference(b"", element, None) for element in sorted(removed.elements()))
    yield from (Difference(b"", None, element) for element in sorted(added.elements()))


def _without_equal(
    pair: StatePair, removed: Counter[bytes], added: Counter[bytes]
) -> tuple[Counter[bytes], Counter[bytes]]:
    """Returns the elements without those that equal one on the other side, although their bytes differ."""
    owners: dict[str, list[bytes]] = defaultdict(list)
    for element in added.elements():
        owners[pair.values.identity(element)].append(element)
    left, equal = Counter(removed), Counter[bytes]()
    for element in removed.elements():
        same = owners[pair.values.identity(element)]
        if same:
            left[element] -= 1
            equal[same.pop()] += 1
    return +left, added - equal


def _of_maps(pair: StatePair, before: _Content, after: _Content) -> Iterator[Difference]:
    old = before.maps[pair.name] if before.kinds.get(pair.name) == pair.kind else {}
    new = after.maps[pair.name] if after.kinds.get(pair.name) == pair.kind else {}
    for key in sorted({key for key, _ in old.items() ^ new.items()}):
        first, second = old.get(key), new.get(key)
        both = first is not None and second is not None
        if not both or pair.kind == _RAW_KEYED or not pair.values.equal(first or b"", second or b""):
            yield Difference(key, first, second)


_BUCKET_BYTES = 8 << 20
_MOST_BUCKETS = 256


@dataclass(frozen=True)
class KeyGrouping:
    """Key types and number of key groups, which decide the key group of a key.

    Attributes:
        key_types: Spark's names of the types of the key columns.
        max_parallelism: number of key groups.
    """

    key_types: tuple[str, ...]
    max_parallelism: int

    @property
    def groups(self) -> KeyGroupRange:
        """All key groups."""
        return KeyGroupRange(0, self.max_parallelism - 1)


@dataclass(frozen=True)
class OperatorSide:
    """One operator in one snapshot.

    Attributes:
        storage: the storage with its files.
        operator: the operator.
        max_parallelism: number of key groups.
    """

    storage: Storage
    operator: OperatorState
    max_parallelism: int

    @property
    def keying(self) -> KeyGrouping:
        """Its key types and number of key groups."""
        return KeyGrouping(tuple(self.operator.key_types), self.max_parallelism)

    @property
    def subtasks(self) -> list[SubtaskState]:
        """Its subtasks in order of key groups."""
        return sorted(self.operator.subtasks, key=lambda subtask: subtask.first_group)

    @property
    def bytes(self) -> int:
        """Bytes of its keyed state; a file that several subtasks share counts once."""
        files = {file.sha256: file.size for subtask in self.operator.subtasks for file in subtask.files}
        return sum(files.values()) + sum(len(subtask.inline or b"") for subtask in self.operator.subtasks)


@dataclass
class EntryReader:
    """Reads the entries of one snapshot's operators, through a cache of its files on local disk.

    Attributes:
        scratch: a folder for the cache and for open stores; created if it does not exist.
        clock: the clock of the cache.
        siblings: caches of other readers, which may have the same files.
        read_bytes: bytes of the subtasks that were read.
    """

    scratch: Path
    clock: Clock
    siblings: Sequence[Path] = ()
    read_bytes: int = 0
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def cache_folder(self) -> Path:
        """The folder of the cache, for `siblings` of another reader."""
        return self.scratch / "cache"

    def store_manifest(self, side: OperatorSide, subtask: SubtaskState) -> StoreManifest | None:
        """Returns the data files of a RocksDB store; None if another backend wrote the state.

        Raises:
            MissingFile, CorruptFile: the manifest is missing or damaged.
        """
        if subtask.backend != "rocksdb":
            return None
        return manifest_of(subtask) if subtask.has_store else StoreManifest((), 0)

    def _cache(self, side: OperatorSide) -> HostCache:
        make_folders(self.scratch)
        return HostCache.direct(self.cache_folder, side.storage, self.clock, self.siblings)

    def blocks(self, side: OperatorSide, groups: KeyGroupRange) -> Iterator[EntryBlock]:
        """Yields the entries of some key groups.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        cache = self._cache(side)
        for subtask in side.subtasks:
            if not subtask.groups.overlap(groups):
                continue
            location = StoreLocation(self.scratch / f"store-{next(self._numbers)}", cache, RocksDBSettings())
            self.read_bytes += subtask.size_bytes
            with closing(read_blocks(location, Base.of(subtask))) as blocks:
                for block in select_key_groups(blocks, groups):
                    failpoints.hit("diff.entries")
                    yield block
            cache.keep_only(())

    def rehashed_blocks(self, side: OperatorSide, keying: KeyGrouping) -> Iterator[EntryBlock]:
        """Yields all entries with the key groups that they have with another max parallelism, sorted again.

        This needs as much scratch space on disk as the state.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
            ConfigError: the keys are not of the types of `keying`.
        """
        names = [schema.name for schema in side.operator.states]
        buckets = divide_key_groups(keying.groups, max(1, min(_MOST_BUCKETS, side.bytes // _BUCKET_BYTES)))
        folder, sorting = self.scratch / f"buckets-{next(self._numbers)}", self.scratch / "sorting"
        make_folders(sorting)
        rehash = Rehash(keying.key_types, names, keying.max_parallelism)
        writer = BucketWriter(folder, rehash, [bucket.first for bucket in buckets])
        try:
            writer.add(self.blocks(side, side.keying.groups))
        except StateError as e:
            raise _other_key_types(side, keying) from e
        writer.flush()
        for bucket in buckets:
            file = bucket_file(folder, bucket.first)
            yield from read_sorted([file], sorting)
            file.unlink(missing_ok=True)


def check_comparable(old: OperatorSide, new: OperatorSide) -> None:
    """Raises ConfigError if the keys of the two sides cannot be equal, because their columns have other types."""
    before, after = old.keying.key_types, new.keying.key_types
    if len(before) != len(after) or any(map(_differ, before, after)):
        raise _other_key_types(old, new.keying)


def _differ(old: str, new: str) -> bool:
    # Numbers of other sizes are encoded in the same way in stored keys, although they have other key groups.
    return old != new and not any(old in family and new in family for family in NUMBERS)


def _other_key_types(side: OperatorSide, keying: KeyGrouping) -> ConfigError:
    return ConfigError(
        "the types of an operator's key columns differ between the snapshots",
        hint="compare the other operators only: name them",
        operator=side.operator.uid,
        old=list(side.keying.key_types),
        new=list(keying.key_types),
    )
