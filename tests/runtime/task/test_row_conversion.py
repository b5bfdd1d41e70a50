# ruff: noqa: DTZ001 - timestamps without a zone are a type of their own
"""Between columns and row objects: a value that does not fit is refused and never converted."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.errors import SchemaMismatch, StateError
from stateflow.runtime.executor import ChainSpec
from stateflow.runtime.task.input_reader import KeyTypes
from stateflow.runtime.task.row_conversion import check_declared, group_starts, to_batch, to_rows
from stateflow.types.columns.precision import precision
from tests.support.errors import raises
from tests.support.graphs import Pass
from tests.support.operators import chain_of

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
AT_UTC = AT.replace(tzinfo=datetime.UTC)


class Number(enum.IntEnum):
    ONE = 1


class Colour(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    number: int
    colours: list[Colour] = []


Natural = Annotated[int, msgspec.Meta(ge=0)]
Some = Annotated[list[int], msgspec.Meta(min_length=1)]
AtMostOne = Annotated[dict[str, int], msgspec.Meta(max_length=1)]
Price = Annotated[decimal.Decimal, precision(5, scale=2)]
ID = uuid.UUID(int=7)
DAY = datetime.timedelta(days=1)
NOON = datetime.time(12, 0, 0, 1)

GOOD: dict[Any, list[tuple[Any, Any]]] = {
    int: [(-(1 << 63), -(1 << 63)), (np.int64(7), 7), (Number.ONE, 1)],
    float: [(1.5, 1.5), (2, 2.0), (np.float32(0.5), 0.5)],
    str: [("ä\0", "ä\0")],
    bool: [(True, True), (np.bool_(False), False)],
    bytes: [(b"\0", b"\0"), (bytearray(b"x"), b"x")],
    datetime.date: [(AT.date(), AT.date())],
    datetime.datetime: [(AT, AT)],
    Instant: [(AT_UTC, AT_UTC), (AT, AT_UTC)],
    Price: [(decimal.Decimal("1.5"), decimal.Decimal("1.50")), (decimal.Decimal("-999.99"),) * 2],
    datetime.time: [(NOON, NOON)],
    datetime.timedelta: [(-DAY, -DAY)],
    uuid.UUID: [(ID, ID)],
    Number: [(Number.ONE, Number.ONE)],
    Colour: [(Colour.RED, Colour.RED)],
    Inner: [(Inner(1, [Colour.RED, Colour.RED]),) * 2],
    list[Inner | None]: [([Inner(1), None],) * 2, ([], [])],
    dict[uuid.UUID, list[Price]]: [({ID: [decimal.Decimal("0.01")], uuid.UUID(int=8): []},) * 2],
    Natural: [(0, 0)],
    list[Natural]: [([1],) * 2],
    Some: [([1],) * 2],
    AtMostOne: [({"a": 1},) * 2],
}
BAD: dict[Any, list[Any]] = {
    int: [1.5, True, "1", decimal.Decimal("1.5"), np.float64(1), 1 << 63, [1]],
    float: [True, "1", decimal.Decimal(1)],
    str: [1, b"x", "\ud800"],
    bool: [1, "true"],
    bytes: ["x"],
    datetime.date: [AT, 7, "2026-01-01"],
    datetime.datetime: [AT.date(), 7, 1.5, AT_UTC],
    Instant: [7, "now", pd.Timestamp("2026-01-02 03:04:05.000000001", tz="UTC")],
    Price: [1, 1.5, "1.50", decimal.Decimal("1.555"), decimal.Decimal(1000), decimal.Decimal("NaN")],
    datetime.time: [AT, "12:00", NOON.replace(tzinfo=datetime.UTC)],
    datetime.timedelta: [1, 1.5],
    uuid.UUID: [str(ID), ID.bytes],
    Number: [1, Colour.RED],
    Colour: ["red", "blue", Number.ONE],
    Inner: [{"number": 1}, (1,), Inner("1"), Inner(1, ["red"]), Inner(1, [None])],  # type: ignore[arg-type,list-item]
    list[Inner | None]: ["ab", {1: 2}, [1], [Inner(None)], Inner(1)],  # type: ignore[arg-type]
    Natural: [-1],
    list[Natural]: [[0, -1]],
    Some: [[]],
    AtMostOne: [{"a": 1, "b": 2}],
    dict[uuid.UUID, list[Price]]: [[1], {"a": []}, {ID: None}, {ID: [1]}, {None: []}],
}


def _schema(kind: Any) -> RowSchema:
    return RowSchema.of(msgspec.defstruct("Row", [("value", kind)]))


@pytest.mark.parametrize(("kind", "given", "found"), [(kind, *pair) for kind in GOOD for pair in GOOD[kind]], ids=str)
def test_a_value_of_its_type_comes_back(kind: Any, given: Any, found: Any) -> None:
    schema = _schema(kind)
    batch = to_batch([schema.row_class(given), schema.row_class(given)], schema)
    rows: list[Any] = to_rows(batch.columns, schema)
    again, _ = rows
    assert again == schema.row_class(found)
    assert type(again.value) is type(found)


@pytest.mark.parametrize(("kind", "given"), [(kind, value) for kind in BAD for value in [*BAD[kind], None]], ids=str)
def test_another_value_is_refused_by_column(kind: Any, given: Any) -> None:
    schema = _schema(kind)
    rows = [schema.row_class(GOOD[kind][0][0]), schema.row_class(given)]
    with raises(SchemaMismatch, column="value", declared=schema.columns[0].spark_type):
        to_batch(rows, schema)


@pytest.mark.parametrize("kind", GOOD, ids=str)
def test_a_nullable_column_takes_none(kind: Any) -> None:
    schema = _schema(kind | None)
    assert to_rows(to_batch([schema.row_class(None)], schema).columns, schema) == [schema.row_class(None)]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (Colour, pa.array(["red", "green"])),
        (uuid.UUID | None, pa.array([str(ID), "x"])),
        (list[Number], pa.array([[1], [2]])),
        (Inner, pa.array([{"number": 1, "colours": []}, {"number": 1, "colours": ["?"]}])),
    ],
    ids=str,
)
def test_a_stored_value_that_is_no_value_of_the_type_is_refused_with_its_row(kind: Any, column: pa.Array) -> None:
    schema = _schema(kind)
    assert len(to_rows([column.slice(0, 1)], schema)) == 1
    with raises(SchemaMismatch, column="value", row=repr({"value": column[1].as_py()})):
        to_rows([column], schema)


def test_a_row_without_the_column_is_refused_by_column() -> None:
    with raises(SchemaMismatch, column="value", declared="bigint"):
        to_batch([object()], _schema(int))


@dataclasses.dataclass(kw_only=True)
class ByName:
    b: int
    a: str


def test_a_row_class_with_keyword_fields_is_supported() -> None:
    schema = RowSchema.of(ByName)
    rows = [ByName(a="x", b=1), ByName(a="y", b=2)]
    assert to_rows(to_batch(rows, schema).columns, schema) == rows


@pytest.mark.parametrize(("rows", "starts"), [(0, []), (1, [0]), (6, [0, 2, 3, 4])])
def test_a_group_begins_where_order_or_a_key_column_changes(rows: int, starts: list[int]) -> None:
    order = np.array([1, 1, 1, 2, 2, 2])
    first, second = pa.array(["a", "a", "b", "b", "b", "b"]), pa.array([1, 1, 1, 1, 2, 2])
    assert group_starts(order[:rows], [first[:rows], second[:rows]]) == starts


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (str, pa.array([b"a", b"caf\xe9"], pa.binary()).view(pa.string())),
        (datetime.date, pa.array([0, 2_932_897], pa.int32()).view(pa.date32())),
        (datetime.date, pa.array([0, -719_163], pa.int32()).view(pa.date32())),
        (datetime.datetime, pa.array([0, 253_402_300_800_000_000], pa.int64()).view(pa.timestamp("us"))),
        (Instant, pa.array([0, 253_402_300_800_000_000], pa.int64()).view(pa.timestamp("us", "UTC"))),
        (Instant, pa.array([0, -62_135_596_800_000_001], pa.int64()).view(pa.timestamp("us", "UTC"))),
    ],
)
def test_a_value_that_python_does_not_have_is_an_error_with_its_row_that_is_not_retried(
    kind: Any, column: pa.Array
) -> None:
    schema = RowSchema.of(msgspec.defstruct("Row", [("number", int), ("value", kind)]))
    for read in (to_rows, check_declared):
        with raises(SchemaMismatch, column="value") as refused:
            read([pa.array([1, 2]), column], schema)
        assert "'number': 2" in str(refused.value.facts["row"]) and not refused.value.retryable


# -- keys -------------------------------------------------------------------------------------------------------------


class AnyColour(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> AnyColour:
        return cls.RED


class Level(enum.IntEnum):
    LOW = 1


class Keyed(msgspec.Struct):
    key: str
    id: uuid.UUID
    colour: AnyColour
    level: Level


KEY_ID = "00000000-0000-0000-0000-00000000000a"


def _types(*columns: str) -> KeyTypes:
    chain: ChainSpec = chain_of(Pass(), Keyed, Keyed)
    keying = Keying(columns, (), ("string",) * len(columns))
    return KeyTypes(replace(chain, inputs=(replace(chain.inputs[0], keying=keying),)))


def test_a_key_has_the_declared_types() -> None:
    keys = _types("key", "id", "colour", "level")
    declared = ("a", uuid.UUID(KEY_ID), AnyColour.RED, Level.LOW)
    assert keys.to_declared(("a", KEY_ID, "red", 1)) == declared
    assert keys.all_declared([(b"g", b"k", ("a", KEY_ID, "red", 1))]) == [(b"g", b"k", declared)]


OTHER_FORMS = [("id", "x"), ("level", 2), ("id", KEY_ID.upper()), ("id", KEY_ID.replace("-", "")), ("colour", "Red")]


@pytest.mark.parametrize(("column", "stored"), OTHER_FORMS)
def test_a_value_without_a_declared_one_or_in_another_form_is_refused(column: str, stored: Any) -> None:
    """Two forms of one UUID would be two keys that the function cannot distinguish."""
    with raises(StateError, key=repr((stored,)), operator="op"):
        _types(column).to_declared((stored,))
