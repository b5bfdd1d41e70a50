"""State that RocksDB did not write is loaded as data files: any parts, later changes and rescaling, and faults."""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import DBCompressionType

from stateflow.clock import ManualClock
from stateflow.config.settings import COMPACTIONS, LARGEST_KEY, LARGEST_VALUE, RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile, StorageError
from stateflow.state.backends import canonical_file, hash_maps
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryBlock, blocks_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.backends.rocksdb.check import LONGEST_BOUND
from stateflow.state.backends.rocksdb.manifest import StoreFile, parse
from stateflow.state.handles import CANONICAL, Base, FileHandle, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.testing.conformance.state_backend import GROUPS, Opener, OperatorSubtasks, key_of
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises
from tests.support.memory import MemoryPeak, file_size_limit
from tests.support.table_files import ForgedTable, write_loaded_store, write_store

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


@settings(max_examples=max(1, settings().max_examples // 3))
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


def _loaded(parts: Parts, entries: Entries, compaction: str = "universal") -> list[StoreFile]:
    """Loads the entries into a store, restores its snapshot on another host, and returns the snapshot's data files."""
    subtasks = _subtasks(parts, compaction)
    subtasks.open([parts.state(entries)])
    (state,) = subtasks.restored()
    assert subtasks.content() == entries
    subtasks.close()
    return list(parse(state.store_manifest, "m").files) if state.store_manifest else []


@pytest.mark.parametrize(
    "entries",
    [{}, {key_of(7): b""}, {key_of(7, bytes([n])): bytes([n]) * 1000 for n in range(256)}],
    ids=["none", "one", "those of one key group"],
)
@pytest.mark.parametrize("compaction", COMPACTIONS)
def test_few_entries_are_at_most_one_file(tmp_path: Path, entries: Entries, compaction: str) -> None:
    assert len(_loaded(Parts(tmp_path), entries, compaction)) == bool(entries)


def test_the_largest_entries_are_loaded_and_no_manifest_has_their_keys(tmp_path: Path) -> None:
    keys = [key_of(group, b"k" * 2 * LARGEST_KEY + bytes([group])) for group in (1, 2, 3)]
    (file,) = _loaded(Parts(tmp_path), dict.fromkeys(keys, bytes(LARGEST_VALUE)))
    assert max(len(file.smallest), len(file.largest)) <= LONGEST_BOUND + 8


def test_files_have_the_size_and_the_level_of_a_compacted_store(tmp_path: Path) -> None:
    """Nothing is compacted because of them, and entries written later are newer than all of them."""
    rng = random.Random(1)
    entries = {key_of(group, bytes([n])): rng.randbytes(500) for group in ALL for n in range(10)}
    files = _loaded(Parts(tmp_path), entries, "leveled")
    assert {(file.level, file.sequences) for file in files} == {(6, (0, 0))}
    # The target is one kilobyte; a block of 5 kB is never divided.
    assert len(files) == GROUPS


def test_loaded_files_have_the_properties_of_flushed_ones(tmp_path: Path) -> None:
    entries = {key_of(group, bytes([n])): b"value" * 20 for group in ALL for n in range(10)}
    write_store(tmp_path / "flushed", entries, DBCompressionType.lz4())
    write_loaded_store(tmp_path / "loaded", entries)
    flushed, loaded = (
        ForgedTable(min((tmp_path / name).glob("*.sst")).read_bytes()).properties() for name in ("flushed", "loaded")
    )
    names = {name for name in flushed.keys() | loaded.keys() if flushed.get(name) != loaded.get(name)}
    differing = {name.removeprefix(b"rocksdb.").decode() for name in names}
    assert differing <= {
        *("creating.db.identity", "creating.session.identity", "original.file.number"),
        *("creation.time", "file.creation.time", "oldest.key.time"),
        *("column.family.id", "column.family.name", "key.largest.seqno"),
        *("external_sst_file.version", "external_sst_file.global_seqno"),
        # Sequence numbers that are all 0 compress better.
        *("data.size", "index.size", "tail.start.offset"),
    }


def test_parts_with_the_same_key_groups_are_refused(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    one, other = {key_of(g): b"1" for g in (3, 5)}, {key_of(g): b"2" for g in (4, 6)}
    subtasks = _subtasks(parts)
    for backend in (CANONICAL, "memory", "rocksdb"):
        states = [parts.state(one, range(10)), parts.state(other, range(4, GROUPS), backend)]
        with pytest.raises(CorruptFile):
            subtasks.open(states)
    assert [path.name for path in tmp_path.glob("host-*/*") if not path.name.startswith("cache")] == []


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


def test_a_load_writes_only_into_its_folder_and_in_bounded_memory(tmp_path: Path) -> None:
    store = _opener("universal")(
        tmp_path / "work",
        HostCache.direct(tmp_path / "cache", MemoryStorage(), ManualClock(1)),
        Base(0, KeyGroupRange(0, GROUPS - 1)),
    )
    assert isinstance(store, RocksDBBackend)
    rng = random.Random(1)
    values = [rng.randbytes(50_000) for _ in range(10)]

    def blocks() -> Iterator[EntryBlock]:
        for number in range(400):
            yield EntryBlock([key_of(number // 10, bytes([number % 10, n])) for n in range(10)], values)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "work"]
        assert sum(path.stat().st_size for path in (tmp_path / "work").iterdir()) > 150 << 20

    peak = MemoryPeak()
    store.load(blocks())
    assert peak.bytes() < 24 << 20
    assert len(list(store.scan(b""))) == 4000
    store.close()
