"""Restoring at another parallelism: every key is where it belongs, with its newest value, and nowhere else."""

from __future__ import annotations

import os
import random
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rocksdict import Rdict

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_matching import bases_of
from stateflow.clock import ManualClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile, MissingFile, StateflowError
from stateflow.state.backends.rocksdb import RocksDBBackend
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.types.key_groups import range_of, subtask_of

M = 12
CHAINS = [(1, 3, 5, 2), (2, 4, 2, 1), (1, M, 1), (3, 2, 3, 2, 3), (1, 2, 1, 2, 1), (1, 8, 4, 1), (5, 5, 7)]

Changes = Mapping[bytes, bytes | None]


def _key(group: int, name: int = 0) -> bytes:
    return struct.pack(">HI", group, name)


class _Store(RocksDBBackend):
    """A store whose files and levels can be made as those of a large one are."""

    def __init__(self, folder: Path, cache: HostCache, base: Base, settings: RocksDBSettings) -> None:
        super().__init__(folder, cache, base, settings)
        self._db.set_options({"target_file_size_base": "2000"})

    @property
    def native(self) -> Rdict:
        return self._db


class Fleet:
    """All subtasks of an operator, and a dictionary of what they must hold together."""

    def __init__(self, folder: Path, parallelism: int = 1, storage: Storage | None = None) -> None:
        self.folder = folder
        self.storage = storage or MemoryStorage()
        self.settings = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=6)
        self.entries: dict[bytes, bytes] = {}
        self.touched: set[bytes] = {_key(g) for g in range(M)}
        self._numbers = count(1)
        self.open(OperatorState(uid="op", parallelism=parallelism, key_types=[], states=[], subtasks=[]), parallelism)

    def open(self, state: OperatorState, parallelism: int, host: str = "host") -> None:
        self.stores: list[_Store] = []
        homes = [self.folder / host / str(n) for n in range(max(parallelism, state.parallelism))]
        for base in bases_of(state, parallelism, M):
            clock = ManualClock(next(self._numbers))
            cache = HostCache.direct(homes[base.subtask], self.storage, clock, homes if base.rescales else ())
            folder = self.folder / f"store-{next(self._numbers)}"
            self.stores.append(_Store(folder, cache, base, self.settings))

    def write(self, changes: Changes) -> None:
        for number, store in enumerate(self.stores):
            store.write({k: v for k, v in changes.items() if self._owner(k) == number})
        for key, value in changes.items():
            self.touched.add(key)
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value

    def snapshot(self) -> OperatorState:
        p = len(self.stores)
        states = []
        for number, store in enumerate(self.stores):
            owned = range_of(number, p, M)
            prefix = f"data/{1:020d}/{next(self._numbers):010d}-a/op-{number}-"
            taken = store.snapshot(prefix)
            states.append(
                SubtaskState(
                    subtask=number,
                    first_group=owned.first,
                    last_group=owned.last,
                    snapshot=prefix,
                    files=list(taken.files),
                    store_manifest=taken.store_manifest,
                )
            )
        return OperatorState(uid="op", parallelism=p, key_types=[], states=[], subtasks=states)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def rescale(self, parallelism: int, host: str = "host") -> OperatorState:
        """Returns the checkpoint that it went through."""
        state = self.snapshot()
        self.close()
        self.open(state, parallelism, host)
        return state

    def fresh_host(self) -> str:
        return f"host-{next(self._numbers)}"

    def check(self) -> None:
        found: dict[bytes, bytes] = {}
        keys = sorted(self.touched)
        for number, store in enumerate(self.stores):
            owned = range_of(number, len(self.stores), M)
            here = dict(store.scan(b""))
            assert all(struct.unpack(">H", k[:2])[0] in owned for k in here)
            mine = {k: self.entries.get(k) for k in keys if self._owner(k) == number}
            assert here == {k: v for k, v in mine.items() if v is not None}
            assert store.multi_get(keys) == [mine.get(k) for k in keys]
            found |= here
        assert found == self.entries

    def _owner(self, key: bytes) -> int:
        return subtask_of(struct.unpack(">H", key[:2])[0], len(self.stores), M)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "files")


def _fill(fleet: Fleet, seed: int, entries: int = 200) -> None:
    dice = random.Random(seed)
    keys = [_key(dice.randrange(M), dice.randrange(12)) for _ in range(entries)]
    fleet.write({k: None if dice.random() < 0.3 else dice.randbytes(dice.randrange(1, 200)) for k in keys})


# -- content ------------------------------------------------------------------------------------------------------

KEYS = st.builds(_key, st.integers(0, M - 1), st.integers(0, 3))
# Values of some weight, so that levels consist of many files.
VALUES = st.none() | st.binary(max_size=3).map(lambda b: b * 200)
PARALLELISM = st.integers(1, M)


