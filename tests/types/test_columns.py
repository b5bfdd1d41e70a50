"""Columns of declared and scalar types: values come back unchanged, and Spark, Arrow and all formats agree."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import NestedField
from pyspark.sql.pandas.types import from_arrow_type

from stateflow.connectors import delta_types
from stateflow.connectors.iceberg import table as iceberg
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.conversion import (
    NULL,
    misfit_of,
    path_of_null,
    row_bytes,
    to_column,
    to_objects,
    with_nullable_parts,
    with_type,
)
from stateflow.types.columns.precision import precision
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
from tests.support.errors import raises


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


_SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(1 << 63), (1 << 63) - 1)), (float, st.floats(allow_nan=False)), (bool, st.booleans()),
    (str, st.text(max_size=5)), (bytes, st.binary(max_size=5)), (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes()), (datetime.time, st.times()),
    (datetime.timedelta, st.timedeltas(datetime.timedelta(-99_000_000), datetime.timedelta(99_000_000))),
    (uuid.UUID, st.uuids()), (Colour, st.sampled_from(Colour)), (Level, st.sampled_from(Level)),
    (
        Annotated[decimal.Decimal, precision(9, scale=3)],
        st.integers(1 - 10**9, 10**9 - 1).map(lambda unscaled: decimal.Decimal(unscaled).scaleb(-3)),
    ),
]  # fmt: skip
Declared = tuple[Any, st.SearchStrategy[Any]]
"""A type and its values."""


def _optional(declared: Declared) -> Declared:
    kind, values = declared
    return kind | None, st.none() | values


def _list_of(declared: Declared) -> Declared:
    kind, values = declared
    return list[kind], st.lists(values, max_size=3)  # type: ignore[valid-type]


def _dict_of(declared: Declared) -> Declared:
    kind, values = declared
    return dict[str, kind], st.dictionaries(st.text(max_size=2), values, max_size=3)  # type: ignore[valid-type]


def _class_of(fields: Sequence[Declared], is_struct: bool, keywords: bool) -> Declared:
    named = [(f"f{n}", kind) for n, (kind, _) in enumerate(fields)]
    if is_struct:
        made: Any = msgspec.defstruct("Made", named, kw_only=keywords)
    else:
        made = dataclasses.make_dataclass("Made", named, kw_only=keywords)
    return made, st.builds(made, **{f"f{n}": values for n, (_, values) in enumerate(fields)})


def _larger(inner: st.SearchStrategy[Declared]) -> st.SearchStrategy[Declared]:
    parts = inner | inner.map(_optional)
    classes = st.builds(_class_of, st.lists(parts, min_size=1, max_size=3), st.booleans(), st.booleans())
    return parts.map(_list_of) | parts.map(_dict_of) | classes


KINDS = st.recursive(st.sampled_from(_SCALARS), _larger, max_leaves=6)


def _plain(value: Any) -> Any:
    """Returns a value as PyArrow has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return [(key, _plain(each)) for key, each in value.items()]
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


@given(KINDS, st.booleans(), st.data())
def test_values_of_any_type_come_back_from_their_column(declared: Declared, is_nullable: bool, data: Any) -> None:
    kind, strategy = _optional(declared) if is_nullable else declared
    values = data.draw(st.lists(strategy, max_size=5))
    shape = shape_of(kind)
    column = to_column(shape, values)
    assert column.type == shape.arrow
    assert column.to_pylist() == list(map(_plain, values))
    assert list(to_objects(shape, column)) == values
    assert (path_of_null(shape, column), misfit_of(shape, column)) == (None, None)
    # As Spark sends them, and as a task cuts them.
    loose = with_type(column, with_nullable_parts(column.type))
    start = data.draw(st.integers(0, len(values)))
    assert list(to_objects(shape, loose.slice(start))) == values[start:]
    assert (path_of_null(shape, loose.slice(start)), misfit_of(shape, loose.slice(start))) == (None, None)
    assert with_nullable_parts(loose.type) == loose.type


