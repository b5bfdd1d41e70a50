"""Frames with values that a conversion would change or leave out: errors with the key, never other values."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import (
    KeyedStateFrame,
    ListStateDescriptor,
    MapStateDescriptor,
    SavepointWriter,
    StateTtlConfig,
    ValueStateDescriptor,
    read_state,
)
from stateflow.bootstrap.frames import cast_column
from stateflow.errors import ConfigError, DataError, SchemaMismatch, StateflowError
from stateflow.types.descriptors import StateDescriptor
from tests.support.errors import raises


class Item(msgspec.Struct):
    amount: int


class Tagged(msgspec.Struct):
    """Values without a column: they are converted one by one."""

    tags: set[int]
    name: str | None = None


_BRIEF = ValueStateDescriptor("s", int, ttl=StateTtlConfig.new_builder(timedelta(hours=1)).build())
_LIST, _MAP = ListStateDescriptor("s", int), MapStateDescriptor("s", str, int)
_TWICE = pa.map_(pa.string(), pa.int64())
_TIME = pa.timestamp("us")
_ONE_UUID = [(text, 1) for text in (str(UUID(int=10)), str(UUID(int=10)).upper())]
_NULL = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
_NO_TEXT = pa.array([b"a", b"\xff"]).view(pa.string())


def _of(kind: Any) -> StateDescriptor:
    return ValueStateDescriptor("s", kind)


def _write(folder: Path, state: StateDescriptor, **columns: Any) -> list[dict[str, Any]]:
    frame = pa.table({"key": ["k1", "k2"], "value": [1, 2], **columns})
    writer = SavepointWriter.new("job").with_operator("op", key="key", states=[KeyedStateFrame(state, frame)])
    rows: list[dict[str, Any]] = read_state(writer.write(folder / "w"), "op", "s").read_all().to_pylist()
    return sorted(rows, key=lambda row: row["key"])


@pytest.mark.parametrize(
    ("state", "columns", "error", "facts"),
    [
        (_of(list[Item]), {"value": [[], [{"amount": 1, "amonut": 2}]]}, SchemaMismatch, {"column": "value"}),
        (
            _of(dict[str, Item]),
            {
                "value": pa.array(
                    [[], [("a", {"amount": 1, "b": 2})]],
                    pa.map_(pa.string(), pa.struct([("amount", pa.int64()), ("b", pa.int64())])),
                )
            },
            SchemaMismatch,
            {},
        ),
        (_of(Tagged), {"value": [{"tags": [1], "nmae": "x"}] * 2}, SchemaMismatch, {"field": "nmae"}),
        (_of(list[Tagged]), {"value": [[{"tags": [1], "nmae": "x"}]] * 2}, SchemaMismatch, {"field": "nmae"}),
        (_of(dict[str, int]), {"value": pa.array([[], [("a", 1), ("a", 2)]], _TWICE)}, DataError, {"key": "key='k2'"}),
        (
            _of(list[dict[str, int] | None]),
            {"value": pa.array([[None], [[("a", 1)], [("a", 1), ("a", 2)]]], pa.list_(_TWICE))},
            DataError,
            {"key": "key='k2'"},
        ),
        (
            _of(dict[str, set[int]]),
            {"value": pa.array([[], [("a", [1]), ("a", [2])]], pa.map_(pa.string(), pa.list_(pa.int64())))},
            DataError,
            {"key": "key='k2'"},
        ),
        (_of(str), {"value": _NULL}, DataError, {"key": "key='k2'"}),
        (_of(str), {"value": _NO_TEXT}, DataError, {"key": "key='k2'"}),
        (_of(int), {"key": _NO_TEXT}, DataError, {"key": "key=b'\\xff'"}),
        (_MAP, {"map_key": _NO_TEXT}, DataError, {"key": "key='k2'"}),
        (_of(int), {"key": [float("nan")] * 2}, DataError, {"key": "(nan,)"}),
        (_of(int), {"key": [0.0, -0.0]}, DataError, {"key": "(0.0,)"}),
        (_of(float), {"value": [1, (1 << 53) + 1]}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(int), {"value": pa.array([1, 1 << 63], pa.uint64())}, SchemaMismatch, {"key": "key='k2'"}),
        (_LIST, {"key": ["a", "a"], "position": [0.0, float("nan")]}, DataError, {"column": "position"}),
        (_BRIEF, {"written_at": pa.array([1, 1 << 63], pa.uint64())}, SchemaMismatch, {"column": "written_at"}),
        (_BRIEF, {"written_at": pa.array([1, 1 << 60], pa.timestamp("s"))}, SchemaMismatch, {"key": "key='k2'"}),
        (_BRIEF, {"written_at": pa.array([1000, 1_999_999], pa.timestamp("us"))}, DataError, {"key": "key='k2'"}),
        (_BRIEF, {"written_at": pa.array([0, -1], pa.timestamp("ns"))}, DataError, {"column": "written_at"}),
        (_of(set[date]), {"value": pa.array([[], [1 << 30]], pa.list_(pa.date32()))}, SchemaMismatch, {}),
        (_of(datetime), {"value": pa.array([0, 1 << 62], _TIME)}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(date), {"value": pa.array([0, 1 << 30], pa.date32())}, SchemaMismatch, {"key": "key='k2'"}),
        (_of(int), {"key": pa.array([0, 1 << 62], _TIME)}, SchemaMismatch, {"key": f"key=timestamp[us] {1 << 62}"}),
        (_of(int), {"key": pa.array([0, 1 << 30], pa.date32())}, SchemaMismatch, {"key": f"key=date32[day] {1 << 30}"}),
        (_of(dict[UUID, int]), {"value": pa.array([[], _ONE_UUID], _TWICE)}, SchemaMismatch, {"key": "key='k2'"}),
    ],
)
def test_what_a_conversion_would_change_is_an_error(
    tmp_path: Path, state: StateDescriptor, columns: dict[str, Any], error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error, state="s", operator="op", **facts):
        _write(tmp_path, state, **columns)


def test_columns_with_dictionaries_have_the_values_of_plain_ones(tmp_path: Path) -> None:
    plain: dict[str, Any] = {
        "key": pa.array(["a", "a"]),
        "namespace": pa.array(["x", "x"]),
        "position": pa.array([1, 0]),
        "value": pa.array([{"tags": [1], "name": "b"}, {"tags": [2], "name": None}]),
    }
    state = ListStateDescriptor("s", Tagged)
    names = plain["value"].field("name").dictionary_encode()
    value = pa.StructArray.from_arrays([plain["value"].field("tags"), names], ["tags", "name"])
    encoded = {name: plain[name].dictionary_encode() for name in ("key", "namespace", "position")}
    assert _write(tmp_path / "1", state, **encoded, value=value) == _write(tmp_path / "2", state, **plain)


def test_a_cast_changes_no_value() -> None:
    one = pa.array([{"a": 1, "b": 2}])
    assert cast_column(one, pa.struct([("b", pa.int32()), ("a", pa.int64())]), "x").to_pylist() == [{"b": 2, "a": 1}]
    cases: list[tuple[pa.Array, pa.DataType]] = [
        (one, pa.struct([("a", pa.int64())])),
        (pa.array([[{"a": 1, "b": 2}]]), pa.list_(pa.struct([("a", pa.int64())]))),
        (pa.array([0.1]), pa.float32()),
        (pa.array(np.array([1e300])), pa.float32()),
        (pa.array([1 << 60], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([5], pa.date64()), pa.date32()),
    ]
    for column, kind in cases:
        with raises(SchemaMismatch, column="x"):
            cast_column(column, kind, "x")


def test_operator_state_with_an_unknown_column_is_refused(tmp_path: Path) -> None:
    frame = pa.table({"value": [1], "subtask": [0], "kind": ["list"], "more": [2]})
    by_key = frame.append_column("map_key", pa.array(["a"]))
    for is_map in (False, True):
        writer = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
        if is_map:
            writer.with_broadcast_state("op", _MAP, by_key)
        else:
            writer.with_operator_state("op", _LIST, frame)
        with raises(ConfigError, columns=["more"], state="s"):
            writer.write(tmp_path / "w")
    raw = pa.table({"value": [b"a"], "more": [1]})
    writer = SavepointWriter.new("job").with_operator("op", key={"key": "string"})
    with raises(ConfigError, columns=["more"]):
        writer.with_raw_state("op", partitions=raw).write(tmp_path / "w")
