"""RocksDB's log format: every fragmentation, every truncation, and files that RocksDB wrote."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from stateflow.state.backends.rocksdb_log import checksum, fragments_of, read_records
from stateflow.state.backends.rocksdb_manifest import ManifestFollower, StoreManifest, parse
from tests.support.stores import RocksStoreFixture

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
INPUTS_OF_TEST, INPUTS_OF_TEST_ALL = 500, 100_000


@dataclass(frozen=True)
class Written:
    """A log from some offset of its file on.

    Attributes:
        ends: behind each record, where the log would be whole if it were cut off there.
        kinds: of all fragments, with the size of their payloads.
    """

    data: bytes
    ends: tuple[int, ...]
    kinds: tuple[tuple[int, int], ...]


def write_log(records: Sequence[bytes], offset: int) -> Written:
    """What `log::Writer::AddRecord` of RocksDB 9 writes, translated step by step."""
    data, ends, kinds = bytearray(), [], []
    block_offset = offset % BLOCK
    for record in records:
        left, begin = record, True
        while begin or left:
            leftover = BLOCK - block_offset
            if leftover < HEADER:
                data += bytes(leftover)
                block_offset = 0
            fragment = left[: BLOCK - block_offset - HEADER]
            left = left[len(fragment) :]
            end = not left
            kind = (FULL if end else FIRST) if begin else (LAST if end else MIDDLE)
            data += struct.pack("<IHB", checksum(kind, fragment), len(fragment), kind) + fragment
            kinds.append((kind, len(fragment)))
            block_offset += HEADER + len(fragment)
            begin = False
        ends.append(len(data))
    return Written(bytes(data), tuple(ends), tuple(kinds))


def check_cut(log: Written, records: Sequence[bytes], offset: int, cut: int) -> None:
    """A log that is cut off gives the records before the cut, then an error unless it ends between two records."""
    whole = [record for record, end in zip(records, log.ends, strict=True) if end <= cut]
    found: list[bytes] = []
    last_end = max((end for end in log.ends if end <= cut), default=0)
    padding = BLOCK - (offset + last_end) % BLOCK
    is_whole = cut == last_end or (padding < HEADER and cut <= last_end + padding)
    try:
        found.extend(read_records(log.data[:cut], offset))
    except (ValueError, struct.error):
        assert not is_whole, cut
    else:
        assert is_whole, cut
    assert found == whole


LEFT = st.one_of(st.integers(1, 12), st.integers(1, 40), st.integers(1, BLOCK))
SIZES = st.one_of(st.integers(0, 80), st.sampled_from([BLOCK - HEADER + n for n in range(-8, 9)]))


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """An offset, mostly shortly before the end of a block, and records; few of them large, for speed."""
    offset = BLOCK * draw(st.integers(0, 3)) + BLOCK - draw(LEFT)
    sizes = draw(st.lists(st.integers(0, 40), max_size=6))
    if draw(st.integers(0, 19)) == 0:
        sizes.insert(draw(st.integers(0, len(sizes))), draw(SIZES))
    return offset, [bytes([n + 1]) * size for n, size in enumerate(sizes)]


def check_log(given_log: tuple[int, list[bytes]], dice: random.Random) -> None:
    """What is written is read, and some truncation is noticed."""
    offset, records = given_log
    log = write_log(records, offset)
    assert list(read_records(log.data, offset)) == records
    check_cut(log, records, offset, dice.randint(0, len(log.data)))


@settings(max_examples=INPUTS_OF_TEST)
@given(logs(), st.randoms(use_true_random=False))
def test_records_of_any_fragmentation_are_read(log: tuple[int, list[bytes]], dice: random.Random) -> None:
    check_log(log, dice)


@pytest.mark.slow
def test_records_of_many_fragmentations_are_read() -> None:
    """The same from plain dice: Hypothesis takes ten times as long for an input as the reader."""
    for seed in range(INPUTS_OF_TEST_ALL):
        dice = random.Random(seed)
        offset = BLOCK - dice.choice([dice.randint(1, 12), dice.randint(1, 40), dice.randint(1, BLOCK)])
        sizes = [dice.randint(0, 40) for _ in range(dice.randint(0, 6))]
        if dice.random() < 0.01:
            sizes.append(BLOCK - HEADER + dice.randint(-8, 8))
            dice.shuffle(sizes)
        check_log((offset, [bytes([n + 1]) * size for n, size in enumerate(sizes)]), dice)


def test_every_rest_of_a_block_and_every_truncation() -> None:
    """Two records, of which the first starts with so many bytes left in its block."""
    for left, size in product(range(1, 24), (0, 1, 6, 7, 8, 9, 15, 30)):
        records = [b"a" * size, b"b" * 5]
        offset = BLOCK - left
        log = write_log(records, offset)
        assert list(read_records(log.data, offset)) == records
        for cut in range(len(log.data) + 1):
            check_cut(log, records, offset, cut)


def test_a_first_fragment_may_be_empty() -> None:
    log = write_log([b"record"], BLOCK - HEADER)
    assert log.kinds == ((FIRST, 0), (LAST, 6))
    assert list(read_records(log.data, BLOCK - HEADER)) == [b"record"]
    with pytest.raises(ValueError):
        list(read_records(log.data[:HEADER], BLOCK - HEADER))


@pytest.mark.parametrize(
    "kinds", [(MIDDLE,), (LAST,), (FIRST, FIRST), (FIRST, FULL), (FULL, LAST), (FIRST, MIDDLE), (5,), (0,)]
)
@pytest.mark.parametrize("payload", [b"", b"x"])
def test_fragments_in_another_order_are_refused(kinds: tuple[int, ...], payload: bytes) -> None:
    data = b"".join(struct.pack("<IHB", checksum(k, payload), len(payload), k) + payload for k in kinds)
    with pytest.raises(ValueError):
        list(read_records(data, 0))


@pytest.mark.parametrize("size", [0, 1, BLOCK - HEADER, BLOCK - HEADER + 1, 3 * BLOCK])
def test_what_is_written_for_rocksdb_is_what_rocksdb_would_write(size: int) -> None:
    record = random.Random(size).randbytes(size)
    assert b"".join(fragments_of(record)) == write_log([record], 0).data


# -- files that RocksDB wrote ---------------------------------------------------------------------------------------


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
        return self.manifest.stat().st_size - before

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
        # Near the usual size, and within a block, an edit has as many bytes besides its keys as the others.
        wanted = store.left - left - fixed
        store.add_edit(wanted if usual / 2 < wanted < 2 * usual else usual)
        if store.left == left:
            return
    raise AssertionError("the wanted size of the manifest was not met")


@pytest.mark.parametrize("left", [*range(1, 12), 20])
def test_a_manifest_of_rocksdb_with_few_bytes_left_in_a_block(store: Store, left: int) -> None:
    fill_to(store, left)
    store.check()
    store.add_edit(100)
    if left == HEADER:
        # Not only as this test understands the format: RocksDB did write an empty fragment there.
        at = store.manifest.stat().st_size // BLOCK * BLOCK - HEADER
        assert struct.unpack_from("<HB", store.manifest.read_bytes(), at + 4) == (0, FIRST)
    store.check()
    store.add_edit(20_000)
    store.check_all()


@pytest.mark.parametrize("seed", range(3))
def test_a_manifest_of_rocksdb_over_many_blocks(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(60):
        store.add_edit(dice.choice([40, 300, 5_000, 70_000]))
        if number % 20 == 19:
            store.merge()
        store.check()
    store.check_all()
    assert store.manifest.stat().st_size > 20 * BLOCK


@pytest.mark.slow
def test_a_store_stays_open_for_thousands_of_snapshots(tmp_path: Path) -> None:
    """As in a long run: nothing closes the store, and each batch changes a little of it."""
    stores = RocksStoreFixture(tmp_path)
    store, dice = stores.new(), random.Random(7)
    expected: dict[bytes, bytes] = {}
    for number in range(3_000):
        changes = {b"\0\1" + dice.randbytes(dice.choice([2, 2, 60])): b"%d" % number for _ in range(dice.randint(1, 3))}
        store.write(changes)
        expected |= changes
        taken = store.snapshot(stores.prefix())
    assert dict(store.scan(b"")) == expected
    store.close()
    restored = stores.open(taken, host="another host")
    assert dict(restored.scan(b"")) == expected
    restored.close()
