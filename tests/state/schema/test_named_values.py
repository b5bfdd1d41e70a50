"""Names of fields in values that are stored as arrays."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from stateflow import ValueStateDescriptor
from stateflow.state.handles import ClassSchema, FieldSchema, StateSchema, TypeNode, TypeSchema
from stateflow.state.schema import named_value, state_schema
from stateflow.types.serializers import ValueSerializer, decode_untyped


class Point(msgspec.Struct, array_like=True):
    x: int
    y: int = 0


class Bus(msgspec.Struct, array_like=True, tag=True):
    number: int
    at: Point


class Car(msgspec.Struct, array_like=True, tag=True):
    seats: int


class Tram(msgspec.Struct, tag=True):
    number: int
    stops: list[Point]


class Chain(msgspec.Struct, array_like=True):
    number: int
    rest: Chain | None = None


def _schema(kind: Any) -> StateSchema:
    return state_schema(ValueStateDescriptor("state", kind), "value", kind)


def _chain(length: int) -> Chain | None:
    return Chain(length, _chain(length - 1)) if length else None


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 7, 7),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (list[Point | None], [Point(1), None], [{"x": 1, "y": 0}, None]),
        (dict[str, tuple[Point, int]], {"a": (Point(1), 7)}, {"a": [{"x": 1, "y": 0}, 7]}),
        (Bus | Car, Bus(1, Point(2)), {"type": "Bus", "number": 1, "at": {"x": 2, "y": 0}}),
        (Bus | None, Bus(1, Point(2)), {"type": "Bus", "number": 1, "at": {"x": 2, "y": 0}}),
        (Tram | int, Tram(1, [Point(2)]), {"type": "Tram", "number": 1, "stops": [{"x": 2, "y": 0}]}),
        (Chain, _chain(2), {"number": 2, "rest": {"number": 1, "rest": None}}),
    ],
)
def test_a_value_has_the_names_of_its_classes(kind: Any, value: Any, wanted: object) -> None:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    assert named_value(decode_untyped(serializer.encode(value)), _schema(kind)) == wanted


def test_a_value_of_an_earlier_version_has_the_names_of_its_fields() -> None:
    assert named_value([1], _schema(Point)) == {"x": 1}


@pytest.mark.parametrize("value", [7, "text", None, [1, 2, 3], {"x": [1]}])
def test_a_value_that_does_not_fit_its_type_is_not_changed(value: object) -> None:
    assert named_value(value, _schema(Point)) == value
    assert named_value(value, None) == value


@pytest.mark.parametrize("index", [-1, 1, 1 << 60])
def test_a_type_that_refers_to_no_class_names_nothing(index: int) -> None:
    node = TypeNode(kind="class", class_index=index)
    union = TypeNode(kind="union", parts=[node, node])
    fields = [FieldSchema(name="a", type=node)]
    for root in (node, union, TypeNode(kind="union", parts=[union])):
        found = TypeSchema(root=root, classes=[ClassSchema(name="C", fields=fields)])
        assert named_value([[1]], StateSchema(name="s", kind="value", value_type="", type=found)) == [[1]]


def test_a_deeply_nested_value_is_not_changed() -> None:
    value: list[Any] = [0]
    # Other tests of the process may have raised the limit.
    for number in range(sys.getrecursionlimit()):
        value = [number, value]
    assert named_value(value, _schema(Chain)) is value
