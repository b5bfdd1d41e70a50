"""RocksDB stores: what a snapshot writes, what a restore accepts, what stays on the host, and stores of other hosts."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.clock import Section, Stopwatch
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import CorruptFile, DataError, MissingFile, StateflowError, StorageError
from stateflow.state.backends.base import StoreSnapshot
from stateflow.state.backends.rocksdb import check
from stateflow.state.backends.rocksdb.backend import RocksDBBackend, RocksDBReader
from stateflow.state.backends.rocksdb.manifest import compose, parse
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.host_cache import HostCache, check_file
from stateflow.state.uploads import own_label
from stateflow.storage import MemoryStorage, PosixStorage
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture, base_of
from tests.support.table_files import ForgedTable, endless_groups, restart_outside, write_apart


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    """Their storage is a folder, to which files are linked."""
    return RocksStoreFixture(tmp_path / "host-files", PosixStorage(tmp_path / "root"))


def _content(store: RocksDBBackend) -> dict[bytes, bytes]:
    return dict(store.scan(b""))


def _stored(stores: RocksStoreFixture) -> dict[str, int]:
    """The size of each stored object."""
    return {blob.key: blob.size for blob in stores.storage.list("")}


def _snapshot(stores: RocksStoreFixture, *values: bytes) -> StoreSnapshot:
    """A snapshot of a new store, which is closed; one file per value."""
    store = stores.new()
    for value in values:
        store.write({b"a": value})
        taken = store.snapshot(stores.prefix())
    store.close()
    return taken


@pytest.mark.parametrize(("writes", "entries", "measured"), [(640, 1, 10), (640, 64, 10), (3, 65, 3), (640, 0, 0)])
def test_time_of_writes_is_measured_each_time_for_many_entries_and_once_in_64_times_for_few(
    stores: RocksStoreFixture, monkeypatch: pytest.MonkeyPatch, writes: int, entries: int, measured: int
) -> None:
    store, changes = stores.new(), {b"%d" % number: b"" for number in range(entries)}
    readings = count()
    monkeypatch.setattr("stateflow.clock.perf_counter", lambda: next(readings))
    store.watch = watch = Stopwatch()
    for _ in range(writes):
        store.write(changes)
    assert (next(readings) - 1) // 2 == measured
    assert watch.seconds[Section.STORE] == (writes if entries else 0)
    store.close()


@pytest.mark.parametrize("seed", range(5))
def test_at_least_the_stated_number_of_entries_is_live(stores: RocksStoreFixture, seed: int) -> None:
    stores.settings = RocksDBSettings(compact_at_files=4 if seed % 2 else 1000)
    numbers, store, known = random.Random(seed), stores.new(), set[int]()
    shares = []
    for _ in range(30):
        for number in numbers.choices(range(500), k=numbers.choice([5, 50, 300])):
            deletes = numbers.random() < 0.2
            store.write({b"%03d" % number: None if deletes else b"x" * 100})
            (known.discard if deletes else known.add)(number)
        taken = store.snapshot(stores.prefix())
        assert taken.live is not None and taken.live.entries <= len(known)
        assert taken.live.size_bytes <= sum(file.size for file in taken.files)
        shares.append(taken.live.entries / len(known))
    store.close()
    # Compactions keep the bound near the number of live entries. Without them, no file has most of the entries.
    assert max(shares) > 0.5 and (min(shares[10:]) > 0.2 or not seed % 2)


def test_a_snapshot_uploads_only_what_is_new(stores: RocksStoreFixture) -> None:
    store = stores.new()
    assert store.snapshot("data/x/empty-").files == ()
    store.write({b"a": b"1"})
    first = store.snapshot("data/x/first-")
    before = set(_stored(stores))
    store.write({})
    assert store.snapshot("data/x/unchanged-") == first
    store.write({b"b": b"2"})
    second = store.snapshot("data/x/second-")
    store.close()
    (new,) = {f.handle.key for f in second.files} - {f.handle.key for f in first.files}
    assert set(_stored(stores)) - before == {new}
    assert new.startswith("data/x/second-") and new.endswith(".sst")
    assert first.files[0] in second.files

    restored = stores.open(second)
    assert restored.snapshot("data/x/third-") == second
    restored.close()
    assert set(_stored(stores)) == before | {new}


@pytest.fixture
def several(stores: RocksStoreFixture) -> tuple[StoreSnapshot, dict[bytes, bytes]]:
    """A snapshot of several new files, and its content."""
    stores.settings = RocksDBSettings(write_buffer_bytes=1 << 16, compact_at_files=100)
    content = {b"%04d" % number: os.urandom(10_000) for number in range(40)}
    store = stores.new()
    for key, value in content.items():
        store.write({key: value})
    taken = store.snapshot("data/x/first-")
    store.close()
    return taken, content


def test_several_new_files_are_one_object(
    stores: RocksStoreFixture, several: tuple[StoreSnapshot, dict[bytes, bytes]], tmp_path: Path
) -> None:
    taken, content = several
    assert len(taken.files) > 3
    assert set(_stored(stores)) == {"data/x/first-files"}
    stored = stores.storage.get("data/x/first-files")
    for file in taken.files:
        assert file.part is not None
        data = stored[file.part.offset : file.part.offset + file.part.size]
        assert hashlib.sha256(data).hexdigest() == file.part.sha256
    assert sum(f.size for f in taken.files) == len(stored) == taken.files[0].handle.size
    check_file(taken.files[0].handle, tmp_path / "root" / "data/x/first-files")

    restored = stores.open(taken, host="another host")
    assert _content(restored) == content
    restored.write({b"0001": b"changed"})
    again = restored.snapshot("data/x/second-")
    restored.close()
    assert set(taken.files) < set(again.files)
    assert set(_stored(stores)) == {"data/x/first-files", *(f.handle.key for f in again.files)}


@pytest.mark.parametrize("at", [-1, 50_000], ids=["last byte", "a byte inside"])
def test_a_damaged_object_of_several_files_is_refused(
    stores: RocksStoreFixture, several: tuple[StoreSnapshot, dict[bytes, bytes]], at: int, tmp_path: Path
) -> None:
    path = tmp_path / "root" / "data/x/first-files"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with raises(CorruptFile, file="data/x/first-files"):
        stores.open(several[0], host="another host")


def test_a_failed_upload_leaves_the_store_unchanged(tmp_path: Path) -> None:
    class Failing(MemoryStorage):
        broken = True

        def put_file(self, key: str, source: Path) -> None:
            if self.broken and key.endswith(".sst"):
                raise StorageError("the disk is full", key=key)
            super().put_file(key, source)

    storage = Failing()
    stores = RocksStoreFixture(tmp_path, storage)
    store = stores.new()
    store.write({b"a": b"1"})
    with raises(StorageError) as failed:
        store.snapshot(stores.prefix())
    assert str(failed.value.facts["key"]).endswith(".sst")
    storage.broken = False
    taken = store.snapshot(stores.prefix())
    assert _content(store) == {b"a": b"1"}
    store.close()
    assert os.listdir(tmp_path) == ["host"]

    restored = stores.open(taken)
    assert _content(restored) == {b"a": b"1"}
    restored.close()


@pytest.mark.parametrize(
    "names",
    [
        ["MANIFEST-000005"],
        ["000008.sst", "../../escape.sst"],
        ["000008.sst", "CURRENT"],
        ["000008.sst", ".."],
        ["../MANIFEST-000005"],
        ["MANIFEST-/../../x"],
        ["000007.sst"],
        [],
    ],
)
def test_names_that_no_store_has_are_refused(stores: RocksStoreFixture, names: list[str]) -> None:
    taken = _snapshot(stores, b"1")
    files = tuple(replace(taken.files[0], local_name=name) for name in names)
    with pytest.raises(CorruptFile):
        stores.open(dataclasses.replace(taken, files=files))
    with pytest.raises(CorruptFile):
        stores.open(dataclasses.replace(taken, store_manifest=b""))
    assert os.listdir(stores.folder) == ["host"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"key": "../outside"}, DataError),
        ({"sha256": ""}, CorruptFile),
        ({"sha256": "../other"}, CorruptFile),
        ({"sha256": "A" * 64}, CorruptFile),
    ],
    ids=["key outside the job root", "no hash", "a path as hash", "a hash in capitals"],
)
def test_a_handle_that_names_no_stored_file_is_refused(
    stores: RocksStoreFixture, wrong: dict[str, str], error: type[StateflowError]
) -> None:
    taken = _snapshot(stores, b"1")
    files = tuple(replace(f, handle=replace(f.handle, **wrong)) for f in taken.files)
    with raises(error, **wrong):
        stores.open(dataclasses.replace(taken, files=files), host="another host")


def test_a_host_that_has_the_files_fetches_nothing(stores: RocksStoreFixture) -> None:
    taken = _snapshot(stores, b"1")
    stores.open(taken, host="another host").close()
    stores.storage.delete(_stored(stores))
    for host in ("host", "another host"):
        restored = stores.open(taken, host=host)
        assert _content(restored) == {b"a": b"1"}
        restored.close()
    with pytest.raises(MissingFile):
        stores.open(taken, host="a third host")


def test_a_host_keeps_files_of_the_newest_snapshot_and_what_a_running_process_is_fetching(
    stores: RocksStoreFixture,
) -> None:
    stores.settings = RocksDBSettings(compact_at_files=2)
    store = stores.new()
    alive, dead = f"incoming-{own_label()}-x", f"incoming-{2**31}_1-x"
    for name in (alive, dead, "old"):
        (stores.folder / "host" / name).write_bytes(b"x")
    for number in range(4):
        store.write({b"%d" % number: b"x"})
        files = store.snapshot(stores.prefix()).files
        names = set(os.listdir(stores.folder / "host"))
        checked = {name for name in names if name.startswith("checked-")}
        assert names - checked == {alive, *(f.handle.sha256 for f in files)} and len(checked) == 1
    store.close()


_numbers = count(1)


def _opened(stores: RocksStoreFixture, taken: StoreSnapshot, cache: HostCache | None = None) -> RocksDBReader:
    folder = stores.folder / f"reader-{next(_numbers)}"
    return RocksDBReader(folder, cache or stores.cache("reader"), base_of(taken).parts[0], stores.settings)


def _files(stores: RocksStoreFixture) -> dict[str, set[str]]:
    return {path.name: set(os.listdir(path)) for path in stores.folder.glob("reader-*")}


@pytest.mark.parametrize("batches", [1, 12])
def test_a_reader_has_the_entries_of_the_snapshot(stores: RocksStoreFixture, batches: int) -> None:
    store, taken = stores.new(), StoreSnapshot()
    content: dict[bytes, bytes] = {}
    for batch in range(batches):
        changes = {f"{key:04d}".encode(): f"{batch}-{key}".encode() for key in range(batch, 900, batch + 1)}
        store.write(changes | {b"0003": None})
        content |= changes
        taken = store.snapshot(stores.prefix())
    content.pop(b"0003", None)
    store.close()
    reader = _opened(stores, taken)
    assert dict(reader.scan(b"")) == content
    keys = [f"{key:04d}".encode() for key in range(0, 950, 7)]
    assert reader.multi_get(keys) == [content.get(key) for key in keys] == [reader.get(key) for key in keys]
    reader.close()
    assert not _files(stores)


# Values that LZ4 cannot compress, so that RocksDB stores the blocks as they are.
VALUES = {b"\0%c%05d" % (n, n): random.Random(n).randbytes(100) for n in range(100)}
FORGED = "data/forged"


@pytest.fixture
def taken(stores: RocksStoreFixture) -> StoreSnapshot:
    """A snapshot of one data file."""
    return stores.snapshot_of(VALUES)


@pytest.fixture
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each data file that is checked is refused."""

    def refuse(path: Path) -> None:
        raise ValueError(path)

    monkeypatch.setattr(check, "check_table_file", refuse)


