"""Files of a host's cache that are damaged: dropped and fetched again, and never the source of another result."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.clock import ManualClock
from stateflow.config.settings import RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile, DamagedCopy, StateflowError, StorageError
from stateflow.state import host_cache
from stateflow.state.backends.base import KeyedStateBackend, StoreSnapshot
from stateflow.state.backends.canonical_file import CanonicalHeader, encode_file
from stateflow.state.backends.entry_stream import Entry, blocks_of
from stateflow.state.backends.factory import StoreLocation, open_backend, read_entries
from stateflow.state.backends.rocksdb.backend import RocksDBBackend, to_stateflow_error
from stateflow.state.handles import CANONICAL, Base, FilePart, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises

Damage = Callable[[bytes], bytes]
CONTENT = {b"\0%c%05d" % (n % 100, n): random.Random(n).randbytes(100) for n in range(5000)}


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


DAMAGES: dict[str, Damage] = {
    "emptied": lambda data: b"",
    "the last byte missing": lambda data: data[:-1],
    "zeros at the end": lambda data: data[:-4096] + bytes(4096),
    "a bit in the middle": lambda data: _flip(data, len(data) // 2),
    "a bit of the last byte": lambda data: _flip(data, len(data) - 1),
}
every_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
every_backend = pytest.mark.parametrize("backend", ["rocksdb", "filesystem", CANONICAL])


class Host:
    """The stores of subtasks on one host, and their storage."""

    def __init__(self, folder: Path, storage: Storage | None = None) -> None:
        self.folder = folder
        self.storage = storage or MemoryStorage()
        self.rocksdb = RocksDBSettings(write_buffer_bytes=1 << 18, block_cache_bytes=1 << 16, compact_at_files=100)
        self._opened = 0
        self._stores: list[KeyedStateBackend] = []

    def open(self, backend: str, base: Base, others: Sequence[Path] = ()) -> KeyedStateBackend:
        """A store with `base` in it, with the cache of its subtask."""
        settings = StateSettings(backend="rocksdb" if backend == CANONICAL else backend, inline_below_bytes=0)
        store = open_backend(self.location(base.subtask, others), base, settings)
        self._stores.append(store)
        return store

    def content(self, backend: str, base: Base, others: Sequence[Path] = ()) -> dict[bytes, bytes]:
        """What is read from a store that is opened with `base`."""
        return dict(self.open(backend, base, others).scan(b""))

    def content_after_retry(self, backend: str, base: Base, others: Sequence[Path] = ()) -> dict[bytes, bytes]:
        """The same, once more if a copy is found damaged, as the next attempt of a task does."""
        try:
            return self.content(backend, base, others)
        except DamagedCopy as e:
            assert e.retryable and backend != "filesystem"
            assert e.facts["file"] in {f.handle.key for part in base.parts for f in part.files}
            return self.content(backend, base, others)

    def location(self, subtask: int = 0, others: Sequence[Path] = ()) -> StoreLocation:
        """Where a store works that is opened next."""
        self._opened += 1
        cache = HostCache.direct(self.cache(subtask), self.storage, ManualClock(self._opened), others)
        return StoreLocation(self.folder / f"work-{self._opened}", cache, self.rocksdb)

    def cache(self, subtask: int = 0) -> Path:
        """The folder with cached files of a subtask."""
        return self.folder / f"cache-{subtask}"

    def copies(self, subtask: int = 0) -> list[Path]:
        """The cached files of a subtask."""
        return sorted(p for p in self.cache(subtask).iterdir() if not p.name.startswith(("incoming", "checked")))

    def damage(self, damage: Damage, in_place: bool = False, subtask: int = 0) -> None:
        """Damages every cached file: only for readers that open it later, or also for those that have it open."""
        for path in self.copies(subtask):
            data = damage(path.read_bytes())
            if not in_place:
                path.unlink()
            path.write_bytes(data)

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def _base(taken: StoreSnapshot, backend: str, subtask: int = 0, groups: tuple[int, int] = (0, 127)) -> Base:
    state = SubtaskState(
        subtask=subtask,
        first_group=groups[0],
        last_group=groups[1],
        snapshot="s",
        files=list(taken.files),
        store_manifest=taken.store_manifest,
        backend=backend,
        inline=taken.inline,
    )
    return Base.of(state)


def _canonical(host: Host) -> Base:
    """State in a canonical file, which is stored and in the cache of the host."""
    header = CanonicalHeader(uid="op", key_types=[], max_parallelism=128, first_group=0, last_group=127, states=[])
    path = host.folder / "canonical"
    path.write_bytes(b"".join(encode_file(header, blocks_of(sorted(CONTENT.items())))))
    files = host.location().cache.store([path], "data/x/")
    return _base(StoreSnapshot(tuple(files)), CANONICAL)


def _filled(host: Host, backend: str) -> Base:
    """State in a file, which is stored and in the cache of the host."""
    if backend == CANONICAL:
        return _canonical(host)
    store = host.open(backend, Base(0, KeyGroupRange(0, 127)))
    store.write(CONTENT)
    return _base(store.snapshot("data/x/first-"), backend)


@every_backend
@every_damage
def test_a_damaged_copy_is_fetched_again(
    host: Host, backend: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it is found when it is opened, or when it is read: the next attempt has the right content."""
    base = _filled(host, backend)
    host.damage(damage)
    with caplog.at_level(logging.WARNING):
        assert host.content_after_retry(backend, base) == CONTENT
    assert "damaged-copy-dropped" in [getattr(record, "event", None) for record in caplog.records]
    assert host.content(backend, base) == CONTENT


