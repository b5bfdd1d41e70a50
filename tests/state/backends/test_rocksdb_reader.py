"""RocksDB stores that are opened only to be read."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from stateflow.clock import ManualClock
from stateflow.errors import DamagedCopy
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.rocksdb.backend import RocksDBReader
from stateflow.state.host_cache import HostCache
from stateflow.storage import PosixStorage
from tests.support.stores import RocksStoreFixture, base_of

_numbers = count(1)


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    return RocksStoreFixture(tmp_path / "host-files", PosixStorage(tmp_path / "root"))


def _opened(stores: RocksStoreFixture, taken: Snapshot, cache: HostCache | None = None) -> RocksDBReader:
    folder = stores.folder / f"reader-{next(_numbers)}"
    return RocksDBReader(folder, cache or stores.cache("reader"), base_of(taken).parts[0], stores.settings)


def _files(stores: RocksStoreFixture) -> dict[str, set[str]]:
    return {path.name: set(os.listdir(path)) for path in stores.folder.glob("reader-*")}


@pytest.mark.parametrize("batches", [1, 12])
def test_a_reader_has_the_entries_of_the_snapshot(stores: RocksStoreFixture, batches: int) -> None:
    store, taken = stores.new(), Snapshot()
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


def test_opening_writes_nothing_but_the_layout(stores: RocksStoreFixture) -> None:
    taken = stores.snapshot_of({b"a": b"1"})
    reader = _opened(stores, taken)
    (found,) = _files(stores).values()
    assert found <= {*(file.local_name for file in taken.files), "MANIFEST-000001", "CURRENT", "rocksdict-config.json"}
    reader.close()


def test_a_reader_refuses_to_write(stores: RocksStoreFixture) -> None:
    taken = stores.snapshot_of({b"a": b"1"})
    reader = _opened(stores, taken)
    with pytest.raises(Exception, match="read only"):
        reader._db[b"a"] = b"2"
    assert reader.get(b"a") == b"1"
    reader.close()


def test_a_damaged_copy_is_replaced_by_the_next_reader(stores: RocksStoreFixture) -> None:
    content = {f"{key:05d}".encode(): os.urandom(100) for key in range(500)}
    taken = stores.snapshot_of(content)
    reader = _opened(stores, taken)
    reader.close()
    (file,) = (f for f in taken.files if f.local_name.endswith(".sst"))
    copy = stores.folder / "reader" / file.sha256
    damaged = bytearray(copy.read_bytes())
    damaged[2000:2100] = bytes(100)
    copy.unlink()
    copy.write_bytes(damaged)
    reader = _opened(stores, taken)
    with pytest.raises(DamagedCopy):
        dict(reader.scan(b""))
    reader.close()
    reader = _opened(stores, taken)
    assert dict(reader.scan(b"")) == content
    reader.close()


def test_a_temporary_cache_waits_for_no_disk(stores: RocksStoreFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.new()
    store.write({b"a": b"1"})
    store._db.flush()
    store.write({b"b": b"2"})
    taken = store.snapshot(stores.prefix())
    store.close()
    assert len(taken.files) == 2 and taken.files[0].part is not None
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for is_temporary in (True, False):
        folder = stores.folder / f"cache-{is_temporary}"
        make = HostCache.temporary if is_temporary else HostCache.direct
        reader = _opened(stores, taken, make(folder, stores.storage, ManualClock(next(_numbers))))
        assert bool(synced) is not is_temporary
        assert dict(reader.scan(b"")) == {b"a": b"1", b"b": b"2"}
        reader.close()
