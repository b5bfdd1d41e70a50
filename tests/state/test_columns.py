"""State as Arrow columns: the bytes of the row API, and hashes, order and other key groups of keys."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from msgspec import defstruct

from stateflow.errors import CorruptFile, JobDefinitionError, SchemaMismatch, StateError
from stateflow.state.binary_columns import from_list, sort_rows
from stateflow.state.column_serializer import ColumnSerializer
from stateflow.state.key_columns import encode_key_columns, encode_keys, to_comparable
from stateflow.state.rehash import PADDING, Rehash, hash_keys
from stateflow.types.declared_types import describe_type
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group, key_hash
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


@pytest.mark.long(reason="draws many rows of many types")
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


NUMBERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
USUAL: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(-(1 << bits), (1 << bits) - 1) for name, bits in NUMBERS.items()},
    "string": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60),
    "binary": st.binary(max_size=60).filter(lambda text: b"\0" not in text),
    "timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
    "timestamp_ntz": st.datetimes(),
}
USUAL = {name: st.none() | values for name, values in USUAL.items()}


def _hashes(types: list[str], keys: list[bytes]) -> tuple[list[int], list[bool]]:
    lengths = np.array([len(key) for key in keys], np.int64)
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(keys) + PADDING, np.uint8)
    hashes, valid = hash_keys(data, ends - lengths, ends, types)
    return hashes.tolist(), valid.tolist()


@pytest.mark.long(reason="draws many keys")
@given(st.data(), st.lists(st.sampled_from(sorted(USUAL)), max_size=3))
def test_usual_keys_have_sparks_hashes_without_decoding(data: st.DataObject, types: list[str]) -> None:
    keys = data.draw(st.lists(st.tuples(*(USUAL[name] for name in types)), min_size=1, max_size=30))
    hashes, valid = _hashes(types, [encode_key(key) for key in keys])
    assert all(valid)
    assert hashes == [key_hash(key, types) for key in keys]


@given(st.lists(st.sampled_from([*USUAL, "double", "unknown"]), min_size=1, max_size=3), st.lists(st.binary()))
def test_any_bytes_have_no_hash_or_one_within_them(types: list[str], keys: list[bytes]) -> None:
    """Whatever is stored: nothing outside the data is read, and a key does not extend into the next one."""
    _, valid = _hashes(types, [*keys, b""])
    assert not valid[-1]
    assert not any(is_valid for key, is_valid in zip(keys, valid, strict=False) if len(key) < len(types))


FEW = st.binary(max_size=12).map(lambda text: bytes(byte % 3 for byte in text))
"""Keys of which many are equal, or begin with another one."""


def _of_one_size(size: int) -> st.SearchStrategy[list[bytes]]:
    few = st.lists(st.sampled_from([0, 1, 255]), min_size=size, max_size=size).map(bytes)
    return st.lists(few | st.binary(min_size=size, max_size=size), max_size=40)


@given(st.lists(FEW | st.binary(max_size=40), max_size=40) | st.integers(0, 24).flatmap(_of_one_size), st.data())
def test_keys_are_in_order_and_equal_ones_stay_in_their_order(keys: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(keys)))
    column = from_list(keys).slice(first)
    part = keys[first:]
    assert sort_rows(column).tolist() == sorted(range(len(part)), key=part.__getitem__)


def test_keys_that_are_equal_in_their_first_eight_distinct_bytes_are_in_order() -> None:
    keys = [b"x" * 8 + b"b", b"x" * 8 + b"a", b"y" * 8 + b"c"]
    assert sort_rows(from_list(keys)).tolist() == [1, 0, 2]


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=80) | st.text("aé\0", max_size=4),
    "binary": st.binary(max_size=80) | st.sampled_from([b"\0", b"\0\xff", b"\xff", b"\xff\0"]),
    "boolean": st.booleans(),
    "tinyint": st.integers(-(1 << 7), (1 << 7) - 1),
    "smallint": st.integers(-(1 << 15), (1 << 15) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    # Some numbers are stored as a boolean, which has another encoding.
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans(),
    "float": st.floats(width=32),
    "double": st.floats(allow_nan=True),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
    "timestamp_ntz": st.datetimes(),
}
COLUMNS = {name: st.none() | values for name, values in COLUMNS.items()}
TYPES = st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3)
TIME = struct.pack(">Q", (1 << 63) + 1_700_000_000_000)


def _id(name: str) -> bytes:
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


STORED_KINDS = {
    "value": _id("seen"),
    "event timer": _id("\0event timers") + TIME,
    "processing timer": _id("\0processing timers") + TIME,
    "expiry": _id("seen\0expiry") + TIME,
    "event expiry": _id("seen\0event expiry") + TIME,
}
"""What docs/format.md has between the key group and the key."""


def _stored(kind: str, groups: int, key: tuple[list[str], tuple[Any, ...]], rest: bytes) -> bytes:
    types, values = key
    return struct.pack(">H", key_group(values, types, groups)) + STORED_KINDS[kind] + encode_key(values) + b"\0" + rest


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        (["string"], [("a",), ("a\0b",), ("a\0b\0c",), ("a\0",), ("a",)]),
        (["binary"], [(b"\0",), (b"\0\0",), (b"\0\0\xff",)]),
        (["double", "string"], [(1.0, "a"), (1.0, "a\0b")]),
        (["string", "int"], [("a", 1), ("a\0b", 1)]),
    ],
)
def test_the_bytes_of_a_key_may_begin_those_of_another_one(types: list[str], keys: list[tuple[Any, ...]]) -> None:
    old, new = ([_stored("value", groups, (types, key), b"") for key in keys] for groups in (1, 128))
    assert Rehash(types, ["seen"], 128)(from_list(old))[0].to_pylist() == new


@given(st.data(), TYPES, st.integers(1, 1 << 15), st.integers(1, 1 << 15))
def test_keys_get_the_groups_of_the_new_max_parallelism(
    data: st.DataObject, types: list[str], before: int, after: int
) -> None:
    rests = st.lists(st.tuples(st.sampled_from(sorted(STORED_KINDS)), st.binary(max_size=12)), min_size=1, max_size=4)
    keys = st.lists(st.tuples(st.tuples(*(COLUMNS[name] for name in types)), rests), max_size=20)
    entries = [(values, kind, rest) for values, found in data.draw(keys) for kind, rest in found]
    old, new = ([_stored(kind, n, (types, values), rest) for values, kind, rest in entries] for n in (before, after))
    found, groups = Rehash(types, ["other", "seen"], after)(from_list(old))
    assert found.to_pylist() == new
    assert groups.tolist() == [int.from_bytes(key[:2]) for key in new]


GOOD = _stored("value", 8, (["bigint"], (7,)), b"")


@pytest.mark.parametrize(
    ("types", "stored"),
    [
        (["bigint"], b"\0\1" + _id("unknown") + encode_key((7,))),
        (["bigint"], b"\0\1" + _id("seen") + encode_key((7,))[:-1]),
        (["bigint"], b"\0\1" + _id("seen")),
        (["bigint"], b"\0\1" + STORED_KINDS["event timer"][:-1]),
        (["bigint"], b"\0\1"),
        (["bigint"], b""),
        (["string"], b"\0\1" + _id("seen") + encode_key(("text",))[:-1]),
        (["string", "bigint"], b"\0\1" + _id("seen") + encode_key(("text",))),
        (["timestamp"], b"\0\1" + _id("seen") + b"\x31\1" + b"\xff" * 8),
        (["date"], b"\0\1" + _id("seen") + b"\x30" + bytes(4)),
    ],
)
def test_a_key_of_no_state_is_refused(types: list[str], stored: bytes) -> None:
    good = [GOOD] if types == ["bigint"] else []
    for keys in ([stored], [*good, stored], [stored, *good]):
        with pytest.raises(CorruptFile):
            Rehash(types, ["seen"], 4)(from_list(keys))


@pytest.mark.parametrize(("types", "values"), [(["int"], (1 << 31,)), (["bigint"], ("text",)), (["string"], (7,))])
def test_a_key_that_is_not_of_its_type_is_refused(types: list[str], values: tuple[Any, ...]) -> None:
    with pytest.raises(StateError):
        Rehash(types, ["seen"], 4)(from_list([b"\0\1" + _id("seen") + encode_key(values)]))
