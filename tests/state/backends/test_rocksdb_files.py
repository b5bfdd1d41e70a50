"""RocksDB's files: log, manifest and data files are read as RocksDB wrote them; forged ones are refused."""

from __future__ import annotations

import dataclasses
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from stateflow.config.settings import LARGEST_KEY, LARGEST_VALUE, RocksDBSettings
from stateflow.errors import CorruptFile
from stateflow.state.backends.base import StoreSnapshot
from stateflow.state.backends.rocksdb.backend import rocksdb_options, without_wal
from stateflow.state.backends.rocksdb.check import LONGEST_BOUND, with_exact_bounds, with_prefixes
from stateflow.state.backends.rocksdb.manifest import (
    ManifestFollower,
    StoreFile,
    StoreManifest,
    checksum,
    compose,
    fragments_of,
    parse,
    read_records,
)
from stateflow.state.backends.rocksdb.tables import (
    Blocks,
    PartFile,
    TableReader,
    check_blocks,
    check_table_file,
    key_bounds,
)
from stateflow.storage import MemoryStorage
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises
from tests.support.stores import RocksStoreFixture
from tests.support.table_files import ATTACKS, ForgedTable, write_loaded_store, write_store

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


@pytest.mark.parametrize("left", [1, HEADER - 1, HEADER, HEADER + 1, 20])
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


NUMBERS = st.integers(1, 1 << 55)
MANIFEST_KEYS = st.binary(min_size=10, max_size=40)
DETAILS = st.lists(st.tuples(st.sampled_from([5, 6, 7, 12, 15]), st.binary(max_size=20)))


@st.composite
def _files(draw: st.DrawFn) -> StoreFile:
    smallest, largest = sorted([draw(MANIFEST_KEYS), draw(MANIFEST_KEYS)], key=lambda key: key[:-8])
    first, last = sorted([draw(NUMBERS), draw(NUMBERS)])
    level, number, size, epoch = draw(st.integers(0, 6)), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)
    return StoreFile(number, level, size, smallest, largest, (first, last), epoch, tuple(draw(DETAILS)))


FILE = StoreFile(2, 6, 1, struct.pack(">HQ", 1, 1), struct.pack(">HQ", 1, 1), (0, 0), 1)


@given(st.lists(_files(), unique_by=lambda f: f.number), NUMBERS)
def test_what_is_written_is_read(files: list[StoreFile], last: int) -> None:
    manifest = StoreManifest(tuple(files), last)
    assert parse(compose(manifest), "m") == manifest


@pytest.mark.parametrize(
    "forged",
    [
        {"level": 7},
        {"level": 1 << 31},
        {"number": 0},
        {"number": 1 << 63},
        {"size": 0},
        {"size": 1 << 63},
        {"epoch": 1 << 63},
        {"sequences": (2, 1)},
        {"sequences": (0, (1 << 55) + 1)},
        {"smallest": struct.pack(">HQ", 2, 1)},
        {"largest": b"short"},
    ],
    ids=str,
)
def test_numbers_that_no_store_has_are_a_corrupt_file(forged: dict[str, Any]) -> None:
    manifest = compose(StoreManifest((dataclasses.replace(FILE, **forged),), 7))
    with raises(CorruptFile, file="m"):
        parse(manifest, "m")


@given(st.data())
def test_any_flipped_bit_or_missing_end_is_a_corrupt_file(data: st.DataObject) -> None:
    whole = compose(StoreManifest((FILE,), 7))
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[: max(at, 1)]):
        with raises(CorruptFile, file="the manifest"):
            parse(damaged, "the manifest")


@pytest.mark.parametrize(
    ("edit", "tag"),
    [(b"\xc9\x01\x01x", 201), (b"\x90\x03", 400), (b"\xc8\x01\x05", 200)],
    ids=["a second column family", "a blob file", "an edit of another column family"],
)
def test_an_unknown_edit_is_refused(edit: bytes, tag: int) -> None:
    with raises(CorruptFile, tag=tag):
        parse(b"".join(fragments_of(edit)), "m")


ENTRIES = {struct.pack(">HQ", n, n) + bytes(n % 20): bytes(n * 7 % 300) for n in range(100)}
LARGEST_MEMORY_KB = 100 << 10


