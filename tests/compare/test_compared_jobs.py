"""Two jobs, or two checkpoints of one job, are compared: what is found is the difference of plain dictionaries."""

from __future__ import annotations

import base64
import copy
import json
import random
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rocksdict import Rdict

import stateflow
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import ManualClock
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare, split_location
from stateflow.compare.summary import DiffLimits, StateDiff, states_beyond
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import ConfigError
from stateflow.query.snapshot import Snapshot, open_snapshot
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.canonical_file import CanonicalHeader, encode_file
from stateflow.state.backends.entry_stream import blocks_of
from stateflow.state.backends.hash_maps import FilesystemBackend
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.handles import Base, StateFile, StateSchema, SubtaskState
from stateflow.state.host_cache import HostCache
from stateflow.state.schema import type_schema
from stateflow.storage import MemoryStorage, Storage
from stateflow.testing.conformance.state_backend import GROUPS, OperatorSubtasks
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group
from tests.support.local_jobs import LocalJobs
from tests.support.moved_state import Row, build_job, timer_time

ACTIONS = ["update", "clear", "add", "put", "remove", "tag", "collect", "rate", "timer", "event timer"]


def rows_of(seed: int, count: int) -> list[Row]:
    dice = random.Random(seed)
    return [
        Row(
            number, dice.choice("abc"), dice.randint(0, 3), dice.choice(ACTIONS), dice.choice("xy"),
            dice.randint(0, 9), -1,
        )
        for number in range(count)
    ]  # fmt: skip


def jobs_in(folder: Path, **settings: Any) -> LocalJobs:
    folder.mkdir()
    return LocalJobs(folder, ManualClock(), max_parallelism=32, parallelism=2, **settings)


def changes_of(found: SnapshotDiff) -> dict[tuple[str, str, str], list[tuple[str, ...]]]:
    """Key, map key, old and new value of each change, by operator, state and kind of change."""
    assert found.changes is not None
    changes: dict[tuple[str, str, str], list[tuple[str, ...]]] = {}
    for row in found.changes.read_all().to_pylist():
        kept = tuple(row[name] for name in ("key", "map_key", "old", "new") if row[name] is not None)
        changes.setdefault((row["operator"], row["state"], row["change"]), []).append(kept)
    return changes


@pytest.fixture
def jobs(tmp_path: Path) -> LocalJobs:
    return jobs_in(tmp_path / "one")


@pytest.mark.parametrize(
    "other",
    [{"state__backend": "filesystem", "parallelism": 3}, {"max_parallelism": 7, "source__max_rows_per_batch": 1000}],
)
def test_two_jobs_that_have_processed_the_same_rows_have_equal_state(
    jobs: LocalJobs, tmp_path: Path, other: dict[str, Any]
) -> None:
    """Whatever their backends, parallelism and batches are."""
    rows = rows_of(1, 60)
    jobs.run(build_job(jobs, rows, 0))
    second = jobs_in(tmp_path / "two")
    second.run(build_job(second, rows, 0), **other)
    found = stateflow.diff(str(jobs.folder / "root"), str(second.folder / "root"))
    assert changes_of(found) == {}
    assert found.keys == 0
    assert {state.operator for state in found.states} == {"every"}


_A, _B = '["a",1]', '["b",2]'
_CHANGES = {
    ("every", "one", "changed"): [(_A, "1", "2")], ("every", "one", "added"): [(_B, "9")],
    ("every", "brief", "changed"): [(_A, "1", "2")], ("every", "brief", "added"): [(_B, "9")],
    ("every", "items", "changed"): [(_A, "[1]", "[1,3]")], ("every", "brief items", "changed"): [(_A, "[1]", "[1,3]")],
    ("every", "entries", "added"): [(_A, '"y"', "2")], ("every", "entries", "removed"): [(_A, '"x"', "1")],
    ("every", "brief entries", "added"): [(_A, '"y"', "2")], ("every", "sum", "changed"): [(_A, "1", "4")],
    ("every", "mean", "changed"): [(_A, "[1,1]", "[2,4]")],
    ("every", "_timers", "removed"): [(_A, f'{{"time":{timer_time(5)},"domain":"processing"}}')],
    ("every", "_operator/numbers", "added"): [("[]", "11")], ("every", "_operator/union", "added"): [("[]", "11")],
    ("every", "_raw", "added"): [("[]", '"MTE="')], ("rates", "_operator/rates", "changed"): [("[]", '"x"', "1", "2")],
}  # fmt: skip
"""What rows of every kind change, by operator, state and change."""