def _forged(stores: RocksStoreFixture, taken: StoreSnapshot, attack: Callable[[ForgedTable], None]) -> StoreSnapshot:
    """The snapshot with a changed data file, recorded with the hash that it has now."""
    (file,) = taken.files
    table = ForgedTable(stores.storage.get(file.handle.key))
    attack(table)
    return StoreSnapshot((_stored_file(stores, table.sealed(), file.local_name),), None, taken.store_manifest)


def _stored_file(stores: RocksStoreFixture, data: bytes, name: str) -> StateFile:
    stores.storage.put_new(FORGED, data)
    handle = FileHandle(key=FORGED, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return StateFile(handle=handle, local_name=name)


@pytest.mark.usefixtures("no_check")
def test_a_host_opens_its_own_snapshot_without_a_check(stores: RocksStoreFixture, taken: StoreSnapshot) -> None:
    store = stores.open(taken)
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_another_host_checks_a_snapshot_once(
    stores: RocksStoreFixture, taken: StoreSnapshot, request: pytest.FixtureRequest
) -> None:
    stores.open(taken, host="other").close()
    request.getfixturevalue("no_check")
    store = stores.open(taken, host="other")
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_a_forged_snapshot_is_a_corrupt_file_and_no_retry_helps(
    stores: RocksStoreFixture, taken: StoreSnapshot
) -> None:
    forged = _forged(stores, taken, restart_outside)
    for host in ("other", "other", "host"):
        with raises(CorruptFile, file=FORGED) as caught:
            stores.open(forged, host=host)
        assert not caught.value.retryable
    store = stores.open(taken, host="other")
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_a_file_of_another_size_than_the_manifest_says_is_a_corrupt_file(
    stores: RocksStoreFixture, taken: StoreSnapshot
) -> None:
    (file,) = taken.files
    longer = replace(file, handle=replace(file.handle, size=file.size + 1))
    with raises(CorruptFile, missing=[file.local_name]):
        stores.open(StoreSnapshot((longer,), None, taken.store_manifest))


# -- keys that are not in order --------------------------------------------------------------------------------------


def test_a_forged_store_whose_keys_are_not_in_order_ends_the_read(stores: RocksStoreFixture, tmp_path: Path) -> None:
    """Its structure is right, so no check refuses it; reading on from its last key would never end."""
    folder = tmp_path / "apart"
    write_apart(folder, [b"\0\1", b"\0\3"])
    (path,) = folder.glob("*.sst")
    table = ForgedTable(path.read_bytes())
    endless_groups(table)
    manifest = parse((folder / (folder / "CURRENT").read_text().strip()).read_bytes(), "m")
    file = _stored_file(stores, table.sealed(), path.name)
    store = stores.open(StoreSnapshot((file,), None, compose(manifest)))
    with raises(CorruptFile) as caught:
        list(store.read_all())
    assert not caught.value.retryable
    store.close()
