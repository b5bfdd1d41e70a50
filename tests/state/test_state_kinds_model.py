"""Every kind of state against plain dictionaries: keys, namespaces, time to live, snapshots, restores, redeclaring."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
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
from stateflow.state.kinds.ttl.entry_ttl import expiry_ids
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
from tests.state.test_state_kinds import Mean
from tests.support.stores import DictStoreFixture, RocksStoreFixture, StoreFixture, address

KEYS = ("", "a", "a\0")
GROUPS = KeyGroupRange(0, 15)
NAMES = ("value", "list", "map", "reducing", "aggregating")

keys = st.sampled_from(KEYS)
namespaces = st.sampled_from([None, None, 0, "", "\0"])
entries = st.sampled_from(["", "x", "x\0"])
numbers = st.integers(-3, 3)
actions = st.one_of(
    st.sampled_from(["value", "list", "map", "reducing", "aggregating"]).map(lambda name: ("read", name)),
    st.sampled_from(["value", "list", "map", "reducing", "aggregating"]).map(lambda name: ("clear", name)),
    st.tuples(st.just("update value"), numbers | st.none()),
    st.tuples(st.just("add to list"), numbers),
    st.tuples(st.just("update list"), st.lists(numbers, max_size=2)),
    st.tuples(st.just("put"), entries, numbers),
    st.tuples(st.just("remove"), entries),
    st.tuples(st.just("get"), entries),
    st.tuples(st.just("is empty")),
    st.tuples(st.just("reduce"), numbers),
    st.tuples(st.just("aggregate"), numbers),
)
visits = st.lists(st.tuples(keys, namespaces, st.lists(actions, max_size=4)), max_size=5)
ttls = st.none() | st.builds(
    StateTtlConfig,
    st.sampled_from([30, 100]).map(lambda ms: timedelta(milliseconds=ms)),
    st.sampled_from([StateTtlConfig.UpdateType.OnCreateAndWrite, StateTtlConfig.UpdateType.OnReadAndWrite]),
    background_cleanup=st.booleans(),
)


@dataclass
class Item:
    """Something stored, and the moment from which it counts."""

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
        if ttl is not None and self.ttl is None:
            self.since = self.now
        self.ttl = ttl

    def put(self, at: tuple[Any, ...], key: Any, value: Any) -> None:
        self.items.setdefault(at, {})[key] = Item(value, None if self.ttl is None else self.now)

    def append(self, at: tuple[Any, ...], value: Any) -> None:
        self.added += 1
        self.put(at, self.added, value)

    def read(self, at: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """What lives, in order of keys; it may live on for having been read."""
        found = self.items.get(at, {})
        for key in sorted(found):
            item = found[key]
            if self.lives(item):
                if self.ttl is not None and self.ttl.update_type is StateTtlConfig.UpdateType.OnReadAndWrite:
                    item.begin = self.now
                yield key, item.value

    def get(self, at: tuple[Any, ...], key: Any = 0) -> Any:
        one = {k: i for k, i in self.items.get(at, {}).items() if k == key}
        self.items[("one", *at)] = one
        return dict(self.read(("one", *at))).get(key)

    def lives(self, item: Item) -> bool:
        if self.ttl is None:
            return True
        return max(item.begin or 0, self.since) + self.ttl.milliseconds > self.now


class Life(RuleBasedStateMachine):
    """Batches visit keys and namespaces; in between, time passes, state is restored and declared anew."""

    stores: StoreFixture = DictStoreFixture()

    @initialize(ttl=ttls)
    def begin(self, ttl: StateTtlConfig | None) -> None:
        self.store = self.stores.new()
        self.model = Model()
        self.known: list[StateSchema] = []
        self.epoch = 0
        self.ttl = ttl

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            everything: Any = [("read", name) for name in NAMES]
            self.batch([(k, n, everything) for k in KEYS for n in (None, 0, "", "\0")], KEYS, 1)
            self._nothing_is_left_for_ever()
        finally:
            self.store.close()

    @rule(visits=visits, prefetched=st.sampled_from([KEYS, KEYS[:1], ()]), limit=st.sampled_from([1, 5, 1000]))
    def batch(self, visits: Sequence[tuple[str, Any, list[Any]]], prefetched: Sequence[str], limit: int) -> None:
        self._declare()
        self.state.begin_key_batch([address(key) for key in prefetched])
        for key, namespace, wanted in visits:
            self.state.set_key(*address(key))
            self.state.set_namespace(namespace)
            for action in wanted:
                self._act((key, repr(namespace)), *action)
        self.state.end_key_batch()
        self.state.ttl_cleanup(GROUPS).remove_some(limit)
        self.known = self.state.registry.schemas
        self._everything_that_expires_is_in_the_index()

    @rule(duration=st.sampled_from([1, 29, 30, 71, 100]))
    def time_passes(self, duration: int) -> None:
        self.model.now += duration

    @rule()
    def snapshot_and_restore(self) -> None:
        self.store = self.stores.reopened(self.store)

    @rule(ttl=ttls)
    def declared_anew(self, ttl: StateTtlConfig | None) -> None:
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
        lives = [
            i for at, found in self.model.items.items() if at[0] != "one" for i in found.values() if self.model.lives(i)
        ]
        assert len(stored) == len(lives)

    def _declare(self) -> None:
        self.epoch += 1
        self.model.declare(self.ttl)
        owner = KeyedState(self.store, self.known, BatchTime(self.epoch, self.model.now))
        self.value = owner.value_state(ValueStateDescriptor("value", int, ttl=self.ttl))
        self.list = owner.list_state(ListStateDescriptor("list", int, ttl=self.ttl))
        self.map = owner.map_state(MapStateDescriptor("map", str, int, ttl=self.ttl))
        self.sum = owner.reducing_state(ReducingStateDescriptor("reducing", _add, int, ttl=self.ttl))
        self.mean = owner.aggregating_state(AggregatingStateDescriptor("aggregating", Mean(), list[int], ttl=self.ttl))
        self.state = owner
        self.ids = {each.id: each for each in (self.value, self.list, self.map, self.sum, self.mean)}

    def _act(self, at: tuple[str, str], action: str, *arguments: Any) -> None:
        model = self.model
        match action, *arguments:
            case "read", name:
                self._read(at, name)
            case "clear", name:
                {
                    "value": self.value,
                    "list": self.list,
                    "map": self.map,
                    "reducing": self.sum,
                    "aggregating": self.mean,
                }[name].clear()
                model.items[*at, name] = {}
            case "update value", None:
                self.value.update(None)
                model.items[*at, "value"] = {}
            case "update value", number:
                self.value.update(number)
                model.put((*at, "value"), 0, number)
            case "reduce", number:
                self.sum.add(number)
                model.put((*at, "reducing"), 0, (model.get((*at, "reducing")) or 0) + number)
            case "aggregate", number:
                self.mean.add(number)
                count, added = model.get((*at, "aggregating")) or (0, 0)
                model.put((*at, "aggregating"), 0, (count + 1, added + number))
            case _:
                self._act_on_many((*at, "list"), (*at, "map"), action, *arguments)

    def _act_on_many(self, items: Any, mapped: Any, action: str, *arguments: Any) -> None:
        model = self.model
        match action, *arguments:
            case "add to list", number:
                self.list.add(number)
                model.append(items, number)
            case "update list", replaced:
                self.list.update(replaced)
                model.items[items] = {}
                for number in replaced:
                    model.append(items, number)
            case "put", name, number:
                self.map.put(name, number)
                model.put(mapped, name, number)
            case "remove", name:
                self.map.remove(name)
                model.items.get(mapped, {}).pop(name, None)
            case "get", name:
                assert self.map.get(name) == model.get(mapped, name)
            case ("is empty",):
                assert self.map.is_empty() == (next(model.read(mapped), None) is None)
            case _:
                raise AssertionError(action)

    def _read(self, at: tuple[str, str], name: str) -> None:
        found = list(self.model.read((*at, name)))
        only = found[0][1] if found else None
        match name:
            case "value":
                assert self.value.value() == only
            case "list":
                assert list(self.list.get()) == [v for _, v in found]
            case "map":
                assert list(self.map.items()) == found
            case "reducing":
                assert self.sum.get() == only
            case "aggregating":
                assert self.mean.get() == (None if only is None else only[1] / only[0])

    def _everything_that_expires_is_in_the_index(self) -> None:
        """What was there when the time to live was added is not."""
        everything = dict(self.store.scan(b""))
        for key, data in everything.items():
            state = self.ids.get(key[2:6])
            moment = timestamp_of(data, "processing") if state is not None else None
            if state is not None and state.ttl is not None and moment is not None and moment > state.ttl.since:
                assert state.ttl.index_key(moment, key) in everything

    def _nothing_is_left_for_ever(self) -> None:
        """After long enough, clean-ups and a full snapshot leave nothing; without a time to live, no index."""
        self.model.now += 1000
        self._declare()
        self.state.ttl_cleanup(GROUPS).remove_all()
        self.state.ttl_cleanup(GROUPS).remove_some(100_000)
        left = {key[2:6] for key, _ in self.store.scan(b"")}
        assert left & {expiry for name in NAMES for expiry in expiry_ids(name)} == set()
        if self.ttl is not None and self.ttl == self.model.ttl and self.model.since + 1000 <= self.model.now:
            assert left == set()


def _add(a: int, b: int) -> int:
    return a + b


TestDictionary = Life.TestCase


def test_rocksdb_lives_as_the_dictionary_does() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class InRocksDB(Life):
            stores = RocksStoreFixture(Path(folder))

        few = settings(max_examples=max(1, settings().max_examples // 10), stateful_step_count=10)
        run_state_machine_as_test(InRocksDB, settings=few)
