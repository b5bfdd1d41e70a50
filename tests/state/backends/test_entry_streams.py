"""Streams of entries: canonical files, and what the memory and filesystem backends store; anything else is refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, groupby, pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import ManualClock
from stateflow.config.settings import BACKENDS, LARGEST_KEY, LARGEST_VALUE, RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile
from stateflow.state.backends import hash_maps
from stateflow.state.backends.canonical_file import CanonicalHeader, decode_groups, encode_file, encode_file_of_columns
from stateflow.state.backends.entry_stream import EntryBlock, EntryColumns, blocks_of, entries_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.handles import Base, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.schema import type_schema
from stateflow.storage import MemoryStorage
from stateflow.testing.conformance.state_backend import GROUPS, key_of
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


def _of_groups(found: Entries, first: int, last: int) -> list[tuple[bytes, bytes]]:
    return sorted((k, v) for k, v in found.items() if first <= int.from_bytes(k[:2]) <= last)


@given(entries, st.integers(0, 127), st.integers(0, 127))
def test_entries_are_read_in_the_order_of_keys_also_by_a_reader_that_knows_the_description_alone(
    found: Entries, first: int, last: int
) -> None:
    first, last = min(first, last), max(first, last)
    assert _read(_file(found)) == sorted(found.items())
    assert _read(_file(found), first, last) == _of_groups(found, first, last)
    file = io.BytesIO(_file(found))
    header = canonical_reader.header(file)
    assert header["uid"] == "op" and [state["name"] for state in header["states"]] == ["totals"]
    groups = dict(canonical_reader.records(file))
    assert sorted(groups) == sorted({int.from_bytes(key[:2]) for key in found})
    assert [entry for group in sorted(groups) for entry in groups[group]] == sorted(found.items())


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
    "a header that is a list": b"SFCS\x01" + struct.pack(">IQ", 2, xxhash.xxh64_intdigest(b"[]")) + b"[]" + bytes(9),
    "key groups that are not a range": _file({}, msgspec.structs.replace(HEADER, last_group=1)),
    "key groups above the number": _file({}, msgspec.structs.replace(HEADER, last_group=128)),
    "a record of another kind": _made(b"\x03", count=0),
    "a block larger than any": _made(_block([K2, b"v"], length=1 << 30)),
    "a size larger than any": _made(_block([K2, b"v"], size=1 << 30), _end(2)),
    "a size below the block's": _made(_block([K2, b"v"], size=2), _end(2)),
    "a size above the block's": _made(_block([K2, b"v"], size=100), _end(2)),
    "a wrong checksum": _made(_block([K2, b"v"], checksum=1), _end(2)),
    "data that is not LZ4": _made(_block([K2, b"v"], data=b"abcdefgh"), _end(2)),
    "contents that are not a list of bytes": _made(_block([], contents=msgspec.msgpack.encode([1, 2])), _end(2)),
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


def test_a_flipped_bit_does_not_move_a_key_group_before_the_selected_ones() -> None:
    """One bit makes 4 of 6, which would be in order as well."""
    entries = {struct.pack(">HB", group, 0): bytes([group]) for group in (2, 6, 8)}
    intact = _file(entries)
    for bit in range(8 * (len(_made(count=0)) - 9), 8 * len(intact)):
        data = bytearray(intact)
        data[bit // 8] ^= 1 << bit % 8
        with suppress(CorruptFile):
            assert _read(bytes(data), 6, 6) == _of_groups(entries, 6, 6), bit


ENTRIES = st.dictionaries(st.binary(min_size=2, max_size=6), st.binary(max_size=20), max_size=30)


def _encoded(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(hash_maps.encode_snapshot(sorted(entries.items())))


def _read_stream(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(entries_of(hash_maps.decode_snapshot(io.BytesIO(data), len(data), "file")))


def _decoded(data: bytes) -> dict[bytes, bytes]:
    return dict(_read_stream(data))


@given(ENTRIES, st.integers(0, 3), st.integers(0, 3))
def test_what_was_encoded_is_decoded_whole_or_for_some_key_groups(
    entries: dict[bytes, bytes], first: int, more: int
) -> None:
    entries |= {key_of(g): b"x" for g in range(6)}
    assert _read_stream(_encoded(entries)) == sorted(entries.items())
    owned = KeyGroupRange(first, first + more)
    wanted = {k: v for k, v in entries.items() if first <= int.from_bytes(k[:2], "big") <= first + more}
    assert _decoded(hash_maps.select_groups(_encoded(entries), owned, "file")) == wanted


def _array(items: list[bytes]) -> bytes:
    return _sized(msgspec.msgpack.encode(items))


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


HEAD = b"SFKV\x01"
END = bytes(4)
ONE = _array([b"key", b"value"])
MANY = [item for n in range(1 << 16) for item in (b"\0%c%c%c" % (0, n >> 8, n & 255), b"")]
HOSTILE = {
    "empty": b"",
    "another kind of file": b"PK\x03\x04" + bytes(100),
    "another version": b"SFKV\x02" + END + bytes(8),
    "no end": HEAD + ONE,
    "cut off in its end": HEAD + END + bytes(3),
    "a block longer than the file": HEAD + b"\xff\xff\xff\xff" + b"\x92\xc4\x02ab\xc4\x00",
    "an array longer than its block": HEAD + _sized(b"\xdd\xff\xff\xff\xfe") + END + bytes(8),
    "an array as long as memory": HEAD + _sized(b"\xdd\x10\x00\x00\x00" + bytes(1000)) + END + bytes(8),
    "an array with half a head": HEAD + _sized(b"\xdd\x00") + END + bytes(8),
    "a value longer than its block": HEAD + _sized(b"\x92\xc4\x02ab\xc6\xff\xff\xff\xff") + END + bytes(8),
    "a key without a value": HEAD + _array([b"key"]) + END + struct.pack(">Q", 1),
    "an empty array": HEAD + _array([]) + END + bytes(8),
    "a map": HEAD + _sized(msgspec.msgpack.encode({b"key": b"value"})) + END + bytes(8),
    "texts": HEAD + _sized(msgspec.msgpack.encode(["key", "value"])) + END + struct.pack(">Q", 1),
    "arrays in arrays": HEAD + _sized(b"\x92" + b"\x91" * 5000) + END + struct.pack(">Q", 1),
    "a type of its own": HEAD + _sized(b"\x92\xc4\x02ab\xc7\x01\x05x") + END + struct.pack(">Q", 1),
    "two values in a row": HEAD + _sized(msgspec.msgpack.encode([b"key", b"value"]) * 2) + END + bytes(8),
    "a key twice": HEAD + ONE + ONE + END + struct.pack(">Q", 2),
    "keys out of order": HEAD + _array([b"kez", b"", b"key", b""]) + END + struct.pack(">Q", 2),
    "a key without a key group": HEAD + _array([b"k", b""]) + END + struct.pack(">Q", 1),
    "a block of more entries than a writer puts into one": HEAD + _array(MANY) + END + struct.pack(">Q", 1 << 16),
    "another number of entries": HEAD + ONE + END + struct.pack(">Q", 2),
    "something after its end": HEAD + ONE + END + struct.pack(">Q", 1) + b"x",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_stream_is_a_corrupt_file_and_takes_no_memory(kind: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile):
            _decoded(HOSTILE[kind])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_block_that_is_larger_than_any_entry_may_be_is_not_read() -> None:
    # The size is that of a file without content on the disk, which costs an attacker nothing.
    stream = io.BytesIO(HEAD + struct.pack(">I", 1 << 30) + b"\x92\xc4\x02ab\xc6\x3f\xff\xff\xf0")
    with pytest.raises(CorruptFile):
        list(hash_maps.decode_snapshot(stream, 2 << 30, "file"))


def test_the_smallest_entries_and_the_largest_one_are_read_again() -> None:
    small = {bytes([n >> 8, n & 255]): b"" for n in range(1 << 16)}
    assert _decoded(_encoded(small)) == small
    large = {b"\0" * 6 + bytes(2 * LARGEST_KEY): bytes(LARGEST_VALUE), b"\1\0": b""}
    assert _decoded(_encoded(large)) == large


class Stored:
    """State of one subtask whose bytes are exactly what the checkpoint has recorded."""

    def __init__(self, folder: Path, data: bytes) -> None:
        self.folder = folder
        self.storage = MemoryStorage()
        inline = SubtaskState(
            subtask=0, first_group=0, last_group=GROUPS - 1, snapshot="a-snapshot", backend="filesystem", inline=data
        )
        source = folder / "entries"
        source.write_bytes(data)
        files = HostCache.direct(folder / "maker", self.storage, ManualClock(1)).store([source], "data/x/")
        self.states = (inline, msgspec.structs.replace(inline, inline=None, files=files))

    def open(self, state: SubtaskState, backend: str = "filesystem") -> None:
        """Opens a backend on a host without files; it must leave nothing there if it fails."""
        host = self.folder / f"host-{backend}"
        cache = HostCache.direct(host / "cache", self.storage, ManualClock(1))
        try:
            open_backend(
                StoreLocation(host / "work", cache, RocksDBSettings()), Base.of(state), StateSettings(backend=backend)
            )
        finally:
            assert [path for path in host.iterdir() if path.name != "cache"] == []


@pytest.mark.parametrize("kind", ["empty", "no end", "a key twice"])
def test_every_backend_refuses_a_hostile_stream_by_name(tmp_path: Path, kind: str) -> None:
    stored = Stored(tmp_path, HOSTILE[kind])
    for state, backend in product(stored.states, BACKENDS):
        with pytest.raises(CorruptFile) as refused:
            stored.open(state, backend)
        assert refused.value.facts["file"] == (state.files[0].handle.key if state.files else "a-snapshot")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_bytes_are_decoded_to_what_they_say_or_refused(noise: bytes, at: int) -> None:
    data = _encoded({key_of(g): bytes([g]) for g in range(20)})
    try:
        found = _read_stream(data[:at] + noise + data[at + len(noise) :])
    except CorruptFile:
        return
    assert [k for k, _ in found] == sorted({k for k, _ in found})


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: [],
        lambda files: files * 2,
        lambda files: [msgspec.structs.replace(files[0], local_name="000007.sst")],
    ],
    ids=["no file", "two files", "another name"],
)
def test_a_snapshot_that_is_not_one_file_is_refused(tmp_path: Path, damage: Callable[[object], object]) -> None:
    stored = Stored(tmp_path, _encoded({key_of(1): b"1"}))
    state = stored.states[1]
    with pytest.raises(CorruptFile):
        stored.open(msgspec.structs.replace(state, files=damage(state.files)))
