"""Compares one operator of two snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stateflow import failpoints
from stateflow.compare.key_groups import SubtaskPair, join_ranges, pair_subtasks
from stateflow.compare.merge import Difference, count_states, differences, fold_lists
from stateflow.compare.operator_state import operator_differences
from stateflow.compare.shared_files.candidates import CandidateComparison, OpenStores, StateIds
from stateflow.compare.shared_files.file_sets import DataFile, FileSets, data_files, divide_files
from stateflow.compare.shared_files.open_files import MOST_OPEN, OpenFiles
from stateflow.compare.states import OperatorStates, StatePair
from stateflow.compare.stored_entries import EntryReader, Side, check_comparable
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.manifest import StoreManifest
from stateflow.state.handles import SubtaskState
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

    Attributes:
        states: the keyed states.
        totals: after `differences`, the number of entries in both snapshots by state id; None if not all were counted.
    """

    def __init__(self, old: Side | None, new: Side | None, readers: Readers, counts_all: bool = False) -> None:
        self._old, self._new = old, new
        self._readers = readers
        self._counts_all = counts_all
        self.states = OperatorStates(old.operator if old else None, new.operator if new else None)
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
        for step in self._steps(old, new):
            if step.files is None:
                yield from self._merged(step.groups, step.groups)
            else:
                yield from self._by_files(old, new, step.groups, step.files)

    def _steps(self, old: Side, new: Side) -> Iterator[_Step]:
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

    def _by_files(self, old: Side, new: Side, groups: KeyGroupRange, files: FileSets) -> Iterator[Difference]:
        with OpenFiles(old.storage) as before, OpenFiles(new.storage) as after:
            with OpenFiles(old.storage, MOST_OPEN) as shared:
                opened = OpenStores(before, after, shared)
                comparison = CandidateComparison(files, opened, groups)
                failpoints.hit("diff.opened")
                try:
                    if not comparison.has_deleted_ranges:
                        ids = StateIds(self.states.list_ids(0) | self.states.list_ids(1), self.states.internal_ids)
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
        sides = [fold_lists(blocks, self.states.list_ids(side)) for side, blocks in enumerate((old, new))]
        if self.totals is not None:
            sides = [count_states(blocks, counts) for blocks, counts in zip(sides, self.totals, strict=True)]
        return differences(*sides)


class _Manifests:
    """The data files of the subtasks of two snapshots; the manifest of a store is read once."""

    def __init__(self, readers: Readers, old: Side, new: Side) -> None:
        self._sides = ((readers.old, old), (readers.new, new))
        self._known: dict[tuple[int, str], StoreManifest | None] = {}

    def files_of(self, pair: SubtaskPair) -> FileSets | None:
        """Returns the data files of both subtasks; None if all entries are to be merged.

        A merge takes less time per entry, and reads all of them: it is chosen where the files that only one snapshot
        has are the larger part, for example after a compaction of all files.
        """
        found: list[list[DataFile]] = []
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
