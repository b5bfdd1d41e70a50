"""Values of every type as columns, from their recorded schema alone."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, DataError, SchemaMismatch, StateError
from stateflow.query.value_types import ValueReader, value_type
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.key_columns import (
    KEY_PART,
    KeyLayout,
    as_plain_column,
    encode_keys,
    key_column_type,
    parts_column,
    parts_of_column,
)
from stateflow.state.schema import type_schema
from stateflow.types.columns.precision import precision
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import VALUE_FORMAT, ValueSerializer
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises

DAY, TIME = datetime.date(2024, 2, 29), datetime.time(1, 2, 3, 4)
NOON = datetime.datetime(2024, 2, 29, 12)  # noqa: DTZ001 - without a zone
NOON_UTC = NOON.replace(tzinfo=datetime.UTC)
AHEAD = datetime.datetime(2024, 2, 29, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(NamedTuple):
    x: int
    label: str = "none"


class Options(TypedDict):
    name: str
    limit: NotRequired[int]


class Tagged(msgspec.Struct, tag="t", array_like=True):
    x: int


class Tree(msgspec.Struct):
    size: int
    children: list[Tree] = []


class Odd(msgspec.Struct, rename={"a": "a b.c", "b": "class"}):
    a: int
    b: float | None = None


@dataclass
class Line:
    start: Point
    end: Point | None = None


class Empty(msgspec.Struct):
    pass


def schema_of(kind: object, **more: Any) -> StateSchema:
    return StateSchema(name="s", kind="value", value_type="", **{"type": type_schema(kind), **more})


def read(schema: StateSchema, stored: list[bytes]) -> pa.Array:
    reader = ValueReader(schema)
    found = reader.read(stored, lambda row: {"operator": "op", "state": "s", "key": ("k", row)})
    found.validate(full=True)
    assert found.type.equals(reader.field.type)
    return found


def column(kind: object, *values: Any) -> list[Any]:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    read_values: list[Any] = read(schema_of(kind), [serializer.encode(value) for value in values]).to_pylist()
    return read_values


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (bool, True, True), (int, -(1 << 63), -(1 << 63)), (float, 3, 3.0), (str, "é\0", "é\0"),
        (bytes, b"\xff\0", b"\xff\0"), (datetime.date, DAY, DAY), (datetime.time, TIME, TIME),
        (datetime.timedelta, datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1, microseconds=1)),
        (datetime.datetime, NOON, NOON), (datetime.datetime, AHEAD, NOON),
        (Annotated[datetime.datetime, msgspec.Meta(tz=True)], AHEAD, NOON_UTC),
        (decimal.Decimal, decimal.Decimal("1.20"), "1.20"), (uuid.UUID, UUID, str(UUID)), (Color, Color.RED, "red"),
        (Size, Size.LARGE, 2), (Literal["a", "b", None], "a", "a"), (Literal[1, "b"], "b", '"b"'),
        (np.uint64, np.uint64((1 << 64) - 1), (1 << 64) - 1), (np.float32, np.float32(1.5), 1.5),
        (np.int8, np.int8(-3), -3), (np.bool_, np.bool_(True), True), (list[int | None], [1, None], [1, None]),
        (set[str], {"a"}, ["a"]), (tuple[float, ...], (1.0, 2.0), [1.0, 2.0]),
        (tuple[int, str], (1, "a"), {"_1": 1, "_2": "a"}), (dict[str, list[int]], {"a": [1]}, [("a", [1])]),
        (dict[decimal.Decimal, int], {decimal.Decimal("1.0"): 2}, [("1.0", 2)]),
        (dict[str | int, int], {"a": 1}, '{"a":1}'), (Any, {"a": [1, b"q"]}, '{"a":[1,{"$bytes":"cQ=="}]}'),
        (int | str, 1, "1"), (Point, Point(1), {"x": 1, "label": "none"}),
        (Options, {"name": "n"}, {"name": "n", "limit": None}), (Tagged, Tagged(3), {"x": 3}),
        (Tree, Tree(1, [Tree(2)]), {"size": 1, "children": ['{"size":2,"children":[]}']}),
        (Odd, Odd(1, 2.0), {"a b.c": 1, "class": 2.0}),
        (Line, Line(Point(1, "a")), {"start": {"x": 1, "label": "a"}, "end": None}), (Empty, Empty(), "{}"),
    ],
)  # fmt: skip
def test_a_value_becomes_the_value_of_a_column(kind: Any, value: object, wanted: object) -> None:
    assert column(kind, value, value) == [wanted, wanted]


def test_decimals_are_texts_with_all_their_digits_which_arrow_converts() -> None:
    # A function of rows may store more digits than it has declared.
    kind = Annotated[decimal.Decimal, precision(12, scale=2)]
    texts = column(kind, decimal.Decimal("1.2"), decimal.Decimal("-7.125"))
    assert texts == ["1.2", "-7.125"]
    assert pc.cast(pa.array(texts), pa.decimal128(12, 3)).to_pylist() == [decimal.Decimal(text) for text in texts]


class Inner(msgspec.Struct):
    number: int
    ratio: float | None = None


class Many(msgspec.Struct):
    flag: bool
    inner: Inner
    other: Inner | None
    texts: list[str]
    by_name: dict[str, Inner]


INNERS = st.builds(Inner, st.integers(-(1 << 63), (1 << 63) - 1), st.none() | st.floats(allow_nan=False))
MANY = st.builds(
    Many,
    st.booleans(),
    INNERS,
    st.none() | INNERS,
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=3), INNERS, max_size=2),
)


@settings(max_examples=max(50, settings().max_examples))
@given(st.lists(INNERS, max_size=5), st.lists(MANY, max_size=5))
def test_columns_have_the_values_that_were_stored(inners: list[Inner], many: list[Many]) -> None:
    assert column(Inner, *inners) == [msgspec.to_builtins(value) for value in inners]
    wanted = [msgspec.to_builtins(value) for value in many]
    for value in wanted:
        value["by_name"] = list(value["by_name"].items())
    assert column(Many, *many) == wanted


class Before(msgspec.Struct):
    gone: str
    count: int


class After(msgspec.Struct):
    count: float
    name: str = "none"
    tags: list[str] = []
    seen: Annotated[list[int], "made"] = msgspec.field(default_factory=lambda: [1])
    more: int | None = None


def test_values_of_earlier_types_are_read_as_the_newest_type() -> None:
    before: ValueSerializer[Before] = ValueSerializer(Before)
    after: ValueSerializer[After] = ValueSerializer(After)
    old, new = before.encode(Before("x", 3)), after.encode(After(1.5, "n", ["t"], [2]))
    found = read(schema_of(After, earlier=[type_schema(Before)]), [old, new]).to_pylist()
    assert found == [
        {"count": 3.0, "name": "none", "tags": [], "seen": None, "more": None},
        {"count": 1.5, "name": "n", "tags": ["t"], "seen": [2], "more": None},
    ]


def test_values_of_a_serializer_are_its_version_and_bytes() -> None:
    kind = TypeSchema(root=TypeNode(kind="serialized"), serializer="own", serializer_version=3)
    stored = VALUE_FORMAT + msgspec.msgpack.encode((2, b"data"))
    assert read(schema_of(int, type=kind), [stored]).to_pylist() == [{"version": 2, "data": b"data"}]


def _deep(levels: int) -> TypeNode:
    node = TypeNode(kind="int")
    for _ in range(levels):
        node = TypeNode(kind="list", parts=[node])
    return node


def _doubling(levels: int) -> TypeSchema:
    classes = [
        ClassSchema(
            name="c", fields=[FieldSchema(name=n, type=TypeNode(kind="class", class_index=at + 1)) for n in "ab"]
        )
        for at in range(levels)
    ]
    last = ClassSchema(name="c", fields=[FieldSchema(name="a", type=TypeNode(kind="int"))])
    return TypeSchema(root=TypeNode(kind="class", class_index=0), classes=[*classes, last])


@pytest.mark.parametrize(
    "schema",
    [
        TypeSchema(root=TypeNode(kind="class", class_index=5)), TypeSchema(root=TypeNode(kind="class")),
        TypeSchema(root=TypeNode(kind="union")), TypeSchema(root=TypeNode(kind="enum", choices=["{"])),
        TypeSchema(root=TypeNode(kind="dict", parts=[TypeNode(kind="int")])),
        TypeSchema(root=TypeNode(kind="of another version")), TypeSchema(root=_deep(100)), _doubling(30),
        TypeSchema(
            root=TypeNode(kind="class", class_index=0),
            classes=[ClassSchema(name="c", fields=[FieldSchema(name='"', type=TypeNode(kind="int"))])],
        ),
    ],
)  # fmt: skip
def test_a_recorded_type_that_no_job_declares_is_read_as_json(schema: TypeSchema) -> None:
    assert value_type(schema).arrow == pa.string()


@pytest.mark.parametrize("stored", [b"\x01\xa1a", b"\x01", b"", b"\x07\x01", b"\x01\x01\x01", b"\x02\0"])
def test_a_value_that_does_not_decode_is_a_corrupt_file_with_its_key(stored: bytes) -> None:
    with pytest.raises(CorruptFile) as raised:
        read(schema_of(int), [b"\x01\x07", stored])
    assert {"operator": "op", "state": "s", "key": ("k", 1)}.items() <= raised.value.facts.items()


def test_a_large_integer_has_no_column() -> None:
    with pytest.raises(StateError) as raised:
        column(int, 1, 1 << 63)
    assert raised.value.facts["key"] == ("k", 1)


def test_a_value_that_takes_too_much_memory_is_refused() -> None:
    stored = VALUE_FORMAT + b"\xdd" + (2 << 20).to_bytes(4) + b"\x90" * (2 << 20)
    with pytest.raises(CorruptFile):
        read(schema_of(Any), [stored])


class Texts(msgspec.Struct):
    text: str
    data: bytes | None
    number: int


@pytest.mark.parametrize("length", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_texts_of_every_length_are_read(length: int) -> None:
    text, data = "é" * (length // 2) + "x" * (length % 2), bytes(length)
    assert column(str, text, "", text) == [text, "", text]
    assert column(bytes, data, b"", data) == [data, b"", data]
    values = [Texts(text, data, 1), Texts("", None, 2), Texts(text, b"", 3)]
    assert [Texts(**row) for row in column(Texts, *values)] == values


def test_a_text_that_is_not_utf8_is_a_corrupt_file_with_its_key() -> None:
    with pytest.raises(CorruptFile) as raised:
        read(schema_of(str), [b"\x01\xa1a", b"\x01\xa1\xff"])
    assert raised.value.facts["key"] == ("k", 1)
    with pytest.raises(CorruptFile):
        read(schema_of(str), [b"\x01\xdb\xff\xff\xff\xffa"])


# -- stored keys ------------------------------------------------------------------------------------------------------

PREFIX = b"\0\7name"
_LONGEST = datetime.timedelta(microseconds=(1 << 63) - 1)
_DATETIMES = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))  # noqa: DTZ001

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("a\0é\U0001f600", max_size=4), "binary": st.binary(max_size=3), "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127), "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False).map(lambda number: number + 0.0),
    "double": st.floats(allow_nan=False).map(lambda number: number + 0.0), "date": st.dates(),
    "timestamp": _DATETIMES.map(lambda at: at.replace(tzinfo=datetime.UTC)), "timestamp_ntz": _DATETIMES,
    "time(6)": st.times(), "interval day to second": st.timedeltas(-_LONGEST, _LONGEST),
    "decimal(9,2)": st.decimals(-1000, 1000, places=2),
}  # fmt: skip
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
        ("int", "x"), ("int", str(1 << 70) + ".5"), ("odd", "1"), ("date", ""), ("window", "1"), ("window", "a/b"),
        ("str", None), (None, "1"),
    ],
)  # fmt: skip
def test_parts_of_keys_that_are_not_valid_are_data_errors(kind: str | None, value: str | None) -> None:
    with raises(DataError, column="namespace"):
        parts_of_column(pa.array([{"type": kind, "value": value}], KEY_PART), "namespace")
    with raises(SchemaMismatch, column="namespace"):
        parts_of_column(pa.array([{"kind": kind}]), "namespace")


@pytest.mark.parametrize(
    "damaged",
    [
        b"", PREFIX, PREFIX + encode_key(("a",)), PREFIX + encode_key((1, None)),
        PREFIX + encode_key(("a", None, None)), PREFIX + b"\x02a", PREFIX + b"\x02\xff\0\0", PREFIX + b"\x99\0\0",
    ],
)  # fmt: skip
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
