"""State of the current key: every kind against plain dictionaries, iteration, namespaces, failed rows, restores."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stateflow.errors import StateError
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.stored_key import encode_expiry_key, expiry_ids
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import timestamp_of
from stateflow.types.ttl_config import StateTtlConfig
from tests.support.errors import raises
from tests.support.operators import Mean
from tests.support.stores import CountingStore, DictStoreFixture, RocksStoreFixture, StoreFixture, address, set_key

COUNT = ValueStateDescriptor("count", int)
NAMES = MapStateDescriptor("names", str, int)
WORDS = ListStateDescriptor("words", str)
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, int)
MEAN = AggregatingStateDescriptor("mean", Mean(), list[int])


def test_one_read_answers_all_keys_for_every_kind_that_keeps_one_value(state: KeyedState, store: CountingStore) -> None:
    count, total, mean = state.value_state(COUNT), state.reducing_state(SUM), state.aggregating_state(MEAN)
    state.begin_key_batch([address(key) for key in "abc"])
    for key in "abcab":
        set_key(state, key)
        count.update((count.value() or 0) + 1)
        total.add(5)
        mean.add(5)
    assert (store.multi_gets, store.gets) == (3, 0)
    state.end_key_batch()
    set_key(state, "a")
    assert (count.value(), total.get(), mean.get()) == (2, 10, 5.0)


def test_a_key_that_comes_back_sees_its_change_and_not_what_was_prefetched(state: KeyedState) -> None:
    value = state.value_state(COUNT)
    for key in "ab":
        set_key(state, key)
        value.update(1)
    state.end_key_batch()
    state.begin_key_batch([address("a"), address("b")])
    for key, expected, change in (("a", 1, 5), ("b", 1, None), ("a", 5, 6), ("b", None, 7)):
        set_key(state, key)
        assert value.value() == expected
        value.update(change)


def test_a_large_map_or_list_is_not_read_as_a_whole_and_a_cleared_one_leaves_nothing(
    state: KeyedState, store: CountingStore
) -> None:
    numbers, words = state.map_state(MapStateDescriptor("numbers", int, int)), state.list_state(WORDS)
    set_key(state, "a")
    numbers.put_all({n: n for n in range(2500)})
    words.add_all(str(n) for n in range(2500))
    state.end_key_batch()
    store.scanned = store.gets = 0
    set_key(state, "a")
    assert numbers.get(500) == 500
    assert (store.gets, store.scanned) == (1, 0)
    assert next(numbers.items()) == (0, 0) and not numbers.is_empty() and next(words.get()) == "0"
    assert store.scanned == 3
    words.add("fresh")
    numbers.clear()
    words.clear()
    assert (list(words.get()), numbers.is_empty()) == ([], True)
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_elements_keep_their_order_over_batches_and_restores(stores: StoreFixture) -> None:
    """A batch that is tried again, or another one after a rewind, has the epoch of what it replaces."""
    store, epochs = stores.new(), (1, 2, 255, 256, 1 << 32)
    for epoch in epochs:
        state = KeyedState(store, time=BatchTime(epoch=epoch))
        set_key(state, "a")
        state.list_state(WORDS).add_all([f"{epoch} first", f"{epoch} second"])
        state.end_key_batch()
        store = stores.reopened(store)
    state = KeyedState(store, time=BatchTime(epoch=(1 << 32) + 1))
    set_key(state, "a")
    expected = [f"{epoch} {which}" for epoch in epochs for which in ("first", "second")]
    assert list(state.list_state(WORDS).get()) == expected
    store.close()


def test_an_iteration_sees_the_state_of_the_time_at_which_the_iterator_was_created(state: KeyedState) -> None:
    names, words = state.map_state(NAMES), state.list_state(WORDS)
    set_key(state, "a")
    names.put_all({"x": 1, "y": 2})
    words.add_all(["x", "y"])
    entries, seen = names.items(), words.get()
    names.put("w", 0)
    words.add("late")
    for key, _ in entries:
        names.remove(key)
        names.put(f"{key}{key}", 9)
        assert not names.is_empty()
    assert dict(names.items()) == {"w": 0, "xx": 9, "yy": 9}
    assert list(seen) == ["x", "y"]
    words.update(word * 2 for word in words.get())
    assert list(words.get()) == ["xx", "yy", "latelate"]


@pytest.mark.parametrize("wrong", [None, 5])
def test_a_list_takes_all_of_the_given_elements_or_none(state: KeyedState, wrong: Any) -> None:
    words = state.list_state(WORDS)
    set_key(state, "a")
    words.add("kept")
    uses: list[Callable[[], None]] = [
        lambda: words.add(wrong),
        lambda: words.add_all(["x", wrong]),
        lambda: words.update(["x", wrong]),
    ]
    for use in uses:
        with raises(StateError, state="words"):
            use()
    assert list(words.get()) == ["kept"]


def test_none_is_never_a_value(state: KeyedState) -> None:
    none: Any = None

    def to_none(a: int, b: int) -> Any:
        return None

    reduced = state.reducing_state(ReducingStateDescriptor("n", to_none, int))
    set_key(state, "a")
    reduced.add(1)
    uses: dict[str, Callable[[], object]] = {
        "names": lambda: state.map_state(NAMES).put("x", none),
        "sum": lambda: state.reducing_state(SUM).add(none),
        "mean": lambda: state.aggregating_state(MEAN).add(none),
        "n": lambda: reduced.add(1),
    }
    for name, use in uses.items():
        with raises(StateError, state=name):
            use()


def _appended(words: list[str], word: str) -> list[str]:
    words.append(word)
    return words


def test_a_fold_warns_and_is_the_aggregating_state_of_that_name(store: CountingStore) -> None:
    with pytest.warns(DeprecationWarning, match="AggregatingStateDescriptor"):
        descriptor: FoldingStateDescriptor[str, list[str]] = FoldingStateDescriptor("seen", [], _appended, list[str])
    state = KeyedState(store)
    seen = state.folding_state(descriptor)
    for key in "aba":
        set_key(state, key)
        seen.add(key)
    assert seen.get() == ["a", "a"]
    set_key(state, "b")
    assert seen.get() == ["b"]
    state.end_key_batch()
    again = KeyedState(store, state.registry.schemas).aggregating_state(descriptor.aggregating)
    assert again.schema.kind == "aggregating"


def test_a_key_without_a_value_has_a_copy_of_the_default(state: KeyedState, store: CountingStore) -> None:
    numbers = state.value_state(ValueStateDescriptor("numbers", list[int], default=[1]))
    state.begin_key_batch([address("a")])
    for key in "aba":
        set_key(state, key)
        assert numbers.value() == [1]
        (numbers.value() or []).append(2)
    numbers.update([5])
    assert numbers.value() == [5]
    numbers.update(None)
    assert numbers.value() == [1]
    state.end_key_batch()
    assert list(store.scan(b"")) == []


def test_a_namespace_is_one_more_part_of_the_stored_key_and_another_key_begins_in_the_void_one(
    state: KeyedState, store: CountingStore
) -> None:
    group, key = address("a")
    count = state.value_state(COUNT)
    set_key(state, "a")
    state.set_namespace(7)
    count.update(2)
    set_key(state, "a")
    count.update(1)
    state.end_key_batch()
    assert [k for k, _ in store.scan(b"")] == [
        group + count.id + key + b"\0",
        group + count.id + key + bytes.fromhex("158000000000000007"),
    ]


def test_a_rollback_undoes_what_a_scan_wrote_through_and_what_was_changed_in_place() -> None:
    store = DictBackend()
    state = KeyedState(store, undoable=True)
    value = state.value_state(ValueStateDescriptor("value", list[int]))
    names, words = state.map_state(NAMES), state.list_state(WORDS)
    set_key(state, "a")
    value.update([1])
    names.put("x", 1)
    state.end_key_batch()
    before = dict(store.entries)
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    state.savepoint()
    (value.value() or []).append(2)
    names.put_all({"x": 2, "y": 2})
    words.add("new")
    assert (len(list(names.items())), len(list(words.get()))) == (2, 1)
    names.clear()
    assert names.is_empty()
    assert store.entries != before
    state.rollback()
    assert value.value() == [1]
    state.end_key_batch()
    assert store.entries == before


def test_a_value_that_cannot_be_stored_fails_its_own_row() -> None:
    state = KeyedState(DictBackend(), undoable=True)
    value: Any = state.value_state(COUNT)
    names = state.map_state(NAMES)
    set_key(state, "a")
    value.update(1)
    names.put("x", 1)
    state.savepoint()
    value.update(datetime.UTC)
    names.put("x", 2)
    with raises(StateError, state="count", value=repr(datetime.UTC)):
        state.commit()
    state.rollback()
    assert (value.value(), names.get("x")) == (1, 1)


def test_a_removed_key_of_a_map_is_gone_before_the_change_is_written(state: KeyedState) -> None:
    entries = state.map_state(MapStateDescriptor("m", str, int))
    set_key(state, "a")
    entries.put("x", 1)
    state.end_key_batch()
    set_key(state, "a")
    entries.remove("x")
    assert (entries.get("x"), entries.contains("x"), list(entries.items())) == (None, False, [])


def test_a_merge_moves_the_content_of_namespaces_to_the_current_one(state: KeyedState) -> None:
    total = state.reducing_state(ReducingStateDescriptor("t", lambda a, b: a + b, int))
    elements = state.list_state(ListStateDescriptor("l", int))
    set_key(state, "a")
    for namespace in (1, 2, 3):
        state.set_namespace(namespace)
        total.add(namespace)
        elements.add(namespace)
    state.merge_namespaces(total, [1, 2])
    state.merge_namespaces(elements, [1, 2])
    assert (state.namespace, total.get(), sorted(elements.get())) == (3, 6, [1, 2, 3])
    for namespace in (1, 2):
        state.set_namespace(namespace)
        assert (total.get(), list(elements.get())) == (None, [])


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
