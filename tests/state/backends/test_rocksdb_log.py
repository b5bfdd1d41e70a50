"""RocksDB's log format: files that RocksDB wrote with records at every rest of a block, cut off anywhere."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stateflow.state.backends.rocksdb.manifest import (
    ManifestFollower,
    StoreManifest,
    checksum,
    fragments_of,
    parse,
    read_records,
)
from tests.support.stores import RocksStoreFixture

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class Store:
    """A RocksDB whose manifest grows by edits of a chosen size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_disable_auto_compactions(True)
        options.set_max_open_files(64)
        self._db = Rdict(str(folder), options)
        self.follower = ManifestFollower(folder)
        self.ends: list[int] = []

    @property
    def manifest(self) -> Path:
        (path,) = self.folder.glob("MANIFEST-*")
        return path

    @property
    def left(self) -> int:
        """How many bytes the manifest's last block has left."""
        return BLOCK - self.manifest.stat().st_size % BLOCK

    def add_edit(self, key_bytes: int) -> int:
        """Adds a file whose two bounds have so many bytes together; returns how many bytes the manifest grew by."""
        before = self.manifest.stat().st_size
        first = key_bytes // 2
        self._db[b"\0\1a".ljust(first, b".")] = b""
        self._db[b"\0\1b".ljust(key_bytes - first, b".")] = b""
        self._db.flush()
        self.ends.append(self.manifest.stat().st_size)
        return self.ends[-1] - before

    def merge(self) -> None:
        """Merges all files into one, so that there are not too many."""
        self._db.compact_range(None, None)

    def check(self) -> None:
        """Following the manifest gives the files that RocksDB has."""
        self._compare(self.follower.read())

    def check_all(self) -> None:
        """So does reading it at once."""
        self.check()
        self._compare(parse(self.manifest.read_bytes(), self.manifest.name))

    def _compare(self, found: StoreManifest) -> None:
        known = {f["name"].lstrip("/"): (f["level"], f["size"]) for f in self._db.live_files()}
        assert {f.name: (f.level, f.size) for f in found.files} == known

    def close(self) -> None:
        self._db.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def fill_to(store: Store, left: int) -> None:
    """Adds edits until exactly so many bytes are left in a block of the manifest."""
    usual = 3000
    fixed = store.add_edit(usual) - usual
    for _ in range(100):
        # An edit of about the usual size, within a block, has the same number of bytes in addition to its keys.
        wanted = store.left - left - fixed
        store.add_edit(wanted if usual / 2 < wanted < 2 * usual else usual)
        if store.left == left:
            return
    raise AssertionError("the wanted size of the manifest was not met")


def check_cuts(store: Store, start: int) -> None:
    """Cut off anywhere after the record that ends at `start`, the log gives the records before the cut, then an error
    unless it ends between two records."""
    data = store.manifest.read_bytes()
    following = list(read_records(data[start:], start))
    assert [*read_records(data[:start], 0), *following] == list(read_records(data, 0))
    whole: list[bytes] = []
    for cut in range(start, len(data) + 1):
        found: list[bytes] = []
        try:
            found.extend(read_records(data[start:cut], start))
        except (ValueError, struct.error):
            assert cut not in store.ends and found == whole
        else:
            whole = found
            assert [*found, *read_records(data[cut:], cut)] == following


@pytest.mark.parametrize("left", [*range(1, 12), 20])
def test_a_record_that_begins_with_few_bytes_left_in_a_block_is_read(store: Store, left: int) -> None:
    fill_to(store, left)
    store.check()
    store.add_edit(100)
    if left == HEADER:
        # RocksDB writes an empty fragment there.
        at = store.ends[-1] // BLOCK * BLOCK - HEADER
        assert struct.unpack_from("<HB", store.manifest.read_bytes(), at + 4) == (0, FIRST)
    store.check()
    check_cuts(store, store.ends[-2])
    store.add_edit(20_000)
    store.check_all()


def test_records_over_many_blocks_are_read_and_cut_ones_refused(store: Store) -> None:
    rng = random.Random(0)
    for number in range(60):
        store.add_edit(rng.choice([40, 300, 5_000, 70_000]))
        if number % 20 == 19:
            store.merge()
        store.check()
    store.check_all()
    data = store.manifest.read_bytes()
    assert len(data) > 20 * BLOCK
    start, end = next((a, b) for a, b in pairwise(store.ends) if b - a > 2 * BLOCK)
    for cut in range(start // BLOCK * BLOCK + BLOCK, end, BLOCK):
        with pytest.raises((ValueError, struct.error)):
            list(read_records(data[start:cut], start))


@pytest.mark.parametrize(
    "kinds", [(MIDDLE,), (LAST,), (FIRST, FIRST), (FIRST, FULL), (FULL, LAST), (FIRST, MIDDLE), (5,), (0,)]
)
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_fragments_in_another_order_are_refused(kinds: tuple[int, ...], payload: bytes) -> None:
    data = b"".join(struct.pack("<IHB", checksum(k, payload), len(payload), k) + payload for k in kinds)
    with pytest.raises(ValueError):
        list(read_records(data, 0))


@pytest.mark.parametrize("size", [0, 1, BLOCK - HEADER, BLOCK - HEADER + 1, 3 * BLOCK])
def test_a_record_is_written_in_full_blocks(size: int) -> None:
    record = random.Random(size).randbytes(size)
    fragments = list(fragments_of(record))
    assert list(read_records(b"".join(fragments), 0)) == [record]
    assert all(len(fragment) == BLOCK for fragment in fragments[:-1])


@pytest.mark.slow
def test_a_store_stays_open_for_thousands_of_snapshots(tmp_path: Path) -> None:
    """As in a long run: nothing closes the store, and each batch changes a little of it."""
    stores = RocksStoreFixture(tmp_path)
    store, rng = stores.new(), random.Random(7)
    expected: dict[bytes, bytes] = {}
    for number in range(3_000):
        changes = {b"\0\1" + rng.randbytes(rng.choice([2, 2, 60])): b"%d" % number for _ in range(rng.randint(1, 3))}
        store.write(changes)
        expected |= changes
        taken = store.snapshot(stores.prefix())
    assert dict(store.scan(b"")) == expected
    store.close()
    restored = stores.open(taken, host="another host")
    assert dict(restored.scan(b"")) == expected
    restored.close()