_KEY_A: dict[str, Any] = {"key": "a", "shop": 1, "namespace": None}
_KEY_B: dict[str, Any] = {"key": "b", "shop": 2, "namespace": None}
_TYPED: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("every", "one"): [
        {"change": "changed", **_KEY_A, "old": 1, "new": 2},
        {"change": "added", **_KEY_B, "old": None, "new": 9},
    ],
    ("every", "items"): [{"change": "changed", **_KEY_A, "old": [1], "new": [1, 3]}],
    ("every", "entries"): [
        {"change": "removed", **_KEY_A, "map_key": "x", "old": 1, "new": None},
        {"change": "added", **_KEY_A, "map_key": "y", "old": None, "new": 2},
    ],
    ("every", "mean"): [{"change": "changed", **_KEY_A, "old": [1, 1], "new": [2, 4]}],
    ("every", "tags"): [],
    ("every", "_timers"): [{"change": "removed", **_KEY_A, "time": timer_time(5), "domain": "processing"}],
    ("every", "_operator/numbers"): [{"change": "added", "old": None, "new": 11}],
    ("every", "_raw"): [{"change": "added", "old": None, "new": b"11"}],
    ("rates", "_operator/rates"): [{"change": "changed", "map_key": "x", "old": 1, "new": 2}],
}
"""The same of some states with the types of their columns."""


def _check_typed(found: SnapshotDiff) -> None:
    for (operator, state), wanted in _TYPED.items():
        rows = found.changes_of(operator, state).read_all().to_pylist()
        if not state.startswith("_operator/"):
            groups = [row.pop("key_group") for row in rows if state != "_raw"]
            assert groups == sorted(groups)
        assert sorted(rows, key=repr) == sorted(wanted, key=repr), state
    (pieces,) = found.changes_of("every", "_raw_keyed").read_all().to_pylist()
    assert [json.loads(pieces[side]) for side in ("old", "new")] == [[4], [4, 11]]
    tags = found.changes_of("every", "tags").schema
    assert tags.field("new").type == pa.map_(pa.string(), pa.list_(pa.int64()))


def test_every_kind_of_state_is_compared(jobs: LocalJobs) -> None:
    """Between two checkpoints of one job, of which the later one has processed a row of every kind."""
    place: dict[str, Any] = {"key": "a", "shop": 1, "at": -1}
    first = [
        Row(0, action="update", value=1, **place), Row(1, action="put", name="x", value=1, **place),
        Row(2, action="add", value=1, **place), Row(3, action="tag", name="x", value=1, **place),
        Row(4, action="collect", **place), Row(5, action="rate", name="x", value=1, **place),
        Row(6, action="timer", value=5, **place),
    ]  # fmt: skip
    jobs.run(build_job(jobs, first, 32), source__max_rows_per_batch=1000)
    root = str(jobs.folder / "root")
    with open_snapshot(root) as snapshot:
        before = snapshot.checkpoint_id
    more = [
        Row(7, action="update", value=2, **place), Row(8, action="put", name="y", value=2, **place),
        Row(9, action="remove", name="x", **place), Row(10, action="add", value=3, **place),
        Row(11, action="collect", **place), Row(12, action="rate", name="x", value=1, **place),
        Row(13, action="no timer", value=5, **place), Row(14, key="b", shop=2, action="update", value=9, at=-1),
    ]  # fmt: skip
    jobs.run(build_job(jobs, [*first, *more], 32), source__max_rows_per_batch=1000)
    found = stateflow.diff(f"{root}@{before}", root)
    changes = changes_of(found)
    pieces = changes.pop(("every", "_raw_keyed", "changed"))
    assert [(json.loads(base64.b64decode(json.loads(text)))) for text in pieces[0][-2:]] == [[4], [4, 11]]
    assert changes == _CHANGES
    _check_typed(found)
    one = {state.state: state for state in found.states if state.operator == "every"}["one"]
    assert (one.kind, one.added, one.removed, one.changed) == ("value", 1, 0, 1)
    assert one.new_bytes > one.old_bytes > 0
    assert found.old.label == f"checkpoint {before}"


def test_one_operator_is_compared(jobs: LocalJobs) -> None:
    jobs.run(build_job(jobs, rows_of(2, 20), 0))
    root = str(jobs.folder / "root")
    assert {state.operator for state in stateflow.diff(root, root, ["rates"], changes=False).states} <= {"rates"}
    with pytest.raises(ConfigError) as refused:
        stateflow.diff(root, root, ["evry"])
    assert refused.value.facts["uid"] == "evry"


