"""Restoring at another parallelism: every key is where it belongs, with its newest value, and nowhere else."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rocksdict import Rdict

from stateflow.clock import ManualClock
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import CorruptFile, MissingFile, StateflowError
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.backends.rocksdb.check import LONGEST_BOUND
from stateflow.state.backends.rocksdb.manifest import parse
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.testing.conformance.state_backend import GROUPS, OperatorSubtasks, key_of

SETTINGS = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=6)
Changes = Mapping[bytes, bytes | None]


class _Store(RocksDBBackend):
    """A store whose files and levels can be made as those of a large one are."""

    def __init__(self, folder: Path, cache: HostCache, base: Base) -> None:
        super().__init__(folder, cache, base, SETTINGS)
        self._db.set_options({"target_file_size_base": "2000"})

    @property
    def native(self) -> Rdict:
        return self._db


class Subtasks(OperatorSubtasks):
    """Subtasks that may stay on their host, where they find each other's files; and what they must hold together."""

    def __init__(self, folder: Path, parallelism: int, storage: Storage) -> None:
        super().__init__(self._open_store, folder, "rocksdb")
        self.storage = storage
        self.folder = folder
        self.entries: dict[bytes, bytes] = {}
        self.touched = {key_of(g) for g in range(GROUPS)}
        self._hosts = count(1)
        self._seeds = count(1)
        self.move()
        self.open(parallelism=parallelism)

    def move(self) -> None:
        """The next restore is on a host without files."""
        self.opened: list[_Store] = []
        self._caches = [self.folder / f"host-{next(self._hosts)}" / f"cache-{n}" for n in range(GROUPS)]

    def _open_store(self, folder: Path, cache: HostCache, base: Base) -> _Store:
        others = self._caches if base.rescales else []
        clock = ManualClock(next(self._seeds))
        cache = HostCache.direct(self._caches[base.subtask], self.storage, clock, others)
        self.opened.append(_Store(folder, cache, base))
        return self.opened[-1]

    def write(self, changes: Changes) -> None:
        super().write(changes)
        self.touched |= set(changes)
        self.entries |= {key: value for key, value in changes.items() if value is not None}
        for key in [key for key, value in changes.items() if value is None]:
            self.entries.pop(key, None)

    def fill(self, seed: int, entries: int = 200) -> None:
        """Sets and removes random entries."""
        rng = random.Random(seed)
        keys = [key_of(rng.randrange(GROUPS), bytes([rng.randrange(3)])) for _ in range(entries)]
        self.write({k: None if rng.random() < 0.3 else rng.randbytes(rng.randrange(1, 200)) for k in keys})

    def rescale(self, parallelism: int, moves: bool = True) -> list[SubtaskState]:
        """Restores a snapshot, compares the content, and returns the snapshot."""
        if moves:
            self.move()
        states = self.restored(parallelism)
        self.check()
        return states

    def check(self) -> None:
        assert self.content() == self.entries
        for store in self.stores:
            here = dict(store.scan(b""))
            assert store.multi_get(sorted(self.touched)) == [here.get(key) for key in sorted(self.touched)]

    @property
    def native(self) -> list[Rdict]:
        return [store.native for store in self.stores if isinstance(store, _Store)]


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    return PosixStorage(tmp_path / "root")


@pytest.fixture
def subtasks(tmp_path: Path, storage: PosixStorage) -> Iterator[Subtasks]:
    """Two subtasks."""
    subtasks = Subtasks(tmp_path / "files", 2, storage)
    yield subtasks
    subtasks.close()


GROUP = st.integers(0, 11).map(lambda n: n * 5)
# Values of some weight, so that levels consist of many files.
VALUES = st.none() | st.binary(max_size=3).map(lambda b: b * 200)


