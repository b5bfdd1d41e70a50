"""RocksDB's manifest: what is written is read, what RocksDB writes is read as it reports it, and damage is found."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from stateflow.errors import CorruptFile
from stateflow.state.backends.rocksdb.manifest import (
    ManifestFollower,
    StoreFile,
    StoreManifest,
    compose,
    fragments_of,
    parse,
)
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises

NUMBERS = st.integers(1, 1 << 55)
KEYS = st.binary(min_size=10, max_size=40)
DETAILS = st.lists(st.tuples(st.sampled_from([5, 6, 7, 12, 15]), st.binary(max_size=20)))


@st.composite
def _files(draw: st.DrawFn) -> StoreFile:
    smallest, largest = sorted([draw(KEYS), draw(KEYS)], key=lambda key: key[:-8])
    first, last = sorted([draw(NUMBERS), draw(NUMBERS)])
    level, number, size, epoch = draw(st.integers(0, 6)), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS)
    return StoreFile(number, level, size, smallest, largest, (first, last), epoch, tuple(draw(DETAILS)))


FILE = StoreFile(2, 6, 1, struct.pack(">HQ", 1, 1), struct.pack(">HQ", 1, 1), (0, 0), 1)


@given(st.lists(_files(), unique_by=lambda f: f.number), NUMBERS)
def test_what_is_written_is_read(files: list[StoreFile], last: int) -> None:
    manifest = StoreManifest(tuple(files), last)
    assert parse(compose(manifest), "m") == manifest


def test_files_are_those_that_rocksdb_reports(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    store = Rdict(str(tmp_path / "store"), options)
    follower = ManifestFollower(tmp_path / "store")
    for number in range(3):
        store[struct.pack(">HI", number, 1)] = b"x"
        store[struct.pack(">HI", number + 5, 1)] = b"x"
        store.flush()
        assert len(follower.read().files) == number + 1
    store.compact_range(None, None)
    store[struct.pack(">HI", 2, 1)] = b"x"
    store.flush()
    store.delete_range(struct.pack(">H", 4), struct.pack(">H", 6))
    store.flush()
    known = {f["name"].lstrip("/"): (f["level"], f["size"]) for f in store.live_files()}
    (path,) = (tmp_path / "store").glob("MANIFEST-*")
    found = parse(path.read_bytes(), path.name)
    assert follower.read() == found and follower.read() == found
    store.close()
    assert {f.name: (f.level, f.size) for f in found.files} == known
    by_age = sorted(found.files, key=lambda f: f.epoch)
    assert [f.groups for f in by_age] == [KeyGroupRange(0, 7), KeyGroupRange(2, 2), KeyGroupRange(4, 5)]


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


def test_a_last_sequence_number_that_no_store_has_is_a_corrupt_file() -> None:
    with raises(CorruptFile, file="m"):
        parse(compose(StoreManifest((FILE,), (1 << 55) + 1)), "m")


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
