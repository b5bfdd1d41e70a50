"""Which stored values are equal, although their bytes differ."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import ListStateDescriptor, Serializer, ValueStateDescriptor
from stateflow.compare.merge import pack_list
from stateflow.compare.states import ValueComparison
from stateflow.errors import CorruptFile
from stateflow.state.handles import StateSchema
from stateflow.state.schema import state_schema
from stateflow.types.serializers import ValueSerializer


class Stats(msgspec.Struct):
    count: int
    names: set[str] = msgspec.field(default_factory=set)


class StatsBefore(msgspec.Struct):
    count: int


class Positional(msgspec.Struct, array_like=True):
    count: int
    limit: int = 5


class PositionalBefore(msgspec.Struct, array_like=True):
    count: int


class Bus(msgspec.Struct, tag=True):
    number: int


class Tram(msgspec.Struct, tag=True):
    number: int


def schema_of(kind: object) -> StateSchema:
    return state_schema(ValueStateDescriptor("state", kind), "value", kind)


def stored(value: Any, kind: Any) -> bytes:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    return serializer.encode(value)


def raw(value: object) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(value)


def equal(first: bytes, second: bytes, kind: object, newer: object = None) -> bool:
    comparison = ValueComparison(schema_of(kind), schema_of(newer or kind))
    assert comparison.equal(first, second) == comparison.equal(second, first)
    return comparison.equal(first, second)


def test_sets_and_dicts_have_no_order() -> None:
    assert equal(raw(["a", "b"]), raw(["b", "a"]), set[str])
    assert equal(raw({"x": ["a", "b"], "y": []}), raw({"y": [], "x": ["b", "a"]}), dict[str, frozenset[str]])
    assert not equal(raw(["a", "b"]), raw(["b", "a"]), list[str])
    assert not equal(raw(["a", "b"]), raw(["a", "c"]), set[str])


@pytest.mark.parametrize(
    ("older", "newer", "value"),
    [(StatsBefore, Stats, StatsBefore(3)), (PositionalBefore, Positional, PositionalBefore(3))],
)
def test_a_field_that_only_the_newer_type_has_is_its_default_in_older_values(
    older: type, newer: type, value: Any
) -> None:
    before, same, other = stored(value, older), stored(newer(3), newer), stored(newer(4), newer)
    assert ValueComparison(schema_of(older), schema_of(newer)).reads_as == "new"
    assert ValueComparison(schema_of(newer), schema_of(older)).reads_as in ("new", "old")
    assert equal(before, same, older, newer)
    assert not equal(before, other, older, newer)


def test_a_wider_type_reads_the_narrower_one() -> None:
    assert equal(stored(1, int), stored(1.0, float), int, float)
    assert not equal(stored(1, int), stored(1.5, float), int, float)


def test_values_of_incompatible_types_are_compared_without_their_types() -> None:
    assert ValueComparison(schema_of(int), schema_of(str)).reads_as == "neither"
    assert not equal(raw(1), raw("1"), int, str)


def test_members_of_a_union_with_the_same_fields_differ() -> None:
    kind = Bus | Tram
    assert not equal(stored(Bus(1), kind), stored(Tram(1), kind), kind)
    assert equal(raw({"type": "Bus", "number": 1}), raw({"number": 1, "type": "Bus"}), kind)


def test_the_time_of_a_write_is_not_compared() -> None:
    def at(time: int) -> bytes:
        return b"\x02" + struct.pack(">Q", time + (1 << 63)) + msgspec.msgpack.encode(7)

    assert equal(at(1), at(2), int)
    assert equal(at(1), raw(7), int)
    assert not equal(at(1), raw(8), int)


def test_one_nan_equals_another() -> None:
    assert equal(raw([float("nan"), -0.0]), raw([float("nan"), 0.0]), list[float])


def test_lists_are_compared_as_a_whole() -> None:
    schema = state_schema(ListStateDescriptor("items", set[int]), "list", set[int])
    comparison = ValueComparison(schema, schema)
    first = pack_list([raw([1, 2]), raw([3])])
    assert comparison.equal(first, pack_list([raw([2, 1]), raw([3])]))
    assert not comparison.equal(first, pack_list([raw([3]), raw([1, 2])]))
    assert not comparison.equal(first, pack_list([raw([1, 2])]))


class _Text(Serializer[str]):
    name = "text"
    version = 1

    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes, version: int) -> str:
        return data.decode()


def test_values_of_a_serializer_of_the_job_are_compared_by_their_bytes() -> None:
    schema = state_schema(ValueStateDescriptor("state", str, serializer=_Text()), "value", str)
    comparison = ValueComparison(schema, schema)
    assert comparison.equal(raw([1, b"a"]), raw([1, b"a"]))
    assert not comparison.equal(raw([1, b"a"]), raw([1, b"b"]))


def test_a_value_that_is_not_of_its_type_is_a_damaged_file() -> None:
    with pytest.raises(CorruptFile):
        equal(raw("x"), raw({"count": 1}), Stats)
    with pytest.raises(CorruptFile):
        equal(b"\x01\xc1", raw(1), int)


KINDS: list[tuple[object, st.SearchStrategy[Any]]] = [
    (dict[str, set[int]], st.dictionaries(st.text(max_size=2), st.sets(st.integers(0, 3)), max_size=3)),
    (Stats, st.builds(Stats, st.integers(0, 2), st.sets(st.sampled_from("abc")))),
    (list[float | None], st.lists(st.none() | st.floats(width=16), max_size=3)),
    (tuple[int, Decimal], st.tuples(st.integers(0, 2), st.sampled_from([Decimal("1.0"), Decimal(2)]))),
]


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind[0]), kind[1], kind[1])))
def test_values_are_equal_if_python_finds_them_equal(case: tuple[object, Any, Any]) -> None:
    kind, first, second = case
    assert equal(stored(first, kind), stored(second, kind), kind) == (repr(first) == repr(second) or first == second)