def _tables(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without compression, so that any byte of a block can be changed."""
    folder = tmp_path_factory.mktemp("plain") / "store"
    write_store(folder, ENTRIES, DBCompressionType.none())
    return folder


@given(
    st.dictionaries(st.binary(min_size=2, max_size=300), st.binary(max_size=20_000), min_size=1, max_size=60),
    st.sampled_from([DBCompressionType.none, DBCompressionType.lz4]),
)
def test_every_file_that_rocksdb_writes_is_accepted(
    entries: dict[bytes, bytes], compression: Callable[[], DBCompressionType]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        write_store(store, entries, compression())
        assert len(_tables(store)) == 2
        for path in _tables(store):
            check_table_file(path)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_forged_file_is_refused(plain: Path, tmp_path: Path, attack: Callable[[ForgedTable], None]) -> None:
    table = ForgedTable(_tables(plain)[0].read_bytes())
    attack(table)
    (tmp_path / "forged").write_bytes(table.sealed())
    with pytest.raises(ValueError):
        check_table_file(tmp_path / "forged")


@pytest.mark.parametrize(
    ("made", "forged"),
    [
        (b"version\2", b"version\1"),
        (b"version\2", b"version\3"),
        (b"version", b"versiom"),
        (b"global_seqno\0", b"global_seqno\1"),
        (b"global_seqno", b"global_seqnp"),
    ],
)
def test_a_loaded_file_is_accepted_and_none_that_was_made_in_another_way(
    tmp_path: Path, made: bytes, forged: bytes
) -> None:
    """RocksDB reads the values of these properties without checking their sizes."""
    write_loaded_store(tmp_path / "store", ENTRIES)
    for path in _tables(tmp_path / "store"):
        check_table_file(path)
    table = ForgedTable(_tables(tmp_path / "store")[0].read_bytes())
    block = table.block("properties")
    table.change(block, table.data.index(made, block.offset) - block.offset, forged)
    (tmp_path / "forged").write_bytes(table.sealed())
    with pytest.raises(ValueError):
        check_table_file(tmp_path / "forged")


@pytest.mark.parametrize(("kind", "is_accepted"), [(0, True), (1, True), (2, False), (15, False), (22, False)])
def test_a_kind_that_an_entry_shares_with_the_key_before_is_checked(kind: int, is_accepted: bool) -> None:
    """The second key is ``x``; its kind is the second byte of the first key."""
    sequence = bytes(7)
    first = bytes([0, 10, 0]) + b"x" + bytes([kind, 1]) + sequence
    second = bytes([2, 7, 0]) + sequence
    block = first + second + struct.pack("<II", 0, 1)
    if is_accepted:
        check_blocks(Blocks.joined([block]))
    else:
        with pytest.raises(ValueError):
            check_blocks(Blocks.joined([block]))


@pytest.mark.parametrize(
    "value", [bytes(LARGEST_VALUE), random.Random(1).randbytes(LARGEST_VALUE)], ids=["compressed", "not compressed"]
)
def test_the_largest_entry_that_settings_permit_is_accepted_in_100_mb(value: bytes, tmp_path: Path) -> None:
    key = b"\0\1" + b"k" * 2 * LARGEST_KEY
    write_store(tmp_path / "store", {key: value}, DBCompressionType.lz4())
    path = _tables(tmp_path / "store")[0]
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from stateflow.state.backends.rocksdb.tables import check_table_file, key_bounds\n"
        "def peak():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before, path = peak(), Path(sys.argv[1])\n"
        "check_table_file(path)\n"
        "print(peak() - before, key_bounds(path)[1][:-8] == b'\\0\\1' + b'k' * int(sys.argv[2]), peak() - before)"
    )
    command = [sys.executable, "-c", program, str(path), str(2 * LARGEST_KEY)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    checked_kb, is_right, all_kb = ended.stdout.split()
    assert is_right == "True" and int(checked_kb) <= int(all_kb) < LARGEST_MEMORY_KB


Changes = Mapping[bytes, bytes | None]
KEYS = st.binary(min_size=1, max_size=3) | st.binary(min_size=1, max_size=2).map(lambda key: key + b"k" * 200)
VALUES = st.none() | st.integers(0, 9).map(lambda n: bytes([n]) * (n * n * 3)) | st.just(b"v" * 20_000)
LAST_KEY = b"\xff" * 300


def written(changes: Sequence[Changes], *deleted: tuple[bytes, bytes]) -> bytes:
    """The only data file of a store with these changes."""
    with tempfile.TemporaryDirectory() as folder:
        store = Rdict(folder, options=rocksdb_options(RocksDBSettings()))
        store.set_write_options(without_wal())
        for each in changes:
            batch = WriteBatch(raw_mode=True)
            for key, value in each.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            store.write(batch)
        for first, end in deleted:
            store.delete_range(first, end)
        store.flush()
        store.close()
        [file] = Path(folder).glob("*.sst")
        return file.read_bytes()


def opened(data: bytes, gap: int = 0) -> tuple[TableReader, PartFile]:
    file = PartFile(lambda offset, size: data[offset : offset + size])
    return TableReader(file, len(data), 0, gap), file


@given(
    st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=150), min_size=1, max_size=3),
    st.lists(st.tuples(KEYS, KEYS), max_size=6),
    st.sampled_from([0, 1 << 20]),
)
def test_the_entries_of_ranges_are_those_that_were_written(
    changes: list[Changes], wanted: list[tuple[bytes, bytes]], gap: int
) -> None:
    newest: dict[bytes, bytes | None] = {}
    for each in changes:
        newest |= each
    reader, _ = opened(written(changes), gap)
    everything = list(reader.entries([(b"", LAST_KEY)]))
    assert {entry.key: entry.value for entry in everything} == newest
    assert [entry.key for entry in everything] == sorted(newest)
    bounds = sorted({bound for pair in wanted for bound in pair})
    ranges = list(zip(bounds[::2], bounds[1::2], strict=False)) + [(key, key + b"\0") for key in bounds[-1:]]
    for chosen in (ranges, [(key, key + b"\0") for key in sorted(newest)]):
        found = [(entry.key, entry.value) for entry in reader.entries(chosen)]
        within = [key for key in sorted(newest) if any(first <= key < end for first, end in chosen)]
        assert found == [(key, newest[key]) for key in within]


def test_later_changes_have_larger_sequence_numbers_and_deleted_ranges_have_theirs() -> None:
    reader, _ = opened(written([{b"a": b"1"}, {b"b": b"2"}], (b"c", b"d")))
    first, second = reader.entries([(b"", LAST_KEY)])
    [deleted] = reader.deleted_ranges
    assert first.sequence < second.sequence < deleted.sequence
    assert deleted.keys == (b"c", b"d")


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5])
def test_a_damaged_block_is_an_error(part: float) -> None:
    data = bytearray(written([{b"%05d" % number: b"%d" % number for number in range(2_000)}]))
    data[int(len(data) * part)] ^= 1
    with pytest.raises(ValueError, match=r"."):
        list(opened(bytes(data))[0].entries([(b"", LAST_KEY)]))


COMMON = b"k" * 100
"""Longer than a stored bound: keys differ only after it."""
TRAILER = 8
GROUPS = st.integers(0, 3)
LONG_KEYS = st.builds(lambda group, end: struct.pack(">H", group) + COMMON + end, GROUPS, st.binary(max_size=3))
STEPS = st.lists(
    st.one_of(
        st.lists(LONG_KEYS, min_size=1, max_size=8),
        st.tuples(GROUPS, st.integers(1, 2)),
        st.tuples(LONG_KEYS, LONG_KEYS),
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


@pytest.mark.long(reason="writes many files")
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


def test_the_end_of_a_deleted_range_is_exclusive_and_stored_whole_if_the_file_does_not_have_it() -> None:
    exclusive = b"\x0f" + b"\xff" * 7
    with _store([[struct.pack(">H", 1) + COMMON]]) as (folder, _):
        (file,) = ManifestFollower(folder).read().files
        cut = dataclasses.replace(file, largest=file.largest[:-TRAILER] + b"z" + exclusive)
        stored = with_prefixes(cut, folder / file.name)
    assert (stored.largest, stored.prefixes) == (cut.largest, (True, False))
    assert dataclasses.replace(file, largest=struct.pack(">H", 3) + exclusive).groups == KeyGroupRange(1, 2)


LONG_ENTRIES = {struct.pack(">H", n) + COMMON * 10 + b"%d" % n: b"%d" % n * 99 for n in range(100)}


@pytest.fixture
def stores(tmp_path: Path) -> RocksStoreFixture:
    return RocksStoreFixture(tmp_path, MemoryStorage())


@pytest.fixture
def taken(stores: RocksStoreFixture) -> StoreSnapshot:
    """A snapshot of one data file with long bounds."""
    return stores.snapshot_of(LONG_ENTRIES)


def _with(taken: StoreSnapshot, **changed: Any) -> StoreSnapshot:
    """The snapshot with another entry of its file in the manifest."""
    manifest = parse(taken.store_manifest, "m")
    (file,) = manifest.files
    changed_file = dataclasses.replace(file, **changed)
    return dataclasses.replace(taken, store_manifest=compose(dataclasses.replace(manifest, files=(changed_file,))))


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
    ("bound", "key", "trailer"),
    [("smallest", b"\0\0l", None), ("largest", b"\0\x63" + COMMON, bytes(TRAILER))],
    ids=["other key", "other trailer"],
)
def test_bounds_that_are_no_prefixes_of_the_files_keys_are_a_corrupt_file(
    stores: RocksStoreFixture, taken: StoreSnapshot, bound: str, key: bytes, trailer: bytes | None
) -> None:
    (file,), (stored,) = taken.files, parse(taken.store_manifest, "m").files
    forged = key + (trailer or getattr(stored, bound)[-TRAILER:])
    with raises(CorruptFile, file=file.handle.key):
        stores.open(_with(taken, **{bound: forged}), "other")


def test_keys_that_are_not_in_order_are_refused(tmp_path: Path) -> None:
    """A user who can forge checksums can also write keys in any order, and prefixes that fit them."""
    options = rocksdb_options(RocksDBSettings())
    options.set_compression_type(DBCompressionType.none())
    store = Rdict(str(tmp_path / "store"), options=options)
    store.set_write_options(without_wal())
    for key, value in LONG_ENTRIES.items():
        store[key] = value
    store.close()
    (path,) = (tmp_path / "store").glob("*.sst")
    forged, first, last = ForgedTable(path.read_bytes()), min(LONG_ENTRIES), max(LONG_ENTRIES)
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


@given(st.data())
def test_no_damage_of_a_file_changes_its_bounds_without_an_error(data: st.DataObject) -> None:
    """A wrong bound would hide keys: RocksDB does not read the file for keys outside of its bounds."""
    with _store([[*LONG_ENTRIES][:20]]) as (folder, _):
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
