"""The changes of one state have the columns that each snapshot has recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.compare.snapshots import DiffOptions, SnapshotDiff, compare
from stateflow.errors import ConfigError, CorruptFile
from stateflow.query.snapshot import Snapshot
from stateflow.state.backends import hash_maps
from stateflow.state.handles import StateSchema, SubtaskState
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import state_id
from stateflow.storage import MemoryStorage
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group
from tests.support.errors import raises

GROUPS = 8


class Small(msgspec.Struct):
    number: int


class Large(msgspec.Struct):
    number: int
    name: str = "none"


def _snapshot(values: Mapping[Any, bytes], value_type: object, key_type: str = "int", kind: str = "value") -> Snapshot:
    """A snapshot of the state ``last``, whose values are msgpack."""
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


class Positional(msgspec.Struct, array_like=True):
    number: int


def test_values_as_text_have_the_names_of_fields_that_are_stored_without() -> None:
    old, new = _snapshot({1: _pack(Positional(5))}, Positional), _snapshot({1: _pack(Positional(6))}, Positional)
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
