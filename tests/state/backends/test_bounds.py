"""Bounds of data files: short in what is stored, exact in what RocksDB opens, and never a guess."""

from __future__ import annotations

import dataclasses
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import DBCompressionType, Rdict, WriteBatch

from stateflow.config.settings import RocksDBSettings
from stateflow.errors import CorruptFile, DamagedCopy, InternalError
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.rocksdb.backend import rocksdb_options, without_wal
from stateflow.state.backends.rocksdb.check import LONGEST_BOUND, with_exact_bounds, with_prefixes
from stateflow.state.backends.rocksdb.manifest import (
    ManifestFollower,
    StoreFile,
    StoreManifest,
    compose,
    fragments_of,
    parse,
    write_manifest,
)
from stateflow.state.backends.rocksdb.tables import key_bounds
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture
from tests.support.table_files import ForgedTable

COMMON = b"k" * 100
"""Longer than a stored bound: keys differ only after it."""
TRAILER = 8
GROUPS = st.integers(0, 3)
KEYS = st.builds(lambda group, end: struct.pack(">H", group) + COMMON + end, GROUPS, st.binary(max_size=3))
STEPS = st.lists(
    st.one_of(
        st.lists(KEYS, min_size=1, max_size=8),
        st.tuples(GROUPS, st.integers(1, 2)),
        st.tuples(KEYS, KEYS),
        st.just("compact"),
    ),
    min_size=1,
    max_size=8,
)


@contextmanager
def _store(steps: Sequence[object]) -> Iterator[tuple[Path, Rdict]]:
    """A store of small files in which keys are set, key groups and other ranges deleted, and levels compacted."""
    with tempfile.TemporaryDirectory() as folder:
        options = rocksdb_options(RocksDBSettings(compaction="leveled", level_base_bytes=4000))
        store = Rdict(folder, options=options)
        store.set_write_options(without_wal())
        for number, step in enumerate(steps):
            if isinstance(step, list):
                batch = WriteBatch(raw_mode=True)
                for key in step:
                    batch.put(key, b"%d" % number * 500)
                store.write(batch)
            elif step == "compact":
                store.compact_range(None, None)
            elif isinstance(step, tuple):
                first, last = _range(step)
                store.delete_range(first, last)
            store.flush()
        yield Path(folder), store
        store.close()


def _range(step: tuple[object, ...]) -> tuple[bytes, bytes]:
    first, second = step
    if isinstance(first, bytes) and isinstance(second, bytes):
        return min(first, second), max(first, second) + b"\0"
    assert isinstance(first, int) and isinstance(second, int)
    return struct.pack(">H", first), struct.pack(">H", first + second)


@given(STEPS)
def test_the_bounds_that_rocksdb_wrote_return_after_they_were_prefixes(steps: Sequence[object]) -> None:
    """RocksDB's own manifest is the oracle, on all levels, also where ranges were deleted."""
    with _store(steps) as (folder, store):
        manifest = ManifestFollower(folder).read()
        assert {f.name for f in manifest.files} == {str(f["name"]).lstrip("/") for f in store.live_files()}
        for file in manifest.files:
            path = folder / file.name
            (stored,) = parse(compose(StoreManifest((with_prefixes(file, path),), 1)), "m").files
            assert with_exact_bounds(stored, path) == file
            assert stored.groups == file.groups
            points = key_bounds(path)
            for bound, exact, is_prefix in zip(
                (stored.smallest, stored.largest), (file.smallest, file.largest), stored.prefixes, strict=True
            ):
                is_point = points is not None and exact in points
                assert is_prefix == (is_point and len(exact) > LONGEST_BOUND + TRAILER)
                assert not is_prefix or len(bound) == LONGEST_BOUND + TRAILER


ENTRIES = {struct.pack(">H", n) + COMMON * 10 + b"%d" % n: b"%d" % n * 99 for n in range(100)}


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    return RocksStoreFixture(tmp_path, MemoryStorage())


@pytest.fixture
def taken(stores: RocksStoreFixture) -> Snapshot:
    """A snapshot of one data file with long bounds."""
    return stores.snapshot_of(ENTRIES)


@pytest.fixture
def table(stores: RocksStoreFixture, taken: Snapshot, tmp_path: Path) -> Path:
    """The data file."""
    (file,) = taken.files
    path = tmp_path / file.local_name
    path.write_bytes(stores.storage.get(file.handle.key))
    return path


def _file(taken: Snapshot) -> StoreFile:
    (file,) = parse(taken.store_manifest, "m").files
    return file


def _with(taken: Snapshot, **changed: Any) -> Snapshot:
    """The snapshot with another entry of its file in the manifest."""
    manifest = parse(taken.store_manifest, "m")
    (file,) = manifest.files
    changed_file = dataclasses.replace(file, **changed)
    return dataclasses.replace(taken, store_manifest=compose(dataclasses.replace(manifest, files=(changed_file,))))


@pytest.mark.parametrize("host", ["host", "other"])
def test_a_stored_manifest_has_prefixes_and_the_store_has_every_key(
    stores: RocksStoreFixture, taken: Snapshot, host: str
) -> None:
    assert _file(taken).prefixes == (True, True) and len(taken.store_manifest) < 300
    store = stores.open(taken, host)
    assert [store.get(key) for key in ENTRIES] == [*ENTRIES.values()]
    assert dict(store.scan(b"")) == ENTRIES
    assert store.snapshot(stores.prefix()).store_manifest == taken.store_manifest
    store.close()


