"""State as Arrow columns: the bytes of the row API, for many values at once."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import defstruct

from stateflow.errors import CorruptFile, JobDefinitionError, SchemaMismatch, StateError
from stateflow.state.column_serializer import ColumnSerializer
from stateflow.state.key_columns import encode_key_columns, encode_keys, to_comparable
from stateflow.types.declared_types import describe_type
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import ValueSerializer, with_timestamp
from tests.support.errors import raises

_LIMITS = [s * ((1 << b) + d) for b in (0, 5, 7, 8, 15, 16, 31, 32, 53, 62) for d in (-1, 0, 1) for s in (1, -1)]
INTS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from(_LIMITS))
FLOATS = st.floats()


Sum = defstruct("Sum", [("count", int), ("total", float)], array_like=True)
Named = defstruct(
    "Named",
    [("how_many", int), ("how_much", float | None, None), ("is_open", bool, False), ("inner", Sum | None, None)],
    rename="camel",
)
Nested = defstruct("Nested", [("left", Sum), ("flag", bool | None), ("right", Sum)])
Wide = defstruct("Wide", [*((f"f{n}", int) for n in range(16)), ("flag", bool)])
"""So many fields that msgpack counts them in another way."""
Short = defstruct("Short", [("number", int, 0), ("other", float, 1.0)], omit_defaults=True)
Bounded = defstruct("Bounded", [("number", Annotated[int, msgspec.Meta(ge=0)])])


Letter = defstruct(
    "Letter",
    [
        ("text", str),
        ("number", int),
        ("note", str | None, None),
        ("data", bytes, b""),
        ("at", datetime.datetime, datetime.datetime(1970, 1, 1)),  # noqa: DTZ001 - without a zone
        ("until", datetime.datetime | None, None),
    ],
)


@dataclasses.dataclass
class Data:
    number: int
    text: str
    parts: list[int]
    day: datetime.date | None


SUMS = st.builds(Sum, INTS, FLOATS)
TIMES = st.datetimes() | st.datetimes().map(lambda at: at.replace(microsecond=0))
LETTERS = st.builds(Letter, st.text(), INTS, st.none() | st.text(), st.binary(), TIMES, st.none() | TIMES)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, INTS),
    "float": (float, FLOATS),
    "bool": (bool, st.booleans()),
    "str": (str, st.text()),
    "bytes": (bytes, st.binary()),
    "array-like": (Sum, SUMS),
    "named": (Named, st.builds(Named, INTS, st.none() | FLOATS, st.booleans(), st.none() | SUMS)),
    "nested": (Nested, st.builds(Nested, SUMS, st.none() | st.booleans(), SUMS)),
    "wide": (Wide, st.builds(Wide, *[INTS] * 16, st.booleans())),
    "dataclass": (Data, st.builds(Data, INTS, st.text(), st.lists(INTS), st.none() | st.dates())),
    "omits": (Short, st.builds(Short, INTS, FLOATS)),
    "bounded": (Bounded, st.builds(Bounded, st.integers(0, 1 << 40))),
    "timestamp": (datetime.datetime, TIMES),
    "texts": (Letter, LETTERS),
    "lists": (list[float], st.lists(FLOATS)),
}


def _plain(value: Any) -> Any:
    """As Arrow gives it, with floats by their bits."""
    if isinstance(value, float):
        return "nan" if value != value else value.hex()
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_columns_have_the_bytes_and_values_of_the_row_api(kind: str, data: st.DataObject) -> None:
    value_type, values = KINDS[kind]
    rows: list[Any] = data.draw(st.lists(st.none() | values, max_size=8))
    serializer, columns = ValueSerializer[Any](value_type), ColumnSerializer(value_type)
    stored = [None if row is None else serializer.encode(row) for row in rows]
    timestamped = [
        None if d is None else with_timestamp(d, 5, "event" if n % 2 else "processing") if n % 3 == 1 else d
        for n, d in enumerate(stored)
    ]

    found = columns.decode(timestamped)

    found.validate(full=True)
    assert found.type == columns.type
    assert _plain(found.to_pylist()) == _plain([serializer.decode(d) if d is not None else None for d in stored])
    assert columns.encode(found) == stored
    # A part of a column knows where it begins.
    assert columns.encode(found.slice(1)) == stored[1:]
    present = found.drop_null()
    wanted = [data for data in stored if data is not None]
    assert columns.encode_column(present).to_pylist() == wanted
    assert columns.encode_column(present.slice(1)).to_pylist() == wanted[1:]


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, (1 << 16) - 1, 1 << 16])
@pytest.mark.parametrize("kind", [str, bytes])
def test_columns_of_texts_have_the_header_of_each_size(kind: type, size: int) -> None:
    values = ["é" * (size // 2) + "a" * (size % 2), "", "x"] if kind is str else [bytes(size), b"", b"x"]
    serializer, columns = ValueSerializer[Any](kind), ColumnSerializer(kind)
    for rows in (values, values[:1]):
        given_rows = pa.array(rows, columns.type)
        assert columns.encode_column(given_rows).to_pylist() == [serializer.encode(row) for row in rows]


@pytest.mark.parametrize("limits", [msgspec.Meta(max_length=2), msgspec.Meta(pattern="^a*$")])
def test_a_text_that_its_declaration_forbids_is_refused_in_columns(limits: msgspec.Meta) -> None:
    with pytest.raises(StateError):
        ColumnSerializer(Annotated[str, limits]).encode_column(pa.array(["a", "abc"]))


@given(st.lists(st.tuples(INTS, FLOATS), max_size=6))
def test_a_whole_number_where_a_float_is_declared_is_read_as_by_the_row_api(rows: list[tuple[int, float]]) -> None:
    serializer = ValueSerializer[Any](Sum)
    stored = [serializer.encode(Sum(n, n)) for n, _ in rows] + [serializer.encode(Sum(n, x)) for n, x in rows]
    found = ColumnSerializer(Sum).decode(stored).to_pylist()
    assert _plain(found) == _plain([serializer.decode(d) for d in stored])


def test_values_that_are_laid_out_in_another_way_are_read_by_their_names() -> None:
    odd = [
        b"\x01" + msgspec.msgpack.encode(value)
        for value in ({"number": 3}, {"b": 1.0, "number": 4, "a": None}, {"x": 1, "a": 2, "number": -5, "b": 2.5})
    ]

    Evolved = defstruct("Evolved", [("a", int | None, None), ("b", float, 0.5), ("number", int, 0)])
    own = ValueSerializer[Any](Evolved).encode(Evolved(1, 2.0, 3))
    found = ColumnSerializer(Evolved).decode([odd[0], own, odd[1], None, odd[2]]).to_pylist()
    assert found == [
        {"a": None, "b": 0.5, "number": 3},
        {"a": 1, "b": 2.0, "number": 3},
        {"a": None, "b": 1.0, "number": 4},
        None,
        {"a": 2, "b": 2.5, "number": -5},
    ]


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=5))
def test_bytes_that_are_no_value_are_an_error_or_what_the_row_api_reads(junk: list[bytes]) -> None:
    for value_type in (Sum, Nested, int, bool, float):
        serializer = ValueSerializer[Any](value_type)
        for stored in ([b"\x01" + j for j in junk], junk):
            try:
                wanted = [serializer.decode(data) for data in stored]
            except CorruptFile:
                with pytest.raises((CorruptFile, StateError)):
                    ColumnSerializer(value_type).decode(stored)
            else:
                assert _plain(ColumnSerializer(value_type).decode(stored).to_pylist()) == _plain(wanted)


def test_a_cut_value_is_never_completed_with_the_bytes_of_the_next() -> None:
    whole = ValueSerializer[Any](Sum).encode(Sum(300, 2.5))
    for cut in range(1, len(whole)):
        with pytest.raises(CorruptFile):
            ColumnSerializer(Sum).decode([whole[:cut], whole])


def test_a_number_beyond_signed_64_bits_is_refused() -> None:
    stored = ValueSerializer[Any](int).encode((1 << 64) - 1)
    with raises(StateError, declared="int"):
        ColumnSerializer(int).decode([stored])


@pytest.mark.parametrize("value_type", [dict[int | None, int], int | str, Any, tuple[int, ...], decimal.Decimal])
def test_a_type_without_columns_is_named(value_type: Any) -> None:
    with raises(JobDefinitionError, type=describe_type(value_type)):
        ColumnSerializer(value_type)


@pytest.mark.parametrize(
    ("value_type", "column"),
    [
        (int, pa.array([1.5])),
        (int, pa.array(["x"])),
        (Sum, pa.array([1])),
        (Sum, pa.array([{"count": 1}])),
        (Sum, pa.array([{"count": 1, "total": 1.0, "more": 2}])),
        (Sum, pa.array([{"count": 1, "total": 1.0}, {"count": None, "total": 1.0}])),
        (list[int], pa.array([["x"]])),
    ],
)
def test_a_column_of_another_type_is_refused(value_type: Any, column: pa.Array) -> None:
    with raises(SchemaMismatch, declared=describe_type(value_type)):
        ColumnSerializer(value_type).encode(column)


def test_fields_are_found_by_their_names_and_widened() -> None:
    column = pa.array([{"total": 2.5, "count": 7}, None], pa.struct([("total", pa.float32()), ("count", pa.int8())]))
    assert ColumnSerializer(Sum).encode(column) == [ValueSerializer[Any](Sum).encode(Sum(7, 2.5)), None]


def test_fields_of_a_null_struct_are_ignored() -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, None]), pa.array([1.0, None])], names=["count", "total"], mask=pa.array([False, True])
    )
    assert ColumnSerializer(Sum).encode(hidden) == [ValueSerializer[Any](Sum).encode(Sum(1, 1.0)), None]


KEYS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), INTS),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.float64(), FLOATS),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
]


@given(st.data())
def test_key_columns_have_the_bytes_of_each_key(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    rows: Sequence[tuple[Any, ...]] = data.draw(st.lists(st.tuples(*[values for _, values in kinds]), max_size=5))
    columns = [pa.array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(kinds)]
    wanted = [encode_key(row) for row in rows]
    assert encode_keys(columns) == wanted
    assert encode_key_columns(columns).to_pylist() == wanted
    assert encode_key_columns([column.slice(1) for column in columns]).to_pylist() == wanted[1:]


@given(st.lists(FLOATS | st.sampled_from([0.0, -0.0, float("nan"), -float("nan")]), min_size=2))
def test_keys_are_equal_in_columns_when_their_bytes_are(values: list[float]) -> None:
    found = to_comparable(pa.array(values)).to_pylist()
    encoded = [encode_key((value,)) for value in values]
    assert [a == b for a in found for b in found] == [a == b for a in encoded for b in encoded]