class Inner(msgspec.Struct):
    number: int
    colours: list[Colour] = []


@pytest.mark.parametrize(
    ("kind", "column", "path"),
    [
        (Inner, pa.array([{"number": 1, "colours": []}, {"number": None, "colours": []}]), ".number"),
        (Inner | None, pa.array([None, {"number": 1, "colours": ["red", None]}]), ".colours[]"),
        (list[list[int]], pa.array([[[1]], [None]]), "[]"),
        (list[Inner | None], pa.array([[None], [{"number": None, "colours": []}]]), "[].number"),
        (dict[str, int], pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())), "[]"),
        (dict[str, int | None], pa.array([[("a", None)]], pa.map_(pa.string(), pa.int64())), None),
    ],
)
def test_a_null_within_a_value_is_found(kind: Any, column: pa.Array, path: str | None) -> None:
    assert path_of_null(shape_of(kind), column) == path
    assert path_of_null(shape_of(kind), column.slice(0, 1)) is None
    assert misfit_of(shape_of(kind), column) == (None if path is None else (path, NULL))


UUID_TEXT = "0000000a-0000-0000-0000-000000000007"


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        (int, [0, 1 << 62], [None]),
        (uuid.UUID, [UUID_TEXT, UUID_TEXT.upper(), UUID_TEXT.replace("-", "")], ["", "x", UUID_TEXT + "0", None]),
        (Colour, [each.value for each in Colour], ["", "pink", None]),
        (Annotated[int, msgspec.Meta(ge=0, lt=5)] | None, [0, 4, None], [-1, 5]),
        (Annotated[int, msgspec.Meta(multiple_of=3)], [-3, 0, 6], [1, 7]),
        (Annotated[float, msgspec.Meta(gt=0, le=1)], [0.5, 1.0], [0.0, 1.5, float("nan")]),
        (Annotated[str, msgspec.Meta(min_length=1, max_length=2)], ["é", "ab"], ["", "abc"]),
        (Annotated[str, msgspec.Meta(pattern="^a.c$")], ["abc"], ["xabc", ""]),
        (Annotated[bytes, msgspec.Meta(max_length=1)], [b"", b"\0"], [b"ab"]),
        (list[Colour], [[], ["red"]], [["pink"], [None]]),
        (dict[uuid.UUID, int], [[(UUID_TEXT, 1)]], [[("x", 1)], [(UUID_TEXT, None)]]),
        (Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] | None, [[1], [1, 2], None], [[], [1, 2, 3]]),
        (Annotated[dict[str, int], msgspec.Meta(max_length=1)], [[], [("a", 1)]], [[("a", 1), ("b", 2)]]),
        (dict[str, int] | None, [[("b", 1), ("a", 1)], [("a", 1)], None], [[("b", 1), ("a", 1), ("b", 2)]]),
        (list[Annotated[list[int], msgspec.Meta(min_length=1)]], [[], [[1]]], [[[1], []]]),
    ],
    ids=str,
)
def test_a_value_that_is_not_of_the_declared_type_is_found(kind: Any, good: list[Any], wrong: list[Any]) -> None:
    """Those that msgspec refuses, in any place of a column, and within slices of it."""
    shape = shape_of(kind)
    loose = with_nullable_parts(shape.arrow)
    assert misfit_of(shape, pa.array(good, loose)) is None
    assert misfit_of(shape, pa.array([], loose)) is None
    for value in wrong:
        column = pa.array([*good, value, *good], loose)
        assert misfit_of(shape, column) is not None
        assert misfit_of(shape, column.slice(len(good), 1)) is not None
        assert misfit_of(shape, column.slice(0, len(good))) is None


