"""Single blocks of a data file are read by key: what is found is what was written, and damage is an error."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Rdict, WriteBatch

from stateflow.config.settings import RocksDBSettings
from stateflow.state.backends.rocksdb.backend import rocksdb_options, without_wal
from stateflow.state.backends.rocksdb.tables import PartFile, TableReader

Changes = Mapping[bytes, bytes | None]
KEYS = st.binary(min_size=1, max_size=3) | st.binary(min_size=1, max_size=2).map(lambda key: key + b"k" * 200)
VALUES = st.none() | st.integers(0, 9).map(lambda n: bytes([n]) * (n * n * 3)) | st.just(b"v" * 20_000)
LAST = b"\xff" * 300


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
    everything = list(reader.entries([(b"", LAST)]))
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
    first, second = reader.entries([(b"", LAST)])
    [deleted] = reader.deleted_ranges
    assert first.sequence < second.sequence < deleted.sequence
    assert deleted.keys == (b"c", b"d")


def test_only_the_blocks_that_may_have_a_key_are_read() -> None:
    data = written([{b"%05d" % number: bytes(100) + b"%d" % number for number in range(20_000)}])
    reader, file = opened(data)
    list(reader.entries([(b"00000", b"00001")]))
    before = file.read_bytes
    assert [entry.key for entry in reader.entries([(b"10000", b"10001"), (b"19999", b"20000")])] == [b"10000", b"19999"]
    assert 0 < file.read_bytes - before < 20_000 < len(data) / 5


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5])
def test_a_damaged_block_is_an_error(part: float) -> None:
    data = bytearray(written([{b"%05d" % number: b"%d" % number for number in range(2_000)}]))
    data[int(len(data) * part)] ^= 1
    with pytest.raises(ValueError, match=r"."):
        list(opened(bytes(data))[0].entries([(b"", LAST)]))


def test_a_file_that_ends_early_is_an_error() -> None:
    data = written([{b"%05d" % number: b"%d" % number for number in range(2_000)}])
    file = PartFile(lambda offset, size: data[offset : min(offset + size, len(data) - 60)])
    with pytest.raises(ValueError, match=r"."):
        TableReader(file, len(data), 0)
