"""Two snapshots are compared: what is found is the difference of plain dictionaries, whatever the files look like."""

from __future__ import annotations

import copy
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rocksdict import Rdict

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.clock import ManualClock
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare
from stateflow.config.settings import RocksDBSettings
from stateflow.query.snapshot import Snapshot
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
        subtask=0,
        first_group=0,
        last_group=groups - 1,
        snapshot="s",
        backend="canonical",
        files=[StateFile(handle=handle, local_name="canonical-0")],
    )
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
