"""From a row class to columns."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from typing import Annotated, Any, Optional, cast

import msgspec
import pyarrow as pa
import pytest

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class Every(msgspec.Struct):
    number: int
    ratio: float
    text: str
    flag: bool
    raw: bytes
    day: datetime.date
    local: datetime.datetime
    instant: Instant


COLUMNS = [
    ("number", "bigint", pa.int64()),
    ("ratio", "double", pa.float64()),
    ("text", "string", pa.string()),
    ("flag", "boolean", pa.bool_()),
    ("raw", "binary", pa.binary()),
    ("day", "date", pa.date32()),
    ("local", "timestamp_ntz", pa.timestamp("us")),
    ("instant", "timestamp", pa.timestamp("us", tz="UTC")),
]


def test_each_type_has_its_column_and_they_keep_their_order() -> None:
    schema = RowSchema.of(Every)
    assert list(schema.columns) == [Column(*column, nullable=False) for column in COLUMNS]
    assert schema.names == tuple(name for name, _, _ in COLUMNS)
    assert schema.ddl.startswith("`number` bigint, `ratio` double, `text` string")
    assert schema.arrow == pa.schema([pa.field(name, kind, nullable=False) for name, _, kind in COLUMNS])


class Optionals(msgspec.Struct):
    a: int | None
    b: Optional[str]  # noqa: UP045 - people write it
    c: Instant | None
    d: Annotated[datetime.datetime | None, msgspec.Meta(tz=True)]
    e: float | None = None
    f: int = 0


def test_a_type_or_none_is_a_column_that_may_be_null() -> None:
    columns = {c.name: c for c in RowSchema.of(Optionals).columns}
    assert {name for name, column in columns.items() if column.nullable} == set("abcde")
    assert (columns["c"].spark_type, columns["d"].spark_type, columns["e"].spark_type) == (
        "timestamp",
        "timestamp",
        "double",
    )
    assert columns["f"].nullable is False


@dataclasses.dataclass
class Plain:
    key: str
    number: int = 0


def test_a_dataclass_has_columns_too() -> None:
    assert RowSchema.of(Plain).names == ("key", "number")


@pytest.mark.parametrize("row_class", [dict, int, str, None, "Row", object(), tuple[int, str]])
def test_another_class_has_none(row_class: Any) -> None:
    with raises(JobDefinitionError, given=repr(row_class)):
        RowSchema.of(row_class)


@pytest.mark.parametrize(
    "kind",
    [
        list[int],
        dict[str, int],
        decimal.Decimal,
        datetime.timedelta,
        int | str,
        int | str | None,
        Any,
        complex,
        None,
        Plain,
        Annotated[int, msgspec.Meta(gt=0)] | str,
    ],
)
def test_a_field_without_a_column_type_is_refused_by_name(kind: Any) -> None:
    row_class = msgspec.defstruct("Bad", [("good", int), ("wrong", kind)])
    with raises(JobDefinitionError, field="Bad.wrong") as refused:
        RowSchema.of(row_class)
    assert refused.value.facts["type"] and refused.value.hint


def test_constraints_of_msgspec_do_not_matter() -> None:
    row_class = msgspec.defstruct("Good", [("n", Annotated[int, msgspec.Meta(gt=0)])])
    assert RowSchema.of(row_class).columns[0].spark_type == "bigint"


@pytest.mark.parametrize("names", [("a", "A"), ("_sf_order", "b"), ("_SF_x", "b")])
def test_names_that_spark_or_the_runtime_could_mix_up_are_refused(names: tuple[str, str]) -> None:
    row_class = msgspec.defstruct("Bad", [(name, int) for name in names])
    with raises(JobDefinitionError, row_class="Bad") as refused:
        RowSchema.of(row_class)
    assert names[0] in cast("list[str]", refused.value.facts["fields"])


def test_a_missing_column_is_named_with_those_that_there_are() -> None:
    schema = RowSchema.of(Plain)
    assert schema.column("number").spark_type == "bigint"
    with raises(JobDefinitionError, column="Number", row_class="Plain") as refused:
        schema.column("Number")
    assert "number, key" in refused.value.hint, "the closest name comes first"
