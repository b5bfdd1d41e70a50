"""Columns of a source of Spark that are not those of the row class: refused, ignored, null or widened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
import pytest
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from stateflow import ColumnPolicy
from stateflow.api.schema import RowSchema
from stateflow.connectors.column_policy import check_source_columns
from stateflow.errors import SchemaMismatch
from tests.support.errors import raises


class Part(msgspec.Struct):
    size: int
    note: str | None


class Row(msgspec.Struct):
    number: int
    ratio: float
    label: str | None
    parts: list[Part]


def _parts(**fields: DataType) -> ArrayType:
    return ArrayType(_struct(fields))


def _struct(fields: Mapping[str, DataType]) -> StructType:
    struct = StructType()
    for name, kind in fields.items():
        struct.add(name, kind)
    return struct


LONG, INT, BYTE, DOUBLE, FLOAT, TEXT = LongType(), IntegerType(), ByteType(), DoubleType(), FloatType(), StringType()
FITTING: dict[str, DataType] = {"number": LONG, "ratio": DOUBLE, "label": TEXT, "parts": _parts(size=LONG, note=TEXT)}
Added = Literal["ignore", "refuse"]
Missing = Literal["refuse", "null"]


def _check(columns: dict[str, DataType], added: Added = "ignore", missing: Missing = "refuse") -> None:
    check_source_columns(_struct(columns), RowSchema.of(Row), ColumnPolicy(added, missing), "source")


def _without(name: str) -> dict[str, DataType]:
    return {column: kind for column, kind in FITTING.items() if column != name}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"number": INT},
        {"number": BYTE},
        {"ratio": FLOAT},
        {"ratio": INT},
        {"parts": _parts(note=TEXT, size=INT)},
        {"parts": _parts(size=LONG)},
        {"parts": _parts(size=LONG, note=TEXT, more=INT)},
    ],
    ids=str,
)
def test_narrower_types_are_widened_and_nested_fields_are_found_by_name(changed: dict[str, DataType]) -> None:
    _check(FITTING | changed, added="refuse")


@pytest.mark.parametrize(
    ("changed", "column"),
    [
        ({"number": DOUBLE}, "number"),
        ({"number": TEXT}, "number"),
        ({"number": DecimalType(20, 0)}, "number"),
        ({"ratio": LONG}, "ratio"),
        ({"label": INT}, "label"),
        ({"parts": _parts(size=TEXT, note=TEXT)}, "parts[].size"),
        ({"parts": _parts(note=TEXT)}, "parts[].size"),
        ({"parts": TEXT}, "parts"),
    ],
    ids=str,
)
def test_other_types_are_refused_by_every_policy(changed: dict[str, DataType], column: str) -> None:
    for missing in ("refuse", "null"):
        with raises(SchemaMismatch, column=column, path="source"):
            _check(FITTING | changed, missing=missing)


def test_further_columns_are_ignored_or_refused() -> None:
    more = FITTING | {"more": INT, "another": INT}
    _check(more)
    with raises(SchemaMismatch, columns=["another", "more"]):
        _check(more, added="refuse")


def test_missing_columns_are_refused_or_null_if_they_may_be() -> None:
    for name, missing in (("label", "refuse"), ("number", "refuse"), ("number", "null"), ("parts", "null")):
        with raises(SchemaMismatch, column=name):
            _check(_without(name), missing=missing)  # type: ignore[arg-type]
    _check(_without("label"), missing="null")


def test_the_order_of_columns_does_not_matter() -> None:
    _check(dict(reversed(FITTING.items())), added="refuse")


@pytest.mark.parametrize("missing", ["refuse", "null"])
def test_a_column_of_a_fitting_type_in_the_place_of_another_is_taken_for_a_rename(missing: Missing) -> None:
    renamed = {"name" if column == "label" else column: kind for column, kind in FITTING.items()}
    with raises(SchemaMismatch, column="name", renamed_to="label", position=3):
        _check(renamed, missing=missing)
    # With another type or place, one column was removed and another one was added.
    others: list[dict[str, DataType]] = [renamed | {"name": INT}, _without("label") | {"name": TEXT}]
    for columns in others:
        if missing == "null":
            _check(columns, missing=missing)
        else:
            with raises(SchemaMismatch, column="label"):
                _check(columns, missing=missing)
