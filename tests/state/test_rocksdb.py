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

from stateflow.errors import ConfigError, CorruptFile, MissingFile, StateflowError, StorageError
from stateflow.settings import COMPACTIONS, RocksDBSettings
from stateflow.state.backend import Snapshot
from stateflow.state.handles import FileHandle, StateFile
from stateflow.state.rocksdb import RocksDBBackend
from stateflow.state.transfer import check_local, hash_file, private_folder
from stateflow.storage import MemoryStorage, PosixStorage
from tests.state.kit import RocksShelf, base_of

Change = Callable[[Path], object]


@pytest.fixture
def shelf(tmp_path: Path) -> RocksShelf:
    return RocksShelf(tmp_path / "host-files")


def _content(store: RocksDBBackend) -> dict[bytes, bytes]:
    return dict(store.scan(b""))


def _keys(shelf: RocksShelf) -> set[str]:
    return {blob.key for blob in shelf.storage.list("")}


def _stored_bytes(shelf: RocksShelf) -> int:
    return sum(blob.size for blob in shelf.storage.list(""))


def _data_files(files: list[StateFile]) -> list[StateFile]:
    return [f for f in files if f.local_name.endswith(".sst")]


# -- snapshots ----------------------------------------------------------------------------------------------------


def test_a_snapshot_uploads_only_what_is_new(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    first = store.snapshot("data/x/first-").files
    before = _keys(shelf)
    store.write({b"b": b"2"})
    second = store.snapshot("data/x/second-").files
    store.close()

    (new,) = {f.handle.key for f in second} - {f.handle.key for f in first}
    assert _keys(shelf) - before == {new}
    assert new.startswith("data/x/second-") and new.endswith(".sst")
    assert first[0] in second


def test_several_new_files_are_one_object(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path / "root")
    shelf = RocksShelf(tmp_path / "host-files", storage)
    shelf.settings = RocksDBSettings(write_buffer_bytes=1 << 16, compact_at_files=100)
    store = shelf.new()
    expected = {}
    for number in range(40):
        changes = {b"%04d" % number: os.urandom(10_000)}
        store.write(changes)
        expected |= changes
    taken = store.snapshot("data/x/first-")
    store.close()

    assert len(taken.files) > 3
    assert _keys(shelf) == {"data/x/first-files"}
    stored = storage.get("data/x/first-files")
    for file in taken.files:
        assert file.part is not None
        data = stored[file.part.offset : file.part.offset + file.part.size]
        assert hashlib.sha256(data).hexdigest() == file.part.sha256
    assert sum(f.size for f in taken.files) == len(stored) == taken.files[0].handle.size
    check_local(taken.files[0].handle, storage.root / "data/x/first-files")

    restored = shelf.open(taken, host="another host")
    assert _content(restored) == expected
    restored.write({b"0001": b"changed"})
    again = restored.snapshot("data/x/second-")
    restored.close()
    assert set(taken.files) < set(again.files)
    assert _keys(shelf) == {"data/x/first-files", *(f.handle.key for f in again.files)}


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:1000],
                                    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
                                    lambda data: data[:50_000] + bytes([data[50_000] ^ 1]) + data[50_001:],
                                    ])  # fmt: skip
def test_a_damaged_object_of_several_files_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    storage = PosixStorage(tmp_path / "root")
    shelf = RocksShelf(tmp_path / "host-files", storage)
    shelf.settings = RocksDBSettings(write_buffer_bytes=1 << 16, compact_at_files=100)
    store = shelf.new()
    for number in range(40):
        store.write({b"%04d" % number: os.urandom(10_000)})
    taken = store.snapshot("data/x/first-")
    store.close()
    path = storage.root / "data/x/first-files"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptFile) as refused:
        shelf.open(taken, host="another host")
    assert refused.value.facts["file"] == "data/x/first-files"


def test_without_a_change_a_snapshot_is_the_one_before(shelf: RocksShelf) -> None:
    store = shelf.new()
    assert store.snapshot("data/x/empty-").files == ()
    store.write({b"a": b"1"})
    store.write({})
    first = store.snapshot("data/x/first-")
    before = _keys(shelf)
    assert store.snapshot("data/x/second-") == first
    store.close()

    restored = shelf.open(first)
    assert restored.snapshot("data/x/third-") == first
    restored.close()
    assert _keys(shelf) == before


