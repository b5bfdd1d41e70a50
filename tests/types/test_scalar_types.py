"""The table of scalar types agrees with Spark and Arrow, each format has a place for each of them, and texts in SQL."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import NestedField
from pyspark.sql.pandas.types import from_arrow_type

from stateflow.connectors import delta_types
from stateflow.connectors.iceberg import table as iceberg
from stateflow.types.columns.shapes import shape_of
from stateflow.types.declared_types import (
    DECLARED,
    SCALAR_TYPES,
    ScalarType,
    decimal_digits,
    decimal_holds,
    literal,
    parse_arrow_type,
    python_type_of,
    quote_name,
    scalar_of,
)

_TYPES = pytest.mark.parametrize("each", SCALAR_TYPES, ids=lambda each: each.spark)
_DECLARED = pytest.mark.parametrize("each", DECLARED.values(), ids=lambda each: each.spark)


@_TYPES
def test_a_type_has_the_name_that_spark_has_for_its_column(each: ScalarType) -> None:
    assert from_arrow_type(each.arrow, prefer_timestamp_ntz=True).simpleString() == each.spark
    assert parse_arrow_type(each.spark) == each.arrow


_MOMENT = datetime.datetime(2026, 1, 31, 3)  # noqa: DTZ001 - a timestamp without time zone
_VALUES: dict[Any, Any] = {
    bool: True,
    int: 7,
    float: 1.5,
    str: "text",
    bytes: b"text",
    datetime.date: _MOMENT.date(),
    datetime.datetime: _MOMENT,
    datetime.time: _MOMENT.time(),
    datetime.timedelta: datetime.timedelta(1),
    decimal.Decimal: decimal.Decimal("1.5"),
}
_VARIANTS = [
    *(each.arrow for each in SCALAR_TYPES),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16()),
    *(pa.large_string(), pa.string_view(), pa.large_binary(), pa.binary_view(), pa.binary(4)),
    *(pa.date64(), pa.time32("ms"), pa.time64("us"), pa.timestamp("s"), pa.duration("ms")),
    *(pa.decimal32(5, 2), pa.decimal64(5, 2), pa.decimal128(5, 2), pa.decimal256(50, 2)),
]


@pytest.mark.parametrize("kind", _VARIANTS, ids=str)
def test_an_arrow_type_has_the_python_type_of_its_values(kind: pa.DataType) -> None:
    wanted = python_type_of(kind)
    assert type(pa.scalar(_VALUES[wanted], kind).as_py()) is wanted


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([]), pa.dictionary(pa.int8(), pa.string()), pa.null()]
)
def test_an_arrow_type_that_is_not_a_scalar_has_no_python_type(kind: pa.DataType) -> None:
    assert python_type_of(kind) is None


@_DECLARED
def test_a_declared_type_is_one_type_in_every_format(each: ScalarType) -> None:
    shape = shape_of(each.python)
    assert (shape.spark, scalar_of(each.kind)) == (each.spark, each)
    is_stored_as_long = each.python in (datetime.time, datetime.timedelta)
    stored = pa.int64() if is_stored_as_long else each.arrow
    assert delta_types.arrow_field("a", delta_types.delta_type(shape)).type == stored
    stored = pa.int64() if each.python is datetime.timedelta else each.arrow
    found = NestedField(1, "a", iceberg.iceberg_type(shape), required=False)
    assert iceberg.arrow_field(found).type == stored


def test_numbers_of_numpy_have_the_columns_of_pythons() -> None:
    kinds = ("numpy.bool", "numpy.int8", "numpy.uint64", "numpy.float32", "numpy.complex64", "uuid", "union")
    found = [scalar_of(kind) for kind in kinds]
    assert [each and each.spark for each in found] == ["boolean", "bigint", "bigint", "double", None, None, None]


@pytest.mark.parametrize(("name", "digits"), [("decimal(5,2)", (5, 2)), ("decimal(38, 0)", (38, 0))])
def test_the_name_of_a_decimal_has_its_digits(name: str, digits: tuple[int, int]) -> None:
    assert decimal_digits(name) == digits
    assert parse_arrow_type(name) == pa.decimal128(*digits)


@pytest.mark.parametrize("name", ["decimal", "decimal(5)", "decimal(x,2)", "decimal(39,2)", "struct<a:int>", ""])
def test_another_name_has_no_column(name: str) -> None:
    with pytest.raises(ValueError):
        parse_arrow_type(name)


@pytest.mark.parametrize(
    ("given", "holds"), [((5, 2), True), ((4, 1), True), ((5, 3), False), ((5, 1), False), ((6, 2), False)]
)
def test_a_decimal_type_holds_another_with_as_many_digits_on_both_sides(given: tuple[int, int], holds: bool) -> None:
    assert decimal_holds(pa.decimal128(5, 2), pa.decimal128(*given)) is holds


# -- names and texts in Spark SQL -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "'a'"),
        ("a'b", "'a\\'b'"),
        ("a\\", "'a\\\\'"),
        ("${env:HOME}", "'\\u0024{env:HOME}'"),
        ("a\nb\0\x7f", "'a\\u000ab\\u0000\\u007f'"),
    ],
)
def test_a_text_is_one_literal_without_variables(text: str, expected: str) -> None:
    assert literal(text) == expected


def test_a_name_is_one_quoted_name() -> None:
    assert (quote_name("a b"), quote_name("a`b")) == ("`a b`", "`a``b`")
