"""Files of canonical savepoints: what is written is read, by an independent reader too, and nothing else is read."""

from __future__ import annotations

import io
import struct
from contextlib import suppress
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.config.settings import LARGEST_KEY, LARGEST_VALUE
from stateflow.errors import CorruptFile
from stateflow.state.backends.canonical_file import (
    CanonicalHeader,
    decode_groups,
    encode_file,
    encode_file_of_columns,
    read_header,
)
from stateflow.state.backends.entry_stream import EntryBlock, EntryColumns, blocks_of, entries_of
from stateflow.state.handles import StateSchema
from stateflow.state.schema import type_schema
from stateflow.types.key_groups import KeyGroupRange
from tests.support import canonical_reader

STATES = [StateSchema(name="totals", kind="value", value_type="int", type=type_schema(int))]
HEADER = CanonicalHeader(
    uid="op", key_types=["string"], max_parallelism=128, first_group=2, last_group=99, states=STATES
)
Entries = dict[bytes, bytes]
entries = st.dictionaries(
    st.tuples(st.integers(2, 99), st.binary(max_size=12)).map(lambda key: struct.pack(">H", key[0]) + key[1]),
    st.binary(max_size=30) | st.just(bytes(100_000)),
    max_size=60,
)


def _file(found: Entries, header: CanonicalHeader = HEADER) -> bytes:
    return b"".join(encode_file(header, blocks_of(sorted(found.items()))))


def _read(data: bytes, first: int = 0, last: int = 127) -> list[tuple[bytes, bytes]]:
    return list(entries_of(decode_groups(io.BytesIO(data), "a file", KeyGroupRange(first, last))))


@given(entries)
def test_entries_are_read_in_the_order_of_keys(found: Entries) -> None:
    assert _read(_file(found)) == sorted(found.items())


def _of_groups(found: Entries, first: int, last: int) -> list[tuple[bytes, bytes]]:
    return sorted((k, v) for k, v in found.items() if first <= int.from_bytes(k[:2]) <= last)


@given(entries, st.integers(0, 127), st.integers(0, 127))
def test_the_entries_of_some_key_groups_are_read(found: Entries, first: int, last: int) -> None:
    first, last = min(first, last), max(first, last)
    assert _read(_file(found), first, last) == _of_groups(found, first, last)


@given(entries)
def test_a_reader_that_knows_the_description_alone_reads_them(found: Entries) -> None:
    file = io.BytesIO(_file(found))
    header = canonical_reader.header(file)
    assert header["uid"] == "op" and [state["name"] for state in header["states"]] == ["totals"]
    groups = dict(canonical_reader.records(file))
    assert sorted(groups) == sorted({int.from_bytes(key[:2]) for key in found})
    for group, inside in groups.items():
        assert inside == sorted((k, v) for k, v in found.items() if int.from_bytes(k[:2]) == group)


@given(entries, st.lists(st.integers(0, 60), max_size=10))
def test_the_blocks_of_a_file_do_not_depend_on_those_of_its_entries(found: Entries, cuts: list[int]) -> None:
    """A block ends with its key group, and with the entry that makes it 256 KiB."""
    stored = sorted(found.items())
    records: list[bytes] = []
    for group, inside in groupby(stored, lambda entry: int.from_bytes(entry[0][:2])):
        items: list[bytes] = []
        for entry in inside:
            items += entry
            if sum(map(len, items)) >= 256 << 10:
                records.append(_block(items))
                items = []
        records += [_block(items), _end(group)] if items else [_end(group)]
    parts = [stored[first:end] for first, end in pairwise(sorted({0, *cuts, len(stored)})) if stored[first:end]]
    blocks = [EntryBlock([key for key, _ in part], [value for _, value in part]) for part in parts]
    wanted = _made(*records, count=len(stored))
    assert b"".join(encode_file(HEADER, blocks)) == wanted
    if parts:
        whole = EntryColumns.of(list(map(itemgetter(0), stored)), list(map(itemgetter(1), stored)))
        bounds = accumulate(map(len, parts), initial=0)
        assert b"".join(encode_file_of_columns(HEADER, (whole.slice(*each) for each in pairwise(bounds)))) == wanted


def test_the_header_describes_keys_and_states() -> None:
    assert read_header(io.BytesIO(_file({})), "a file") == HEADER


def test_the_largest_entry_is_read() -> None:
    found = {struct.pack(">H", 2) + b"k" * (2 * LARGEST_KEY): bytes(LARGEST_VALUE), struct.pack(">H", 3): b"v"}
    assert dict(_read(_file(found))) == found
    columns = EntryColumns.of(list(found), list(found.values()))
    assert b"".join(encode_file_of_columns(HEADER, [columns])) == _file(found)


def _block(group_items: list[bytes], **changed: Any) -> bytes:
    contents = changed.get("contents", msgspec.msgpack.encode(group_items))
    data: bytes = changed.get("data", pa.Codec("lz4").compress(contents, asbytes=True))
    size, checksum = changed.get("size", len(contents)), changed.get("checksum", xxhash.xxh64_intdigest(data))
    return b"\x01" + struct.pack(">IIQ", changed.get("length", len(data)), size, checksum) + data


def _made(*records: bytes, count: int = 1, head: bytes | None = None) -> bytes:
    start = _file({})[:-9] if head is None else head
    return start + b"".join(records) + b"\x00" + struct.pack(">Q", count)


def _end(group: int) -> bytes:
    return b"\x02" + struct.pack(">H", group)


