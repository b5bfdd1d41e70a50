"""How the state of a savepoint is divided among workers."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.savepoints.canonical.buckets import new_subtasks
from stateflow.checkpoint.savepoints.canonical.worker import without_duplicates
from stateflow.checkpoint.savepoints.canonical.writer import (
    Destination,
    divide_key_groups,
    shards_of,
    shares_of,
    store_files,
)
from stateflow.config.settings import SavepointSettings
from stateflow.errors import DataError
from stateflow.state.backends.canonical_file import CanonicalHeader
from stateflow.state.backends.entry_stream import EntryColumns
from stateflow.state.handles import FileHandle, StateFile, SubtaskState
from stateflow.storage import MemoryStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange
from tests.support.errors import raises

GIB = 1 << 30
RANGES = st.tuples(st.integers(0, 32767), st.integers(0, 32767)).map(lambda r: KeyGroupRange(min(r), max(r)))


def test_a_hundred_key_groups_are_divided_among_three_workers() -> None:
    ranges = divide_key_groups(KeyGroupRange(1, 100), 3)
    assert [(r.first, r.last) for r in ranges] == [(1, 33), (34, 66), (67, 100)]


@given(RANGES, st.integers(1, 40000))
def test_divided_key_groups_are_contiguous_and_of_about_equal_length(groups: KeyGroupRange, count: int) -> None:
    ranges = divide_key_groups(groups, count)
    assert [g for r in ranges for g in range(r.first, r.last + 1)] == list(range(groups.first, groups.last + 1))
    assert len(ranges) == min(count, len(groups))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def _subtask(number: int, size: int) -> SubtaskState:
    handle = FileHandle(key=f"data/{number}", size=size, sha256=f"{number:064}")
    files = [StateFile(handle=handle, local_name="000001.sst")] if size else []
    return SubtaskState(
        subtask=number, first_group=100 * number, last_group=100 * number + 99, snapshot=f"s{number}", files=files
    )


def _manifest(*sizes: int) -> Manifest:
    subtasks = [_subtask(number, size) for number, size in enumerate(sizes)]
    operator = OperatorState(uid="a", parallelism=len(sizes), key_types=[], key_names=[], states=[], subtasks=subtasks)
    return Manifest(job_uuid="j", generation=1, ordinal=1, operators=[operator], sources=[])


def test_a_subtask_has_a_worker_for_each_five_gib_and_at_most_four() -> None:
    sizes = [0, 1, 5 * GIB, 5 * GIB + 1, 15 * GIB, 15 * GIB + 1, 900 * GIB]
    shards = shards_of(_manifest(*sizes), 1000, SavepointSettings())
    counts = [sum(shard.state.subtask == number for shard in shards) for number in range(len(sizes))]
    assert counts == [0, 1, 1, 2, 3, 4, 4]


@given(st.lists(st.integers(0, 10**12)), st.integers(1, 10**12), st.integers(1, 200), st.integers(0, 10**12))
def test_the_shares_of_workers_have_each_key_group_with_state_once(
    sizes: list[int], worker_bytes: int, most: int, worth: int
) -> None:
    settings = SavepointSettings(worker_bytes=worker_bytes, max_workers=most)
    shards = shards_of(_manifest(*sizes), 32768, settings)
    owned = {group for number, size in enumerate(sizes) if size for group in range(100 * number, 100 * number + 100)}
    written = [group for shard in shards for group in range(shard.groups.first, shard.groups.last + 1)]
    assert written == sorted(owned)
    shares = shares_of(shards, worth)
    assert [shard for share in shares for shard in share] == shards
    assert all(len(share) == 1 or sum(shard.bytes for shard in share) <= worth for share in shares)


def test_each_file_of_an_object_is_read_by_its_part(tmp_path: Path) -> None:
    storage, contents = MemoryStorage(), [[b"one", b"!"], [b"two"], [b"three"]]
    stored = store_files(contents, storage, Destination(folder="savepoints/s/"), tmp_path)
    for number, (file, chunks) in enumerate(zip(stored, contents, strict=True)):
        assert file.part is not None
        storage.fetch_part(f"savepoints/s/{file.handle.key}", file.part.offset, file.size, tmp_path / str(number))
        assert (tmp_path / str(number)).read_bytes() == b"".join(chunks)


def test_a_subtask_with_other_key_groups_has_the_earliest_timer_of_all() -> None:
    """Its keys may come from each of the old subtasks."""
    states = [
        SubtaskState(
            subtask=n, first_group=n, last_group=n, snapshot="", event_timer=event, processing_timer=processing
        )
        for n, (event, processing) in enumerate([(7, None), (5, None), (None, 9)])
    ]
    operator = OperatorState(
        uid="op", parallelism=3, key_types=["string"], key_names=["key"], states=[], subtasks=states
    )
    manifest = Manifest(job_uuid="j", generation=1, ordinal=1, operators=[operator], sources=[])
    found = [(each.state.event_timer, each.state.processing_timer) for each in new_subtasks(manifest, 16)]
    assert found == [(5, 9)] * 3


def test_a_key_that_occurs_twice_is_refused_also_in_two_parts() -> None:
    header = CanonicalHeader(uid="op", key_types=["string"], max_parallelism=1, first_group=0, last_group=0, states=[])
    a, b = (bytes(2) + b"name" + encode_key((key,)) for key in ("a", "b"))
    for parts in ([[a, b, b]], [[a, b], [b]]):
        with raises(DataError, operator="op", state="", key="('b',)"):
            list(without_duplicates(header, [EntryColumns.of(keys, keys) for keys in parts]))
    (whole,) = without_duplicates(header, [EntryColumns.of([a, b], [a, b])])
    assert whole.keys.to_pylist() == [a, b]
