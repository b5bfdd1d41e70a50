"""Values of every type as columns, from their recorded schema alone."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, StateError
from stateflow.query.value_types import ValueReader, value_type
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.schema import type_schema
from stateflow.types.columns.precision import precision
from stateflow.types.serializers import VALUE_FORMAT, ValueSerializer

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
        (bool, True, True),
        (int, -(1 << 63), -(1 << 63)),
        (float, 3, 3.0),
        (str, "é\0", "é\0"),
        (bytes, b"\xff\0", b"\xff\0"),
        (datetime.date, DAY, DAY),
        (datetime.time, TIME, TIME),
        (datetime.timedelta, datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1, microseconds=1)),
        (datetime.datetime, NOON, NOON),
        (datetime.datetime, AHEAD, NOON),
        (Annotated[datetime.datetime, msgspec.Meta(tz=True)], AHEAD, NOON_UTC),
        (decimal.Decimal, decimal.Decimal("1.20"), "1.20"),
        (uuid.UUID, UUID, str(UUID)),
        (Color, Color.RED, "red"),
        (Size, Size.LARGE, 2),
        (Literal["a", "b", None], "a", "a"),
        (Literal[1, "b"], "b", '"b"'),
        (np.uint64, np.uint64((1 << 64) - 1), (1 << 64) - 1),
        (np.float32, np.float32(1.5), 1.5),
        (np.int8, np.int8(-3), -3),
        (np.bool_, np.bool_(True), True),
        (list[int | None], [1, None], [1, None]),
        (set[str], {"a"}, ["a"]),
        (tuple[float, ...], (1.0, 2.0), [1.0, 2.0]),
        (tuple[int, str], (1, "a"), {"_1": 1, "_2": "a"}),
        (dict[str, list[int]], {"a": [1]}, [("a", [1])]),
        (dict[decimal.Decimal, int], {decimal.Decimal("1.0"): 2}, [("1.0", 2)]),
        (dict[str | int, int], {"a": 1}, '{"a":1}'),
        (Any, {"a": [1, b"q"]}, '{"a":[1,{"$bytes":"cQ=="}]}'),
        (int | str, 1, "1"),
        (Point, Point(1), {"x": 1, "label": "none"}),
        (Options, {"name": "n"}, {"name": "n", "limit": None}),
        (Tagged, Tagged(3), {"x": 3}),
        (Tree, Tree(1, [Tree(2)]), {"size": 1, "children": ['{"size":2,"children":[]}']}),
        (Odd, Odd(1, 2.0), {"a b.c": 1, "class": 2.0}),
        (Line, Line(Point(1, "a")), {"start": {"x": 1, "label": "a"}, "end": None}),
        (Empty, Empty(), "{}"),
    ],
)
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
        TypeSchema(root=TypeNode(kind="class", class_index=5)),
        TypeSchema(root=TypeNode(kind="class")),
        TypeSchema(root=TypeNode(kind="union")),
        TypeSchema(root=TypeNode(kind="enum", choices=["{"])),
        TypeSchema(root=TypeNode(kind="dict", parts=[TypeNode(kind="int")])),
        TypeSchema(root=TypeNode(kind="of another version")),
        TypeSchema(root=_deep(100)),
        _doubling(30),
        TypeSchema(
            root=TypeNode(kind="class", class_index=0),
            classes=[ClassSchema(name="c", fields=[FieldSchema(name='"', type=TypeNode(kind="int"))])],
        ),
    ],
)
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