@every_damage
@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_a_damaged_copy_of_a_neighbour_is_not_borrowed(host: Host, damage: Damage, is_cut: bool) -> None:
    """Two subtasks become one, which looks for files in the caches of both. A file with keys of both is cut first."""
    whole = _filled(host, "rocksdb")
    parts: list[SubtaskState] = []
    for n in (0, 1):
        first, last = 64 * n, 64 * n + 63
        store = host.open("rocksdb", Base(n, KeyGroupRange(first, last), whole.parts if is_cut else ()))
        if not is_cut:
            store.write({key: value for key, value in CONTENT.items() if first <= key[1] <= last})
        parts += _base(store.snapshot(f"data/y/{n}-"), "rocksdb", n, (first, last)).parts
    for subtask in (0, 1):
        host.damage(damage, subtask=subtask)
    wide = Base(2 if is_cut else 0, KeyGroupRange(0, 127), tuple(parts))
    neighbours = [host.cache(n) for n in ((0, 1) if is_cut else (1,))]
    assert host.content_after_retry("rocksdb", wide, neighbours) == CONTENT


@every_backend
@every_damage
def test_damage_of_the_stored_object_is_an_error_that_names_the_object(
    host: Host, backend: str, damage: Damage, tmp_path: Path
) -> None:
    """No attempt can succeed then."""
    host.storage = storage = PosixStorage(tmp_path / "root")
    base = _filled(host, backend)
    (key,) = {f.handle.key for f in base.parts[0].files}
    stored = storage.root / key
    data = stored.read_bytes()
    # The cached copy is a link to it.
    stored.unlink()
    stored.write_bytes(damage(data))
    host.damage(damage)
    with pytest.raises(CorruptFile) as refused:
        host.content_after_retry(backend, base)
    assert type(refused.value) is CorruptFile
    assert (refused.value.facts["file"], refused.value.retryable) == (key, False)


def _read_all(store: KeyedStateBackend) -> Iterator[Entry]:
    assert isinstance(store, RocksDBBackend)
    return store.read_all()


READS: dict[str, Callable[[KeyedStateBackend], object]] = {
    "scan": lambda store: dict(store.scan(b"")),
    "all": lambda store: dict(_read_all(store)),
    "get": lambda store: {key: store.get(key) for key in CONTENT},
    "multi_get": lambda store: dict(zip(CONTENT, store.multi_get(list(CONTENT)), strict=True)),
}


@every_damage
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_damage_under_an_open_store_never_changes_a_result(
    host: Host, damage: Damage, read: Callable[[KeyedStateBackend], object]
) -> None:
    base = _filled(host, "rocksdb")
    store = host.open("rocksdb", base)
    host.damage(damage, in_place=True)
    try:
        assert read(store) == CONTENT
    except DamagedCopy as e:
        assert e.retryable
        with pytest.raises(DamagedCopy):
            # A function that catches it must not be able to make a checkpoint without the values.
            store.snapshot("data/x/second-")
    assert host.content("rocksdb", base) == CONTENT


