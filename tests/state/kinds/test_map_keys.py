"""Keys of maps are of the declared type, in every method, in keyed and in broadcast state."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import MapStateDescriptor
from stateflow.config.settings import EntryLimits
from stateflow.errors import EntryTooLarge, JobDefinitionError, StateError
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.maps.map_state import MapKeys
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.types.key_encoding import encode_key
from tests.support.errors import raises
from tests.support.stores import address, set_key

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


def _declared(state: KeyedState, kind: str, declared: Any) -> Any:
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
    found = _declared(state, kind, declared)
    set_key(state, "key")
    for call, key in product(CALLS, KEYS):
        if type(key) is declared:
            call(found, key)
            continue
        with raises(StateError, state="m", map_key=repr(key), declared=found.schema.key_type):
            call(found, key)
    assert all(type(key) is declared for key in found.keys())


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
)


@given(SCALARS)
def test_keys_have_the_bytes_that_they_always_had(key: Any) -> None:
    for declared in (type(key), Any, object, type(key) | None):
        keys: MapKeys[Any] = MapKeys(declared, "m")
        try:
            expected = encode_key((key,))
        except StateError:
            with pytest.raises(StateError):
                keys.encode(key)
            continue
        assert keys.encode(key) == expected
        decoded = keys.decode(expected)
        assert type(decoded) is type(key) and encode_key((decoded,)) == expected


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
        _declared(state, kind, declared)


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
    with raises(EntryTooLarge, state="m", size=11, limit=10):
        entries.put("x" * 9, 1)
    group, key = address("a")
    batch = state.batch_of([group], [key])
    with raises(EntryTooLarge, state="m", size=11, limit=10):
        batch.write_entries(entries, np.array([0]), pa.array(["x" * 9]), pa.array([1]))
    batch.write_entries(entries, np.array([0]), pa.array(["x" * 8]), pa.array([1]))
