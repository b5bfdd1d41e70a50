"""Stores of RocksDB that another host wrote: checked before they are opened, once on each host."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.errors import CorruptFile
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.rocksdb import check
from stateflow.state.backends.rocksdb.check import probe
from stateflow.state.backends.rocksdb.manifest import parse, write_manifest
from stateflow.state.handles import FileHandle
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture
from tests.support.table_files import ATTACKS, ForgedTable, bomb, restart_outside

LARGEST_CHILD_KB = 150 << 10
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
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process cannot be started."""
    monkeypatch.setattr(sys, "executable", "/nonexistent")


def _forged(stores: RocksStoreFixture, taken: Snapshot, attack: Callable[[ForgedTable], None]) -> Snapshot:
    """The snapshot with a changed data file, recorded with the hash that it has now."""
    (file,) = taken.files
    table = ForgedTable(stores.storage.get(file.handle.key))
    attack(table)
    data = table.sealed()
    stores.storage.put_new(FORGED, data)
    handle = FileHandle(key=FORGED, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return Snapshot((replace(file, handle=handle),), None, taken.store_manifest)


@pytest.mark.usefixtures("no_process")
def test_a_host_opens_its_own_snapshot_without_a_check(stores: RocksStoreFixture, taken: Snapshot) -> None:
    store = stores.open(taken)
    assert dict(store.scan(b"")) == VALUES
    store.close()


def test_another_host_checks_a_snapshot_once(
    stores: RocksStoreFixture, taken: Snapshot, request: pytest.FixtureRequest
) -> None:
    stores.open(taken, host="other").close()
    request.getfixturevalue("no_process")
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


# -- the child process ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(stores: RocksStoreFixture, taken: Snapshot, tmp_path: Path) -> Path:
    """A store as RocksDB opens it."""
    folder = tmp_path / "laid-out"
    folder.mkdir()
    (file,) = taken.files
    (folder / file.local_name).write_bytes(stores.storage.get(file.handle.key))
    write_manifest(folder, parse(taken.store_manifest, "m"))
    return folder


def test_a_store_that_can_be_read_has_no_reason(folder: Path) -> None:
    assert probe(folder, 0) == ""


def test_a_store_that_kills_the_child_process_is_a_corrupt_file_and_no_retry_helps(
    stores: RocksStoreFixture, taken: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "check_table_file", lambda _: None)
    with raises(CorruptFile, file=FORGED, reason="a process that read it ended with -11") as caught:
        stores.open(_forged(stores, taken, restart_outside), host="other")
    assert not caught.value.retryable


def test_the_child_process_has_a_limit_of_memory(folder: Path) -> None:
    (path,) = folder.glob("*.sst")
    table = ForgedTable(path.read_bytes())
    bomb(table)
    path.write_bytes(table.sealed())
    program = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from stateflow.state.backends.rocksdb.check import probe\n"
        "print(bool(probe(Path(sys.argv[1]), 0)), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    has_reason, peak_kb = ended.stdout.split()
    assert has_reason == "True" and int(peak_kb) < LARGEST_CHILD_KB
