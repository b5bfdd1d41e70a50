# ruff: noqa: DTZ001 - moments without a zone are a type of their own
"""Bytes of keys and values: order, one spelling each, and nothing but clear errors from any bytes."""

from __future__ import annotations

import ast
import datetime
import decimal
import enum
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stateflow
from stateflow.errors import CorruptFile, JobDefinitionError, StateError
from stateflow.types.arrow_types import NUMPY, SUPPORTED
from stateflow.types.serializers import ValueSerializer, decode_key, decode_untyped, describe_type, encode_key
from tests.support.errors import raises

UTC = datetime.UTC
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

texts = st.text(max_size=6) | st.sampled_from(["", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "\x01", "é", "\U0010ffff"])
blobs = st.binary(max_size=6) | st.sampled_from([b"", b"\0", b"\0\xff", b"\xff", b"\xff\0", b"a"])
floats = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324])
moments = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31))
zoned = st.builds(
    lambda at, hours: at.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=hours))),
    moments,
    st.integers(-12, 14),
)
parts = st.one_of(st.none(), blobs, texts, INT64, floats, st.booleans(), st.dates(), moments, zoned)
keys = st.lists(parts, max_size=3).map(tuple)


# -- keys ---------------------------------------------------------------------------------------------------------

RANKS: list[tuple[type, ...]] = [
    (type(None),),
    (bytes,),
    (str,),
    (int,),
    (float,),
    (bool,),
    (datetime.date,),
    (datetime.datetime,),
]


def _rank(part: object) -> int:
    return next(rank for rank, kinds in enumerate(RANKS) if type(part) in kinds)


def _sortable(part: Any) -> tuple[Any, ...]:
    """The documented order: by kind, then as Python has it; NaN last, moments without zone before those with one."""
    rank = _rank(part)
    if part is None:
        return (rank,)
    if isinstance(part, str):
        return rank, part.encode()
    if isinstance(part, float):
        return rank, part != part, 0.0 if part != part else part + 0.0
    if isinstance(part, datetime.datetime):
        aware = part.tzinfo is not None
        return rank, aware, part.astimezone(UTC).replace(tzinfo=None) if aware else part
    return rank, part


def _sort_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_sortable(part) for part in key)


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return _sort_key(a) == _sort_key(b)


