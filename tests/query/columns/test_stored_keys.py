"""Stored keys as columns."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, DataError, SchemaMismatch
from stateflow.state.key_columns import (
    KEY_PART,
    KeyLayout,
    as_plain_column,
    encode_keys,
    key_column_type,
    parts_column,
    parts_of_column,
)
from stateflow.types.key_encoding import encode_key
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises

PREFIX = b"\0\7name"
NOON = datetime.datetime(2024, 2, 29, 12)  # noqa: DTZ001 - without a zone
_LONGEST = datetime.timedelta(microseconds=(1 << 63) - 1)
_DATETIMES = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))  # noqa: DTZ001

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("a\0é\U0001f600", max_size=4),
    "binary": st.binary(max_size=3),
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False).map(lambda number: number + 0.0),
    "double": st.floats(allow_nan=False).map(lambda number: number + 0.0),
    "date": st.dates(),
    "timestamp": _DATETIMES.map(lambda at: at.replace(tzinfo=datetime.UTC)),
    "timestamp_ntz": _DATETIMES,
    "time(6)": st.times(),
    "interval day to second": st.timedeltas(-_LONGEST, _LONGEST),
    "decimal(9,2)": st.decimals(-1000, 1000, places=2),
}
PARTS = st.one_of(*VALUES.values())
WINDOWS = st.builds(TimeWindow, VALUES["bigint"], VALUES["bigint"]) | st.builds(
    TimeWindow, st.integers(0, 1 << 42), st.integers(0, 1 << 42)
)
NAMESPACES = st.none() | VALUES["string"] | VALUES["bigint"] | PARTS | WINDOWS


@st.composite
def tables(draw: Callable[..., Any]) -> tuple[list[str], list[tuple[Any, ...]], list[Any], list[int]]:
    """Types of key columns, and for each entry its key, namespace and map key."""
    types = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    keys = draw(st.lists(st.tuples(*[VALUES[name] for name in types]), min_size=1, max_size=6))
    count = len(keys)
    namespaces = draw(st.lists(NAMESPACES, min_size=count, max_size=count))
    return types, keys, namespaces, draw(st.lists(VALUES["bigint"], min_size=count, max_size=count))


@settings(max_examples=max(150, settings().max_examples))
@given(tables(), st.booleans())
def test_columns_have_the_keys_that_were_stored(given_rows: Any, is_map: bool) -> None:
    types, keys, namespaces, map_keys = given_rows
    kinds = tuple(map(key_column_type, types))
    stored = [
        PREFIX + encode_key((*key, namespace)) + (encode_key((map_key,)) if is_map else bytes(12))
        for key, namespace, map_key in zip(keys, namespaces, map_keys, strict=True)
    ]
    layout = KeyLayout(kinds, map_key=pa.int64() if is_map else None, tail=0 if is_map else 12)
    found = layout.read(stored)
    assert found.key_group.to_pylist() == [7] * len(keys)
    assert list(zip(*(column.to_pylist() for column in found.keys), strict=True)) == keys
    assert [column.type for column in found.keys] == list(kinds)
    assert parts_of_column(found.namespace, "namespace") == namespaces
    if is_map:
        assert found.map_key is not None and found.map_key.to_pylist() == map_keys


@given(st.lists(st.none() | PARTS, min_size=1, max_size=6))
def test_map_keys_of_several_types_have_their_types(parts: list[Any]) -> None:
    stored = [PREFIX + encode_key(("k", None, part)) for part in parts]
    found = KeyLayout((key_column_type("string"),), map_key=KEY_PART).read(stored)
    assert found.map_key is not None
    assert [encode_key(("k", None, part)) for part in parts_of_column(found.map_key, "map_key")] == [
        each.removeprefix(PREFIX) for each in stored
    ]


@given(st.lists(PARTS, min_size=1, max_size=4) | st.lists(VALUES["bigint"]) | st.lists(VALUES["string"]))
def test_structs_of_one_type_are_encoded_as_each_of_them(parts: list[Any]) -> None:
    column = as_plain_column(parts_column([None, *parts], KEY_PART).slice(1))
    assert column.type == KEY_PART or encode_keys([column]) == [encode_key((part,)) for part in parts]
    if parts and {type(part) for part in parts} in ({int}, {str}):
        assert column.type in (pa.int64(), pa.string())
    else:
        assert column.type == KEY_PART


def test_parts_of_keys_are_structs_of_type_and_value() -> None:
    window = TimeWindow(1_704_153_600_000, 1_704_153_600_500)
    parts = ["1", 1, 1.5, True, None, b"a", datetime.date(2024, 1, 2), window, TimeWindow(-(1 << 62), 0)]
    values = [("str", "1"), ("int", "1"), ("float", "1.5"), ("bool", "true"), None, ("bytes", "YQ==")]
    assert [part and (part["type"], part["value"]) for part in parts_column(parts, KEY_PART).to_pylist()] == [
        *values,
        ("date", "2024-01-02"),
        ("window", "2024-01-02T00:00:00Z/2024-01-02T00:00:00.500Z"),
        ("window", "-4611686018427387904/1970-01-01T00:00:00Z"),
    ]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "x"),
        ("int", str(1 << 70) + ".5"),
        ("odd", "1"),
        ("date", ""),
        ("window", "1"),
        ("window", "a/b"),
        ("str", None),
        (None, "1"),
    ],
)
def test_parts_of_keys_that_are_not_valid_are_data_errors(kind: str | None, value: str | None) -> None:
    with raises(DataError, column="namespace"):
        parts_of_column(pa.array([{"type": kind, "value": value}], KEY_PART), "namespace")
    with raises(SchemaMismatch, column="namespace"):
        parts_of_column(pa.array([{"kind": kind}]), "namespace")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        PREFIX,
        PREFIX + encode_key(("a",)),
        PREFIX + encode_key((1, None)),
        PREFIX + encode_key(("a", None, None)),
        PREFIX + b"\x02a",
        PREFIX + b"\x02\xff\0\0",
        PREFIX + b"\x99\0\0",
    ],
)
def test_a_key_of_another_layout_is_a_corrupt_file(damaged: bytes) -> None:
    whole = PREFIX + encode_key(("a", None))
    with pytest.raises(CorruptFile):
        KeyLayout((key_column_type("string"),)).read([whole, damaged or b"\0", whole])


@pytest.mark.parametrize("name", ["map<int,int>", "decimal(99,1)", "decimal(", ""])
def test_a_type_that_no_key_has_is_a_corrupt_file(name: str) -> None:
    with pytest.raises(CorruptFile):
        key_column_type(name)


def test_a_decimal_keeps_its_scale() -> None:
    (column,) = (
        KeyLayout((key_column_type("decimal(9,2)"),)).read([PREFIX + encode_key((decimal.Decimal("1.50"), None))]).keys
    )
    assert str(column[0].as_py()) == "1.50"
