"""Every kind of state against plain dictionaries: keys, namespaces, failed rows, time to live, restores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.stored_key import encode_expiry_key, expiry_ids
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import timestamp_of
from stateflow.types.ttl_config import StateTtlConfig
from tests.support.operators import Mean
from tests.support.stores import DictStoreFixture, RocksStoreFixture, StoreFixture, address

KEYS = ("", "a", "a\0")
NAMESPACES = (None, 0, "", "\0", b"\0")
GROUPS = KeyGroupRange(0, 15)
AHEAD = 1 << 41
"""Milliseconds by which processing time is ahead of the watermark: decades."""
READ: dict[str, Callable[[Any], Any]] = {
    "value": lambda state: state.value(),
    "list": lambda state: list(state.get()),
    "map": lambda state: list(state.items()),
    "reducing": lambda state: state.get(),
    "aggregating": lambda state: state.get(),
}

names = st.sampled_from(sorted(READ))
entries = st.sampled_from(["", "x", "x\0", "é"])
numbers = st.integers(-3, 3)
actions = st.one_of(
    st.tuples(st.just("read"), names),
    st.tuples(st.just("clear"), names),
    st.tuples(st.just("update value"), numbers | st.none()),
    st.tuples(st.just("reduce"), numbers),
    st.tuples(st.just("aggregate"), numbers),
    st.tuples(st.just("add to list"), st.lists(numbers, max_size=2)),
    st.tuples(st.just("update list"), st.lists(numbers, max_size=2)),
    st.tuples(st.just("put"), entries, numbers),
    st.tuples(st.just("remove"), entries),
    st.tuples(st.just("get"), entries),
    st.tuples(st.just("contains"), entries),
    st.tuples(st.just("is empty")),
)
rows = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from((None, None, None, *NAMESPACES)),
        st.lists(actions, max_size=4),
        st.booleans(),
    ),
    max_size=5,
)
ttls = st.none() | st.builds(
    StateTtlConfig,
    st.sampled_from([timedelta(milliseconds=30), timedelta(milliseconds=100)]),
    st.sampled_from([StateTtlConfig.UpdateType.OnCreateAndWrite, StateTtlConfig.UpdateType.OnReadAndWrite]),
    ttl_time_characteristic=st.sampled_from(StateTtlConfig.TtlTimeCharacteristic),
    background_cleanup=st.booleans(),
)


@dataclass
class Item:
    """Something stored, and the time from which its time to live counts."""

    value: Any
    begin: int | None


@dataclass
class Model:
    """What states with one declared time to live must hold, by address and name; a list's keys are numbers."""

    items: dict[tuple[Any, ...], dict[Any, Item]] = field(default_factory=dict)
    ttl: StateTtlConfig | None = None
    since: int = 0
    now: int = 0
    added: int = 0

    def declare(self, ttl: StateTtlConfig | None) -> None:
        if ttl is not None and (
            self.ttl is None or ttl.ttl_time_characteristic is not self.ttl.ttl_time_characteristic
        ):
            self.since = self.now
        self.ttl = ttl

    def put(self, at: tuple[Any, ...], key: Any, value: Any) -> None:
        self.items.setdefault(at, {})[key] = Item(value, None if self.ttl is None else self.now)

    def append(self, at: tuple[Any, ...], values: Sequence[Any]) -> None:
        for value in values:
            self.added += 1
            self.put(at, self.added, value)

    def read(self, at: tuple[Any, ...], only: Any = None) -> Iterator[tuple[Any, Any]]:
        """Entries that have not expired, in order of keys; with `OnReadAndWrite`, their time to live restarts."""
        found = self.items.get(at, {})
        for key in sorted(found):
            item = found[key]
            if (only is None or key == only) and self.lives(item):
                if self.ttl is not None and self.ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite:
                    item.begin = self.now
                yield key, item.value

    def get(self, at: tuple[Any, ...], key: Any = 0) -> Any:
        return dict(self.read(at, key)).get(key)

    def lives(self, item: Item) -> bool:
        return self.ttl is None or max(item.begin or 0, self.since) + self.ttl.milliseconds > self.now