@given(keys, keys)
@example((1,), (1.0,))
@example((0.0,), (-0.0,))
@example(("a",), ("a", None))
@example(("a\0b",), ("a", "b"))
@example(("",), (None,))
@example((-1,), (0,))
@example((-(1 << 63),), ((1 << 63) - 1,))
def test_bytes_sort_and_differ_as_keys_do(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    left, right = encode_key(a), encode_key(b)
    assert (left < right) == (_sort_key(a) < _sort_key(b))
    assert (left == right) == (_sort_key(a) == _sort_key(b))


@given(st.lists(st.tuples(parts, parts), max_size=10))
def test_sorted_bytes_are_sorted_keys(many: list[tuple[Any, Any]]) -> None:
    by_bytes = sorted(many, key=encode_key)
    assert [_sort_key(key) for key in by_bytes] == sorted(map(_sort_key, many))


@given(keys)
def test_a_key_comes_back(key: tuple[Any, ...]) -> None:
    again = decode_key(encode_key(key))
    assert _same(again, key)
    assert [type(part) for part in again] == [type(part) for part in key]


def test_a_moment_comes_back_with_or_without_zone() -> None:
    at = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    east = datetime.timezone(datetime.timedelta(hours=5))
    assert decode_key(encode_key((at,))) == (at,)
    (instant,) = decode_key(encode_key((at.replace(tzinfo=east),)))
    assert isinstance(instant, datetime.datetime)
    assert instant == at.replace(tzinfo=east) and instant.tzinfo is UTC


@given(keys, keys)
def test_entries_of_a_key_lie_below_its_prefix_and_nowhere_else(a: tuple[Any, ...], b: tuple[Any, ...]) -> None:
    """What keyed state relies on: keys of as many parts, none of them null, are no prefixes of one another."""
    if len(a) == len(b) and not _same(a, b):
        assert not (encode_key(a) + b"\0").startswith(encode_key(b) + b"\0")


@given(st.binary(max_size=40))
@example(b"\x30\0\0\0\0")
@example(b"\x30\xff\xff\xff\xff")
@example(b"\x31\0" + b"\xff" * 8)
@example(b"\x31\1" + b"\0" * 8)
@example(b"\x02\xff\0")
@example(b"\x02a")
@example(b"\x15\0")
@example(b"\x77")
def test_bytes_that_are_no_key_are_a_corrupt_file(data: bytes) -> None:
    try:
        decode_key(data)
    except CorruptFile as e:
        assert e.facts


@given(keys, st.data())
def test_a_cut_key_never_passes_for_the_whole(key: tuple[Any, ...], data: st.DataObject) -> None:
    encoded = encode_key(key)
    cut = encoded[: data.draw(st.integers(0, max(0, len(encoded) - 1)))]
    try:
        assert not encoded or not _same(decode_key(cut), key)
    except CorruptFile:
        pass


class _Text(str):
    pass


@pytest.mark.parametrize(
    "part",
    [
        1 << 63,
        -(1 << 63) - 1,
        "\ud800",
        decimal.Decimal(1),
        (1,),
        [1],
        {1: 1},
        _Text("a"),
        datetime.time(1),
        object(),
        1j,
    ],
)
def test_what_cannot_be_part_of_a_key_is_refused(part: Any) -> None:
    with raises(StateError) as refused:
        encode_key(("a", part))
    assert "value" in refused.value.facts


# -- values -------------------------------------------------------------------------------------------------------


class Stats(msgspec.Struct, array_like=True):
    flights: int
    mean: float | None = None
    names: dict[str, list[int]] = {}


@dataclass
class Point:
    x: int
    y: float = 0.0


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class Colour(enum.Enum):
    RED = "red"


_east = datetime.timezone(datetime.timedelta(hours=2))
VALUES: list[tuple[Any, Any]] = [
    (int, 0),
    (int, -(1 << 63)),
    (int, (1 << 64) - 1),
    (float, 1.5),
    (float, -math.inf),
    (bool, True),
    (str, "a\0é"),
    (bytes, b"\0\xff"),
    (list[int], [1, 2]),
    (dict[str, int], {"a": 1}),
    (dict[int, str], {1: "a"}),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a"}),
    (frozenset[int], frozenset({1})),
    (int | None, None),
    (int | str, "a"),
    (decimal.Decimal, decimal.Decimal("1.500")),
    (datetime.date, datetime.date(1969, 1, 1)),
    (datetime.time, datetime.time(1, 2, 3)),
    (datetime.datetime, datetime.datetime(2026, 1, 1, 1, 2, 3, 4)),
    (datetime.datetime, datetime.datetime(2026, 1, 1, tzinfo=UTC)),
    (datetime.datetime, datetime.datetime(2026, 1, 1, tzinfo=_east)),
    (datetime.timedelta, datetime.timedelta(1, 2, 3)),
    (Stats, Stats(1, 2.5, {"a": [1]})),
    (Point, Point(1, 2.5)),
    (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])])),
    (list[Point], [Point(1), Point(2)]),
    (Colour, Colour.RED),
    (Literal["a", "b"], "b"),
    (Any, {"a": [1, None, b"x"]}),
    (float, 3),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_a_value_comes_back(kind: Any, value: Any) -> None:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    again = serializer.decode(serializer.encode(value))
    assert again == value
    if kind is not Any and isinstance(kind, type):
        assert isinstance(again, kind)


@pytest.mark.parametrize(
    ("written", "value", "read"),
    [
        (str, "a", int),
        (int, 1, str),
        (int, 1, Stats),
        (Point, Point(1), Stats),
        (Stats, Stats(1), Point),
        (list[str], ["a"], list[int]),
        (float, 1.5, int),
        (int | None, None, int),
        (bool, True, int),
        (str, "x", Colour),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_declared_one(written: Any, value: Any, read: Any) -> None:
    data = ValueSerializer[Any](written).encode(value)
    with raises(CorruptFile, declared=describe_type(read)):
        ValueSerializer[Any](read).decode(data)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, "a"),
        (int, 1.5),
        (int, True),
        (int, 1 << 64),
        (str, "\ud800"),
        (Stats, Point(1)),
        (Stats, Stats("many")),  # type: ignore[arg-type]
        (Stats, Stats(1, "x")),
        (Point, Point(1.5)),
        (dict[str, int], {"a": None}),
        (Any, object()),
        (Any, Path("x")),  # type: ignore[arg-type]
        (list[Any], [lambda: None]),
        (int, None),
    ],
)
def test_a_value_that_could_not_be_read_again_is_refused_when_it_is_written(kind: Any, value: Any) -> None:
    with raises(StateError, value=repr(value)) as refused:
        ValueSerializer[Any](kind).encode(value)
    assert describe_type(kind) in refused.value.hint


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with raises(StateError, value=repr(loop)):
        ValueSerializer[Any](list).encode(loop)


SERIALIZERS: list[ValueSerializer[Any]] = [
    ValueSerializer(kind) for kind in (Any, int, str, Stats, Point, Tree, dict[str, int], set[int], datetime.datetime)
]