def test_an_operator_of_one_snapshot_only_is_added_or_removed(jobs: LocalJobs, tmp_path: Path) -> None:
    """As if its state had been empty in the other one."""
    jobs.run(build_job(jobs, rows_of(3, 40), 0))
    second = jobs_in(tmp_path / "two")
    second.apply([Row(0, "a", 1, "update", at=-1)], lambda stream: stream)
    roots = str(jobs.folder / "root"), str(second.folder / "root")
    added, removed = stateflow.diff(*roots[::-1], counts_all=True), stateflow.diff(*roots)
    assert added.keys == removed.keys > 0
    for new, old in zip(added.states, removed.states, strict=True):
        assert (new.added, new.removed, new.changed) == (old.removed, old.added, old.changed)
        assert new.new_keys in (None, new.added)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/jobs/a@17", ("/jobs/a", "17")), ("/jobs/a", ("/jobs/a", None)),
        ("s3://user@host/a", ("s3://user@host/a", None)), ("s3://user@host/a@latest", ("s3://user@host/a", "latest")),
        ("root@before:2026-01-01T00:00", ("root", "before:2026-01-01T00:00")), ("/jobs/a@b/", ("/jobs/a@b/", None)),
        ("@17", ("@17", None)),
    ],
)  # fmt: skip
def test_a_location_may_name_a_snapshot(text: str, expected: tuple[str, str | None]) -> None:
    assert split_location(text) == expected


# -- limits -----------------------------------------------------------------------------------------------------------


COUNT = StateDiff("op", "count", "value", added=1, removed=2, changed=3, old_keys=59, new_keys=58)
EQUAL = StateDiff("op", "seen", "map", old_keys=10, new_keys=10)


@pytest.mark.parametrize(
    ("limits", "fails"),
    [
        (DiffLimits(), True), (DiffLimits(keys=5), True), (DiffLimits(keys=6), False), (DiffLimits(keys=None), False),
        (DiffLimits(keys=None, fraction=0.1), False), (DiffLimits(keys=None, fraction=0.09), True),
        (DiffLimits(keys=5, fraction=0.5), True),
    ],
)  # fmt: skip
def test_each_state_has_to_be_within_the_limits(limits: DiffLimits, fails: bool) -> None:
    assert COUNT.fraction == 6 / 60
    assert states_beyond([COUNT, EQUAL], limits) == ([COUNT] if fails else [])
    for ignored in ("op", "op.count"):
        assert states_beyond([COUNT, EQUAL], limits, [ignored]) == []


def test_a_fraction_of_keys_that_were_not_counted_is_exceeded_by_any_difference() -> None:
    uncounted = StateDiff("op", "_operator/list", "split-list", added=1)
    assert uncounted.fraction is None
    assert states_beyond([uncounted], DiffLimits(None, 0.99)) == [uncounted]


# -- two snapshots ----------------------------------------------------------------------------------------------------

SETTINGS = RocksDBSettings(write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, compact_at_files=5)
UID = "op"
STATES = [
    StateSchema(
        name="count", kind="value", value_type="int", type=type_schema(int), ttl_time="processing", ttl_index=True
    ),
    StateSchema(name="seen", kind="map", value_type="int", type=type_schema(int), key_type="str"),
    StateSchema(name="items", kind="list", value_type="int", type=type_schema(int)),
]
Address = tuple[str, str, str | None]
"""State, key, and map key."""
Values = dict[Address, Any]
_numbers = count(1)


@dataclass
class Taken:
    """A snapshot, and what it must contain.

    Attributes:
        operator: the operator's state.
        values: its values; those of lists are lists.
        groups: number of key groups.
    """

    operator: OperatorState
    values: Values
    groups: int = GROUPS


class _Store(RocksDBBackend):
    def __init__(self, folder: Path, cache: HostCache, base: Base) -> None:
        super().__init__(folder, cache, base, SETTINGS)
        self._db.set_options({"target_file_size_base": "2000"})

    @property
    def native(self) -> Rdict:
        return self._db


def _open_filesystem(folder: Path, cache: HostCache, base: Base) -> KeyedStateBackend:
    assert not base.parts
    return FilesystemBackend(folder, cache, {}, 100)


