"""Restoring at another parallelism or from files that RocksDB did not write: every key once, with its newest value."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rocksdict import Rdict

from stateflow.clock import ManualClock
from stateflow.config.settings import COMPACTIONS, LARGEST_KEY, LARGEST_VALUE, RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile, MissingFile, StateflowError, StorageError
from stateflow.state.backends import canonical_file, hash_maps
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryBlock, blocks_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.backends.rocksdb.check import LONGEST_BOUND
from stateflow.state.backends.rocksdb.manifest import parse
from stateflow.state.handles import CANONICAL, Base, FileHandle, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.testing.conformance.state_backend import GROUPS, Opener, OperatorSubtasks, key_of
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises
from tests.support.memory import MemoryPeak, file_size_limit
from tests.support.stores import RecordedFetches

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
WEIGHTS = st.none() | st.binary(max_size=3).map(lambda b: b * 200)


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

    @rule(changes=st.dictionaries(st.builds(key_of, GROUP, st.binary(max_size=1)), WEIGHTS, max_size=12))
    def write(self, changes: Changes) -> None:
        self.subtasks.write({key[:2] + self.head + key[2:]: value for key, value in changes.items()})

    @rule(groups=st.sets(GROUP), value=WEIGHTS)
    def write_groups(self, groups: set[int], value: bytes | None) -> None:
        self.subtasks.write({key_of(g, self.head + bytes([n])): value for g in groups for n in range(4)})

    @rule()
    def snapshot(self) -> None:
        self.subtasks.snapshot()
        for store in self.subtasks.stores:
            # Nothing has changed since: no file is stored again.
            live = store.snapshot("unused").live
            assert live is None or live.entries <= len(list(store.scan(b"")))

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


@pytest.mark.parametrize(("life", "part"), [(Life, 4), (LongLife, 10)])
def test_after_any_history_every_key_has_its_newest_value_in_one_place(life: type[Life], part: int) -> None:
    few = settings(max_examples=max(1, settings().max_examples // part), stateful_step_count=12)
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


def test_a_key_group_next_to_those_of_a_subtask_is_hidden(tmp_path: Path) -> None:
    half = GROUPS // 2
    for groups in (range(half + 1), range(half - 1, GROUPS)):
        subtasks = Subtasks(tmp_path / f"from-{groups[0]}", 1, MemoryStorage())
        subtasks.write({key_of(g): b"x" for g in groups})
        subtasks.rescale(2)
        lower, upper = subtasks.stores
        assert (lower.get(key_of(half)), upper.get(key_of(half - 1))) == (None, None)
        subtasks.close()


def _places(states: Sequence[SubtaskState]) -> dict[tuple[str, int], int]:
    """The size of each file, by its object and where it begins there."""
    files = (file for state in states for file in state.files)
    return {(f.handle.key, f.part.offset if f.part else 0): f.part.size if f.part else f.handle.size for f in files}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_a_rescaled_store_fetches_each_file_once_and_writes_almost_none_again(
    tmp_path: Path, before: int, after: int
) -> None:
    subtasks, rng = Subtasks(tmp_path, before, storage := RecordedFetches(tmp_path / "storage")), random.Random(1)
    for _ in range(2):
        subtasks.write({key_of(g, bytes([n])): rng.randbytes(500) for g in range(GROUPS) for n in range(4)})
        subtasks.snapshot()
    for store in subtasks.native:
        store.compact_range(key_of(0), key_of(GROUPS))
    subtasks.write({key_of(g): b"x" for g in range(GROUPS)})
    stored = _places(subtasks.rescale(after))
    assert len(stored) > 10 and sorted(storage.fetched) == sorted(stored)
    subtasks.write({key_of(g): b"y" for g in range(GROUPS)})
    found = _places(states := subtasks.snapshot())
    subtasks.check()
    subtasks.close()
    reused, whole = sum(stored[place] for place in stored.keys() & found.keys()), sum(stored.values())
    assert reused > 0.9 * whole and sum(found.values()) - reused < 0.2 * whole
    assert sum(len(s.files) for s in states) <= len(found) + 2 * after, "only files at the bounds are in two subtasks"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _leftovers(subtasks: Subtasks) -> list[Path]:
    return [*subtasks.folder.glob("host-*/work-*"), *subtasks.folder.rglob("incoming*")]


@pytest.mark.parametrize(("damage", "error"), [(_flip, CorruptFile), (Path.unlink, MissingFile)])
@pytest.mark.parametrize("parallelism", [1, 3])
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


Entries = dict[bytes, bytes]
ALL = range(GROUPS)
ROCKSDB = {
    "universal": RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=3),
    # Files of a kilobyte: almost every key group begins one.
    "leveled": RocksDBSettings(
        write_buffer_bytes=1 << 20,
        block_cache_bytes=1 << 20,
        compact_at_files=3,
        compaction="leveled",
        level_base_bytes=4096,
    ),
}


def _opener(compaction: str) -> Opener:
    def open_store(folder: Path, cache: HostCache, base: Base) -> KeyedStateBackend:
        return open_backend(StoreLocation(folder, cache, ROCKSDB[compaction]), base, StateSettings())

    return open_store


class Parts:
    """Stored states of subtasks, made from entries."""

    def __init__(self, folder: Path, storage: Storage | None = None) -> None:
        self.folder = folder
        self.storage = storage or MemoryStorage()
        self._numbers = count(1)

    def state(self, entries: Entries, groups: range = ALL, backend: str = CANONICAL) -> SubtaskState:
        """The state of a subtask that owned some key groups, with those of the entries that are in them."""
        entries = _of_groups(entries, groups)
        make = {CANONICAL: self._canonical, "memory": self._inline, "rocksdb": self._native}[backend]
        state = SubtaskState(
            subtask=groups[0], first_group=groups[0], last_group=groups[-1], snapshot="s", backend=backend
        )
        return msgspec.structs.replace(state, **make(entries, groups))

    def store(self, data: bytes) -> StateFile:
        """Stores a file with these bytes; its recorded hash fits."""
        handle = FileHandle(
            key=f"data/x/{next(self._numbers)}", size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        self.storage.put_new(handle.key, data)
        return StateFile(handle=handle, local_name="entries")

    def _canonical(self, entries: Entries, groups: range) -> dict[str, Any]:
        """Two files, each with half of the key groups."""
        middle = (groups[0] + groups[-1] + 1) // 2
        halves = [range(groups[0], middle), range(middle, groups[-1] + 1)]
        return {"files": [self.store(canonical(_of_groups(entries, half), groups)) for half in halves]}

    def _inline(self, entries: Entries, groups: range) -> dict[str, Any]:
        return {"inline": b"".join(hash_maps.encode_snapshot(sorted(entries.items())))}

    def _native(self, entries: Entries, groups: range) -> dict[str, Any]:
        number = next(self._numbers)
        cache = HostCache.direct(self.folder / f"maker-{number}", self.storage, ManualClock(number))
        base = Base(groups[0], KeyGroupRange(groups[0], groups[-1]))
        store = _opener("universal")(self.folder / f"store-{number}", cache, base)
        store.write(dict(entries))
        taken = store.snapshot(f"data/x/{number}-")
        store.close()
        return {"files": list(taken.files), "store_manifest": taken.store_manifest}


def _of_groups(entries: Entries, groups: range) -> Entries:
    return {key: value for key, value in entries.items() if int.from_bytes(key[:2]) in groups}


def canonical(entries: Entries, groups: range = ALL) -> bytes:
    """The bytes of a canonical file."""
    header = CanonicalHeader(
        uid="op", key_types=[], max_parallelism=GROUPS, first_group=groups[0], last_group=groups[-1], states=[]
    )
    return b"".join(canonical_file.encode_file(header, blocks_of(sorted(entries.items()))))


def _subtasks(parts: Parts, compaction: str = "universal") -> OperatorSubtasks:
    subtasks = OperatorSubtasks(_opener(compaction), parts.folder, "rocksdb")
    subtasks.storage = parts.storage
    return subtasks


KEYS = st.builds(key_of, st.integers(0, GROUPS - 1), st.binary(max_size=2))
VALUES = st.binary(max_size=3).map(lambda b: b * 200)


@settings(max_examples=max(1, settings().max_examples // 6))
@given(
    entries=st.dictionaries(KEYS, VALUES, max_size=100),
    changes=st.dictionaries(KEYS, st.none() | VALUES, max_size=30),
    cuts=st.sets(st.integers(1, GROUPS - 1), max_size=4),
    backends=st.lists(st.sampled_from([CANONICAL, CANONICAL, "memory", "rocksdb"]), min_size=5, max_size=5),
    order=st.randoms(use_true_random=False),
    parallelism=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    compaction=st.sampled_from(COMPACTIONS),
)
def test_any_parts_are_loaded_and_later_snapshots_and_rescaling_are_right(
    entries: Entries,
    changes: dict[bytes, bytes | None],
    cuts: set[int],
    backends: Sequence[str],
    order: Any,
    parallelism: tuple[int, int],
    compaction: str,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(Path(folder))
        ranges = [range(first, end) for first, end in pairwise([0, *sorted(cuts), GROUPS])]
        states = [parts.state(entries, groups, backend) for groups, backend in zip(ranges, backends, strict=False)]
        order.shuffle(states)
        subtasks = _subtasks(parts, compaction)
        subtasks.open(states, parallelism[0])
        assert subtasks.content() == entries
        subtasks.restored(parallelism[0])
        assert subtasks.content() == entries
        subtasks.write(changes)
        expected = {key: value for key, value in (entries | changes).items() if value is not None}
        subtasks.restored(parallelism[1])
        assert subtasks.content() == expected
        touched = sorted(entries | changes)
        for store in subtasks.stores:
            here = dict(store.scan(b""))
            assert store.multi_get(touched) == [here.get(key) for key in touched]
        subtasks.close()


def test_the_largest_entries_are_loaded_and_no_manifest_has_their_keys(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    entries = {key_of(g, b"k" * 2 * LARGEST_KEY + bytes([g])): bytes(LARGEST_VALUE) for g in (1, 2, 3)}
    subtasks = _subtasks(parts)
    subtasks.open([parts.state(entries)])
    (state,) = subtasks.restored()
    assert subtasks.content() == entries
    subtasks.close()
    (file,) = parse(state.store_manifest, "m").files
    assert max(len(file.smallest), len(file.largest)) <= LONGEST_BOUND + 8


def test_a_file_that_is_corrupt_half_way_leaves_nothing(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    data = bytearray(canonical({key_of(group, bytes([n])): bytes(9000) for group in ALL for n in range(200)}))
    data[-100] ^= 1
    state = msgspec.structs.replace(parts.state({}), files=[stored := parts.store(bytes(data))])
    with raises(CorruptFile, file=stored.handle.key):
        _subtasks(parts).open([state])
    assert [path.name for path in tmp_path.glob("host-*/*")] == ["cache-0"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    # The file of the savepoint is a link.
    parts = Parts(tmp_path, PosixStorage(tmp_path / "root"))
    state = parts.state({key_of(group): random.Random(group).randbytes(100_000) for group in ALL})
    with file_size_limit(4 << 20), pytest.raises(StorageError):
        _subtasks(parts).open([state])
    assert [path.name for path in tmp_path.glob("host-*/*")] == ["cache-0"]


def test_a_load_takes_bounded_memory_and_writes_only_into_its_folder(tmp_path: Path) -> None:
    cache = HostCache.direct(tmp_path / "cache", MemoryStorage(), ManualClock(1))
    store = _opener("universal")(tmp_path / "work", cache, Base(0, KeyGroupRange(0, GROUPS - 1)))
    assert isinstance(store, RocksDBBackend)
    values = [random.Random(n).randbytes(50_000) for n in range(10)]
    blocks = (EntryBlock([key_of(n // 3, bytes([n % 3, m])) for m in range(10)], values) for n in range(3 * GROUPS))
    peak = MemoryPeak()
    store.load(blocks)
    written = sum(path.stat().st_size for path in (tmp_path / "work").iterdir())
    assert peak.bytes() < 24 << 20 < 50 << 20 < written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "work"]
    assert sum(1 for _ in store.scan(b"")) == 30 * GROUPS
    store.close()