class Life(RuleBasedStateMachine):
    """Writes, snapshots, compactions, restarts and rescalings in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self.fleet = Fleet(Path(self._scratch.name), 2)

    def teardown(self) -> None:
        self.fleet.check()
        self.fleet.rescale(1, self.fleet.fresh_host())
        self.fleet.check()
        self.fleet.close()
        self._scratch.cleanup()

    @rule(changes=st.dictionaries(KEYS, VALUES, max_size=12))
    def write(self, changes: Changes) -> None:
        self.fleet.write(changes)

    @rule(groups=st.sets(st.integers(0, M - 1)), value=VALUES)
    def write_groups(self, groups: set[int], value: bytes | None) -> None:
        self.fleet.write({_key(g, n): value for g in groups for n in range(4)})

    @rule()
    def snapshot(self) -> None:
        self.fleet.snapshot()

    @rule(group=st.integers(0, M - 1), more=st.integers(0, 3))
    def compact_some_groups(self, group: int, more: int) -> None:
        for store in self.fleet.stores:
            store.native.flush()
            store.native.compact_range(_key(group), _key(group + more + 1))

    @rule(parallelism=PARALLELISM, fresh=st.booleans())
    def rescale(self, parallelism: int, fresh: bool) -> None:
        self.fleet.rescale(parallelism, self.fleet.fresh_host() if fresh else "host")
        self.fleet.check()

    @rule()
    def restart_elsewhere(self) -> None:
        self.fleet.rescale(len(self.fleet.stores), self.fleet.fresh_host())
        self.fleet.check()


def test_whatever_happens_every_key_has_its_newest_value_in_one_place() -> None:
    few = settings(max_examples=max(1, settings().max_examples // 2), stateful_step_count=12)
    run_state_machine_as_test(Life, settings=few)


@pytest.mark.parametrize("between", ["nothing", "writes", "snapshots", "compactions"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_of_rescalings(tmp_path: Path, chain: Sequence[int], between: str) -> None:
    fleet = Fleet(tmp_path, chain[0])
    for seed in range(5):
        _fill(fleet, seed)
        fleet.snapshot()
    for seed, parallelism in enumerate(chain[1:]):
        fleet.rescale(parallelism, fleet.fresh_host())
        fleet.check()
        if between != "nothing":
            _fill(fleet, 10 + seed, 60)
        if between in ("snapshots", "compactions"):
            fleet.snapshot()
        if between == "compactions":
            for store in fleet.stores[::2]:
                store.native.compact_range(None, None)
        fleet.check()
    fleet.rescale(chain[-1], fleet.fresh_host())
    fleet.check()
    fleet.close()


def test_what_a_sibling_hid_or_still_holds_does_not_reach_the_other(tmp_path: Path) -> None:
    """Two siblings have all keys in their files, each hides the other's half. Then one changes, deletes and compacts,
    the other does nothing; put together, each key is as its owner left it."""
    fleet = Fleet(tmp_path, 1)
    fleet.write({_key(g, n): b"old" for g in range(M) for n in range(5)})
    fleet.rescale(2)
    fleet.write({_key(g, 0): None for g in range(M // 2)} | {_key(g, 1): b"new" for g in range(M // 2)})
    fleet.snapshot()
    fleet.stores[0].native.compact_range(None, None)
    fleet.rescale(1, fleet.fresh_host())
    fleet.check()
    assert fleet.stores[0].get(_key(0, 0)) is None
    assert fleet.stores[0].get(_key(M - 1, 0)) == b"old"
    fleet.close()


def test_a_store_that_has_used_many_file_numbers_is_put_together(tmp_path: Path) -> None:
    """RocksDB keeps its number of the oldest log in the entry of some data file; the new store counts anew."""
    fleet = Fleet(tmp_path, 2)
    for seed in range(20):
        _fill(fleet, seed, 20)
        fleet.snapshot()
        fleet.rescale(2)
    for parallelism in (1, 3, 2):
        fleet.rescale(parallelism, fleet.fresh_host())
        fleet.check()
    fleet.close()


# -- what is stored -----------------------------------------------------------------------------------------------


def _handles(state: OperatorState) -> dict[str, int]:
    return {f.handle.key: f.handle.size for s in state.subtasks for f in s.files}


def _large(fleet: Fleet) -> OperatorState:
    """A store of many files, all of them compacted."""
    dice = random.Random(1)
    for _ in range(2):
        fleet.write({_key(g, n): dice.randbytes(1000) for g in range(M) for n in range(50)})
        fleet.snapshot()
    for store in fleet.stores:
        store.native.compact_range(_key(0), _key(M))
    fleet.write({_key(g): b"" for g in range(M)})
    return fleet.snapshot()


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, M])
def test_a_rescaled_snapshot_writes_little_and_so_does_the_next(tmp_path: Path, parallelism: int) -> None:
    fleet = Fleet(tmp_path, 2)
    before = _handles(_large(fleet))
    for number in range(2):
        fleet.rescale(parallelism if number == 0 else len(fleet.stores), fleet.fresh_host())
        fleet.write({_key(g, 5000 + number): b"y" for g in range(M)})
        fleet.check()
        after = _handles(fleet.snapshot())
        written = [size for key, size in after.items() if key not in before]
        assert sum(written) < sum(before.values()) / 5
        before = after
    fleet.close()


def test_rescaling_back_before_a_compaction_writes_no_more_than_one(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2)
    before = _handles(_large(fleet))
    fleet.rescale(4)
    middle = _handles(fleet.rescale(2))
    after = _handles(fleet.snapshot())
    written = [size for key, size in after.items() if key not in middle]
    assert sum(written) < sum(before.values())
    fleet.close()


def test_subtasks_share_files_and_take_only_what_they_need(fleet: Fleet) -> None:
    fleet.storage = storage = _Counting()
    fleet.close()
    fleet.open(OperatorState(uid="op", parallelism=1, key_types=[], states=[], subtasks=[]), 1)
    _large(fleet)
    state = fleet.rescale(4, fleet.fresh_host())
    fleet.check()
    before = {_place(f) for s in state.subtasks for f in s.files}
    assert sorted(storage.fetched) == sorted(before)
    states = fleet.snapshot().subtasks
    shared = [{_place(f) for f in s.files} & before for s in states]
    assert set.union(*shared) == before
    assert sum(map(len, shared)) <= len(before) + 2 * len(states), "each takes its own, and what straddles"
    fleet.close()


def _place(file: StateFile) -> tuple[str, int]:
    """The object that it is in, and where."""
    return file.handle.key, file.part.offset if file.part else 0


class _Counting(MemoryStorage):
    """Remembers what was fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[tuple[str, int]] = []

    def fetch(self, key: str, target: Path) -> None:
        self.fetched.append((key, 0))
        super().fetch(key, target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        self.fetched.append((key, offset))
        super().fetch_part(key, offset, size, target)


def test_without_a_change_of_parallelism_nothing_is_written(fleet: Fleet) -> None:
    _fill(fleet, 1)
    fleet.rescale(3)
    before = fleet.snapshot()
    fleet.rescale(3, fleet.fresh_host())
    assert [s.files for s in fleet.snapshot().subtasks] == [s.files for s in before.subtasks]
    fleet.close()


def test_the_checkpoint_that_was_rescaled_stays_as_it_was(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path / "root")
    fleet = Fleet(tmp_path / "files", 3, storage)
    _fill(fleet, 1)
    entries = dict(fleet.entries)
    old = fleet.rescale(2)
    blobs = {key: (storage.root / key).read_bytes() for key in _handles(old)}
    _fill(fleet, 2)
    fleet.rescale(5)
    fleet.close()
    assert {key: (storage.root / key).read_bytes() for key in blobs} == blobs
    fleet.entries = entries
    fleet.open(old, 2, fleet.fresh_host())
    fleet.check()
    fleet.close()


# -- damage -------------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("damage", "error"), [(_flip, CorruptFile), (Path.unlink, MissingFile)])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_damaged_file_is_named_and_nothing_is_left_behind(
    tmp_path: Path, damage: Callable[[Path], object], error: type[StateflowError], parallelism: int
) -> None:
    storage = PosixStorage(tmp_path / "root")
    fleet = Fleet(tmp_path / "files", 2, storage)
    fleet.write({_key(g): b"x" for g in range(M)})
    state = fleet.snapshot()
    fleet.close()
    victims = [f.handle.key for f in state.subtasks[-1].files]
    damage(storage.root / victims[0])

    with pytest.raises(error) as refused:
        fleet.open(state, parallelism, host="another")
    fleet.close()
    assert victims[0] in refused.value.facts.values()
    assert sorted(n for n in os.listdir(fleet.folder) if n.startswith("store")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda state: msgspec.structs.replace(state, files=[]),
        lambda state: msgspec.structs.replace(state, store_manifest=b""),
        lambda state: msgspec.structs.replace(state, store_manifest=state.store_manifest[:-1]),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_snapshot_that_is_not_whole_is_refused(
    fleet: Fleet, change: Callable[[SubtaskState], SubtaskState], parallelism: int
) -> None:
    fleet.write({_key(g): b"x" for g in range(M)})
    state = fleet.snapshot()
    fleet.close()
    (subtask,) = state.subtasks
    broken = change(subtask)
    with pytest.raises(CorruptFile):
        fleet.open(msgspec.structs.replace(state, subtasks=[broken]), parallelism)
    fleet.close()
    assert [n for n in os.listdir(fleet.folder) if n.startswith("store")] == []
