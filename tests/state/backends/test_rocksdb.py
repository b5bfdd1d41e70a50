"""RocksDB stores: what a snapshot writes, what a restore accepts, what stays on the host."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.config.settings import COMPACTIONS, RocksDBSettings
from stateflow.errors import ConfigError, CorruptFile, DataError, MissingFile, StateflowError, StorageError
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.host_cache import check_file
from stateflow.state.uploads import own_label
from stateflow.storage import MemoryStorage, PosixStorage
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture, base_of


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    """Their storage is a folder, to which files are linked."""
    return RocksStoreFixture(tmp_path / "host-files", PosixStorage(tmp_path / "root"))


def _content(store: RocksDBBackend) -> dict[bytes, bytes]:
    return dict(store.scan(b""))


def _stored(stores: RocksStoreFixture) -> dict[str, int]:
    """The size of each stored object."""
    return {blob.key: blob.size for blob in stores.storage.list("")}


def _data_files(taken: Snapshot) -> list[StateFile]:
    return [f for f in taken.files if f.local_name.endswith(".sst")]


def _snapshot(stores: RocksStoreFixture, *values: bytes) -> Snapshot:
    """A snapshot of a new store, which is closed; one file per value."""
    store = stores.new()
    for value in values:
        store.write({b"a": value})
        taken = store.snapshot(stores.prefix())
    store.close()
    return taken


@pytest.mark.parametrize("keys", [[], [b""], [b"", b"\0", b"a", b"a\0", b"\xff" * 3]], ids=["none", "empty", "several"])
def test_all_entries_are_read_in_order_of_keys(stores: RocksStoreFixture, keys: list[bytes]) -> None:
    store = stores.new()
    store.write({key: b"value of " + key for key in keys})
    store.write({b"b": b"deleted"})
    store.write({b"b": None})
    assert list(store.read_all()) == [(key, b"value of " + key) for key in keys]
    store.close()


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
def several(stores: RocksStoreFixture) -> tuple[Snapshot, dict[bytes, bytes]]:
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
    stores: RocksStoreFixture, several: tuple[Snapshot, dict[bytes, bytes]], tmp_path: Path
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


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:1000],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:50_000] + bytes([data[50_000] ^ 1]) + data[50_001:],
    ],
    ids=["one byte less", "cut off", "last byte", "a byte inside"],
)
def test_a_damaged_object_of_several_files_is_refused(
    stores: RocksStoreFixture,
    several: tuple[Snapshot, dict[bytes, bytes]],
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
) -> None:
    path = tmp_path / "root" / "data/x/first-files"
    path.write_bytes(damage(path.read_bytes()))
    with raises(CorruptFile, file="data/x/first-files"):
        stores.open(several[0], host="another host")


def test_what_a_compaction_uploads_is_counted_apart(stores: RocksStoreFixture) -> None:
    stores.settings = RocksDBSettings(compact_at_files=4)
    store = stores.new()
    known: set[str] = set()
    counted = []
    for n in range(4):
        store.write({f"{i}-{n}".encode(): os.urandom(1000) for i in range(50)})
        taken = store.snapshot(stores.prefix())
        new = sum(f.handle.size for f in _data_files(taken) if f.handle.key not in known)
        counted.append((new, taken.compaction_bytes))
        known |= {f.handle.key for f in taken.files}
    store.close()
    one = counted[0][0]
    assert [compacted for _, compacted in counted[:3]] == [0, 0, 0]
    # The fourth rewrites everything: a quarter of it is its own change.
    uploaded, compacted = counted[3]
    assert uploaded > 3.9 * one and uploaded - compacted == pytest.approx(one, rel=0.05)


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


@pytest.mark.parametrize("compaction", COMPACTIONS)
@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_store_with_enough_files_is_compacted_and_subtasks_take_turns(
    stores: RocksStoreFixture, turn: int, compaction: str
) -> None:
    settings = RocksDBSettings(compact_at_files=6, compaction=compaction)
    store = RocksDBBackend(stores.folder / "store", stores.cache(), base_of(Snapshot(), turn), settings)
    counts = []
    for number in range(6):
        store.write({b"a": b"%d" % number, b"m%d" % number: b"", b"z": b""})
        counts.append(len(_data_files(store.snapshot(stores.prefix()))))
    first = 6 - turn % 3
    assert counts == [*range(1, first), 1, *range(2, 8 - first)]
    assert _content(store) == {b"a": b"5", b"z": b"", **{b"m%d" % number: b"" for number in range(6)}}
    store.close()


@pytest.mark.parametrize("compaction", COMPACTIONS)
def test_many_snapshots_upload_changes_a_few_times_and_keep_few_files(
    stores: RocksStoreFixture, compaction: str
) -> None:
    stores.settings = RocksDBSettings(compaction=compaction, level_base_bytes=1 << 20)
    keys = [b"\0%c%08d" % (n % 128, n) for n in range(4000)]
    store, rng = stores.new(), random.Random(1)
    expected = {key: rng.randbytes(200) for key in keys}
    store.write(expected)
    store.snapshot(stores.prefix())
    changed, before, runs = 0, sum(_stored(stores).values()), []
    for _ in range(100):
        change = {key: rng.randbytes(200) for key in rng.sample(keys, 40)}
        changed += sum(len(key) + len(value) for key, value in change.items())
        expected |= change
        store.write(change)
        runs.append(len(_data_files(store.snapshot(stores.prefix()))))
    # Blocks and filters are some of it here, where an increment is but 40 entries.
    assert (sum(_stored(stores).values()) - before) / changed < (6 if compaction == "universal" else 14)
    # Of a level below the first, a look-up asks one file.
    assert max(runs) <= (12 if compaction == "universal" else 24)
    assert _content(store) == expected
    store.close()


def test_a_store_may_have_another_kind_of_compaction_at_each_opening(stores: RocksStoreFixture) -> None:
    expected: dict[bytes, bytes] = {}
    taken = Snapshot()
    for turn in range(8):
        stores.settings = RocksDBSettings(compaction=COMPACTIONS[turn % 2], compact_at_files=3, level_base_bytes=4096)
        store = stores.open(taken)
        for number in range(5):
            change = {b"\0\1key%d" % (7 * turn + n): b"%d-%d" % (turn, number) * 50 for n in range(20)}
            expected |= change
            store.write(change)
            taken = store.snapshot(stores.prefix())
        assert _content(store) == expected
        store.close()


def test_an_unknown_kind_of_compaction_is_refused() -> None:
    with raises(ConfigError, name="rocksdb.compaction", value="fifo") as refused:
        RocksDBSettings(compaction="fifo")
    assert all(kind in refused.value.hint for kind in COMPACTIONS)


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


def test_the_rocksdb_log_of_a_store_that_stays_open_is_bounded(stores: RocksStoreFixture) -> None:
    store = stores.new()
    for number in range(200):
        store.write({b"%d" % (number % 7): b"%d" % number})
        store.snapshot(f"data/x/{number}-")
    sizes = [path.stat().st_size for path in stores.folder.rglob("LOG*")]
    store.close()
    # 4 kB for each snapshot.
    assert 0 < sum(sizes) < 600_000


def test_checking_an_absent_file_raises_missing_file(tmp_path: Path) -> None:
    handle = FileHandle(key="data/x", size=1, sha256="0" * 64)
    with raises(MissingFile, key="data/x"):
        check_file(handle, tmp_path / "gone")