@pytest.mark.parametrize("read", [lambda store: store.scan(b""), _read_all], ids=["scan", "all"])
def test_a_scan_of_a_damaged_file_does_not_end_as_if_there_were_nothing_more(
    host: Host, read: Callable[[KeyedStateBackend], Iterator[Entry]]
) -> None:
    base = _filled(host, "rocksdb")
    store = host.open("rocksdb", base)
    host.damage(DAMAGES["a bit in the middle"], in_place=True)
    found: list[tuple[bytes, bytes]] = []
    with pytest.raises(DamagedCopy):
        found.extend(read(store))
    assert found == sorted(CONTENT.items())[: len(found)]
    assert len(found) < len(CONTENT)


@every_damage
def test_a_full_snapshot_does_not_store_damage_again(host: Host, damage: Damage) -> None:
    base = _filled(host, "rocksdb")
    store = host.open("rocksdb", base)
    before = {blob.key for blob in host.storage.list("")}
    host.damage(damage, in_place=True)
    with pytest.raises(DamagedCopy):
        store.snapshot("data/x/full-", full=True)
    assert {blob.key for blob in host.storage.list("")} == before
    again = host.open("rocksdb", base).snapshot("data/x/again-", full=True)
    assert host.content("rocksdb", _base(again, "rocksdb")) == CONTENT


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (0, -1), (0, -5), (1 << 62, 1 << 62), (0, 1 << 40), (1, None)])
@every_backend
def test_a_part_outside_of_its_object_is_a_corrupt_file(
    host: Host, backend: str, offset: int, size: int | None
) -> None:
    base = _filled(host, backend)
    (state,) = base.parts
    file = state.files[0]
    part = FilePart(offset=offset, size=file.size if size is None else size, sha256=file.sha256)
    forged = msgspec.structs.replace(file, part=part)
    with raises(CorruptFile, file=file.handle.key, offset=offset):
        HostCache.direct(host.folder / "other", host.storage, ManualClock(1)).link(forged, host.folder / "target")
    assert not list((host.folder / "other").iterdir())


@every_damage
def test_a_hash_map_s_file_is_checked_at_each_opening(host: Host, damage: Damage) -> None:
    base = _filled(host, "filesystem")
    for _ in range(2):
        host.damage(damage, in_place=True)
        assert host.content("filesystem", base) == CONTENT
        host.damage(damage, in_place=True)
        assert dict(read_entries(host.location(), base)) == CONTENT


@every_backend
def test_a_fetched_file_is_synced_before_its_link_in_the_host_cache(
    host: Host, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _filled(host, backend)
    for copy in host.copies():
        copy.unlink()
    synced: set[int] = set()
    named: list[bool] = []

    class Calls:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fsync(self, fd: int) -> None:
            synced.add(os.fstat(fd).st_ino)
            os.fsync(fd)

        def link(self, source: Path, target: Path) -> None:
            os.link(source, target)
            if target.parent == host.cache():
                named.append(target.stat().st_ino in synced)

    monkeypatch.setattr(host_cache, "os", Calls())
    assert host.content(backend, base) == CONTENT
    assert named and all(named)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("IO error: No space left on device: While appending to file: 000017.sst", StorageError),
        ("No space left on device (os error 28)", StorageError),
        ("IO error: While pread offset 5 len 9: /x/000017.sst: Input/output error", CorruptFile),
        ("Corruption: block checksum mismatch in /x/000017.sst offset 5", CorruptFile),
        ("Corruption: Corruption: IO error: No such file or directory: /x/000017.sst", StorageError),
        ("something else", None),
    ],
)
def test_errors_of_rocksdb_have_one_meaning(text: str, expected: type[StateflowError] | None) -> None:
    meaning = to_stateflow_error(Exception(text), Path("/x"))
    assert (type(meaning) if meaning else None) is expected
    if isinstance(meaning, CorruptFile):
        assert meaning.facts["file"] == "000017.sst"
    assert to_stateflow_error(ValueError(text), Path("/x")) is None