def test_what_a_compaction_uploads_is_counted_apart(tmp_path: Path) -> None:
    shelf = RocksShelf(tmp_path)
    shelf.settings = RocksDBSettings(compact_at_files=4)
    store = shelf.new()
    known: set[str] = set()
    counted = []
    for n in range(4):
        store.write({f"{i}-{n}".encode(): os.urandom(1000) for i in range(50)})
        taken = store.snapshot(shelf.prefix())
        new = sum(f.handle.size for f in _data_files(taken.files) if f.handle.key not in known)
        counted.append((new, taken.compaction_bytes))
        known |= {f.handle.key for f in taken.files}
    store.close()
    one = counted[0][0]
    assert [compacted for _, compacted in counted[:3]] == [0, 0, 0]
    # The fourth writes everything anew: a quarter of it is its own change.
    uploaded, compacted = counted[3]
    assert uploaded > 3.9 * one and uploaded - compacted == pytest.approx(one, rel=0.05)


def test_a_handle_has_size_and_hash_of_what_is_stored(shelf: RocksShelf, tmp_path: Path) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    for file in store.snapshot(shelf.prefix()).files:
        path = tmp_path / file.local_name
        shelf.storage.fetch(file.handle.key, path)
        assert (file.handle.size, file.handle.sha256) == (path.stat().st_size, hash_file(path))
    store.close()


def test_an_upload_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    class Failing(MemoryStorage):
        broken = True

        def put_file(self, key: str, source: Path) -> None:
            if self.broken and key.endswith(".sst"):
                raise StorageError("the disk is full", key=key)
            super().put_file(key, source)

    storage = Failing()
    shelf = RocksShelf(tmp_path, storage)
    store = shelf.new()
    store.write({b"a": b"1"})
    with pytest.raises(StorageError, match="full"):
        store.snapshot(shelf.prefix())
    storage.broken = False
    taken = store.snapshot(shelf.prefix())
    assert _content(store) == {b"a": b"1"}
    store.close()
    assert os.listdir(tmp_path) == ["host"]

    restored = shelf.open(taken)
    assert _content(restored) == {b"a": b"1"}
    restored.close()


# -- restoring ----------------------------------------------------------------------------------------------------


