"""Entries that get new key groups, are divided among buckets, and are sorted bucket by bucket."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, read_sorted
from stateflow.state.backends.entry_stream import blocks_of, entries_of
from stateflow.state.rehash import Rehash
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

TYPES = ["string"]
GROUPS = 8
STARTS = [0, 3, 5]
STATE = struct.pack(">I", xxhash.xxh32_intdigest(b"seen"))
KEYS = st.tuples(st.text(max_size=40), st.binary(max_size=3))
"""A key, and what follows it in a stored key: in a map, many entries have the same key."""
Entries = dict[tuple[str, bytes], bytes]


def _stored(key: tuple[str, bytes], groups: int) -> bytes:
    group = key_group(key[:1], TYPES, groups)
    return struct.pack(">H", group) + STATE + encode_key(key[:1]) + b"\0" + key[1]


@given(
    st.lists(st.dictionaries(KEYS, st.binary(max_size=200) | st.just(bytes(20_000)), max_size=60), max_size=3),
    st.integers(1, 8000) | st.just(1 << 20),
)
def test_buckets_have_all_entries_in_order_of_new_keys(of_workers: list[Entries], buffer_bytes: int) -> None:
    """Whichever worker has divided an entry, and however often buckets were written and sorted in parts."""
    entries = {key: value for written in of_workers for key, value in written.items()}
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, f"worker-{number}") for number in range(len(of_workers))]
        left = dict(entries)
        for folder, written in zip(folders, of_workers, strict=True):
            writer = BucketWriter(folder, Rehash(TYPES, ["seen"], GROUPS), STARTS, buffer_bytes)
            # Each key once, as in state.
            old = sorted((_stored(key, 100), left.pop(key)) for key in written if key in left)
            for some in (old[:20], old[20:30], old[30:]):
                writer.add(blocks_of(some))
            writer.flush()
        scratch = Path(name, "scratch")
        scratch.mkdir()
        found = [
            entry
            for bucket in STARTS
            for block in read_sorted([bucket_file(folder, bucket) for folder in folders], scratch, buffer_bytes)
            for entry in entries_of([block])
        ]
        assert found == sorted((_stored(key, GROUPS), value) for key, value in entries.items())
        assert not list(scratch.iterdir())


def test_sorted_runs_of_several_parts_are_merged_in_order_of_keys(tmp_path: Path) -> None:
    """One run ends within the keys of the other one."""
    folders, keys = [tmp_path / "0", tmp_path / "1"], []
    for worker, numbers in enumerate((range(200), range(100, 300))):
        writer = BucketWriter(folders[worker], Rehash(TYPES, ["seen"], GROUPS), [0])
        names = [("key", number.to_bytes(2) + bytes([worker])) for number in numbers]
        writer.add(blocks_of((_stored(name, 100), bytes(20_000)) for name in names))
        writer.flush()
        keys += [_stored(name, GROUPS) for name in names]
    blocks = read_sorted([bucket_file(folder, 0) for folder in folders], tmp_path, buffer_bytes=3 << 20)
    assert [key for block in blocks for key in block.keys] == sorted(keys)