K2, K3, K100, K1 = (struct.pack(">H", group) + b"k" for group in (2, 3, 100, 1))
GOOD = _made(_block([K2, b"v"]), _end(2))
BAD = {
    "another magic": b"SFCX" + GOOD[4:],
    "another version": GOOD[:4] + b"\x02" + GOOD[5:],
    "a header of 4 GB": GOOD[:5] + b"\xff\xff\xff\xff" + GOOD[9:],
    "a header with a wrong checksum": GOOD[:9] + bytes(8) + GOOD[17:],
    "a header that is no object": b"SFCS\x01" + struct.pack(">IQ", 2, xxhash.xxh64_intdigest(b"[]")) + b"[]" + bytes(9),
    "key groups that are no range": _file({}, msgspec.structs.replace(HEADER, last_group=1)),
    "key groups above the number": _file({}, msgspec.structs.replace(HEADER, last_group=128)),
    "a record of another kind": _made(b"\x03", count=0),
    "a block larger than any": _made(_block([K2, b"v"], length=1 << 30)),
    "a size larger than any": _made(_block([K2, b"v"], size=1 << 30), _end(2)),
    "a size below the block's": _made(_block([K2, b"v"], size=2), _end(2)),
    "a size above the block's": _made(_block([K2, b"v"], size=100), _end(2)),
    "a wrong checksum": _made(_block([K2, b"v"], checksum=1), _end(2)),
    "data that is not LZ4": _made(_block([K2, b"v"], data=b"abcdefgh"), _end(2)),
    "contents that are no list of bytes": _made(_block([], contents=msgspec.msgpack.encode([1, 2])), _end(2)),
    "a key without a value": _made(_block([K2]), _end(2)),
    "an empty block": _made(_block([]), _end(2), count=0),
    "a key twice": _made(_block([K2, b"v", K2, b"w"]), _end(2), count=2),
    "keys in another order": _made(_block([K2 + b"k", b"v", K2, b"w"]), _end(2), count=2),
    "blocks in another order": _made(_block([K2 + b"k", b"v"]), _block([K2, b"w"]), _end(2), count=2),
    "a key that is too short": _made(_block([b"\x02", b"v"]), _end(2)),
    "two key groups in a block": _made(_block([K2, b"v", K3, b"v"]), _end(3), count=2),
    "a key group below the range": _made(_block([K1, b"v"]), _end(1)),
    "a key group above the range": _made(_block([K100, b"v"]), _end(100)),
    "no end of a key group": _made(_block([K2, b"v"])),
    "no end before the next key group": _made(_block([K2, b"v"]), _block([K3, b"v"]), _end(3), count=2),
    "the end of another key group": _made(_block([K2, b"v"]), _end(3)),
    "an end without entries": _made(_end(2), count=0),
    "an end twice": _made(_block([K2, b"v"]), _end(2), _end(2)),
    "entries after the end": _made(_block([K2, b"v"]), _end(2), _block([K2 + b"k", b"v"]), _end(2), count=2),
    "a wrong count": _made(_block([K2, b"v"]), _end(2), count=2),
    "bytes after the end": GOOD + b"\x00",
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_not_as_described_is_refused(name: str) -> None:
    assert _read(GOOD) == [(K2, b"v")]
    with pytest.raises(CorruptFile):
        _read(BAD[name])


def test_a_truncated_file_is_refused() -> None:
    data = _file({struct.pack(">H", group) + b"k": b"v" for group in (2, 3, 99)})
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            _read(data[:size])


@given(st.integers(0, 8 * len(GOOD) - 1))
def test_a_flipped_bit_is_an_error(bit: int) -> None:
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFile):
        _read(bytes(data))


SEVERAL = {struct.pack(">HB", group, n): bytes([group, n]) for group in (2, 4, 5, 8, 12) for n in range(3)}


def test_blocks_of_distant_key_groups_are_not_read() -> None:
    data = bytearray(_file(SEVERAL))
    # The data of a block of the first key group, which follows the block's kind, lengths and checksum.
    data[len(_made(count=0)) - 9 + 17] ^= 1
    assert _read(bytes(data), 5, 8) == _of_groups(SEVERAL, 5, 8)
    with pytest.raises(CorruptFile):
        _read(bytes(data), 0, 8)


@pytest.mark.parametrize(("first", "last"), [(2, 2), (4, 5), (5, 8), (6, 7), (12, 13)])
def test_no_flipped_bit_hides_an_entry_of_the_selected_key_groups(first: int, last: int) -> None:
    intact = _file(SEVERAL)
    for bit in range(8 * (len(_made(count=0)) - 9), 8 * len(intact)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptFile):
            assert _read(bytes(data), first, last) == _of_groups(SEVERAL, first, last), bit


def test_the_error_for_a_newer_version_of_the_format_names_the_version() -> None:
    with pytest.raises(CorruptFile) as caught:
        read_header(io.BytesIO(BAD["another version"]), "a file")
    assert "version 2" in str(caught.value.facts["reason"])


def test_a_flipped_bit_does_not_move_a_key_group_before_the_selected_ones() -> None:
    """One bit makes 4 of 6, which would be in order as well."""
    entries = {struct.pack(">HB", group, 0): bytes([group]) for group in (2, 6, 8)}
    intact = _file(entries)
    for bit in range(8 * (len(_made(count=0)) - 9), 8 * len(intact)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptFile):
            assert _read(bytes(data), 6, 6) == _of_groups(entries, 6, 6), bit