@dataclass
class History:
    """Subtasks that change, and the values that they must have.

    Attributes:
        folder: local files.
        storage: stores the snapshots.
        parallelism: number of subtasks at the beginning.
        backend: ``rocksdb`` or ``filesystem``.
    """

    folder: Path
    storage: Storage
    parallelism: int = 2
    backend: str = "rocksdb"
    values: Values = field(default_factory=dict)
    _positions: dict[Address, list[bytes]] = field(default_factory=dict)
    _times: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        opener = _Store if self.backend == "rocksdb" else _open_filesystem
        self.subtasks = OperatorSubtasks(opener, self.folder, self.backend)
        self.subtasks.storage = self.storage
        self.subtasks.open(parallelism=self.parallelism)

    def put(self, values: Mapping[Address, int | None]) -> None:
        """Sets values and entries of maps; appends an element to lists; None removes."""
        changes: dict[bytes, bytes | None] = {}
        for address, value in values.items():
            changes |= self._changes(address, value)
            if value is None:
                self.values.pop(address, None)
            elif address[0] == "items":
                self.values.setdefault(address, []).append(value)
            else:
                self.values[address] = value
        self.subtasks.write(changes)

    def _changes(self, address: Address, value: int | None) -> dict[bytes, bytes | None]:
        key = stored_key(address)
        if address[0] == "items":
            known = self._positions.setdefault(address, [])
            if value is None:
                known, self._positions[address] = list(known), []
                return dict.fromkeys((key + position for position in known), None)
            known.append(struct.pack(">QI", next(_numbers), 0))
            return {key + known[-1]: _stored(value)}
        if address[0] == "count":
            return self._with_ttl(address, key, value)
        return {key: None if value is None else _stored(value)}

    def _with_ttl(self, address: Address, key: bytes, value: int | None) -> dict[bytes, bytes | None]:
        """A value with the time of its write, and its expiry entries, of which only the new one remains."""
        changes: dict[bytes, bytes | None] = {}
        if address[1] in self._times:
            changes[_expiry_key(key, self._times.pop(address[1]))] = None
        if value is None:
            return {**changes, key: None}
        self._times[address[1]] = time = next(_numbers)
        stored = b"\x02" + struct.pack(">Q", time + (1 << 63)) + msgspec.msgpack.encode(value)
        return {**changes, key: stored, _expiry_key(key, time): b""}

    def take(self) -> Taken:
        return taken_of(self.subtasks.snapshot(), self.values)

    def rescale(self, parallelism: int) -> Taken:
        return taken_of(self.subtasks.restored(parallelism), self.values)

    def compact(self) -> None:
        for store in self.subtasks.stores:
            if isinstance(store, _Store):
                store.native.flush()
                store.native.compact_range(None, None)

    def close(self) -> None:
        self.subtasks.close()


def taken_of(states: Sequence[SubtaskState], values: Values, groups: int = GROUPS) -> Taken:
    operator = OperatorState(
        uid=UID, parallelism=len(states), key_types=["string"], key_names=["key"], states=STATES, subtasks=list(states)
    )
    return Taken(operator, copy.deepcopy(values), groups)


def canonical(storage: Storage, values: Values, groups: int = GROUPS) -> Taken:
    entries: dict[bytes, bytes] = {}
    for address, value in values.items():
        key = stored_key(address, groups)
        if address[0] == "items":
            entries |= {key + struct.pack(">QI", 1, at): _stored(each) for at, each in enumerate(value)}
        else:
            entries[key] = _stored(value)
    header = CanonicalHeader(
        uid=UID, key_types=["string"], max_parallelism=groups, first_group=0, last_group=groups - 1, states=STATES
    )
    data = b"".join(encode_file(header, blocks_of(sorted(entries.items()))))
    handle = write_bytes(storage, f"data/canonical-{next(_numbers)}", data)
    subtask = SubtaskState(
        subtask=0, first_group=0, last_group=groups - 1, snapshot="s", backend="canonical",
        files=[StateFile(handle=handle, local_name="canonical-0")],
    )  # fmt: skip
    return taken_of([subtask], values, groups)


def snapshot_of(storage: Storage, *operators: OperatorState, groups: int = GROUPS, label: int = 1) -> Snapshot:
    """The operators as an open snapshot."""
    manifest = Manifest(job_uuid="u", generation=1, ordinal=1, operators=list(operators), sources=[])
    return Snapshot(storage, manifest, "job", "u", groups, label)


def compared(storage: Storage, old: Taken, new: Taken, counts_all: bool = False) -> SnapshotDiff:
    first = snapshot_of(storage, old.operator, groups=old.groups)
    second = snapshot_of(storage, new.operator, groups=new.groups, label=2)
    return compare(first, second, DiffOptions(counts_all=counts_all), ManualClock(next(_numbers)))


def check_diff(found: SnapshotDiff, old: Values, new: Values) -> None:
    expected = sorted(map(tuple, expected_rows(old, new)))
    assert found.changes is not None
    rows = [tuple(row.values()) for row in found.changes.read_all().drop_columns(["namespace"]).to_pylist()]
    assert sorted(rows, key=repr) == sorted(expected, key=repr)
    for state in found.states:
        of_state = [row[2] for row in expected if row[1] == state.state]
        counted = (state.added, state.removed, state.changed)
        assert counted == tuple(map(of_state.count, ("added", "removed", "changed")))
        if state.old_keys is not None:
            names = [[address for address in values if address[0] == state.state] for values in (old, new)]
            assert (state.old_keys, state.new_keys) == tuple(map(len, names))
    assert found.keys == len(expected)


