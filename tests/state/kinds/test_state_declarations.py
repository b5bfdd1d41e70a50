"""Declarations of keyed state: names, kinds, types and ids, and state without a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import IncompatibleState, JobDefinitionError, StateError
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.stored_key import state_id
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tests.support.errors import raises
from tests.support.operators import Mean
from tests.support.stores import CountingStore, set_key

COLLIDING = ("state-5219", "state-216217")
"""Two names with one id, found by search."""
DECLARATIONS: dict[str, Callable[[KeyedState], Any]] = {
    "value": lambda state: state.value_state(ValueStateDescriptor("s", int)),
    "value of another type": lambda state: state.value_state(ValueStateDescriptor("s", str)),
    "list": lambda state: state.list_state(ListStateDescriptor("s", int)),
    "map": lambda state: state.map_state(MapStateDescriptor("s", str, int)),
    "map with other keys": lambda state: state.map_state(MapStateDescriptor("s", bytes, int)),
    "reducing": lambda state: state.reducing_state(ReducingStateDescriptor("s", max, int)),
    "aggregating": lambda state: state.aggregating_state(AggregatingStateDescriptor("s", Mean(), list[int])),
}


@pytest.mark.parametrize("first", DECLARATIONS)
@pytest.mark.parametrize("second", DECLARATIONS)
def test_a_name_identifies_one_state_in_a_job_and_over_its_runs(
    state: KeyedState, store: CountingStore, first: str, second: str
) -> None:
    found = DECLARATIONS[first](state)
    later = KeyedState(store, state.registry.schemas)
    if first == second:
        assert DECLARATIONS[second](state) is found
        DECLARATIONS[second](later)
        return
    with raises(StateError, name="s"):
        DECLARATIONS[second](state)
    with raises(IncompatibleState, name="s") as refused:
        DECLARATIONS[second](later)
    assert {"name", "stored", "declared"} <= set(refused.value.facts)
    later.value_state(ValueStateDescriptor("new", int))


def test_two_names_whose_ids_collide_are_refused_by_name(state: KeyedState, store: CountingStore) -> None:
    first, second = COLLIDING
    assert first != second and state_id(first) == state_id(second)
    state.value_state(ValueStateDescriptor(first, int))
    with raises(StateError) as refused:
        state.value_state(ValueStateDescriptor(second, int))
    assert set(refused.value.facts.values()) == {first, second}
    # A later version declares only the other name.
    with raises(IncompatibleState, name=second, stored=first):
        KeyedState(store, state.registry.schemas).value_state(ValueStateDescriptor(second, int))


@pytest.mark.parametrize("name", ["", "x" * 101, 5], ids=["empty", "long", "number"])
def test_a_state_needs_a_name(name: Any) -> None:
    with raises(JobDefinitionError, name=name):
        ValueStateDescriptor(name, int)
    with raises(JobDefinitionError, name=name):
        MapStateDescriptor(name, str, int)


def test_a_type_that_cannot_be_stored_or_a_default_of_another_type_is_refused(state: KeyedState) -> None:
    with raises(JobDefinitionError, type=repr(Path)):
        state.value_state(ValueStateDescriptor("path", Path))
    with raises(StateError, state="count", value="'none'"):
        state.value_state(ValueStateDescriptor("count", int, default="none"))


def test_schemas_list_what_is_declared_in_order_of_names(state: KeyedState) -> None:
    state.map_state(MapStateDescriptor("names", str, int))
    state.value_state(ValueStateDescriptor("count", int))
    assert [(s.name, s.kind, s.value_type, s.key_type) for s in state.registry.schemas] == [
        ("count", "value", "int", ""),
        ("names", "map", "int", "str"),
    ]


def test_a_queryable_name_is_recorded_and_belongs_to_one_state(state: KeyedState) -> None:
    state.map_state(MapStateDescriptor("words", str, int, queryable="all-words"))
    assert state.registry.schemas[0].queryable == "all-words"
    with raises(StateError, queryable="all-words", first="words", second="other"):
        state.value_state(ValueStateDescriptor("other", int, queryable="all-words"))
    with raises(JobDefinitionError, name="list", queryable="all-words"):
        ListStateDescriptor("list", str, queryable="all-words")
    with raises(JobDefinitionError, name="list", queryable="all-words"):
        ListStateDescriptor("list", str).set_queryable("all-words")
    with raises(JobDefinitionError, name="other", queryable="x" * 101):
        ValueStateDescriptor("other", int, queryable="x" * 101)
    named = ValueStateDescriptor("named", int)
    assert named.set_queryable("counts").set_queryable("counts") is named
    assert named == ValueStateDescriptor("named", int, queryable="counts")
    for given in ("", "others"):
        with raises(JobDefinitionError, name="named", queryable="counts", given=given):
            named.set_queryable(given)


USES: dict[str, dict[str, Callable[[Any], object]]] = {
    "value": {"value": lambda s: s.value(), "update": lambda s: s.update(1)},
    "list": {"get": lambda s: s.get(), "add": lambda s: s.add(1), "update": lambda s: s.update([])},
    "map": {
        "items": lambda s: s.items(),
        "keys": lambda s: s.keys(),
        "values": lambda s: s.values(),
        "is_empty": lambda s: s.is_empty(),
        "get": lambda s: s.get("x"),
        "put": lambda s: s.put("x", 1),
        "remove": lambda s: s.remove("x"),
        "contains": lambda s: s.contains("x"),
    },
    "reducing": {"get": lambda s: s.get(), "add": lambda s: s.add(1)},
}
USES["aggregating"] = USES["reducing"]


@pytest.mark.parametrize(("kind", "use"), [(kind, use) for kind in USES for use in (*USES[kind], "clear")])
def test_state_without_a_key_is_refused(state: KeyedState, kind: str, use: str) -> None:
    found = DECLARATIONS[kind](state)
    call: Callable[[Any], object] = USES[kind].get(use, lambda s: s.clear())
    with raises(StateError):
        call(found)
    set_key(state, "a")
    call(found)
    state.end_key_batch()
    with raises(StateError):
        call(found)