def test_a_manifest_of_older_versions_with_whole_bounds_is_read(
    stores: RocksStoreFixture, taken: Snapshot, table: Path
) -> None:
    exact = with_exact_bounds(_file(taken), table)
    older = _with(taken, smallest=exact.smallest, largest=exact.largest, prefixes=(False, False))
    assert len(older.store_manifest) > 2 * len(COMMON) * 10
    store = stores.open(older, "other")
    assert [store.get(key) for key in ENTRIES] == [*ENTRIES.values()]
    # The next snapshot has prefixes.
    store.write({b"\0\1": b""})
    assert len(store.snapshot(stores.prefix()).store_manifest) < 500
    store.close()


def test_the_stored_form_of_prefixes_does_not_change() -> None:
    """Checkpoints with these bytes exist: they must stay readable, and be written so."""
    prefix = b"\0\1" + b"k" * 62
    file = StoreFile(12, 1, 4096, prefix + bytes(8), b"\0\7z\1" + bytes(7), (3, 9), 2, ((12, b"\1"),), (True, False))
    stored = bytes.fromhex(
        "a89954e1880001011a6c6576656c64622e4279746577697365436f6d70617261746f720200030d040967010c802048"
        + prefix.hex()
        + "00000000000000000b00077a010000000000000003097d01010c01010d010201"
    )
    assert compose(StoreManifest((file,), 9)) == stored
    assert parse(stored, "m") == StoreManifest((file,), 9)


@pytest.mark.parametrize(
    "forged",
    [{"smallest": b"\0\0l" + bytes(8)}, {"largest": b"\0\x63" + COMMON + bytes(8)}],
    ids=["other key", "other trailer"],
)
def test_bounds_that_are_no_prefixes_of_the_files_keys_are_a_corrupt_file(
    stores: RocksStoreFixture, taken: Snapshot, forged: dict[str, bytes]
) -> None:
    (file,) = taken.files
    with raises(CorruptFile, file=file.handle.key):
        stores.open(_with(taken, **forged), "other")


def test_keys_that_are_not_in_order_are_refused(tmp_path: Path) -> None:
    """A user who can forge checksums can also write keys in any order, and prefixes that fit them."""
    options = rocksdb_options(RocksDBSettings())
    options.set_compression_type(DBCompressionType.none())
    store = Rdict(str(tmp_path / "store"), options=options)
    store.set_write_options(without_wal())
    for key, value in ENTRIES.items():
        store[key] = value
    store.close()
    (path,) = (tmp_path / "store").glob("*.sst")
    forged, first, last = ForgedTable(path.read_bytes()), min(ENTRIES), max(ENTRIES)
    at = forged.data.index(first) - forged.block("data").offset
    forged.change(forged.block("data"), at, b"\xff\xff")
    (tmp_path / "000001.sst").write_bytes(forged.sealed())
    found = key_bounds(tmp_path / "000001.sst")
    assert found is not None and (found[0][:2], found[1][:-8]) == (b"\xff\xff", last)
    size = len(forged.data)
    file = StoreFile(
        1, 1, size, found[0][:3] + found[0][-8:], found[1][:3] + found[1][-8:], (1, 99), 1, (), (True, True)
    )
    with pytest.raises(ValueError, match=r"^000001\.sst: "):
        with_exact_bounds(file, tmp_path / "000001.sst")


def test_an_unknown_marker_is_a_corrupt_file(taken: Snapshot) -> None:
    """The marker is the last field before the epoch; see `compose`."""
    (file,) = parse(taken.store_manifest, "m").files
    marked = compose(StoreManifest((file,), 1))
    at = marked.index(bytes([125, 1, 3]))
    record = bytearray(marked[7:])
    record[at - 7 + 2] = 4
    with raises(CorruptFile, file="m"):
        parse(b"".join(fragments_of(bytes(record))), "m")


def test_rocksdb_refuses_a_manifest_with_prefixes(taken: Snapshot, table: Path) -> None:
    """It would not find keys beyond a prefix. Neither this project nor a reader of stored files can open it so."""
    with raises(InternalError, files=[table.name]):
        write_manifest(table.parent, parse(taken.store_manifest, "m"))
    (table.parent / "MANIFEST-000001").write_bytes(taken.store_manifest)
    (table.parent / "CURRENT").write_text("MANIFEST-000001\n")
    with pytest.raises(Exception, match="Corruption"):
        Rdict(str(table.parent), options=rocksdb_options(RocksDBSettings()))


@given(st.data())
def test_no_damage_of_a_file_changes_its_bounds_without_an_error(data: st.DataObject) -> None:
    """A wrong bound would hide keys: RocksDB does not read the file for keys outside of its bounds."""
    with _store([[*ENTRIES][:20]]) as (folder, _):
        (path,) = folder.glob("*.sst")
        expected, whole = key_bounds(path), path.read_bytes()
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.unlink()
        path.write_bytes(damaged)
        try:
            found = key_bounds(path)
        except ValueError:
            return
        assert found == expected


def test_a_damaged_copy_is_replaced(stores: RocksStoreFixture, taken: Snapshot) -> None:
    (file,) = taken.files
    copy = stores.folder / "host" / file.sha256
    damaged = bytearray(copy.read_bytes())
    damaged[10] ^= 1
    copy.unlink()
    copy.write_bytes(damaged)
    with raises(DamagedCopy, file=file.handle.key) as caught:
        stores.open(taken)
    assert caught.value.retryable
    store = stores.open(taken)
    assert dict(store.scan(b"")) == ENTRIES
    store.close()
