"""The three backends: the conformance suite, what each stores, and each as the base of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stateflow.clock import ManualClock
from stateflow.config.settings import BACKENDS, RocksDBSettings, StateSettings
from stateflow.errors import ConfigError
from stateflow.state.backends import hash_maps
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.factory import StoreLocation, open_backend, read_entries
from stateflow.state.backends.hash_maps import FilesystemBackend, check_limit
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.testing.conformance.state_backend import (
    GROUPS,
    Opener,
    OperatorSubtasks,
    StateBackendConformance,
    key_of,
)
from tests.support.errors import raises

ROCKSDB = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=3)
CHOICES = {
    "memory": StateSettings(backend="memory"),
    "filesystem": StateSettings(backend="filesystem", inline_below_bytes=500),
    "filesystem-files": StateSettings(backend="filesystem", inline_below_bytes=1),
    "rocksdb": StateSettings(),
    "rocksdb-full": StateSettings(incremental=False),
    "rocksdb-leveled": StateSettings(),
}
LEVELED = replace(ROCKSDB, compaction="leveled", level_base_bytes=4096)


def _opener(choice: str) -> Opener:
    def open_store(folder: Path, cache: HostCache, base: Base) -> KeyedStateBackend:
        rocksdb = LEVELED if choice.endswith("leveled") else ROCKSDB
        return open_backend(StoreLocation(folder, cache, rocksdb), base, CHOICES[choice])

    return open_store


def _subtasks(folder: Path, choice: str, storage: Storage | None = None) -> OperatorSubtasks:
    subtasks = OperatorSubtasks(_opener(choice), folder, CHOICES[choice].backend)
    subtasks.storage = storage or subtasks.storage
    return subtasks


def _location(folder: Path, storage: Storage | None = None) -> StoreLocation:
    cache = HostCache.direct(folder / "cache", storage or MemoryStorage(), ManualClock(1))
    return StoreLocation(folder / "work", cache, ROCKSDB)


@pytest.mark.long(reason="draws many histories of a store")
class TestEveryBackend(StateBackendConformance):
    @pytest.fixture(params=["memory", "filesystem", "rocksdb", "rocksdb-leveled"])
    def opener(self, request: pytest.FixtureRequest) -> Opener:
        self.backend = CHOICES[request.param].backend
        return _opener(request.param)

    @pytest.fixture(autouse=True)
    def _linked_files(self, subtasks: OperatorSubtasks, tmp_path: Path) -> None:
        """Stored files are links to those that a store has open: it must never change one."""
        subtasks.storage = PosixStorage(tmp_path / "root")


@pytest.mark.parametrize("after", ["memory", "filesystem-files", "rocksdb"])
def test_subtasks_of_different_backends_are_merged(tmp_path: Path, after: str) -> None:
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


def test_state_of_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    state = SubtaskState(subtask=0, first_group=0, last_group=GROUPS - 1, snapshot="s", backend="forst")
    for backend in BACKENDS:
        with raises(ConfigError, found=["forst"]):
            open_backend(_location(tmp_path), Base.of(state), StateSettings(backend=backend))
    with pytest.raises(ConfigError):
        next(read_entries(_location(tmp_path), Base.of(state)))


def test_memory_state_is_in_the_manifest_alone_and_becomes_files_in_other_backends(tmp_path: Path) -> None:
    subtasks = _subtasks(tmp_path / "a", "memory")
    subtasks.open(parallelism=3)
    subtasks.write({key_of(g): bytes(1000) for g in range(GROUPS)})
    states = subtasks.snapshot()
    subtasks.close()
    assert subtasks.storage.list("") == [] and [s.files for s in states] == [[], [], []]
    assert sum(len(s.inline or b"") for s in states) > GROUPS * 1000
    for choice in ("rocksdb", "filesystem-files"):
        other = _subtasks(tmp_path / choice, choice, subtasks.storage)
        other.open(states, parallelism=3)
        assert all(s.inline is None and s.files for s in other.snapshot())
        other.close()


@pytest.mark.parametrize(("below", "inline"), [(0, False), (1, True)])
def test_filesystem_state_goes_into_the_manifest_below_its_threshold(tmp_path: Path, below: int, inline: bool) -> None:
    entries = {key_of(1): bytes(300)}
    size = len(b"".join(hash_maps.encode_snapshot(entries.items())))
    storage = MemoryStorage()
    location = _location(tmp_path, storage)
    store = FilesystemBackend(location.folder, location.cache, entries, size + below)
    taken = store.snapshot("data/x/op-0-")
    store.close()
    assert (taken.inline is not None, taken.files == ()) == (inline, inline)
    assert [b.key for b in storage.list("")] == ([] if inline else ["data/x/op-0-entries"])


@pytest.mark.parametrize("choice", ["rocksdb", "rocksdb-full"])
def test_rocksdb_refers_to_older_files_only_in_incremental_snapshots(tmp_path: Path, choice: str) -> None:
    subtasks = _subtasks(tmp_path, choice)
    subtasks.open()
    kept: list[set[tuple[str, str]]] = []
    for number in range(2):
        subtasks.write({key_of(g, bytes([number])): b"x" * 100 for g in range(GROUPS)})
        kept.append({(f.handle.key, f.local_name) for f in subtasks.snapshot()[0].files})
    subtasks.close()
    assert bool(kept[0] & kept[1]) == (choice == "rocksdb")
    assert len(kept[1]) == 2


def _inline(size: int, backend: str = "memory") -> SubtaskState:
    return SubtaskState(subtask=0, first_group=0, last_group=1, snapshot="s", backend=backend, inline=bytes(size))


def test_the_limit_is_for_all_state_in_memory_together() -> None:
    states = {"small": [_inline(10)], "large": [_inline(20), _inline(30)], "files": [_inline(99, "filesystem")]}
    check_limit(states, 60)
    with raises(ConfigError, uid="large", uid_bytes=50, all_bytes=60, limit_bytes=59) as refused:
        check_limit(states, 59)
    assert "state.backend" in refused.value.hint and "state.memory_limit_bytes" in refused.value.hint
