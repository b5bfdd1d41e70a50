"""Keyed state against plain dictionaries, through random lives of an operator."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from tests.support.stores import DictStoreFixture, RocksStoreFixture, StoreFixture, address

COUNT = ValueStateDescriptor("count", int)
WORDS = ValueStateDescriptor("words", list[str])
NAMES = MapStateDescriptor("names", str, int)

KEYS = ("", "a", "a\0", "b")
names = st.sampled_from(["", "x", "x\0", "é"])
numbers = st.integers(-3, 3)
actions = st.one_of(
    st.tuples(st.just("look")),
    st.tuples(st.just("look up"), names),
    st.tuples(st.just("count"), numbers | st.none()),
    st.tuples(st.just("words"), st.lists(names, max_size=2) | st.none()),
    st.tuples(st.just("put"), names, numbers),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("clear map")),
    st.tuples(st.just("entries")),
)
Action = tuple[Any, ...]
visits = st.lists(st.tuples(st.sampled_from(KEYS), st.lists(actions, max_size=3)), max_size=6)


class Life(RuleBasedStateMachine):
    """Batches visit keys, which may come back; snapshots are restored; what a key sees is what it left."""

    stores: StoreFixture = DictStoreFixture()

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.words: dict[str, list[str]] = {}
        self.names: dict[str, dict[str, int]] = {key: {} for key in KEYS}

    @initialize()
    def begin(self) -> None:
        self.store = self.stores.new()
        self._declare()

    def teardown(self) -> None:
        try:
            self.batch([(key, [("look",), ("entries",)]) for key in KEYS], KEYS)
        finally:
            self.store.close()

    @rule(visits=visits, prefetched=st.sampled_from([KEYS, KEYS[:2], ()]))
    def batch(self, visits: Sequence[tuple[str, list[Action]]], prefetched: Sequence[str]) -> None:
        self.state.begin_key_batch([address(key) for key in prefetched])
        for key, wanted in visits:
            self.state.set_key(*address(key))
            for action, *arguments in wanted:
                self._act(key, action, *arguments)
        self.state.end_key_batch()

    @rule()
    def snapshot_and_restore(self) -> None:
        self.store = self.stores.reopened(self.store)
        self._declare()

    def _declare(self) -> None:
        self.state = KeyedState(self.store)
        self.count = self.state.value_state(COUNT)
        self.list = self.state.value_state(WORDS)
        self.map = self.state.map_state(NAMES)

    def _act(self, key: str, action: str, *arguments: Any) -> None:
        mine = self.names[key]
        match action, *arguments:
            case ("look",):
                assert self.count.value() == self.counts.get(key)
                assert self.list.value() == self.words.get(key)
            case "look up", name:
                assert self.map.get(name) == mine.get(name)
                assert self.map.contains(name) == (name in mine)
            case ("entries",):
                assert list(self.map.items()) == sorted(mine.items(), key=lambda entry: entry[0].encode())
                assert self.map.is_empty() == (not mine)
            case "count", number:
                self.count.update(number)
                _set(self.counts, key, number)
            case "words", words:
                self.list.update(words)
                _set(self.words, key, words)
            case "put", name, number:
                self.map.put(name, number)
                mine[name] = number
            case "remove", name:
                self.map.remove(name)
                mine.pop(name, None)
            case ("clear map",):
                self.map.clear()
                mine.clear()


def _set(model: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        model.pop(key, None)
    else:
        model[key] = value


TestDictionary = Life.TestCase


def test_rocksdb_lives_as_the_dictionary_does() -> None:
    with tempfile.TemporaryDirectory() as folder:

        class InRocksDB(Life):
            stores = RocksStoreFixture(Path(folder))

        # Opening a store costs as much as a hundred lives of the dictionary.
        few = settings(max_examples=max(1, settings().max_examples // 10), stateful_step_count=10)
        run_state_machine_as_test(InRocksDB, settings=few)
