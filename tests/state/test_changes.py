"""Changes that are taken back: what a failed row did to state of every kind is as if it had never been called."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import StateError
from stateflow.state.backends.memory import DictBackend
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.types.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.ttl_config import StateTtlConfig, Time
from tests.support.errors import raises
from tests.support.stores import CountingStore, address, set_key

DAY = StateTtlConfig.new_builder(Time.days(1)).build()


class States:
    """One state of each kind, over one store."""

    def __init__(self, store: DictBackend, ttl: StateTtlConfig | None = None, epoch: int = 1) -> None:
        self.store = store
        self.all = KeyedState(store, (), BatchTime(epoch, epoch * 1000), undoable=True)
        self.value = self.all.value_state(ValueStateDescriptor("value", list[int], ttl=ttl))
        self.list = self.all.list_state(ListStateDescriptor("list", int, ttl=ttl))
        self.map = self.all.map_state(MapStateDescriptor("map", str, int, ttl=ttl))
        self.sum = self.all.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, int, ttl=ttl))

    def apply(self, call: tuple[str, int]) -> None:
        name, n = call
        if name == "update":
            self.value.update([n])
        elif name == "in place":
            (self.value.value() or []).append(n)
        elif name == "clear":
            self.value.clear()
        elif name == "add":
            self.list.add(n)
        elif name == "replace":
            self.list.update([n, n])
        elif name == "read all":
            list(self.list.get()), list(self.map.items())
        elif name == "put":
            self.map.put(f"k{n % 3}", n)
        elif name == "remove":
            self.map.remove(f"k{n % 3}")
        elif name == "clear map":
            self.map.clear()
        else:
            self.sum.add(n)

    def seen(self) -> tuple[Any, ...]:
        return self.value.value(), list(self.list.get()), list(self.map.items()), self.sum.get()


CALLS = ["update", "in place", "clear", "add", "replace", "read all", "put", "remove", "clear map", "sum"]
ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 9)), max_size=5), st.booleans()
    ),
    max_size=12,
)


def _written(states: States) -> list[tuple[bytes, bytes]]:
    states.all.end_key_batch()
    return sorted(states.store.scan(b""))


@given(ROWS, st.sampled_from([None, DAY]))
def test_what_is_left_is_what_the_rows_that_did_not_fail_leave(rows: Any, ttl: StateTtlConfig | None) -> None:
    guarded, plain = States(DictBackend(), ttl), States(DictBackend(), ttl)
    for states, runs_failing in ((guarded, True), (plain, False)):
        states.all.begin_key_batch([address("a"), address("b")])
        for key, calls, fails in rows:
            if fails and not runs_failing:
                continue
            set_key(states.all, key)
            states.all.savepoint()
            for call in calls:
                states.apply(call)
            if fails:
                states.all.rollback()
            else:
                # What is changed in place and not updated counts until the row's end only.
                states.all.commit()
    for key in "ab":
        for states in (guarded, plain):
            set_key(states.all, key)
        assert guarded.seen() == plain.seen()


def test_changes_that_a_scan_wrote_through_are_taken_back_too() -> None:
    store = DictBackend()
    states = States(store)
    set_key(states.all, "a")
    states.apply(("put", 1))
    before = _written(states)
    set_key(states.all, "a")
    states.all.savepoint()
    for call in (("put", 2), ("put", 1), ("add", 5), ("read all", 0), ("clear map", 0), ("read all", 0)):
        states.apply(call)
    assert sorted(store.scan(b"")) != before
    states.all.rollback()
    assert _written(states) == before


def test_a_value_that_cannot_be_stored_fails_its_own_row() -> None:
    states = States(DictBackend())
    set_key(states.all, "a")
    states.apply(("update", 1))
    states.all.savepoint()
    states.value.update(datetime.UTC)  # type: ignore[arg-type]
    with raises(StateError, state="value", value=repr(datetime.UTC)):
        states.all.commit()
    states.all.rollback()
    assert states.value.value() == [1]


def test_a_mark_costs_the_store_nothing() -> None:
    watched = CountingStore(DictBackend())
    state = KeyedState(watched, (), BatchTime(), undoable=True)
    value = state.value_state(ValueStateDescriptor("value", int))
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    for n in range(10):
        state.savepoint()
        value.update((value.value() or 0) + n)
        state.commit()
    state.end_key_batch()
    assert (watched.multi_gets, watched.gets, watched.written) == (1, 0, 1)
