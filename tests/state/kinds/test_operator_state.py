"""Operator list state, broadcast state and raw state of one subtask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stateflow.errors import IncompatibleState, StateError
from stateflow.state.handles import OperatorContent
from stateflow.state.kinds.operator_state import BroadcastState, OperatorStateStore
from stateflow.state.kinds.raw_state import RawKeyedStateOutput, RawOperatorStateOutput
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer
from stateflow.types.ttl_config import StateTtlConfig, Time
from tests.support.errors import raises

INTS = ListStateDescriptor("ints", int)
RULES = MapStateDescriptor("rules", str, int)
_encode = ValueSerializer[int](int).encode


def _encoded(*numbers: int) -> list[bytes]:
    return [_encode(n) for n in numbers]


def _kept(store: OperatorStateStore, kind: str = "lists") -> list[int]:
    data = getattr(store.content(keeps_broadcasts=True), kind).get("ints", [])
    return [ValueSerializer[int](int).decode(each) for each in data]


def test_a_list_is_added_to_replaced_and_cleared() -> None:
    store = OperatorStateStore(own=OperatorContent(lists={"ints": _encoded(1, 2)}))
    ints = store.get_list_state(INTS)
    ints.add(3)
    ints.add_all([4, 5])
    assert list(ints.get()) == _kept(store) == [1, 2, 3, 4, 5]
    ints.update(reversed(list(ints.get())))
    assert list(ints.get()) == _kept(store) == [5, 4, 3, 2, 1]
    ints.clear()
    assert list(ints.get()) == _kept(store) == []
    assert store.content(keeps_broadcasts=True) == OperatorContent()


def test_a_union_list_has_the_elements_of_all_subtasks_and_stores_only_its_own() -> None:
    """Else each batch would multiply them by the number of subtasks."""
    store = OperatorStateStore(own=OperatorContent(unions={"ints": _encoded(2)}), unions={"ints": _encoded(1, 2, 3)})
    ints = store.get_union_list_state(INTS)
    assert list(ints.get()) == [1, 2, 3]
    assert _kept(store, "unions") == [2]
    ints.add(4)
    assert list(ints.get()) == [1, 2, 3, 4]
    assert _kept(store, "unions") == [2, 4]
    ints.update([7])
    assert list(ints.get()) == _kept(store, "unions") == [7]


def test_an_iteration_does_not_see_added_elements_and_what_cannot_be_stored_changes_nothing() -> None:
    ints: Any = OperatorStateStore().get_list_state(INTS)
    ints.add_all([1, 2])
    for n in ints.get():
        ints.add(n + 10)
    changes: list[Callable[[Any], object]] = [
        lambda w: ints.add(w),
        lambda w: ints.add_all([2, w]),
        lambda w: ints.update([2, w]),
    ]
    for wrong in (None, "one", object()):
        for change in changes:
            with pytest.raises(StateError):
                change(wrong)
    assert list(ints.get()) == [1, 2, 11, 12]


def _rules(store: OperatorStateStore) -> BroadcastState[str, int]:
    store.side.is_broadcast = True
    return store.get_broadcast_state(RULES)


def test_broadcast_state_is_a_map_in_order_of_keys() -> None:
    store = OperatorStateStore(broadcasts={"rules": {encode_key(("b",)): _encode(2)}})
    rules = _rules(store)
    rules.put("c", 3)
    rules.put_all({"a": 1, "b": 4})
    rules.remove("c")
    rules.remove("never there")
    assert list(rules.items()) == [("a", 1), ("b", 4)]
    assert (list(rules.keys()), list(rules.values())) == (["a", "b"], [1, 4])
    assert (rules.get("a"), rules.get("c"), rules.contains("b"), rules.is_empty()) == (1, None, True, False)
    kept = store.content(keeps_broadcasts=True).broadcasts["rules"]
    assert kept == {encode_key(("a",)): _encode(1), encode_key(("b",)): _encode(4)}
    assert store.content(keeps_broadcasts=False) == OperatorContent()
    rules["d"] = 5
    del rules["a"]
    assert ("d" in rules, "a" in rules, rules["d"], rules["a"], list(rules)) == (True, False, 5, None, ["b", "d"])
    rules.clear()
    assert rules.is_empty() and store.content(keeps_broadcasts=True) == OperatorContent()


def test_only_the_broadcast_side_changes_broadcast_state() -> None:
    store = OperatorStateStore(broadcasts={"rules": {encode_key(("b",)): _encode(2)}})
    rules = store.get_broadcast_state(RULES)
    changes: list[Callable[[], object]] = [
        lambda: rules.put("a", 1),
        lambda: rules.put_all({"a": 1}),
        lambda: rules.remove("b"),
        rules.clear,
    ]
    for change in changes:
        with raises(StateError, state="rules"):
            change()
    assert list(rules.items()) == [("b", 2)]
    assert store.get_broadcast_state(MapStateDescriptor("rules", str, int)) is rules
    with raises(StateError, name="rules"):
        store.get_broadcast_state(MapStateDescriptor("rules", str, str))


def test_a_rollback_undoes_changes_since_the_savepoint() -> None:
    store = OperatorStateStore(
        own=OperatorContent(lists={"ints": _encoded(1)}, unions={"more": _encoded(5)}), unions={"more": _encoded(4, 5)}
    )
    ints, more = store.get_list_state(INTS), store.get_union_list_state(ListStateDescriptor("more", int))
    rules = _rules(store)
    rules.put("a", 1)
    ints.add(2)
    more.add(6)
    before = store.content(keeps_broadcasts=True)
    for change in ("add", "clear"):
        store.savepoint()
        for state in (ints, more):
            state.add(7) if change == "add" else state.clear()
            state.add(8)
        rules.put("b", 2)
        rules.remove("a")
        rules.put("a", 9)
        store.rollback()
        assert store.content(keeps_broadcasts=True) == before
        assert (list(ints.get()), list(more.get()), list(rules.items())) == ([1, 2], [4, 5, 6], [("a", 1)])


def test_a_name_has_one_declaration_over_batches() -> None:
    store = OperatorStateStore()
    ints = store.get_list_state(INTS)
    assert store.get_list_state(ListStateDescriptor("ints", int)) is ints
    known = store.schemas
    assert [(s.name, s.kind, s.value_type) for s in known] == [("ints", "split-list", "int")]
    declarations: list[Callable[[OperatorStateStore], object]] = [
        lambda s: s.get_union_list_state(INTS),
        lambda s: s.get_list_state(ListStateDescriptor("ints", str)),
        lambda s: s.get_broadcast_state(MapStateDescriptor("ints", str, int)),
    ]
    other = OperatorStateStore(known)
    for declare in declarations:
        with raises(StateError, name="ints"):
            declare(store)
        with raises(IncompatibleState, name="ints"):
            declare(other)


class Rule(msgspec.Struct):
    limit: int


class NamedRule(msgspec.Struct):
    limit: int
    name: str = "unnamed"


def test_stored_elements_and_entries_are_read_as_a_type_that_fits() -> None:
    store = OperatorStateStore()
    store.get_list_state(ListStateDescriptor("rules", Rule)).add(Rule(1))
    store.side.is_broadcast = True
    store.get_broadcast_state(MapStateDescriptor("named", str, Rule)).put("a", Rule(2))
    content = store.content(keeps_broadcasts=True)

    later = OperatorStateStore(store.schemas, content, broadcasts=content.broadcasts)
    rules = later.get_list_state(ListStateDescriptor("rules", NamedRule))
    named = later.get_broadcast_state(MapStateDescriptor("named", str, NamedRule))
    rules.add(NamedRule(3, "new"))
    assert list(rules.get()) == [NamedRule(1), NamedRule(3, "new")]
    assert dict(named.items()) == {"a": NamedRule(2)}
    assert [len(schema.earlier) for schema in later.schemas] == [1, 1], "elements of the old type are still there"
    other = msgspec.defstruct("Other", [("limit", str)])
    with raises(IncompatibleState, name="rules", field="Other.limit"):
        OperatorStateStore(store.schemas).get_list_state(ListStateDescriptor("rules", other))


def test_operator_state_that_is_no_longer_declared_is_kept() -> None:
    content = OperatorContent(
        lists={"old": [b"1"]},
        unions={"older": [b"2"]},
        broadcasts={"oldest": {b"k": b"3"}},
        raw=[b"4"],
        raw_keyed=[(5, b"6")],
    )
    store = OperatorStateStore(own=content, broadcasts=content.broadcasts)
    assert store.content(keeps_broadcasts=True) == content


def test_operator_state_does_not_expire() -> None:
    day = StateTtlConfig.new_builder(Time.days(1)).build()
    with raises(StateError, name="ints"):
        OperatorStateStore().get_list_state(ListStateDescriptor("ints", int, ttl=day))
    for wrong in ({"ttl": day}, {"queryable": "rules"}):
        with raises(StateError, name="rules"):
            OperatorStateStore().get_broadcast_state(MapStateDescriptor("rules", str, int, **wrong))


def test_raw_state_is_written_in_partitions_and_once_per_key_group_that_is_owned() -> None:
    operator, keyed = RawOperatorStateOutput(), RawKeyedStateOutput(KeyGroupRange(4, 6))
    for out in (operator, keyed):
        with raises(StateError):
            out.write(b"lost")
    for data in (b"ab", b""):
        operator.start_new_partition()
        operator.write(data)
        operator.write(data)
    assert operator.partitions == [b"abab", b""]
    for group, data in ((6, b"si"), (4, b"fo")):
        keyed.start_new_key_group(group)
        keyed.write(data)
        keyed.write(b"x")
    for wrong in (3, 7, 6):
        with raises(StateError, key_group=wrong, first=4, last=6):
            keyed.start_new_key_group(wrong)
    assert keyed.pieces == [(4, b"fox"), (6, b"six")]
