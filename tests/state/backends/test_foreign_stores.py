"""Stores of RocksDB that another host wrote: checked before they are opened, once on each host."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.errors import CorruptFile
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.rocksdb import check
from stateflow.state.backends.rocksdb.manifest import compose, parse
from stateflow.state.handles import FileHandle, StateFile
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture
from tests.support.table_files import ATTACKS, ForgedTable, endless_groups, restart_outside, write_apart

# Values that LZ4 cannot compress, so that RocksDB stores the blocks as they are.
VALUES = {b"\0%c%05d" % (n, n): random.Random(n).randbytes(100) for n in range(100)}
FORGED = "data/forged"


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    return RocksStoreFixture(tmp_path, MemoryStorage())


@pytest.fixture
def taken(stores: RocksStoreFixture) -> Snapshot:
    """A snapshot of one data file."""
    return stores.snapshot_of(VALUES)


@pytest.fixture
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each data file that is checked is refused."""

    def refuse(path: Path) -> None:
        raise ValueError(path)

    monkeypatch.setattr(check, "check_table_file", refuse)


def _forged(stores: RocksStoreFixture, taken: Snapshot, attack: Callable[[ForgedTable], None]) -> Snapshot:
    """The snapshot with a changed data file, recorded with the hash that it has now."""
    (file,) = taken.files
    table = ForgedTable(stores.storage.get(file.handle.key))
    attack(table)
    return Snapshot((_stored(stores, table.sealed(), file.local_name),), None, taken.store_manifest)


def _stored(stores: RocksStoreFixture, data: bytes, name: str) -> StateFile:
    stores.storage.put_new(FORGED, data)
    handle = FileHandle(key=FORGED, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return StateFile(handle=handle, local_name=name)


@pytest.mark.usefixtures("no_check")
def test_a_host_opens_its_own_snapshot_without_a_check(stores: RocksStoreFixture, taken: Snapshot) -> None:
    store = stores.open(taken)
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_another_host_checks_a_snapshot_once(
    stores: RocksStoreFixture, taken: Snapshot, request: pytest.FixtureRequest
) -> None:
    stores.open(taken, host="other").close()
    request.getfixturevalue("no_check")
    store = stores.open(taken, host="other")
    assert dict(store.scan(b"")) == VALUES
    store.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_snapshot_is_a_corrupt_file_and_no_retry_helps(
    stores: RocksStoreFixture, taken: Snapshot, attack: Callable[[ForgedTable], None]
) -> None:
    forged = _forged(stores, taken, attack)
    for _ in range(2):
        with raises(CorruptFile, file=FORGED) as caught:
            stores.open(forged, host="other")
        assert not caught.value.retryable
    store = stores.open(taken, host="other")
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_a_forged_snapshot_is_refused_by_the_host_that_wrote_the_intact_one(
    stores: RocksStoreFixture, taken: Snapshot
) -> None:
    with raises(CorruptFile, file=FORGED):
        stores.open(_forged(stores, taken, restart_outside))


def test_a_file_of_another_size_than_the_manifest_says_is_a_corrupt_file(
    stores: RocksStoreFixture, taken: Snapshot
) -> None:
    (file,) = taken.files
    longer = replace(file, handle=replace(file.handle, size=file.size + 1))
    with raises(CorruptFile, missing=[file.local_name]):
        stores.open(Snapshot((longer,), None, taken.store_manifest))


# -- keys that are not in order --------------------------------------------------------------------------------------


def test_a_forged_store_whose_keys_are_not_in_order_ends_the_read(stores: RocksStoreFixture, tmp_path: Path) -> None:
    """Its structure is right, so no check refuses it; reading on from its last key would never end."""
    folder = tmp_path / "apart"
    write_apart(folder, [b"\0\1", b"\0\3"])
    (path,) = folder.glob("*.sst")
    table = ForgedTable(path.read_bytes())
    endless_groups(table)
    manifest = parse((folder / (folder / "CURRENT").read_text().strip()).read_bytes(), "m")
    file = _stored(stores, table.sealed(), path.name)
    store = stores.open(Snapshot((file,), None, compose(manifest)))
    with raises(CorruptFile) as caught:
        list(store.read_all())
    assert not caught.value.retryable
    store.close()