class Life(RuleBasedStateMachine):
    """Writes, snapshots, compactions and restores in any order.

    Attributes:
        head: how all keys begin, after their key groups.
    """

    head = b""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self.subtasks = Subtasks(Path(self._scratch.name), 2, MemoryStorage())

    def teardown(self) -> None:
        self.subtasks.check()
        self.subtasks.rescale(1)
        self.subtasks.close()
        self._scratch.cleanup()

    @rule(changes=st.dictionaries(st.builds(key_of, GROUP, st.binary(max_size=1)), VALUES, max_size=12))
    def write(self, changes: Changes) -> None:
        self.subtasks.write({key[:2] + self.head + key[2:]: value for key, value in changes.items()})

    @rule(groups=st.sets(GROUP), value=VALUES)
    def write_groups(self, groups: set[int], value: bytes | None) -> None:
        self.subtasks.write({key_of(g, self.head + bytes([n])): value for g in groups for n in range(4)})

    @rule()
    def snapshot(self) -> None:
        self.subtasks.snapshot()

    @rule(group=GROUP, more=st.integers(1, 20))
    def compact_some_groups(self, group: int, more: int) -> None:
        for store in self.subtasks.native:
            store.flush()
            store.compact_range(key_of(group), key_of(group + more))

    @rule(parallelism=st.integers(1, 12) | st.none(), moves=st.booleans())
    def restore(self, parallelism: int | None, moves: bool) -> None:
        self.subtasks.rescale(parallelism or len(self.subtasks.stores), moves)


class LongLife(Life):
    """The same with keys that differ only after what a stored manifest has of them."""

    head = b"k" * 2 * LONGEST_BOUND

    def teardown(self) -> None:
        for state in self.subtasks.snapshot():
            files = parse(state.store_manifest, "m").files if state.store_manifest else ()
            assert all(len(bound) <= LONGEST_BOUND + 8 for file in files for bound in (file.smallest, file.largest))
        super().teardown()


