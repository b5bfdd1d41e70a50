"""Which stored values are equal, although their bytes differ, and the columns that changes have."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import ListStateDescriptor, Serializer, ValueStateDescriptor
from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.compare.merge import pack_list
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare
from stateflow.compare.states import ValueComparison
from stateflow.errors import ConfigError, CorruptFile
from stateflow.query.snapshot import Snapshot
from stateflow.state.backends import hash_maps
from stateflow.state.handles import StateSchema, SubtaskState
from stateflow.state.schema import state_schema, type_schema
from stateflow.state.stored_key import state_id
from stateflow.storage import MemoryStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group
from stateflow.types.serializers import ValueSerializer
from tests.support.errors import raises


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


# -- the columns of changes -------------------------------------------------------------------------------------------

GROUPS = 8


class Small(msgspec.Struct):
    number: int


class Large(msgspec.Struct):
    number: int
    name: str = "none"


def _snapshot(values: Mapping[Any, bytes], value_type: object, key_type: str = "int", kind: str = "value") -> Snapshot:
    entries = {
        key_group([key], [key_type], GROUPS).to_bytes(2) + state_id("last") + encode_key((key, None)): b"\x01" + value
        for key, value in values.items()
    }
    content = b"".join(hash_maps.encode_snapshot(iter(sorted(entries.items()))))
    subtask = SubtaskState(
        subtask=0, first_group=0, last_group=GROUPS - 1, snapshot="s", backend="memory", inline=content
    )
    state = StateSchema(name="last", kind=kind, value_type="", type=type_schema(value_type))
    operator = OperatorState(
        uid="op", parallelism=1, key_types=[key_type], key_names=["id"], states=[state], subtasks=[subtask]
    )
    manifest = Manifest(job_uuid="u", generation=1, ordinal=1, operators=[operator], sources=[])
    return Snapshot(MemoryStorage(), manifest, "j", "u", GROUPS, 1)


def _diff(old: Snapshot, new: Snapshot, changes: bool = True) -> SnapshotDiff:
    return compare(old, new, DiffOptions(changes=changes))


_pack = msgspec.msgpack.encode


class Numbered(msgspec.Struct, array_like=True):
    number: int


def test_values_as_text_have_the_names_of_fields_that_are_stored_without() -> None:
    old, new = _snapshot({1: _pack(Numbered(5))}, Numbered), _snapshot({1: _pack(Numbered(6))}, Numbered)
    changes = _diff(old, new).changes
    assert changes is not None
    assert [(row["old"], row["new"]) for row in changes.read_all().to_pylist()] == [('{"number":5}', '{"number":6}')]


def test_each_side_has_the_type_of_its_snapshot_and_keys_have_that_of_the_second() -> None:
    old = _snapshot({1: _pack(Small(5)), 4: _pack(Small(6)), 3: _pack(Small(7))}, Small, "int")
    new = _snapshot({1: _pack(Large(5)), 2: _pack(Large(7, "x")), 3: _pack(Large(8))}, Large, "bigint")
    table = _diff(old, new).changes_of("op", "last").read_all()
    assert table.schema.field("id").type == pa.int64()
    assert table.schema.field("old").type == pa.struct([("number", pa.int64())])
    assert table.schema.field("new").type == pa.struct([("number", pa.int64()), ("name", pa.string())])
    found = {row["id"]: (row["change"], row["old"], row["new"]) for row in table.to_pylist()}
    assert found == {
        2: ("added", None, {"number": 7, "name": "x"}),
        3: ("changed", {"number": 7}, {"number": 8, "name": "none"}),
        4: ("removed", {"number": 6}, None),
    }


def test_states_without_one_type_of_changes_are_refused() -> None:
    old, new = _snapshot({1: b"\5"}, int), _snapshot({1: b"\6"}, int)
    found = _diff(old, new)
    with raises(ConfigError) as caught:
        found.changes_of("op", "lost")
    assert caught.value.facts["found"] == ["op._timers", "op.last"]
    with raises(ConfigError):
        _diff(old, new, changes=False).changes_of("op", "last")
    with raises(ConfigError) as caught:
        _diff(old, _snapshot({}, int, kind="list")).changes_of("op", "last")
    assert caught.value.facts["state"] == "last"


def test_changes_are_read_as_often_as_needed_and_outlive_the_result() -> None:
    found = _diff(_snapshot({}, int), _snapshot({key: _pack(key) for key in range(100)}, int))
    first, second = (found.changes_of("op", "last") for _ in range(2))
    assert found.changes is not None and found.changes.read_all().num_rows == 100
    del found
    tables = first.read_all(), second.read_all()
    assert tables[0] == tables[1] and sorted(tables[0]["new"].to_pylist()) == list(range(100))


def test_a_value_of_another_type_than_recorded_is_named() -> None:
    found = _diff(_snapshot({}, int), _snapshot({1: _pack("text")}, int))
    with raises(CorruptFile) as caught:
        found.changes_of("op", "last").read_all()
    assert {"operator": "op", "state": "last", "snapshot": "new"}.items() <= caught.value.facts.items()
