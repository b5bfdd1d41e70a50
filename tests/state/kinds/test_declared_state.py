"""Declarations of state: names, kinds, types and ids, the keys of maps, and stored entries that do not fit."""

from __future__ import annotations

import datetime
import enum
import struct
import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow.config.settings import EntryLimits
from stateflow.errors import CorruptFile, EntryTooLarge, IncompatibleState, JobDefinitionError, StateError
from stateflow.query.state import check_entry
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.keyed_state import KeyedState, state_names
from stateflow.state.kinds.maps.map_state import MapKeys
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import (
    StoredKey,
    TimeDomain,
    decode_expiry_key,
    decode_group,
    encode_expiry_key,
    encode_group,
    encode_time,
    expiry_id,
    from_time_order,
    state_id,
    to_time_order,
)
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import check_untyped
from tests.support.errors import raises
from tests.support.operators import Mean
from tests.support.stores import CountingStore, address, set_key

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


USES: dict[str, Callable[[Any], object]] = {
    "value": lambda state: state.value(),
    "list": lambda state: state.get(),
    "map": lambda state: state.items(),
    "reducing": lambda state: state.add(1),
    "aggregating": lambda state: state.add(1),
}


@pytest.mark.parametrize("kind", USES)
def test_state_without_a_key_is_refused(state: KeyedState, kind: str) -> None:
    found = DECLARATIONS[kind](state)
    for call in (USES[kind], lambda any_state: any_state.clear()):
        with raises(StateError):
            call(found)
        set_key(state, "a")
        call(found)
        state.end_key_batch()
        with raises(StateError):
            call(found)


NAIVE = datetime.datetime(2026, 11, 22)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=datetime.UTC)
DAY = datetime.date(2026, 11, 22)
KEYS: list[Any] = ["a", 1, 1.0, True, b"a", DAY, NAIVE, None]
TYPES: list[Any] = [str, int, float, bool, bytes, datetime.date, datetime.datetime, type(None)]
CALLS: list[Callable[[Any, Any], object]] = [
    lambda state, key: state.get(key),
    lambda state, key: state.contains(key),
    lambda state, key: state.remove(key),
    lambda state, key: state.put(key, 1),
    lambda state, key: state.put_all({key: 1}),
]


class Color(enum.Enum):
    """A type whose values cannot be keys."""

    RED = "red"


def _declared_map(state: KeyedState, kind: str, declared: Any) -> Any:
    descriptor = MapStateDescriptor("m", declared, int)
    if kind == "keyed":
        return state.map_state(descriptor)
    store = OperatorStateStore()
    store.side.is_broadcast = True
    return store.get_broadcast_state(descriptor)


@pytest.mark.parametrize("declared", TYPES)
@pytest.mark.parametrize("kind", ["keyed", "broadcast"])
def test_only_keys_of_the_declared_type_are_accepted(state: KeyedState, kind: str, declared: Any) -> None:
    """Equal in Python (1, 1.0 and True) and different keys in state: the second is refused, not stored."""
    found = _declared_map(state, kind, declared)
    set_key(state, "key")
    for call, key in product(CALLS, KEYS):
        if type(key) is declared:
            call(found, key)
            continue
        with raises(StateError, state="m", map_key=repr(key), declared=found.schema.key_type):
            call(found, key)
    assert all(type(key) is declared for key in found.keys())


@pytest.mark.parametrize(
    ("declared", "accepted", "refused"),
    [
        (int | str, [1, "a"], [1.0, True, None]),
        (str | None, ["a", None], [1]),
        (Any, KEYS, [(1,), Color.RED]),
        (object, KEYS, [(1,)]),
        (Literal["a", 1], ["a", 1], ["b", 2, 1.0, True]),
        (Annotated[int, msgspec.Meta(ge=0)], [0, 5], [-1, 0.0]),
        (np.int32, [5], [5.0, True, np.int32(5)]),
        (np.float64, [5.0], [5]),
        (np.bool_, [True], [1]),
        (pa.int8(), [-128, 127], [128, 5.0, True]),
        (pa.string(), ["a"], [b"a"]),
        (pa.date32(), [DAY], [NAIVE]),
        (pa.timestamp("us"), [NAIVE], [AWARE, DAY]),
        (pa.timestamp("us", "UTC"), [AWARE], [NAIVE]),
    ],
)
def test_types_that_accept_several_or_fewer_keys(declared: Any, accepted: list[Any], refused: list[Any]) -> None:
    keys: MapKeys[Any] = MapKeys(declared, "m")
    for key in accepted:
        assert keys.encode(key) == encode_key((key,))
    for key in refused:
        with pytest.raises(StateError):
            keys.encode(key)