@pytest.mark.parametrize("life", [Life, LongLife])
def test_after_any_history_every_key_has_its_newest_value_in_one_place(life: type[Life]) -> None:
    few = settings(max_examples=max(1, settings().max_examples // 2), stateful_step_count=12)
    run_state_machine_as_test(life, settings=few)


def test_what_a_sibling_hid_or_still_holds_does_not_reach_the_other(tmp_path: Path) -> None:
    """Two siblings have all keys in their files, each hides the other's half. Then one changes, deletes and compacts,
    the other does nothing; merged, each key is as its owner left it."""
    subtasks = Subtasks(tmp_path, 1, MemoryStorage())
    subtasks.write({key_of(g, bytes([n])): b"old" for g in range(GROUPS) for n in range(5)})
    subtasks.rescale(2, moves=False)
    half = range(GROUPS // 2)
    subtasks.write({key_of(g, b"\0"): None for g in half} | {key_of(g, b"\1"): b"new" for g in half})
    subtasks.snapshot()
    subtasks.native[0].compact_range(None, None)
    subtasks.rescale(1)
    assert subtasks.stores[0].get(key_of(0, b"\0")) is None
    assert subtasks.stores[0].get(key_of(GROUPS - 1, b"\0")) == b"old"
    subtasks.close()


def test_a_store_that_has_used_many_file_numbers_is_merged(subtasks: Subtasks) -> None:
    """RocksDB keeps its number of the oldest log in the entry of some data file; the new store counts again."""
    for seed in range(20):
        subtasks.fill(seed, 20)
        subtasks.snapshot()
        subtasks.rescale(2, moves=False)
    for parallelism in (1, 3, 2):
        subtasks.rescale(parallelism)


def _sizes(states: Sequence[SubtaskState]) -> dict[str, int]:
    return {f.handle.key: f.handle.size for s in states for f in s.files}


def _written(states: Sequence[SubtaskState], before: dict[str, int]) -> int:
    return sum(size for key, size in _sizes(states).items() if key not in before)


def _large(subtasks: Subtasks) -> list[SubtaskState]:
    """A snapshot of a store of many files, all of them compacted."""
    rng = random.Random(1)
    for _ in range(2):
        subtasks.write({key_of(g, bytes([n])): rng.randbytes(1000) for g in range(GROUPS) for n in range(10)})
        subtasks.snapshot()
    for store in subtasks.native:
        store.compact_range(key_of(0), key_of(GROUPS))
    subtasks.write({key_of(g): b"" for g in range(GROUPS)})
    return subtasks.snapshot()


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 12])
def test_a_rescaled_snapshot_writes_little_and_so_does_the_next(subtasks: Subtasks, parallelism: int) -> None:
    before = _sizes(_large(subtasks))
    for number in range(2):
        subtasks.rescale(parallelism)
        subtasks.write({key_of(g, b"%d" % number): b"y" for g in range(0, GROUPS, 5)})
        subtasks.check()
        states = subtasks.snapshot()
        assert _written(states, before) < sum(before.values()) / 5
        before = _sizes(states)


def test_rescaling_back_before_a_compaction_writes_no_more_than_one(subtasks: Subtasks) -> None:
    before = _sizes(_large(subtasks))
    subtasks.rescale(4, moves=False)
    middle = _sizes(subtasks.rescale(2, moves=False))
    assert _written(subtasks.snapshot(), middle) < sum(before.values())


def test_subtasks_share_files_and_fetch_only_what_they_need(tmp_path: Path) -> None:
    subtasks = Subtasks(tmp_path, 1, storage := _Counting())
    _large(subtasks)
    before = {_place(f) for s in subtasks.rescale(4) for f in s.files}
    assert sorted(storage.fetched) == sorted(before)
    states = subtasks.snapshot()
    shared = [{_place(f) for f in s.files} & before for s in states]
    assert set.union(*shared) == before
    assert sum(map(len, shared)) <= len(before) + 2 * len(states), "each takes its own, and what straddles"
    subtasks.close()


def _place(file: StateFile) -> tuple[str, int]:
    """The object that it is in, and where."""
    return file.handle.key, file.part.offset if file.part else 0


class _Counting(MemoryStorage):
    """Records what was fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[tuple[str, int]] = []

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        self.fetched.append((key, 0))
        super().fetch(key, target, limit)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        self.fetched.append((key, offset))
        super().fetch_part(key, offset, size, target)


def test_without_a_change_of_parallelism_nothing_is_written(subtasks: Subtasks) -> None:
    subtasks.fill(1)
    subtasks.rescale(3)
    before = subtasks.rescale(3)
    assert [s.files for s in subtasks.snapshot()] == [s.files for s in before]


def test_rescaling_leaves_the_previous_checkpoint_unchanged(subtasks: Subtasks, storage: PosixStorage) -> None:
    subtasks.fill(1)
    entries = dict(subtasks.entries)
    old = subtasks.rescale(3)
    blobs = {key: (storage.root / key).read_bytes() for key in _sizes(old)}
    subtasks.fill(2)
    subtasks.rescale(5)
    subtasks.close()
    assert {key: (storage.root / key).read_bytes() for key in blobs} == blobs
    subtasks.move()
    subtasks.open(old, 2)
    assert subtasks.content() == entries


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _leftovers(subtasks: Subtasks) -> list[Path]:
    return [*subtasks.folder.glob("host-*/work-*"), *subtasks.folder.rglob("incoming*")]


@pytest.mark.parametrize(("damage", "error"), [(_flip, CorruptFile), (Path.unlink, MissingFile)])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_damaged_file_is_named_and_no_file_is_left(
    subtasks: Subtasks,
    storage: PosixStorage,
    damage: Callable[[Path], object],
    error: type[StateflowError],
    parallelism: int,
) -> None:
    subtasks.write({key_of(g): b"x" for g in range(GROUPS)})
    states = subtasks.snapshot()
    subtasks.close()
    damaged = states[-1].files[0].handle.key
    damage(storage.root / damaged)
    subtasks.move()
    with pytest.raises(error) as refused:
        subtasks.open(states, parallelism)
    assert damaged in refused.value.facts.values()
    for store in subtasks.opened:
        store.close()
    assert _leftovers(subtasks) == []


@pytest.mark.parametrize(
    "damaged", [{"files": []}, {"store_manifest": b""}, {}], ids=["no files", "no manifest", "cut"]
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_snapshot_that_is_not_whole_is_refused(subtasks: Subtasks, damaged: dict[str, Any], parallelism: int) -> None:
    subtasks.write({key_of(g): b"x" for g in range(GROUPS)})
    subtasks.rescale(1)
    (state,) = subtasks.snapshot()
    subtasks.close()
    damaged = damaged or {"store_manifest": state.store_manifest[:-1]}
    with pytest.raises(CorruptFile):
        subtasks.open([msgspec.structs.replace(state, **damaged)], parallelism)
    assert _leftovers(subtasks) == []