def expected_rows(old: Values, new: Values) -> list[list[Any]]:
    rows = []
    for address in old.keys() | new.keys():
        before, after = old.get(address), new.get(address)
        if before == after:
            continue
        change = "added" if before is None else "removed" if after is None else "changed"
        state, key, map_key = address
        texts = [None if each is None else msgspec.json.encode(each).decode() for each in (map_key, before, after)]
        rows.append([UID, state, change, msgspec.json.encode([key]).decode(), *texts])
    return rows


def stored_key(address: Address, groups: int = GROUPS) -> bytes:
    """The stored key of a value, an entry of a map, or a list."""
    state, key, map_key = address
    parts = (key, None) if map_key is None else (key, None, map_key)
    return struct.pack(">H", key_group((key,), ["string"], groups)) + _id(state) + encode_key(parts)


def _expiry_key(key: bytes, time: int) -> bytes:
    return key[:2] + _id("count\0expiry") + struct.pack(">Q", time + (1 << 63)) + key[6:]


def _id(name: str) -> bytes:
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


def _stored(value: int) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(value)


# -- any two snapshots ------------------------------------------------------------------------------------------------

KEYS = st.sampled_from([f"key {number}" for number in range(30)])
ADDRESSES = st.one_of(
    st.tuples(st.just("count"), KEYS, st.none()),
    st.tuples(st.just("seen"), KEYS, st.sampled_from(["", "a", "b\0c"])),
    st.tuples(st.just("items"), KEYS, st.none()),
)
CHANGES = st.dictionaries(ADDRESSES, st.none() | st.integers(0, 3), max_size=12)


class Life(RuleBasedStateMachine):
    """Writes, snapshots, compactions and restores in any order; any two of the snapshots are compared."""

    def __init__(self) -> None:
        super().__init__()
        self._scratch = tempfile.TemporaryDirectory()
        self.storage = MemoryStorage()
        self.history = History(Path(self._scratch.name), self.storage)
        self.taken: list[Taken] = [self.history.take()]

    def teardown(self) -> None:
        self.taken.append(self.history.take())
        for old, new in ((0, -1), (-1, 0), (-2, -1)):
            self._compare(self.taken[old], self.taken[new])
        self.history.close()
        self._scratch.cleanup()

    def _compare(self, old: Taken, new: Taken, counts_all: bool = False) -> None:
        check_diff(compared(self.storage, old, new, counts_all), old.values, new.values)

    @rule(changes=CHANGES)
    def write(self, changes: Mapping[Address, int | None]) -> None:
        self.history.put(changes)

    @rule(value=st.none() | st.integers(0, 3), state=st.sampled_from(["count", "items"]))
    def write_all(self, value: int | None, state: str) -> None:
        self.history.put({(state, f"key {number}", None): value for number in range(100)})

    @rule()
    def snapshot(self) -> None:
        self.taken.append(self.history.take())

    @rule()
    def compact(self) -> None:
        self.history.compact()

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.taken.append(self.history.rescale(parallelism))

    @rule(old=st.integers(0, 100), new=st.integers(0, 100), counts_all=st.booleans())
    def compare(self, old: int, new: int, counts_all: bool) -> None:
        self._compare(self.taken[old % len(self.taken)], self.taken[new % len(self.taken)], counts_all)


def test_after_any_history_the_difference_of_two_snapshots_is_that_of_their_values() -> None:
    few = settings(max_examples=max(1, settings().max_examples // 5), stateful_step_count=14)
    run_state_machine_as_test(Life, settings=few)


@settings(max_examples=max(1, settings().max_examples // 3))
@given(CHANGES, CHANGES, st.sampled_from(["filesystem", "canonical", "rekeyed"]))
def test_the_format_of_a_snapshot_makes_no_difference(
    first: Mapping[Address, int | None], second: Mapping[Address, int | None], form: str
) -> None:
    storage = MemoryStorage()
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), storage, backend="filesystem")
        history.put(first)
        old = history.take()
        history.put(second)
        new = (
            history.take()
            if form == "filesystem"
            else canonical(storage, history.values, 64 if form == "canonical" else 7)
        )
        check_diff(compared(storage, old, new), old.values, new.values)
        check_diff(compared(storage, new, old), new.values, old.values)
        history.close()
