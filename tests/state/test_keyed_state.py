"""State of the current key, the same over every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import IncompatibleState, JobDefinitionError, StateError
from stateflow.state.kinds.key_context import state_id
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.map_state import MapState
from stateflow.state.kinds.single_value import ValueState
from stateflow.types.descriptors import MapStateDescriptor, ValueStateDescriptor
from tests.support.errors import raises
from tests.support.stores import CountingStore, StoreFixture, address, set_key

COUNT = ValueStateDescriptor("count", int)
NAMES = MapStateDescriptor("names", str, int)
COLLIDING = ("state-5219", "state-216217")
"""Two names with one id, found by search."""


# -- values -------------------------------------------------------------------------------------------------------


def test_a_key_without_a_value_has_none(state: KeyedState) -> None:
    value = state.value_state(COUNT)
    set_key(state, "a")
    assert value.value() is None


def test_each_key_has_its_own_value(state: KeyedState) -> None:
    value = state.value_state(COUNT)
    for key, number in (("a", 1), ("b", 2), ("a\0", 3), ("", 4)):
        set_key(state, key)
        assert value.value() is None
        value.update(number)
        assert value.value() == number
    for key, number in (("", 4), ("a", 1), ("a\0", 3), ("b", 2)):
        set_key(state, key)
        assert value.value() == number


@pytest.mark.parametrize("clear", [ValueState.clear, lambda value: value.update(None)])
@pytest.mark.parametrize("written_back", [False, True])
def test_a_cleared_value_is_none_again(
    state: KeyedState, store: CountingStore, clear: Callable[[ValueState[int]], None], written_back: bool
) -> None:
    value = state.value_state(COUNT)
    set_key(state, "a")
    value.update(1)
    if written_back:
        state.end_key_batch()
        set_key(state, "a")
    clear(value)
    assert value.value() is None
    state.end_key_batch()
    set_key(state, "a")
    assert value.value() is None
    assert list(store.scan(b"")) == []


def test_what_was_written_back_is_there_for_the_next_batch(stores: StoreFixture, store: CountingStore) -> None:
    first = KeyedState(store)
    first.value_state(COUNT)
    set_key(first, "a")
    first.value_state(COUNT).update(7)
    first.end_key_batch()

    second = KeyedState(store)
    value = second.value_state(COUNT)
    set_key(second, "a")
    assert value.value() == 7


def test_two_states_of_a_key_are_apart(state: KeyedState) -> None:
    count, total = state.value_state(COUNT), state.value_state(ValueStateDescriptor("total", int))
    names = state.map_state(NAMES)
    set_key(state, "a")
    count.update(1)
    names.put("x", 3)
    assert total.value() is None
    total.update(2)
    state.end_key_batch()
    set_key(state, "a")
    assert (count.value(), total.value(), dict(names.items())) == (1, 2, {"x": 3})


def test_an_unchanged_value_is_not_written(state: KeyedState, store: CountingStore) -> None:
    value = state.value_state(COUNT)
    set_key(state, "a")
    value.update(1)
    state.end_key_batch()
    before = store.written
    set_key(state, "a")
    assert value.value() == 1
    state.end_key_batch()
    assert store.written == before


# -- prefetching --------------------------------------------------------------------------------------------------


def test_one_read_answers_all_keys_of_a_stretch(state: KeyedState, store: CountingStore) -> None:
    value = state.value_state(COUNT)
    state.begin_key_batch([address(key) for key in "abc"])
    for key in "abc":
        set_key(state, key)
        value.value()
    assert (store.multi_gets, store.gets) == (1, 0)


def test_a_key_that_comes_back_sees_its_change_and_not_what_was_prefetched(state: KeyedState) -> None:
    value = state.value_state(COUNT)
    state.begin_key_batch([address("a"), address("b")])
    set_key(state, "a")
    assert value.value() is None
    value.update(5)
    set_key(state, "b")
    set_key(state, "a")
    assert value.value() == 5


def test_a_state_that_is_declared_late_works_without_prefetching(state: KeyedState) -> None:
    state.begin_key_batch([address("a")])
    set_key(state, "a")
    late = state.value_state(COUNT)
    assert late.value() is None
    late.update(1)
    state.end_key_batch()
    set_key(state, "a")
    assert late.value() == 1


# -- maps ---------------------------------------------------------------------------------------------------------


def test_a_map_is_read_before_and_after_it_is_written_back(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    for written_back in (False, True):
        set_key(state, "a")
        if not written_back:
            names.put_all({"x": 1, "y": 2})
        assert (names.get("x"), names.get("y"), names.get("z")) == (1, 2, None)
        assert names.contains("x") and not names.contains("z")
        state.end_key_batch()


def test_each_key_has_its_own_map(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    for key in ("a", "a\0", "ab", ""):
        set_key(state, key)
        assert names.is_empty()
        names.put(f"of {key!r}", len(key))
    for key in ("a", "a\0", "ab", ""):
        set_key(state, key)
        assert dict(names.items()) == {f"of {key!r}": len(key)}


def test_entries_come_in_order_of_their_keys_wherever_they_are(state: KeyedState) -> None:
    numbers = state.map_state(MapStateDescriptor("numbers", int, str))
    set_key(state, "a")
    numbers.put_all({10: "stored", -1: "stored", 3: "stored"})
    state.end_key_batch()
    set_key(state, "a")
    numbers.put(0, "fresh")
    numbers.put(10, "changed")
    numbers.remove(3)
    assert list(numbers.items()) == [(-1, "stored"), (0, "fresh"), (10, "changed")]
    assert list(numbers.keys()) == [-1, 0, 10]
    assert list(numbers.values()) == ["stored", "fresh", "changed"]


def test_an_iteration_sees_the_map_as_it_was_when_it_was_asked_for(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    set_key(state, "a")
    names.put_all({"x": 1, "y": 2})
    entries = names.items()
    names.put("w", 0)
    for key, _ in entries:
        names.remove(key)
        names.put(f"{key}{key}", 9)
        assert not names.is_empty()
    assert dict(names.items()) == {"w": 0, "xx": 9, "yy": 9}


def test_a_cleared_map_is_empty_and_takes_new_entries(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    set_key(state, "b")
    names.put("other key", 1)
    set_key(state, "a")
    names.put_all({"x": 1, "y": 2})
    state.end_key_batch()
    set_key(state, "a")
    names.put("z", 3)
    names.clear()
    assert names.is_empty() and names.get("x") is None and list(names.items()) == []
    names.put("x", 4)
    state.end_key_batch()
    set_key(state, "a")
    assert dict(names.items()) == {"x": 4}
    set_key(state, "b")
    assert dict(names.items()) == {"other key": 1}


def test_removing_what_a_map_does_not_have_is_no_error(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    set_key(state, "a")
    names.remove("x")
    state.end_key_batch()
    set_key(state, "a")
    assert names.is_empty()


def test_a_large_map_is_not_read_as_a_whole(state: KeyedState, store: CountingStore) -> None:
    numbers = state.map_state(MapStateDescriptor("numbers", int, int))
    set_key(state, "a")
    numbers.put_all({n: n for n in range(1000)})
    state.end_key_batch()
    store.scanned = store.gets = 0

    set_key(state, "a")
    assert numbers.get(500) == 500
    assert (store.gets, store.scanned) == (1, 0)
    assert next(numbers.items()) == (0, 0)
    assert not numbers.is_empty()
    assert store.scanned == 2


def test_a_map_refuses_none(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    set_key(state, "a")
    with raises(StateError, state="names"):
        names.put("x", None)  # type: ignore[arg-type]


# -- declarations and misuse --------------------------------------------------------------------------------------


def test_a_state_that_is_declared_twice_is_one_state(state: KeyedState) -> None:
    assert state.value_state(COUNT) is state.value_state(ValueStateDescriptor("count", int))
    assert state.map_state(NAMES) is state.map_state(NAMES)


@pytest.mark.parametrize(
    "declare",
    [
        lambda state: state.value_state(ValueStateDescriptor("count", str)),
        lambda state: state.map_state(MapStateDescriptor("count", str, int)),
    ],
)
def test_a_name_is_for_one_state(state: KeyedState, declare: Callable[[KeyedState], object]) -> None:
    state.value_state(COUNT)
    with raises(StateError, name="count"):
        declare(state)


def test_a_map_with_other_keys_is_another_state(state: KeyedState) -> None:
    state.map_state(NAMES)
    with raises(StateError, name="names"):
        state.map_state(MapStateDescriptor("names", int, int))


@pytest.mark.parametrize(
    "declare",
    [
        lambda state: state.value_state(ValueStateDescriptor("count", str)),
        lambda state: state.map_state(MapStateDescriptor("count", str, int)),
        lambda state: state.map_state(MapStateDescriptor("names", bytes, int)),
    ],
)
def test_a_stored_state_is_not_taken_for_something_else(
    store: CountingStore, declare: Callable[[KeyedState], object]
) -> None:
    before = KeyedState(store)
    before.value_state(COUNT)
    before.map_state(NAMES)
    state = KeyedState(store, before.registry.schemas)
    with raises(IncompatibleState) as refused:
        declare(state)
    assert {"name", "stored", "declared"} == set(refused.value.facts)
    state.value_state(COUNT)
    state.value_state(ValueStateDescriptor("new", int))


def test_two_names_whose_ids_collide_are_refused_by_name(state: KeyedState) -> None:
    first, second = COLLIDING
    assert first != second and state_id(first) == state_id(second)
    state.value_state(ValueStateDescriptor(first, int))
    with raises(StateError) as refused:
        state.value_state(ValueStateDescriptor(second, int))
    assert set(refused.value.facts.values()) == {first, second}


def test_a_state_never_gets_the_id_of_a_stored_state_of_another_name(store: CountingStore, state: KeyedState) -> None:
    first, second = COLLIDING
    state.value_state(ValueStateDescriptor(first, int))
    # A later version declares only the other name.
    later = KeyedState(store, state.registry.schemas)
    with raises(IncompatibleState, name=second, stored=first):
        later.value_state(ValueStateDescriptor(second, int))


def test_a_map_has_the_syntax_of_python_s_maps(state: KeyedState) -> None:
    names = state.map_state(NAMES)
    set_key(state, "a")
    names["x"] = 1
    names["y"] = 2
    del names["y"], names["never there"]
    assert ("x" in names, "y" in names, names["x"], names["y"], list(names)) == (True, False, 1, None, ["x"])


@pytest.mark.parametrize("use", [ValueState.value, ValueState.clear, lambda value: value.update(1)])
def test_a_value_without_a_key_is_refused(state: KeyedState, use: Callable[[ValueState[int]], object]) -> None:
    value = state.value_state(COUNT)
    with raises(StateError):
        use(value)
    set_key(state, "a")
    use(value)
    state.end_key_batch()
    with raises(StateError):
        use(value)


@pytest.mark.parametrize(
    "use",
    [
        MapState.items,
        MapState.keys,
        MapState.values,
        MapState.clear,
        MapState.is_empty,
        lambda names: names.get("x"),
        lambda names: names.put("x", 1),
        lambda names: names.remove("x"),
        lambda names: names.contains("x"),
    ],
)
def test_a_map_without_a_key_is_refused(state: KeyedState, use: Callable[[MapState[str, int]], object]) -> None:
    names = state.map_state(NAMES)
    with raises(StateError):
        use(names)


@pytest.mark.parametrize("name", ["", "x" * 101, 5])
def test_a_state_needs_a_name(name: Any) -> None:
    with raises(JobDefinitionError, name=name):
        ValueStateDescriptor(name, int)
    with raises(JobDefinitionError, name=name):
        MapStateDescriptor(name, str, int)


def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(state: KeyedState) -> None:
    with raises(JobDefinitionError, type=repr(Path)):
        state.value_state(ValueStateDescriptor("path", Path))


def test_schemas_say_what_is_declared_in_order_of_names(state: KeyedState) -> None:
    state.map_state(NAMES)
    state.value_state(COUNT)
    assert [(s.name, s.kind, s.value_type, s.key_type) for s in state.registry.schemas] == [
        ("count", "value", "int", ""),
        ("names", "map", "int", "str"),
    ]
