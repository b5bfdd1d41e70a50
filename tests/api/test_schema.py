"""From a row class to columns."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from typing import Annotated, Any, Optional

import msgspec
import pyarrow as pa
import pytest

from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
COLUMNS: list[tuple[Any, str, pa.DataType]] = [
    (int, "bigint", pa.int64()),
    (float, "double", pa.float64()),
    (str, "string", pa.string()),
    (bool, "boolean", pa.bool_()),
    (bytes, "binary", pa.binary()),
    (datetime.date, "date", pa.date32()),
    (datetime.datetime, "timestamp_ntz", pa.timestamp("us")),
    (Instant, "timestamp", pa.timestamp("us", tz="UTC")),
    (Annotated[int, msgspec.Meta(gt=0)], "bigint", pa.int64()),  # constraints of msgspec do not matter
]


@pytest.mark.parametrize("nullable", [False, True])
def test_each_type_has_its_column_and_columns_keep_their_order(nullable: bool) -> None:
    fields = [(f"c{n}", kind | None if nullable else kind) for n, (kind, _, _) in enumerate(COLUMNS)]
    schema = RowSchema.of(msgspec.defstruct("Every", fields))
    assert schema.columns == tuple(
        Column(f"c{n}", spark, arrow, nullable) for n, (_, spark, arrow) in enumerate(COLUMNS)
    )
    assert schema.names == tuple(f"c{n}" for n in range(len(COLUMNS)))
    assert schema.ddl == ", ".join(f"`c{n}` {spark_type}" for n, (_, spark_type, _) in enumerate(COLUMNS))
    assert schema.arrow == pa.schema([pa.field(f"c{n}", kind, nullable) for n, (_, _, kind) in enumerate(COLUMNS)])


class Optionals(msgspec.Struct):
    a: Optional[str]  # noqa: UP045 - people write it
    b: Annotated[datetime.datetime | None, msgspec.Meta(tz=True)]
    c: float | None = None
    d: int = 0


@dataclasses.dataclass
class Plain:
    key: str
    number: int = 0


def test_a_default_is_no_null_and_a_dataclass_has_columns_too() -> None:
    columns = [(c.spark_type, c.nullable) for c in RowSchema.of(Optionals).columns]
    assert columns == [("string", True), ("timestamp", True), ("double", True), ("bigint", False)]
    assert RowSchema.of(Plain).names == ("key", "number")


@pytest.mark.parametrize("row_class", [dict, int, str, None, "Row", object(), tuple[int, str]])
def test_another_class_has_no_columns(row_class: Any) -> None:
    with raises(JobDefinitionError, given=repr(row_class)):
        RowSchema.of(row_class)


UNIONS = [int | str, int | str | None, Annotated[int, msgspec.Meta(gt=0)] | str]


@pytest.mark.parametrize(
    "kind", [*UNIONS, list[int], dict[str, int], decimal.Decimal, datetime.timedelta, Any, complex, None, Plain]
)
def test_a_field_without_a_column_type_is_refused_by_name(kind: Any) -> None:
    row_class = msgspec.defstruct("Bad", [("good", int), ("wrong", kind)])
    with raises(JobDefinitionError, field="Bad.wrong") as refused:
        RowSchema.of(row_class)
    assert refused.value.facts["type"] and refused.value.hint


@pytest.mark.parametrize("names", [("a", "A"), ("_sf_order", "b"), ("_SF_x", "b")])
def test_names_that_spark_or_the_runtime_could_confuse_are_refused(names: tuple[str, str]) -> None:
    row_class = msgspec.defstruct("Bad", [(name, int) for name in names])
    with raises(JobDefinitionError, row_class="Bad") as refused:
        RowSchema.of(row_class)
    fields = refused.value.facts["fields"]
    assert isinstance(fields, list) and names[0] in fields
