# ruff: noqa: DTZ001 - moments without a zone are a type of their own
"""Between columns and row objects: nothing is bent until it fits."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow.api.schema import RowSchema
from stateflow.errors import SchemaMismatch
from stateflow.runtime.task.row_conversion import group_starts, row_maker, to_batch, to_rows
from tests.support.errors import raises

UTC = datetime.UTC
Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
KINDS: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "bytes": bytes,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "instant": Instant,
}


class Number(enum.IntEnum):
    ONE = 1


AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
GOOD: list[tuple[str, Any, Any]] = [
    ("int", -(1 << 63), -(1 << 63)),
    ("int", np.int64(7), 7),
    ("int", Number.ONE, 1),
    ("float", 1.5, 1.5),
    ("float", 2, 2.0),
    ("float", np.float32(0.5), 0.5),
    ("str", "ä\0", "ä\0"),
    ("bool", True, True),
    ("bool", np.bool_(False), False),
    ("bytes", b"\0", b"\0"),
    ("bytes", bytearray(b"x"), b"x"),
    ("date", AT.date(), AT.date()),
    ("datetime", AT, AT),
    ("instant", AT.replace(tzinfo=UTC), AT.replace(tzinfo=UTC)),
    ("instant", AT, AT.replace(tzinfo=UTC)),
]


def _schema(kind: str, nullable: bool = False) -> RowSchema:
    return RowSchema.of(msgspec.defstruct("Row", [("value", KINDS[kind] | None if nullable else KINDS[kind])]))


@pytest.mark.parametrize(("kind", "value", "found"), GOOD, ids=str)
def test_a_value_of_its_type_comes_back(kind: str, value: Any, found: Any) -> None:
    schema = _schema(kind)
    batch = to_batch([schema.row_class(value), schema.row_class(value)], schema)
    (again, _) = to_rows(batch.columns, row_maker(schema))
    assert again == schema.row_class(found)
    assert type(again.value) is type(found)


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_for_columns_that_say_so(kind: str) -> None:
    schema = _schema(kind, nullable=True)
    assert to_rows(to_batch([schema.row_class(None)], schema).columns, row_maker(schema)) == [schema.row_class(None)]
    strict = _schema(kind)
    with raises(SchemaMismatch, column="value", declared=strict.columns[0].spark_type):
        to_batch([strict.row_class(None)], strict)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 1.5),
        ("int", True),
        ("int", "1"),
        ("int", decimal.Decimal("1.5")),
        ("int", np.float64(1)),
        ("int", 1 << 63),
        ("int", [1]),
        ("float", True),
        ("float", "1"),
        ("float", decimal.Decimal(1)),
        ("str", 1),
        ("str", b"x"),
        ("str", "\ud800"),
        ("str", None),
        ("bool", 1),
        ("bool", "true"),
        ("bytes", "x"),
        ("date", AT),
        ("date", 7),
        ("date", "2026-01-01"),
        ("datetime", AT.date()),
        ("datetime", 7),
        ("datetime", 1.5),
        ("instant", 7),
        ("instant", "now"),
    ],
    ids=str,
)
def test_another_value_is_refused_by_column(kind: str, value: Any) -> None:
    schema = _schema(kind)
    good = next(v for k, v, _ in GOOD if k == kind)
    with raises(SchemaMismatch, column="value", declared=schema.columns[0].spark_type):
        to_batch([schema.row_class(good), schema.row_class(value)], schema)


def test_a_row_without_the_column_is_refused_by_column() -> None:
    schema = _schema("int")
    with raises(SchemaMismatch, column="value", declared="bigint"):
        to_batch([object()], schema)


@dataclasses.dataclass(kw_only=True)
class ByName:
    b: int
    a: str


def test_a_class_that_takes_names_gets_names() -> None:
    schema = RowSchema.of(ByName)
    rows = [ByName(a="x", b=1), ByName(a="y", b=2)]
    assert to_rows(to_batch(rows, schema).columns, row_maker(schema)) == rows


def test_rows_come_out_of_slices_and_of_nothing() -> None:
    schema = _schema("int")
    batch = to_batch([schema.row_class(n) for n in range(5)], schema)
    assert [r.value for r in to_rows(batch.slice(2, 2).columns, row_maker(schema))] == [2, 3]
    assert to_rows(batch.slice(5).columns, row_maker(schema)) == []


def test_a_group_begins_where_order_or_a_key_column_changes() -> None:
    order = np.array([1, 1, 1, 2, 2, 2])
    first, second = pa.array(["a", "a", "b", "b", "b", "b"]), pa.array([1, 1, 1, 1, 2, 2])
    assert group_starts(order, [first, second]) == [0, 2, 3, 4]
    assert group_starts(order[:0], [first[:0], second[:0]]) == []
    assert group_starts(order[:1], [first[:1], second[:1]]) == [0]
