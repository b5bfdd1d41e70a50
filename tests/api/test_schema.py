"""From a row class to columns, and which rows have the same identity."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import struct
import uuid
from typing import Annotated, Any, Optional

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.schema import Column, RowIdentity, RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import shape_of
from tests.support.errors import raises

Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Price = Annotated[decimal.Decimal, precision(12, scale=2)]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Plain:
    key: str
    number: int = 0


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
    (Price, "decimal(12,2)", pa.decimal128(12, 2)),
    (datetime.time, "time(6)", pa.time64("ns")),
    (datetime.timedelta, "interval day to second", pa.duration("us")),
    (uuid.UUID, "string", pa.string()),
    (Colour, "string", pa.string()),
    (Level, "bigint", pa.int64()),
    (list[int | None], "array<bigint>", pa.list_(pa.int64())),
    (dict[str, Price], "map<string,decimal(12,2)>", pa.map_(pa.string(), pa.decimal128(12, 2))),
    (Plain, "struct<`key`:string,`number`:bigint>", pa.struct({"key": pa.string(), "number": pa.int64()})),
    (
        list[dict[Level, list[Colour]]],
        "array<map<bigint,array<string>>>",
        pa.list_(pa.map_(pa.int64(), pa.list_(pa.string()))),
    ),
]


@pytest.mark.parametrize("nullable", [False, True])
def test_each_type_has_its_column_and_columns_keep_their_order(nullable: bool) -> None:
    fields = [(f"c{n}", kind | None if nullable else kind) for n, (kind, _, _) in enumerate(COLUMNS)]
    schema = RowSchema.of(msgspec.defstruct("Every", fields))
    assert [c.spark_type for c in schema.columns] == [spark_type for _, spark_type, _ in COLUMNS]
    assert [c.nullable for c in schema.columns] == [nullable] * len(COLUMNS)
    assert schema.names == tuple(f"c{n}" for n in range(len(COLUMNS)))
    assert schema.ddl == ", ".join(f"`c{n}` {spark_type}" for n, (_, spark_type, _) in enumerate(COLUMNS))
    assert schema.arrow == pa.schema([pa.field(f"c{n}", kind, nullable) for n, (_, _, kind) in enumerate(COLUMNS)])


class Optionals(msgspec.Struct):
    a: Optional[str]  # noqa: UP045 - people write it
    b: Annotated[datetime.datetime | None, msgspec.Meta(tz=True)]
    c: float | None = None
    d: int = 0


def test_a_default_is_no_null_and_a_dataclass_has_columns_too() -> None:
    columns = [(c.spark_type, c.nullable) for c in RowSchema.of(Optionals).columns]
    assert columns == [("string", True), ("timestamp", True), ("double", True), ("bigint", False)]
    assert RowSchema.of(Plain).names == ("key", "number")


@pytest.mark.parametrize("row_class", [dict, int, str, None, "Row", object(), tuple[int, str]])
def test_another_class_has_no_columns(row_class: Any) -> None:
    with raises(JobDefinitionError, given=repr(row_class)):
        RowSchema.of(row_class)


UNIONS = [int | str, int | str | None, Annotated[int, msgspec.Meta(gt=0)] | str]


Recursive = msgspec.defstruct("Recursive", [("inner", "list[Recursive]")], namespace={"__module__": __name__})


class Empty(msgspec.Struct):
    """No column."""


Twice = msgspec.defstruct("Twice", [("a", int), ("A", int)])
Mixed = enum.Enum("Mixed", {"A": "a", "B": 2})
NESTED = [Recursive, Empty, Twice, list[Empty], dict[int | None, int], dict[str, decimal.Decimal]]


@pytest.mark.parametrize(
    "kind", [*UNIONS, *NESTED, Mixed, set[int], tuple[int, str], decimal.Decimal, Any, complex, None]
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


# -- which rows have the same identity --------------------------------------------------------------------------------


NEW_YEAR = datetime.date(2026, 1, 1)
MIDNIGHT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
(OTHER_NAN,) = struct.unpack("<d", (0xFFF8 << 48).to_bytes(8, "little"))


class Part(msgspec.Struct):
    size: float | None
    name: str = ""


class Reordered(msgspec.Struct):
    name: str
    size: float | None


class Positional(msgspec.Struct, array_like=True):
    size: int
    count: int


def _digest(kind: Any, value: Any, name: str = "value") -> bytes:
    row = msgspec.defstruct("Row", [(name, kind)])(value)
    return RowIdentity.of([Column(name, shape_of(kind))]).digest(row)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((float, math.nan), (float | None, OTHER_NAN)),
        ((list[float], [0.5, math.nan]), (list[float], [0.5, OTHER_NAN])),
        (
            (dict[datetime.date, int], {datetime.date(2026, 1, 1): 1, datetime.date(2026, 1, 2): 2}),
            (dict[datetime.date, int], {datetime.date(2026, 1, 2): 2, datetime.date(2026, 1, 1): 1}),
        ),
        ((Part, Part(math.nan, "x")), (Reordered, Reordered("x", OTHER_NAN))),
        ((list[Part], [Part(None, "x")]), (list[Reordered], [Reordered("x", None)])),
    ],
)
def test_equal_values_have_one_digest(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    assert _digest(*first) == _digest(*second)


AMOUNT = Annotated[decimal.Decimal, precision(12, scale=2)]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (str | None, [None, "", "None", "nan"]),
        (float | None, [None, 0.0, -0.0, 1.0, math.nan, math.inf]),
        (bool | None, [None, False, True]),
        (bytes, [b"", b"\xc0", b"\xc0\xc0"]),
        (
            datetime.datetime,
            [
                datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
                datetime.datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=datetime.UTC),
            ],
        ),
        (datetime.date, [NEW_YEAR, datetime.date(2026, 1, 2)]),
        (AMOUNT, [decimal.Decimal("0.10"), decimal.Decimal("1.00"), decimal.Decimal("10.00")]),
        (list[str | None] | None, [None, [], [None], [""], ["a", "b"], ["ab"], ["a", None, "b"]]),
        (dict[str, list[int]] | None, [None, {}, {"a": []}, {"a": [1], "b": []}, {"a": [], "b": [1]}]),
        (Part | None, [None, Part(None), Part(0.0), Part(None, "x")]),
        (Positional, [Positional(1, 2), Positional(2, 1)]),
    ],
)
def test_other_values_have_other_digests(kind: Any, values: list[Any]) -> None:
    assert len({_digest(kind, value) for value in values}) == len(values)


def test_the_text_has_names_and_types_in_one_order() -> None:
    shapes = {"b": list[Part], "a": dict[str, Reordered], "c": Positional}
    for names in ("abc", "cba"):
        identity = RowIdentity.of(Column(name, shape_of(shapes[name])) for name in names)
        part = "struct<name:string,size:double>"
        assert identity.text == f"a map<string,{part}>, b array<{part}>, c struct<size:bigint,count:bigint>"


Texts = st.lists(st.none() | st.text(max_size=3), min_size=2, max_size=2)


@given(Texts, Texts)
def test_values_of_several_columns_are_not_confused(first: list[str | None], second: list[str | None]) -> None:
    identity = RowIdentity.of(Column(name, shape_of(str | None)) for name in ("x", "y"))
    made = msgspec.defstruct("Row", [("x", str | None), ("y", str | None)])
    assert (identity.digest(made(*first)) == identity.digest(made(*second))) == (first == second)