@given(st.binary(max_size=60))
@example(b"")
@example(b"\x01")
@example(b"\x01" + b"\x91" * 100_000)
@example(b"\x01\x81\x81\x01\x02\x03")
@example(b"\x01\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\x01\xdd\xff\xff\xff\xff")
@example(b"\x02\x01")
def test_any_bytes_are_a_value_or_a_corrupt_file(data: bytes) -> None:
    decoders: list[Callable[[bytes], Any]] = [s.decode for s in SERIALIZERS] + [decode_untyped]
    for form in (data, b"\x01" + data):
        for decode in decoders:
            try:
                decode(form)
            except CorruptFile as e:
                assert e.facts


@given(st.sampled_from(VALUES), st.data())
def test_a_flipped_bit_is_another_value_or_a_corrupt_file(kind_and_value: tuple[Any, Any], data: st.DataObject) -> None:
    kind, value = kind_and_value
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    encoded = bytearray(serializer.encode(value))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    try:
        serializer.decode(bytes(encoded))
    except CorruptFile:
        pass


@pytest.mark.parametrize(
    "kind",
    [
        Path,
        list[Path],
        dict[str, int | Path],
        Callable,
        type,
        re.Pattern,
        np.float16,
        np.datetime64,
        np.ndarray,
        pa.float16(),
        pa.timestamp("ns"),
        pa.struct([]),
        pa.int64,
        complex,
        msgspec.Raw,
        msgspec.msgpack.Ext,
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_by_name_with_what_can_be(kind: Any) -> None:
    with raises(JobDefinitionError, type=repr(kind)) as refused:
        ValueSerializer(kind)
    assert refused.value.hint == SUPPORTED


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (dict[str, list[int | None]], "dict[str, list[union[int, none]]]"),
        (Any, "any"),
        (Stats, "Stats(flights: int, mean: union[float, none], names: dict[str, list[int]])"),
        (Point, "Point(x: int, y: float)"),
        (Tree, "Tree(value: int, children: list[Tree])"),
    ],
)
def test_a_type_is_described_stably(kind: Any, text: str) -> None:
    """Manifests keep it."""
    assert describe_type(kind) == text


SCALARS: list[tuple[Any, list[Any], list[Any]]] = [
    (np.bool_, [np.bool_(True), False], [1, "a"]),
    (np.int8, [np.int8(-128), 127], [128, 1.5, True, np.int16(300)]),
    (np.uint8, [np.uint8(255), 0], [-1]),
    (np.int64, [np.int64(-(1 << 63))], [1 << 63]),
    (np.uint64, [np.uint64((1 << 64) - 1)], [-1]),
    (np.float32, [np.float32(0.5), 2], [1e300, "a"]),
    (np.float64, [np.float64(0.1), 1.5], ["a"]),
    (list[np.int16 | None], [[np.int16(1), None]], [[1 << 15]]),
    (pa.int32(), [5, pa.scalar(5, pa.int32()), np.int32(5)], [1 << 31, 1.5]),
    (pa.uint64(), [(1 << 64) - 1], [-1]),
    (pa.string(), ["x", pa.scalar("x")], [1]),
    (pa.timestamp("us"), [datetime.datetime(2026, 1, 1)], [datetime.datetime(2026, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2026, 1, 1, tzinfo=UTC)], [datetime.datetime(2026, 1, 1)]),
    (pa.decimal128(5, 2), [decimal.Decimal("1.50")], ["x"]),
    (pa.list_(pa.int8()), [[1, 2]], [[200]]),
    (float, [np.float64(1.5)], [np.datetime64("2026-01-01")]),
]


@pytest.mark.parametrize(("kind", "values", "refused"), SCALARS, ids=lambda v: str(v)[:40])
def test_scalars_of_numpy_and_arrow_come_back_and_their_ranges_hold(
    kind: Any, values: list[Any], refused: list[Any]
) -> None:
    serializer: ValueSerializer[Any] = ValueSerializer(kind)
    for value in values:
        again = serializer.decode(serializer.encode(value))
        assert again == (value.as_py() if isinstance(value, pa.Scalar) else value)
        if kind in NUMPY:
            assert type(again) is kind
    for value in refused:
        with raises(StateError, value=repr(value)):
            serializer.encode(value)


# -- no code in data ----------------------------------------------------------------------------------------------

FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}


def test_no_module_can_load_objects_that_run_code() -> None:
    found = []
    for path in sorted(Path(stateflow.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Name | ast.Attribute):
                names = [node.id if isinstance(node, ast.Name) else node.attr]
            found += [(path.name, name) for name in names if FORBIDDEN & set(name.split("."))]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                found.append((path.name, node.func.id))
    assert found == []
