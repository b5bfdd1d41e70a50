"""Entries that are divided among buckets, and sorted bucket by bucket."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.savepoints.canonical.buckets import BucketWriter, bucket_file, read_sorted

GROUPS = 8
BUCKET_OF = [0, 0, 0, 3, 3, 5, 5, 5]
KEYS = st.builds(
    lambda group, rest: group.to_bytes(2, "big") + rest, st.integers(0, GROUPS - 1), st.binary(min_size=1, max_size=40)
)


@given(st.lists(st.dictionaries(KEYS, st.binary(max_size=200), max_size=60), max_size=3), st.integers(1, 4000))
def test_buckets_have_all_entries_in_order_of_keys(of_workers: list[dict[bytes, bytes]], buffer_bytes: int) -> None:
    """Whichever worker has divided an entry, and however often buckets were written and sorted in parts."""
    entries = {key: value for written in of_workers for key, value in written.items()}
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, f"worker-{number}") for number in range(len(of_workers))]
        left = dict(entries)
        for folder, written in zip(folders, of_workers, strict=True):
            writer = BucketWriter(folder, BUCKET_OF, buffer_bytes)
            # Each key once, as in state.
            writer.add((key, left.pop(key)) for key in written if key in left)
            writer.flush()
        scratch = Path(name, "scratch")
        scratch.mkdir()
        found = [
            entry
            for bucket in sorted(set(BUCKET_OF))
            for entry in read_sorted([bucket_file(folder, bucket) for folder in folders], scratch, buffer_bytes)
        ]
        assert found == sorted(entries.items())
        assert not list(scratch.iterdir())