def test_a_restored_store_is_what_was_snapshotted(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1", b"b": b"2", b"c": b"3"})
    store.snapshot(shelf.prefix())
    store.write({b"a": None, b"b": b"22"})
    taken = store.snapshot(shelf.prefix())
    store.write({b"d": b"is not in the snapshot"})
    store.close()

    restored = shelf.open(taken, host="another host")
    assert _content(restored) == {b"b": b"22", b"c": b"3"}
    assert restored.multi_get([b"a", b"b", b"d"]) == [None, b"22", None]
    assert restored.multi_get([]) == []
    assert list(restored.scan(b"c")) == [(b"c", b"3")]
    restored.close()


def test_every_snapshot_stays_restorable_while_the_store_lives_on(tmp_path: Path) -> None:
    """Stored files are links to those that RocksDB has open: it must never change one."""
    storage = PosixStorage(tmp_path / "root")
    shelf = RocksShelf(tmp_path / "host-files", storage)
    shelf.settings = RocksDBSettings(compact_at_files=3)
    snapshots: list[Snapshot] = []
    store = shelf.new()
    for number in range(5):
        store.write({b"key": str(number).encode(), str(number).encode(): b""})
        snapshots.append(store.snapshot(shelf.prefix()))
        if number == 2:
            store.close()
            store = shelf.open(snapshots[-1])
    store.close()

    for blob in storage.list(""):
        (handle,) = {f.handle for taken in snapshots for f in taken.files if f.handle.key == blob.key}
        assert handle.sha256 == hash_file(storage.root / blob.key)
    for number, taken in enumerate(snapshots):
        old = shelf.open(taken, host=f"host {number}")
        assert old.get(b"key") == str(number).encode()
        assert len(_content(old)) == number + 2
        old.close()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _swap(path: Path) -> None:
    """Another file of the same snapshot takes the place."""
    other = next(p for p in path.parent.iterdir() if p != path)
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize(("damage", "error"), [
    (_flip, CorruptFile), (_truncate, CorruptFile), (_append, CorruptFile), (_swap, CorruptFile),
    (Path.unlink, MissingFile),
])  # fmt: skip
def test_a_damaged_base_file_is_refused_by_name_and_nothing_is_opened(
    tmp_path: Path, damage: Change, error: type[StateflowError]
) -> None:
    storage = PosixStorage(tmp_path / "root")
    shelf = RocksShelf(tmp_path / "host-files", storage)
    store = shelf.new()
    for number in range(2):
        store.write({b"a": b"%d" % number})
        taken = store.snapshot("data/x/" + "ab"[number])
    store.close()
    victim = taken.files[0].handle.key
    damage(storage.root / victim)

    with pytest.raises(error) as refused:
        shelf.open(taken, host="another host")
    assert victim in refused.value.facts.values()
    assert sorted(os.listdir(shelf.folder)) == ["another host", "host"]
    assert not [n for n in os.listdir(shelf.folder / "another host") if n.startswith("incoming")]


@pytest.mark.parametrize("names", [
    ["MANIFEST-000005", "MANIFEST-000006"], ["000008.sst", "../../escape.sst"], ["000008.sst", "CURRENT"],
    ["000008.sst", ".."], ["../MANIFEST-000005"], ["MANIFEST-/../../x"], ["000007.sst"], [],
])  # fmt: skip
def test_names_that_no_store_has_are_refused(shelf: RocksShelf, names: list[str]) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    taken = store.snapshot(shelf.prefix())
    store.close()
    files = tuple(replace(taken.files[0], local_name=name) for name in names)
    with pytest.raises(CorruptFile):
        shelf.open(dataclasses.replace(taken, files=files))
    if "MANIFEST-000005" in names:
        with pytest.raises(CorruptFile):
            shelf.open(Snapshot(files))
    assert os.listdir(shelf.folder) == ["host"]


def test_a_handle_that_leaves_the_job_root_is_refused(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    taken = store.snapshot(shelf.prefix())
    store.close()
    files = tuple(replace(f, handle=replace(f.handle, key="../outside")) for f in taken.files)
    with pytest.raises(StateflowError) as refused:
        shelf.open(dataclasses.replace(taken, files=files), host="another host")
    assert refused.value.facts["key"] == "../outside"


# -- compaction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compaction", COMPACTIONS)
@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_a_store_is_compacted_when_it_has_enough_files_and_subtasks_take_turns(
    shelf: RocksShelf, turn: int, compaction: str
) -> None:
    settings = RocksDBSettings(compact_at_files=6, compaction=compaction)
    store = RocksDBBackend(shelf.folder / "store", shelf.cache(), base_of(Snapshot(), turn), settings)
    counts = []
    for number in range(6):
        store.write({b"a": b"%d" % number, b"m%d" % number: b"", b"z": b""})
        counts.append(len(_data_files(store.snapshot(shelf.prefix()).files)))
    first = 6 - turn % 3
    assert counts == [*range(1, first), 1, *range(2, 8 - first)]
    assert _content(store) == {b"a": b"5", b"z": b"", **{b"m%d" % number: b"" for number in range(6)}}
    store.close()


@pytest.mark.parametrize("compaction", COMPACTIONS)
def test_many_snapshots_upload_a_few_times_what_changed_and_keep_few_files(
    shelf: RocksShelf, compaction: str
) -> None:
    shelf.settings = RocksDBSettings(compaction=compaction, level_base_bytes=1 << 20)
    keys = [b"\0%c%08d" % (n % 128, n) for n in range(4000)]
    store, dice = shelf.new(), random.Random(1)
    expected = {key: dice.randbytes(200) for key in keys}
    store.write(expected)
    store.snapshot(shelf.prefix())
    changed, before, runs = 0, _stored_bytes(shelf), []
    for _ in range(100):
        change = {key: dice.randbytes(200) for key in dice.sample(keys, 40)}
        changed += sum(len(key) + len(value) for key, value in change.items())
        expected |= change
        store.write(change)
        runs.append(len(_data_files(store.snapshot(shelf.prefix()).files)))
    # Blocks and filters are some of it here, where an increment is but 40 entries.
    assert (_stored_bytes(shelf) - before) / changed < (6 if compaction == "universal" else 14)
    # Of a level below the first, a look-up asks one file.
    assert max(runs) <= (12 if compaction == "universal" else 24)
    assert _content(store) == expected
    store.close()


def test_a_store_may_have_another_kind_of_compaction_each_time_it_is_opened(shelf: RocksShelf) -> None:
    expected: dict[bytes, bytes] = {}
    taken = Snapshot()
    for turn in range(8):
        shelf.settings = RocksDBSettings(
            compaction=COMPACTIONS[turn % 2],
            compact_at_files=3,
            level_base_bytes=4096,
        )
        store = shelf.open(taken)
        for number in range(5):
            change = {b"\0\1key%d" % (7 * turn + n): b"%d-%d" % (turn, number) * 50 for n in range(20)}
            expected |= change
            store.write(change)
            taken = store.snapshot(shelf.prefix())
        assert _content(store) == expected
        store.close()


def test_a_kind_of_compaction_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such kind of compaction") as refused:
        RocksDBSettings(compaction="fifo")
    assert refused.value.hint == "known: universal, leveled"


# -- the host -----------------------------------------------------------------------------------------------------


def test_a_host_that_has_the_files_fetches_nothing(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    taken = store.snapshot(shelf.prefix())
    store.close()
    shelf.open(taken, host="another host").close()
    shelf.storage.delete(_keys(shelf))

    for host in ("host", "another host"):
        restored = shelf.open(taken, host=host)
        assert _content(restored) == {b"a": b"1"}
        restored.close()
    with pytest.raises(MissingFile):
        shelf.open(taken, host="a third host")


def test_a_host_keeps_only_files_of_the_newest_snapshot(shelf: RocksShelf) -> None:
    shelf.settings = RocksDBSettings(compact_at_files=2)
    store = shelf.new()
    for number in range(4):
        store.write({b"%d" % number: b"x"})
        files = store.snapshot(shelf.prefix()).files
        assert set(os.listdir(shelf.folder / "host")) == {f.handle.sha256 for f in files}
    store.close()


def test_what_another_process_is_fetching_is_left_to_it_while_it_lives(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    alive, dead = f"incoming-{os.getpid()}-x", f"incoming-{2**31}-x"
    for name in (alive, dead, "old"):
        (shelf.folder / "host" / name).write_bytes(b"x")
    files = store.snapshot(shelf.prefix()).files
    store.close()
    assert set(os.listdir(shelf.folder / "host")) == {alive, *(f.handle.sha256 for f in files)}


def test_a_handle_without_a_hash_names_no_file_of_the_host(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    taken = store.snapshot(shelf.prefix())
    store.close()
    for sha256 in ("", "../other", "A" * 64):
        files = tuple(replace(f, handle=replace(f.handle, sha256=sha256)) for f in taken.files)
        with pytest.raises(CorruptFile, match="no hash"):
            shelf.open(dataclasses.replace(taken, files=files))


def test_a_store_that_stays_open_does_not_write_a_log_without_end(shelf: RocksShelf, tmp_path: Path) -> None:
    store = shelf.new()
    for number in range(200):
        store.write({b"%d" % (number % 7): b"%d" % number})
        store.snapshot(f"data/x/{number}-")
    sizes = [path.stat().st_size for path in tmp_path.rglob("LOG*")]
    store.close()
    # 4 kB for each snapshot.
    assert 0 < sum(sizes) < 600_000


def test_a_closed_store_leaves_no_folder(shelf: RocksShelf) -> None:
    store = shelf.new()
    store.write({b"a": b"1"})
    store.snapshot(shelf.prefix())
    assert len(os.listdir(shelf.folder)) == 2
    store.close()
    assert os.listdir(shelf.folder) == ["host"]


def test_a_file_that_a_collector_takes_meanwhile_is_missing(tmp_path: Path) -> None:
    handle = FileHandle(key="data/x", size=1, sha256="0" * 64)
    with pytest.raises(MissingFile, match="data/x"):
        check_local(handle, tmp_path / "gone")


def test_scratch_space_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    private_folder(folder)
    private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(ConfigError, match="writable for nobody else") as told:
        private_folder(folder)
    assert str(folder) in str(told.value)