@pytest.mark.parametrize(("digits", "scale"), [(5, 2), (30, 4), (37, 0), (37, 37)])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_decimal_of_more_digits_than_its_type_is_found(digits: int, scale: int, sign: str) -> None:
    """Also of more digits than the context of Python's decimals has, to which its arithmetic rounds."""
    largest = decimal.Decimal(f"{sign}{10**digits - 1}E-{scale}")
    wide = pa.array([largest, decimal.Decimal(f"{sign}{10**digits}E-{scale}")], pa.decimal128(digits + 1, scale))
    column = pa.Array.from_buffers(pa.decimal128(digits, scale), 2, wide.buffers())
    shape = shape_of(Annotated[decimal.Decimal, precision(digits, scale=scale)])
    assert misfit_of(shape, column) is not None and misfit_of(shape, column.slice(0, 1)) is None


@pytest.mark.parametrize(("digits", "scale"), [(0, 0), (39, 0), (5, 6), (5, -1), (2.5, 1), (True, 0)])
def test_the_digits_of_a_decimal_are_within_those_of_spark(digits: Any, scale: Any) -> None:
    with raises(JobDefinitionError, digits=digits, scale=scale):
        precision(digits, scale=scale)


TEXTS = pa.array(["", "abc", None, "x" * 1000])
WORDS = pa.array([["x" * 500], [], None, ["ab", "c"]])
MAPS = pa.array([[("k" * 300, 1)], None, [], [("a", 2), ("b", 3)]], pa.map_(pa.string(), pa.int64()))


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        (TEXTS, [4, 7, 4, 1004]), (pa.array([b"", b"ab"], pa.large_binary()), [4, 6]), (WORDS, [508, 4, 4, 15]),
        (MAPS, [316, 4, 4, 30]), (pa.array([1, 2, 3]), [8, 8, 8]),
        (pa.StructArray.from_arrays([TEXTS, WORDS, MAPS], names=["a", "b", "c"]), [828, 15, 12, 1049]),
        (pa.array([], pa.struct([])), []),
    ],
)  # fmt: skip
def test_a_row_has_the_size_of_its_values_also_in_a_slice(column: pa.Array, sizes: list[int]) -> None:
    for start in range(len(column) + 1):
        found = row_bytes(column.slice(start))
        assert found.tolist() == pytest.approx(sizes[start:], abs=3)


# -- scalar types -----------------------------------------------------------------------------------------------------

_TYPES = pytest.mark.parametrize("each", SCALAR_TYPES, ids=lambda each: each.spark)
_DECLARED = pytest.mark.parametrize("each", DECLARED.values(), ids=lambda each: each.spark)


@_TYPES
def test_a_type_has_the_name_that_spark_has_for_its_column(each: ScalarType) -> None:
    assert from_arrow_type(each.arrow, prefer_timestamp_ntz=True).simpleString() == each.spark
    assert parse_arrow_type(each.spark) == each.arrow


_MOMENT = datetime.datetime(2026, 1, 31, 3)  # noqa: DTZ001 - a timestamp without time zone
_VALUES: dict[Any, Any] = {
    bool: True, int: 7, float: 1.5, str: "text", bytes: b"text", datetime.date: _MOMENT.date(),
    datetime.datetime: _MOMENT, datetime.time: _MOMENT.time(), datetime.timedelta: datetime.timedelta(1),
    decimal.Decimal: decimal.Decimal("1.5"),
}  # fmt: skip
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
        ("a", "'a'"), ("a'b", "'a\\'b'"), ("a\\", "'a\\\\'"), ("${env:HOME}", "'\\u0024{env:HOME}'"),
        ("a\nb\0\x7f", "'a\\u000ab\\u0000\\u007f'"),
    ],
)  # fmt: skip
def test_a_text_is_one_literal_without_variables(text: str, expected: str) -> None:
    assert literal(text) == expected


def test_a_name_is_one_quoted_name() -> None:
    assert (quote_name("a b"), quote_name("a`b")) == ("`a b`", "`a``b`")