@pytest.mark.parametrize("declared", [tuple[int, str], Color, datetime.time, list[int], complex, int | Color])
@pytest.mark.parametrize("kind", ["keyed", "broadcast"])
def test_types_that_no_key_can_have_are_refused_where_they_are_declared(
    state: KeyedState, kind: str, declared: Any
) -> None:
    with raises(JobDefinitionError, state="m"):
        _declared_map(state, kind, declared)


def test_columns_of_keys_keep_the_limits_of_the_declared_type(state: KeyedState) -> None:
    natural: Any = Annotated[int, msgspec.Meta(ge=0)]
    found = state.map_state(MapStateDescriptor("m", natural, int))
    many = state.batch_of([b"\0\7"], [encode_key(("key",))])
    of, values = np.array([0, 0]), pa.array([1, 2])
    with raises(StateError, map_key="-1"):
        many.write_entries(found, of, pa.array([0, -1]), values)
    with raises(StateError, map_key="-1"):
        many.read_entries(found, of, pa.array([0, -1]))
    many.write_entries(found, of, pa.array([0, 1]), values)
    assert many.all_entries(found)[1].to_pylist() == [0, 1]


def test_a_key_above_the_limit_is_refused_by_itself_and_in_a_column() -> None:
    state = KeyedState(DictBackend(), limits=EntryLimits(map_key_bytes=10))
    entries = state.map_state(MapStateDescriptor("m", str, int))
    set_key(state, "a")
    with raises(EntryTooLarge, state="m", size_bytes=11, limit_bytes=10):
        entries.put("x" * 9, 1)
    group, key = address("a")
    batch = state.batch_of([group], [key])
    with raises(EntryTooLarge, state="m", size_bytes=11, limit_bytes=10):
        batch.write_entries(entries, np.array([0]), pa.array(["x" * 9]), pa.array([1]))
    batch.write_entries(entries, np.array([0]), pa.array(["x" * 8]), pa.array([1]))


STATE_NAMES = state_names(
    [StateSchema(name=kind, kind=kind, value_type="int", type=type_schema(int)) for kind in ("value", "list")]
)


@pytest.mark.parametrize("kind", ["value", "list"])
@pytest.mark.parametrize("key", [b"", encode_key(("a",)), encode_key(("a", 1))])
def test_an_entry_with_too_few_key_columns_is_a_corrupt_file(kind: str, key: bytes) -> None:
    position = bytes(12) if kind == "list" else b""
    with pytest.raises(CorruptFile):
        check_entry(STATE_NAMES, 2, b"\0\0" + state_id(kind) + key + position, b"\x01\x07")


def test_the_check_of_a_large_value_decodes_nothing() -> None:
    lists = b"\x01\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000
    tracemalloc.start()
    try:
        check_untyped(lists)
        for wrong in (lists[:-1], lists + b"\xc0", lists[:-1] + b"\xc1", b"\x01" + b"\x91" * (1 << 17), b"\4" + lists):
            with pytest.raises(CorruptFile):
                check_untyped(wrong)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


_GROUP, _EVENT, _ZERO = b"\1\2", state_id("\0event timers"), bytes([0x80, *bytes(7)])


@pytest.mark.parametrize(
    ("stored", "tail", "wanted"),
    [
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\0", 0, StoredKey(("a",))),
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\2n\0" + b"\2m\0", 0, StoredKey(("a",), "n", "m")),
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\0" + bytes(12), 12, StoredKey(("a",))),
        (_GROUP + _EVENT + _ZERO + b"\2a\0" + b"\0", 0, StoredKey(("a",), time=0, domain=TimeDomain.EVENT_TIME)),
    ],
)
def test_the_parts_of_a_stored_key_are_at_their_offsets(stored: bytes, tail: int, wanted: StoredKey) -> None:
    assert StoredKey.decode(stored, 1, tail) == wanted
    assert decode_group(stored) == 0x102 and encode_group(0x102) == _GROUP


def test_a_timer_in_time_order_begins_with_time_and_key_group() -> None:
    stored = _GROUP + _EVENT + encode_time(-1) + b"\2a\0" + b"\0"
    assert to_time_order(stored) == b"\x7f" + b"\xff" * 7 + _GROUP + b"\2a\0\0"
    assert from_time_order(_EVENT, to_time_order(stored)) == stored


def test_an_expiry_entry_leads_to_its_value() -> None:
    value = _GROUP + state_id("s") + b"\2a\0" + b"\0"
    expiry = encode_expiry_key(value, expiry_id("s", "event"), 0)
    assert expiry == _GROUP + state_id("s\0event expiry") + _ZERO + b"\2a\0\0"
    assert decode_expiry_key(expiry, state_id("s")) == (0, value)
