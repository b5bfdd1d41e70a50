"""The stream of entries that the memory and filesystem backends store, and refused streams and files."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.clock import ManualClock
from stateflow.config.settings import BACKENDS, LARGEST_KEY, LARGEST_VALUE, RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile, MissingFile
from stateflow.state.backends import hash_maps
from stateflow.state.backends.entry_stream import entries_of
from stateflow.state.backends.factory import StoreLocation, open_backend
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.storage import MemoryStorage
from stateflow.testing.conformance.state_backend import GROUPS, key_of
from stateflow.types.key_groups import KeyGroupRange

ENTRIES = st.dictionaries(st.binary(min_size=2, max_size=6), st.binary(max_size=20), max_size=30)


def _encoded(entries: dict[bytes, bytes]) -> bytes:
    return b"".join(hash_maps.encode_snapshot(sorted(entries.items())))


def _read(data: bytes) -> list[tuple[bytes, bytes]]:
    return list(entries_of(hash_maps.decode_snapshot(io.BytesIO(data), len(data), "file")))


def _decoded(data: bytes) -> dict[bytes, bytes]:
    return dict(_read(data))


@given(ENTRIES, st.integers(0, 3), st.integers(0, 3))
def test_what_was_encoded_is_decoded_whole_or_for_some_key_groups(
    entries: dict[bytes, bytes], first: int, more: int
) -> None:
    entries |= {key_of(g): b"x" for g in range(6)}
    assert _read(_encoded(entries)) == sorted(entries.items())
    owned = KeyGroupRange(first, first + more)
    wanted = {k: v for k, v in entries.items() if first <= int.from_bytes(k[:2], "big") <= first + more}
    assert _decoded(hash_maps.select_groups(_encoded(entries), owned, "file")) == wanted


def test_many_entries_are_many_blocks_and_one_that_is_large_is_a_block_of_its_own() -> None:
    entries = {key_of(g, struct.pack(">I", n)): bytes(700) for g in range(GROUPS) for n in range(10)}
    entries[key_of(5, b"large")] = bytes(1 << 20)
    data = _encoded(entries)
    assert _decoded(data) == entries
    at, sizes = 5, []
    while size := int.from_bytes(data[at : at + 4], "big"):
        sizes.append(size)
        at += 4 + size
    assert sum(size > 70_000 for size in sizes) == 1 and len(sizes) > 5


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


def test_the_smallest_streams_are_what_the_hostile_ones_are_made_of() -> None:
    assert _decoded(HEAD + END + bytes(8)) == {}
    assert _decoded(HEAD + ONE + END + struct.pack(">Q", 1)) == {b"key": b"value"}


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
    with pytest.raises(CorruptFile) as refused:
        list(hash_maps.decode_snapshot(stream, 2 << 30, "file"))
    assert "largest size" in str(refused.value.facts["reason"])


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


@pytest.mark.parametrize("kind", HOSTILE)
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
        found = _read(data[:at] + noise + data[at + len(noise) :])
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


def test_a_file_that_is_missing_or_not_what_was_recorded_is_named(tmp_path: Path) -> None:
    stored = Stored(tmp_path, _encoded({key_of(1): b"1"}))
    (key,) = [blob.key for blob in stored.storage.list("")]
    stored.storage.delete([key])
    with pytest.raises(MissingFile):
        stored.open(stored.states[1])
    stored.storage.put_new(key, b"SFKV\x01" + bytes(12))
    with pytest.raises(CorruptFile) as refused:
        stored.open(stored.states[1])
    assert key in refused.value.facts.values()
