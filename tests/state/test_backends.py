"""The three backends: what each promises beside the common suite, and each as the base of the others."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import ManualClock
from stateflow.config.state_settings import BACKENDS, RocksDBSettings, StateSettings
from stateflow.errors import ConfigError, CorruptFile, MissingFile
from stateflow.state.backends import hashmap_snapshot
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.factory import StoreLocation, open_backend, read_entries
from stateflow.state.backends.filesystem import FilesystemBackend
from stateflow.state.backends.memory import check_limit
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, SubtaskState
from stateflow.storage import MemoryStorage
from stateflow.testing.conformance.operator_subtasks import GROUPS, Opener, OperatorSubtasks, key_of
from stateflow.testing.conformance.state_backend import StateBackendConformance
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises

ROCKSDB = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=3)
CHOICES = {
    "memory": StateSettings(backend="memory"),
    "filesystem": StateSettings(backend="filesystem", inline_below_bytes=500),
    "filesystem-files": StateSettings(backend="filesystem", inline_below_bytes=1),
    "filesystem-inline": StateSettings(backend="filesystem", inline_below_bytes=1 << 20),
    "rocksdb": StateSettings(),
    "rocksdb-full": StateSettings(incremental=False),
    "rocksdb-leveled": StateSettings(),
}
LEVELED = replace(ROCKSDB, compaction="leveled", level_base_bytes=4096)


def _opener(settings: StateSettings, rocksdb: RocksDBSettings = ROCKSDB) -> Opener:
    def open_store(folder: Path, cache: HostCache, base: Base) -> KeyedStateBackend:
        return open_backend(StoreLocation(folder, cache, rocksdb), base, settings)

    return open_store


class _Conformance(StateBackendConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        return _opener(replace(CHOICES["rocksdb"], backend=self.backend))


class TestMemory(_Conformance):
    backend = "memory"


class TestFilesystem(_Conformance):
    backend = "filesystem"


class TestFilesystemWithoutInlining(_Conformance):
    backend = "filesystem"

    @pytest.fixture
    def opener(self) -> Opener:
        return _opener(CHOICES["filesystem-files"])


class TestRocksDB(_Conformance):
    backend = "rocksdb"


class TestRocksDBWithFullSnapshots(_Conformance):
    backend = "rocksdb"

    @pytest.fixture
    def opener(self) -> Opener:
        return _opener(CHOICES["rocksdb-full"])


class TestRocksDBWithLeveledCompaction(_Conformance):
    backend = "rocksdb"

    @pytest.fixture
    def opener(self) -> Opener:
        return _opener(CHOICES["rocksdb"], LEVELED)


# -- one backend after another ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(product(CHOICES, CHOICES)))
@pytest.mark.parametrize("chain", [(2, 2), (1, 3), (5, 2)])
def test_state_of_any_backend_is_taken_over_by_any_other(
    tmp_path: Path, before: str, after: str, chain: tuple[int, int]
) -> None:
    first = _subtasks(tmp_path / "first", before)
    first.open(parallelism=chain[0])
    first.write({key_of(g, bytes([n])): bytes([g, n]) for g in range(GROUPS) for n in range(5)})
    first.write({key_of(g, b"\x03"): None for g in range(GROUPS)})
    states, content = first.snapshot(), first.content()
    first.close()

    second = _subtasks(tmp_path / "second", after, first.storage)
    second.open(states, chain[1])
    assert second.content() == content
    second.restored(chain[1])
    assert second.content() == content
    second.close()


@pytest.mark.parametrize("after", CHOICES)
def test_subtasks_of_different_backends_are_put_together(tmp_path: Path, after: str) -> None:
    """A subtask without rows keeps the state that another backend wrote: one checkpoint may have both."""
    mixed: list[SubtaskState] = []
    content: dict[bytes, bytes] = {}
    storage = MemoryStorage()
    for number, choice in enumerate(["rocksdb", "memory", "rocksdb-full", "filesystem-files"]):
        subtasks = _subtasks(tmp_path / choice, choice, storage)
        subtasks.open(parallelism=4)
        subtasks.write({key_of(g): bytes([number]) for g in range(GROUPS)})
        mixed.append(subtasks.snapshot()[number])
        content |= dict(subtasks.stores[number].scan(b""))
        subtasks.close()
    for parallelism in (1, 3):
        subtasks = _subtasks(tmp_path / f"after-{parallelism}", after, storage)
        subtasks.open(mixed, parallelism)
        assert subtasks.content() == content
        subtasks.restored(4)
        assert subtasks.content() == content
        subtasks.close()


def test_state_of_a_backend_that_is_not_known_is_refused(tmp_path: Path) -> None:
    state = SubtaskState(subtask=0, first_group=0, last_group=GROUPS - 1, snapshot="s", backend="forst")
    for backend in BACKENDS:
        with raises(ConfigError, found=["forst"]):
            open_backend(_location(tmp_path), Base.of(state), StateSettings(backend=backend))
    with pytest.raises(ConfigError):
        next(read_entries(_location(tmp_path), Base.of(state)))


def _subtasks(folder: Path, choice: str, storage: MemoryStorage | None = None) -> OperatorSubtasks:
    rocksdb = LEVELED if choice.endswith("leveled") else ROCKSDB
    subtasks = OperatorSubtasks(_opener(CHOICES[choice], rocksdb), folder, CHOICES[choice].backend)
    subtasks.storage = storage or subtasks.storage
    return subtasks


def _location(folder: Path, storage: MemoryStorage | None = None) -> StoreLocation:
    cache = HostCache.direct(folder / "cache", storage or MemoryStorage(), ManualClock(1))
    return StoreLocation(folder / "work", cache, ROCKSDB)


# -- what is stored -----------------------------------------------------------------------------------------------


def test_memory_state_is_in_the_manifest_alone(tmp_path: Path) -> None:
    subtasks = _subtasks(tmp_path, "memory")
    subtasks.open(parallelism=3)
    subtasks.write({key_of(g): bytes(1000) for g in range(GROUPS)})
    states = subtasks.restored(2)
    assert subtasks.storage.list("") == [] and [s.files for s in states] == [[], [], []]
    assert sum(len(s.inline or b"") for s in states) > GROUPS * 1000


@pytest.mark.parametrize(("below", "inline"), [(0, False), (1, True)])
def test_filesystem_state_goes_into_the_manifest_below_its_threshold(tmp_path: Path, below: int, inline: bool) -> None:
    entries = {key_of(1): bytes(300)}
    size = len(b"".join(hashmap_snapshot.encode(entries.items())))
    storage = MemoryStorage()
    location = _location(tmp_path, storage)
    store = FilesystemBackend(location.folder, location.cache, entries, size + below)
    taken = store.snapshot("data/x/op-0-")
    store.close()
    assert (taken.inline is not None, taken.files == ()) == (inline, inline)
    assert [b.key for b in storage.list("")] == ([] if inline else ["data/x/op-0-entries"])


def test_filesystem_stores_all_of_it_anew_after_a_change_and_nothing_without(tmp_path: Path) -> None:
    subtasks = _subtasks(tmp_path, "filesystem-files")
    subtasks.open()
    subtasks.write({key_of(g): random.Random(g).randbytes(200) for g in range(GROUPS)})
    first = subtasks.snapshot()
    assert subtasks.snapshot()[0].files == first[0].files
    subtasks.restored()
    assert subtasks.snapshot()[0].files == first[0].files
    subtasks.write({key_of(1): b"changed"})
    (second,) = subtasks.snapshot()
    assert second.files[0].handle.key != first[0].files[0].handle.key
    assert second.files[0].handle.size > GROUPS * 190
    subtasks.close()


@pytest.mark.parametrize("choice", ["rocksdb", "rocksdb-full"])
def test_rocksdb_refers_to_older_files_only_when_it_is_incremental(tmp_path: Path, choice: str) -> None:
    subtasks = _subtasks(tmp_path, choice)
    subtasks.open()
    kept: list[set[tuple[str, str]]] = []
    for number in range(2):
        subtasks.write({key_of(g, bytes([number])): b"x" * 100 for g in range(GROUPS)})
        kept.append({(f.handle.key, f.local_name) for f in subtasks.snapshot()[0].files})
    subtasks.close()
    assert bool(kept[0] & kept[1]) == (choice == "rocksdb")
    assert len(kept[1]) == 2


def test_memory_state_of_the_old_backend_is_no_file_of_the_new_one(tmp_path: Path) -> None:
    storage = MemoryStorage()
    subtasks = _subtasks(tmp_path / "a", "memory", storage)
    subtasks.open()
    subtasks.write({key_of(1): b"1"})
    states = subtasks.snapshot()
    subtasks.close()
    base = Base.of(states[0])
    for settings in (CHOICES["rocksdb"], CHOICES["filesystem-files"]):
        store = open_backend(_location(tmp_path / settings.backend, storage), base, settings)
        taken = store.snapshot(f"data/{settings.backend}/op-0-")
        store.close()
        assert taken.inline is None and taken.files


# -- the memory backend's limit -----------------------------------------------------------------------------------


def _inline(size: int, backend: str = "memory") -> SubtaskState:
    return SubtaskState(subtask=0, first_group=0, last_group=1, snapshot="s", backend=backend, inline=bytes(size))


def test_the_limit_is_for_all_state_in_memory_together() -> None:
    states = {"small": [_inline(10)], "large": [_inline(20), _inline(30)], "files": [_inline(99, "filesystem")]}
    check_limit(states, 60)
    with raises(ConfigError, uid="large", uid_bytes=50, all_bytes=60, limit=59) as refused:
        check_limit(states, 59)
    assert "state.backend" in refused.value.hint and "state.memory_limit_bytes" in refused.value.hint


# -- the stream of entries ----------------------------------------------------------------------------------------

ENTRIES = st.dictionaries(st.binary(min_size=2, max_size=6), st.binary(max_size=20), max_size=30)


def _encoded(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(hashmap_snapshot.encode(sorted(entries.items())))


def _decoded(data: bytes) -> dict[bytes, bytes]:
    return dict(hashmap_snapshot.decode_bytes(data, "file"))


@given(ENTRIES)
def test_what_was_encoded_is_decoded(entries: dict[bytes, bytes]) -> None:
    assert list(hashmap_snapshot.decode_bytes(_encoded(entries), "file")) == sorted(entries.items())


def test_many_entries_are_many_blocks_and_one_that_is_large_is_a_block_of_its_own() -> None:
    entries = {key_of(g, struct.pack(">I", n)): bytes(700) for g in range(GROUPS) for n in range(10)}
    entries[key_of(5, b"large")] = bytes(1 << 20)
    data = _encoded(entries)
    assert _decoded(data) == entries
    at, sizes = 5, []
    while size := int.from_bytes(data[at : at + 4], "big"):
        sizes.append(size)
        at += 4 + size
    assert sum(size > 70_000 for size in sizes) == 1 and len(sizes) > 5


@given(ENTRIES, st.integers(0, 3), st.integers(0, 3))
def test_a_cut_has_the_owned_key_groups(entries: dict[bytes, bytes], first: int, more: int) -> None:
    entries |= {key_of(g): b"x" for g in range(6)}
    owned = KeyGroupRange(first, first + more)
    wanted = {k: v for k, v in entries.items() if first <= int.from_bytes(k[:2], "big") <= first + more}
    assert _decoded(hashmap_snapshot.restrict(_encoded(entries), owned, "file")) == wanted


def _array(items: list[bytes]) -> bytes:
    return _sized(msgspec.msgpack.encode(items))


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


HEAD = b"SFKV\x01"
END = bytes(4)
ONE = _array([b"key", b"value"])
HOSTILE = {
    "empty": b"",
    "another kind of file": b"PK\x03\x04" + bytes(100),
    "another version": b"SFKV\x02" + END + bytes(8),
    "no end": HEAD + ONE,
    "cut off in its end": HEAD + END + bytes(3),
    "a block longer than the file": HEAD + b"\xff\xff\xff\xff" + b"\x92\xc4\x02ab\xc4\x00",
    "an array longer than its block": HEAD + _sized(b"\xdd\xff\xff\xff\xfe") + END + bytes(8),
    "an array as long as memory": HEAD + _sized(b"\xdd\x10\x00\x00\x00" + bytes(1000)) + END + bytes(8),
    "an array with half a head": HEAD + _sized(b"\xdd\x00") + END + bytes(8),
    "a value longer than its block": HEAD + _sized(b"\x92\xc4\x02ab\xc6\xff\xff\xff\xff") + END + bytes(8),
    "a key without a value": HEAD + _array([b"key"]) + END + struct.pack(">Q", 1),
    "an empty array": HEAD + _array([]) + END + bytes(8),
    "a map": HEAD + _sized(msgspec.msgpack.encode({b"key": b"value"})) + END + bytes(8),
    "texts": HEAD + _sized(msgspec.msgpack.encode(["key", "value"])) + END + struct.pack(">Q", 1),
    "arrays in arrays": HEAD + _sized(b"\x92" + b"\x91" * 5000) + END + struct.pack(">Q", 1),
    "a type of its own": HEAD + _sized(b"\x92\xc4\x02ab\xc7\x01\x05x") + END + struct.pack(">Q", 1),
    "two values in a row": HEAD + _sized(msgspec.msgpack.encode([b"key", b"value"]) * 2) + END + bytes(8),
    "a key twice": HEAD + ONE + ONE + END + struct.pack(">Q", 2),
    "keys out of order": HEAD + _array([b"kez", b"", b"key", b""]) + END + struct.pack(">Q", 2),
    "a key without a key group": HEAD + _array([b"k", b""]) + END + struct.pack(">Q", 1),
    "another number of entries": HEAD + ONE + END + struct.pack(">Q", 2),
    "something behind its end": HEAD + ONE + END + struct.pack(">Q", 1) + b"x",
}


def test_the_smallest_streams_are_what_the_hostile_ones_are_made_of() -> None:
    assert _decoded(HEAD + END + bytes(8)) == {}
    assert _decoded(HEAD + ONE + END + struct.pack(">Q", 1)) == {b"key": b"value"}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hostile_stream_is_a_corrupt_file(tmp_path: Path, kind: str, inline: bool, backend: str) -> None:
    state = _state_of(HOSTILE[kind], tmp_path, inline)
    location = _location(tmp_path / "host", STORAGE)
    with pytest.raises(CorruptFile) as refused:
        open_backend(location, Base.of(state), StateSettings(backend=backend))
    assert refused.value.facts["file"] == ("a-snapshot" if inline else state.files[0].handle.key)
    left = [p for p in (tmp_path / "host").iterdir() if p.name != "cache"]
    assert left == []


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_stream_takes_no_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile):
            _decoded(HOSTILE[kind])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


STORAGE = MemoryStorage()


def _state_of(data: bytes, folder: Path, inline: bool) -> SubtaskState:
    """State whose bytes are exactly what the checkpoint has recorded."""
    state = SubtaskState(subtask=0, first_group=0, last_group=GROUPS - 1, snapshot="a-snapshot", backend="filesystem")
    if inline:
        return msgspec.structs.replace(state, inline=data)
    source = folder / "entries"
    source.write_bytes(data)
    files = HostCache.direct(folder / "maker", STORAGE, ManualClock(1)).store([source], f"data/{folder.name}/")
    return msgspec.structs.replace(state, files=files)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_bytes_are_decoded_to_what_they_say_or_refused(noise: bytes, at: int) -> None:
    data = _encoded({key_of(g): bytes([g]) for g in range(20)})
    try:
        found = list(hashmap_snapshot.decode_bytes(data[:at] + noise + data[at + len(noise) :], "file"))
    except CorruptFile:
        return
    assert [k for k, _ in found] == sorted({k for k, _ in found})


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: [],
        lambda files: files * 2,
        lambda files: [msgspec.structs.replace(files[0], local_name="000007.sst")],
    ],
)
def test_a_snapshot_that_is_not_one_file_is_refused(tmp_path: Path, damage: Callable[[object], object]) -> None:
    subtasks = _subtasks(tmp_path, "filesystem-files")
    subtasks.open()
    subtasks.write({key_of(1): b"1"})
    (state,) = subtasks.snapshot()
    subtasks.close()
    with pytest.raises(CorruptFile):
        subtasks.open([msgspec.structs.replace(state, files=damage(state.files))])


def test_a_file_that_is_not_what_was_recorded_is_named(tmp_path: Path) -> None:
    subtasks = _subtasks(tmp_path, "filesystem-files")
    subtasks.open()
    subtasks.write({key_of(1): b"1"})
    states = subtasks.snapshot()
    subtasks.close()
    (key,) = [blob.key for blob in subtasks.storage.list("")]
    subtasks.storage.delete([key])
    with pytest.raises(MissingFile):
        subtasks.open(states)
    subtasks.storage.put_new(key, b"SFKV\x01" + bytes(12))
    with pytest.raises(CorruptFile) as refused:
        subtasks.open(states)
    assert key in refused.value.facts.values()