class Life(RuleBasedStateMachine):
    """Rows visit keys and namespaces, and may fail; in between, time passes, state is restored and declared again."""

    stores: StoreFixture = DictStoreFixture()

    @initialize(ttl=ttls, undoable=st.booleans())
    def begin(self, ttl: StateTtlConfig | None, undoable: bool) -> None:
        self.store = self.stores.new()
        self.model = Model()
        self.known: list[StateSchema] = []
        self.epoch = 0
        self.ttl = ttl
        self.undoable = undoable

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            everything: Any = [("read", name) for name in READ]
            self.batch([(key, namespace, everything, False) for key in KEYS for namespace in NAMESPACES], KEYS, 1)
            self._check_that_nothing_is_left_for_ever()
        finally:
            self.store.close()

    @rule(rows=rows, prefetched=st.sampled_from([KEYS, KEYS[:1], ()]), limit=st.sampled_from([1, 5, 1000]))
    def batch(self, rows: Sequence[tuple[str, Any, list[Any], bool]], prefetched: Sequence[str], limit: int) -> None:
        self._declare()
        self.state.begin_key_batch([address(key) for key in prefetched])
        for key, namespace, wanted, fails in rows:
            before = deepcopy(self.model)
            self.state.set_key(*address(key))
            if self.undoable:
                self.state.savepoint()
            self.state.set_namespace(namespace)
            for action in wanted:
                self._act((key, repr(namespace)), *action)
            if self.undoable and fails:
                self.state.rollback()
                self.model = before
            elif self.undoable:
                self.state.commit()
        self.state.end_key_batch()
        self.state.ttl_cleanup(GROUPS).remove_some(limit)
        self.known = self.state.registry.schemas
        self._check_that_everything_that_expires_is_in_the_index()

    @rule(duration=st.sampled_from([1, 29, 30, 71, 100]))
    def time_passes(self, duration: int) -> None:
        self.model.now += duration

    @rule()
    def snapshot_and_restore(self) -> None:
        self.store = self.stores.reopened(self.store)

    @rule(ttl=ttls)
    def declared_again(self, ttl: StateTtlConfig | None) -> None:
        # What has expired and is still stored would be back with a longer time to live.
        self.full_snapshot()
        for found in self.model.items.values():
            for key in [key for key, item in found.items() if not self.model.lives(item)]:
                del found[key]
        self.ttl = ttl

    @rule()
    def full_snapshot(self) -> None:
        self._declare()
        self.state.ttl_cleanup(GROUPS).remove_all()
        self.known = self.state.registry.schemas
        stored = {key for key, _ in self.store.scan(b"") if key[2:6] in self.ids}
        assert len(stored) == sum(self.model.lives(i) for found in self.model.items.values() for i in found.values())

    def _declare(self) -> None:
        self.epoch += 1
        self.model.declare(self.ttl)
        time = BatchTime(self.epoch, self.model.now + AHEAD, self.model.now)
        owner = self.state = KeyedState(self.store, self.known, time, self.undoable)
        self.states: dict[str, Any] = {
            "value": owner.value_state(ValueStateDescriptor("value", int, ttl=self.ttl)),
            "list": owner.list_state(ListStateDescriptor("list", int, ttl=self.ttl)),
            "map": owner.map_state(MapStateDescriptor("map", str, int, ttl=self.ttl)),
            "reducing": owner.reducing_state(ReducingStateDescriptor("reducing", _add, int, ttl=self.ttl)),
            "aggregating": owner.aggregating_state(
                AggregatingStateDescriptor("aggregating", Mean(), list[int], ttl=self.ttl)
            ),
        }
        self.ids = {state.id: state for state in self.states.values()}

    def _act(self, at: tuple[str, str], action: str, *arguments: Any) -> None:
        model, states = self.model, self.states
        match action, *arguments:
            case "read", name:
                self._read(at, name)
            case "clear", name:
                states[name].clear()
                model.items[*at, name] = {}
            case "update value", number:
                states["value"].update(number)
                model.items[*at, "value"] = {}
                if number is not None:
                    model.put((*at, "value"), 0, number)
            case "reduce", number:
                states["reducing"].add(number)
                model.put((*at, "reducing"), 0, (model.get((*at, "reducing")) or 0) + number)
            case "aggregate", number:
                states["aggregating"].add(number)
                count, added = model.get((*at, "aggregating")) or (0, 0)
                model.put((*at, "aggregating"), 0, (count + 1, added + number))
            case "add to list", added:
                states["list"].add_all(added)
                model.append((*at, "list"), added)
            case "update list", replaced:
                states["list"].update(replaced)
                model.items[*at, "list"] = {}
                model.append((*at, "list"), replaced)
            case _:
                self._act_on_map(states["map"], (*at, "map"), action, *arguments)

    def _act_on_map(self, state: Any, at: Any, action: str, *arguments: Any) -> None:
        model = self.model
        match action, *arguments:
            case "put", name, number:
                state.put(name, number)
                model.put(at, name, number)
            case "remove", name:
                state.remove(name)
                model.items.get(at, {}).pop(name, None)
            case "get", name:
                assert state.get(name) == model.get(at, name)
            case "contains", name:
                assert state.contains(name) == (model.get(at, name) is not None)
            case ("is empty",):
                assert state.is_empty() == (next(model.read(at), None) is None)
            case _:
                raise AssertionError(action)

    def _read(self, at: tuple[str, str], name: str) -> None:
        found: Any = list(self.model.read((*at, name)))
        if name == "list":
            found = [value for _, value in found]
        elif name != "map":
            found = found[0][1] if found else None
        if name == "aggregating" and found is not None:
            found = found[1] / found[0]
        assert READ[name](self.states[name]) == found

    def _check_that_everything_that_expires_is_in_the_index(self) -> None:
        """Except for values stored before the time to live was added."""
        everything = dict(self.store.scan(b""))
        for key, data in everything.items():
            ttl = self.ids[key[2:6]].ttl if key[2:6] in self.ids else None
            timestamp = timestamp_of(data, ttl.characteristic) if ttl is not None else None
            if ttl is not None and timestamp is not None and timestamp > ttl.since:
                assert encode_expiry_key(key, ttl.id, timestamp) in everything

    def _check_that_nothing_is_left_for_ever(self) -> None:
        """After long enough, cleanups and a full snapshot leave nothing; without a time to live, no index."""
        self.model.now += 1000
        self._declare()
        self.state.ttl_cleanup(GROUPS).remove_all()
        self.state.ttl_cleanup(GROUPS).remove_some(100_000)
        left = {key[2:6] for key, _ in self.store.scan(b"")}
        assert left & {expiry for name in READ for expiry in expiry_ids(name)} == set()
        if self.ttl is not None and self.model.since + 1000 <= self.model.now:
            assert left == set()


def _add(a: int, b: int) -> int:
    return a + b


TestDictionary = Life.TestCase


def test_every_kind_of_state_in_rocksdb_equals_plain_dictionaries() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class InRocksDB(Life):
            stores = RocksStoreFixture(Path(folder))

        # Opening a store costs as much as a hundred lives of the dictionary.
        few = settings(max_examples=max(1, settings().max_examples // 10), stateful_step_count=10)
        run_state_machine_as_test(InRocksDB, settings=few)
