# ruff: noqa: DTZ001 - timestamps without a zone are a type of their own
"""Bytes of keys, values and sets: order, one form each, and nothing but clear errors from any bytes."""

from __future__ import annotations

import ast
import datetime
import decimal
import enum
import math
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stateflow
from stateflow.errors import CorruptFile, EntryTooLarge, JobDefinitionError, StateError
from stateflow.state.schema import type_schema
from stateflow.types.declared_types import SUPPORTED, describe_type
from stateflow.types.decoders import MEMORY_LIMIT
from stateflow.types.key_encoding import decode_key, encode_key
from stateflow.types.serializers import ValueSerializer, check_untyped, decode_untyped
from tests.support.errors import raises
from tests.support.processes import ROOT

UTC, EAST = datetime.UTC, datetime.timezone(datetime.timedelta(hours=5))
AT = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)

texts = st.text(max_size=6) | st.sampled_from(["", "\0", "\0\0", "a", "a\0", "a\0b", "ab", "\x01", "é", "\U0010ffff"])
blobs = st.binary(max_size=6) | st.sampled_from([b"", b"\0", b"\0\xff", b"\xff", b"\xff\0", b"a"])
integers = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324])
local_times = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31))
zones = st.integers(-12, 14).map(lambda hours: datetime.timezone(datetime.timedelta(hours=hours)))
instants = st.builds(lambda at, zone: at.replace(tzinfo=zone), local_times, zones)
decimals = st.integers(1 - 10**38, 10**38 - 1).map(lambda unscaled: decimal.Decimal(f"{unscaled}E-3"))
"""Of one scale, as in a column."""
parts = st.one_of(
    *(st.none(), blobs, texts, integers, floats, st.booleans(), st.dates(), local_times, instants),
    *(decimals, st.times(), st.timedeltas(datetime.timedelta(-106_000_000), datetime.timedelta(106_000_000))),
)
keys = st.lists(parts, max_size=3).map(tuple)

# -- keys -------------------------------------------------------------------------------------------------------------

Key = tuple[Any, ...]
ORDER_OF_TYPES = [type(None), bytes, str, int, float, bool, datetime.date, datetime.datetime]
ORDER_OF_TYPES += [decimal.Decimal, datetime.time, datetime.timedelta]


def _sortable(part: Any) -> Key:
    """The documented order: by type, then as Python has it; NaN last, local times before instants."""
    rank = ORDER_OF_TYPES.index(type(part))
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


def _sort_key(key: Key) -> Key:
    return tuple(_sortable(part) for part in key)


@given(keys, keys)
@example((1,), (1.0,))
@example((0.0,), (-0.0,))
@example(("a",), ("a", None))
@example(("a\0b",), ("a", "b"))
@example(("",), (None,))
@example((-1,), (0,))
@example((-2.0,), (-1.0,))
@example((-(1 << 63),), ((1 << 63) - 1,))
def test_bytes_sort_and_differ_as_keys_do(a: Key, b: Key) -> None:
    left, right = encode_key(a), encode_key(b)
    assert (left < right) == (_sort_key(a) < _sort_key(b))
    assert (left == right) == (_sort_key(a) == _sort_key(b))
    # What keyed state relies on: keys of as many parts, none of them null, are not prefixes of one another.
    if len(a) == len(b) and left != right:
        assert not (left + b"\0").startswith(right + b"\0")


@given(keys, st.data())
@example((AT,), None)
@example((AT.replace(tzinfo=EAST),), None)
def test_a_key_is_decoded_as_encoded_and_never_from_a_part_of_its_bytes(key: Key, data: st.DataObject | None) -> None:
    encoded = encode_key(key)
    again = decode_key(encoded)
    assert _sort_key(again) == _sort_key(key)
    assert [type(part) for part in again] == [type(part) for part in key]
    assert {part.tzinfo for part in again if isinstance(part, datetime.datetime)} <= {None, UTC}
    size = data.draw(st.integers(0, max(0, len(encoded) - 1))) if data else len(encoded) - 1
    try:
        assert not encoded or _sort_key(decode_key(encoded[:size])) != _sort_key(key)
    except CorruptFile:
        pass


@given(st.binary(max_size=40))
@example(b"\x30\0\0\0\0")
@example(b"\x30\xff\xff\xff\xff")
@example(b"\x31\0" + b"\xff" * 8)
@example(b"\x31\1" + b"\0" * 8)
@example(b"\x02\xff\0")
@example(b"\x02a")
@example(b"\x15\0")
@example(b"\x77")
def test_any_bytes_are_a_key_or_a_corrupt_file(data: bytes) -> None:
    try:
        decode_key(data)
    except CorruptFile as e:
        assert e.facts


class Text(str):
    """A string of another class."""


LONG = [decimal.Decimal(10**38), decimal.Decimal("1E-39"), decimal.Decimal("NaN"), datetime.timedelta.max]
BIG_NUMBERS = [1 << 63, -(1 << 63) - 1, 1j, *LONG]


@pytest.mark.parametrize(
    "part", [*BIG_NUMBERS, "\ud800", Text("a"), (1,), [1], {1: 1}, datetime.time(1, tzinfo=UTC), math]
)
def test_what_cannot_be_part_of_a_key_is_refused(part: Any) -> None:
    with raises(StateError) as refused:
        encode_key(("a", part))
    assert "value" in refused.value.facts


# -- values -----------------------------------------------------------------------------------------------------------


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


TEXT: Any = "many"
HALF: Any = 1.5
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
STORED: dict[Any, tuple[list[Any], list[Any]]] = {
    int: ([0, -(1 << 63), (1 << 64) - 1], ["a", 1.5, True, 1 << 64, None]),
    float: ([1.5, -math.inf, 3, np.float64(1.5)], [np.datetime64("2026-01-01")]), str: (["a\0é"], ["\ud800"]),
    list[int]: ([[1, 2]], []), dict[str, int]: ([{"a": 1}], [{"a": None}]), tuple[int, ...]: ([(1, 2, 3)], []),
    set[str]: ([{"a"}], []), frozenset[int]: ([frozenset({1})], []), int | None: ([None], []), int | str: (["a"], []),
    decimal.Decimal: ([decimal.Decimal("1.500")], []), datetime.date: ([datetime.date(1969, 1, 1)], []),
    datetime.time: ([datetime.time(1, 2, 3)], []),
    datetime.datetime: ([AT, AT.replace(tzinfo=UTC), AT.replace(tzinfo=EAST)], []),
    datetime.timedelta: ([datetime.timedelta(1, 2, 3)], []),
    Stats: ([Stats(1, 2.5, {"a": [1]})], [Point(1), Stats(TEXT), Stats(1, TEXT)]),
    Point: ([Point(1, 2.5)], [Point(HALF)]), Tree: ([Tree(1, [Tree(2), Tree(3, [Tree(4)])])], []),
    Colour: ([Colour.RED], []), Literal["a", "b"]: (["b"], []),
    Any: ([{"a": [1, None, b"x"]}], [object(), Path("x"), ENDLESS]), list[Any]: ([["a"]], [[lambda: None]]),
    np.bool_: ([np.bool_(True), False], [1, "a"]), np.int8: ([np.int8(-128), 127], [128, 1.5, True, np.int16(300)]),
    np.uint8: ([np.uint8(255), 0], [-1]), np.uint64: ([np.uint64((1 << 64) - 1)], [-1]),
    np.float32: ([np.float32(0.5), 2], [1e300, "a"]), list[np.int16 | None]: ([[np.int16(1), None]], [[1 << 15]]),
    pa.int32(): ([5, pa.scalar(5, pa.int32()), np.int32(5), -(1 << 31), (1 << 31) - 1], [1 << 31, -(1 << 31) - 1, 1.5]),
    pa.uint32(): ([0, (1 << 32) - 1], [-1, 1 << 32]), pa.int8(): ([-128, 127], [-129, 128]),
    pa.uint8(): ([0, 255], [-1, 256]), pa.string(): (["x", pa.scalar("x")], [1]),
    pa.timestamp("us"): ([AT], [AT.replace(tzinfo=UTC)]), pa.timestamp("us", "UTC"): ([AT.replace(tzinfo=UTC)], [AT]),
    pa.decimal128(5, 2): ([decimal.Decimal("1.50")], ["x"]), pa.list_(pa.int8()): ([[1, 2]], [[200]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORED, ids=str)
def test_a_value_comes_back_and_one_that_could_not_be_read_again_is_refused(kind: Any) -> None:
    serializer = ValueSerializer[Any](kind)
    values, refused = STORED[kind]
    for value in values:
        again = serializer.decode(serializer.encode(value))
        assert again == (value.as_py() if isinstance(value, pa.Scalar) else value)
        assert kind is Any or not isinstance(kind, type) or isinstance(again, kind)
    for value in refused:
        with raises(StateError, value=repr(value)) as error:
            serializer.encode(value)
        assert describe_type(kind) in error.value.hint


OTHER_TYPES: dict[Any, list[Any]] = {
    int: ["a", 1.5, None, True], str: [1], Stats: [1, Point(1)], Point: [Stats(1)], list[int]: [["a"]], Colour: ["x"],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in OTHER_TYPES.items() for value in values])
def test_a_stored_value_of_another_type_is_refused_with_the_declared_one(kind: Any, value: Any) -> None:
    data = ValueSerializer[Any](Any if value is None else type(value)).encode(value)
    with raises(CorruptFile, declared=describe_type(kind)):
        ValueSerializer[Any](kind).decode(data)


@pytest.mark.long(reason="makes values of many megabytes")
@pytest.mark.parametrize(
    ("kind", "number"), [(list[list[int]], 2_000_000), (list[set[int]], 600_000), (Any, 2_000_000)]
)
def test_a_value_that_would_take_too_much_memory_is_neither_written_nor_read(kind: Any, number: int) -> None:
    unit: Any = []
    few, many = [unit] * 10_000, [unit] * number
    serializer = ValueSerializer[Any](kind, "totals")
    assert len(serializer.decode(serializer.encode(few))) == len(decode_untyped(serializer.encode(few))) == 10_000
    with raises(EntryTooLarge, state="totals", memory_limit_bytes=MEMORY_LIMIT, size_bytes=number + 5):
        serializer.encode(many)
    stored = b"\x01" + msgspec.msgpack.encode(many)
    with raises(CorruptFile, state="totals", declared=describe_type(kind)):
        serializer.decode(stored)
    if kind is Any:
        for decode in (decode_untyped, check_untyped):
            with raises(CorruptFile):
                decode(stored)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(dict[int, float], dict.fromkeys(range(400_000), 0.5)), (set[int], set(range(300_000)))],
    ids=["dict", "set"],
)
def test_a_dict_or_set_may_have_hundreds_of_thousands_of_keys(kind: Any, value: Any) -> None:
    data = ValueSerializer[Any](kind).encode(value)
    assert ValueSerializer[Any](kind).decode(data) == value
    assert len(decode_untyped(data)) == len(value)


DECODERS: list[Callable[[bytes], Any]] = [*(ValueSerializer[Any](kind).decode for kind in STORED), decode_untyped]


def _encoded() -> list[bytes]:
    return [ValueSerializer[Any](kind).encode(value) for kind, (values, _) in STORED.items() for value in values]


def _flip(encoded: bytes, bit: int) -> bytes:
    at = bit // 8 % len(encoded)
    return encoded[:at] + bytes([encoded[at] ^ 1 << bit % 8]) + encoded[at + 1 :]


# Not before the test of all values, which reports one that cannot be stored.
@given(st.binary(max_size=60) | st.deferred(lambda: st.builds(_flip, st.sampled_from(_encoded()), st.integers(0, 400))))
@example(b"")
@example(b"\x01")
@example(b"\x01" + b"\x91" * 100_000)
@example(b"\x01\x81\x81\x01\x02\x03")
@example(b"\x01\xc7\x0c\xff" + b"\xff" * 12)
@example(b"\x01\xdd\xff\xff\xff\xff")
@example(b"\x02\x01")
def test_any_bytes_are_a_value_or_a_corrupt_file(data: bytes) -> None:
    for form in (data, b"\x01" + data):
        for decode in DECODERS:
            try:
                decode(form)
            except CorruptFile as e:
                assert e.facts


PYTHON_TYPES = [Path, memoryview, list[Path], dict[str, int | Path], Callable, type, re.Pattern, complex]
OTHER_LIBRARIES = [np.float16, np.datetime64, np.ndarray, pa.float16(), pa.timestamp("ns"), pa.struct([]), pa.int64]


@pytest.mark.parametrize("kind", [*PYTHON_TYPES, *OTHER_LIBRARIES, msgspec.Raw, msgspec.msgpack.Ext])
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
        (list[Annotated[decimal.Decimal, stateflow.precision(12, scale=2)] | None], "list[union[decimal, none]]"),
        (Stats, "Stats(flights: int, mean: union[float, none], names: dict[str, list[int]])"),
        (Point, "Point(x: int, y: float)"),
        (Tree, "Tree(value: int, children: list[Tree])"),
    ],
)
def test_the_description_of_a_type_is_stable(kind: Any, text: str) -> None:
    """Manifests keep it."""
    assert describe_type(kind) == text


FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}


@pytest.mark.long(reason="parses all modules")
def test_no_module_can_load_objects_that_run_code() -> None:
    found = set()
    for path in Path(stateflow.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if not any(word in text for word in (*FORBIDDEN, "eval", "exec")):
            continue
        for node in ast.walk(ast.parse(text)):
            names = (getattr(node, field, None) for field in ("id", "attr", "module", "name"))
            words = {word for name in names if isinstance(name, str) for word in name.split(".")}
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            found |= {(path.name, word) for word in words & FORBIDDEN | {called} & {"eval", "exec"}}
    assert found == set()


# -- sets in canonical form -------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Place(msgspec.Struct, frozen=True):
    name: str
    x: float | None = None


class Tagged(msgspec.Struct, frozen=True, tag="t", rename="camel", omit_defaults=True):
    its_names: frozenset[str] = frozenset()
    other: int = 1


class Positional(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    names: frozenset[str]


@dataclass(frozen=True)
class Data:
    names: frozenset[str]
    of: dict[str, frozenset[str]] = field(default_factory=dict, hash=False)


class Pair(NamedTuple):
    first: str
    second: frozenset[str]


class Typed(TypedDict):
    names: set[str]


class WithDefaults(msgspec.Struct):
    names: frozenset[str] = frozenset(("ab", "cd", "ef", "gh", "ij"))
    nested: Tagged = Tagged(frozenset(("ab", "cd", "ef", "gh", "ij")))


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    content: T


class Boxes(msgspec.Struct):
    """Of one class, one field has sets, and one has none."""

    plain: Box[int]
    filled: Box[frozenset[str]]


NAMES = frozenset(["", "a", "ab", "b", "c\0", "\0", "ä", "ß", "😀", "ef", "gh", "ij"])
DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CASES: list[tuple[Any, Any]] = [
    (set[str], set(NAMES)), (frozenset[bytes], frozenset(name.encode() for name in NAMES)),
    (set[str | int | None], {*NAMES, 1, 1 << 40, None}), (set[float], {0.0, -1.5, float("inf"), 0.1}),
    (set[datetime.datetime], {DAY + datetime.timedelta(days=n) for n in range(9)}),
    (set[decimal.Decimal], {decimal.Decimal(n).scaleb(-2) for n in range(9)}),
    (set[uuid.UUID], {uuid.UUID(int=n << 90) for n in range(9)}), (set[Color], set(Color)),
    (set[Place], {Place(name, x) for name in NAMES for x in (None, 1.0)}),
    (set[Tagged], {Tagged(NAMES), Tagged(NAMES, 2)}), (set[Positional], {Positional(n, NAMES) for n in range(9)}),
    (set[Data], {Data(NAMES, {"a": NAMES}), Data(frozenset("ab"))}),
    (set[Pair], {Pair(name, NAMES) for name in NAMES}),
    (set[tuple[frozenset[str], ...]], {(NAMES, NAMES), (frozenset("ab"),)}),
    (dict[frozenset[str], list[set[str] | None]], {NAMES: [set(NAMES), None]}),
    (Any, {"a": set(NAMES), "b": [1, (2, NAMES)]}), (Typed, {"names": set(NAMES)}), (Boxes, Boxes(Box(1), Box(NAMES))),
]  # fmt: skip


def test_values_with_sets_have_the_same_bytes_in_every_process() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "tests.types.test_serializers"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == _lines()


def test_a_set_is_stored_in_the_order_of_its_elements_bytes_and_a_dict_in_its_own() -> None:
    # By msgpack: 0x61 "a" is shorter than "aa", and texts up to 31 bytes begin with their length.
    value = {"z": {"bb", "a", "aa", "c"}, "b": set()}
    stored = ValueSerializer[Any](dict[str, set[str]]).encode(value)
    assert list(decode_untyped(stored).items()) == [("z", ["a", "c", "aa", "bb"]), ("b", [])]
    assert ValueSerializer[Any](dict[str, set[str]]).decode(stored) == value


@pytest.mark.parametrize("size", [15, 16, 70_000])
def test_sets_of_any_size_have_the_header_that_msgpack_gives_them(size: int) -> None:
    value = frozenset(map(str, range(size)))
    stored = ValueSerializer[Any](frozenset[str]).encode(value)
    assert msgspec.msgpack.decode(stored[1:], type=frozenset[str]) == value
    assert stored[1:] == msgspec.msgpack.encode(sorted(value, key=msgspec.msgpack.encode))


def _lines() -> list[str]:
    lines = []
    for kind, value in CASES:
        codec = ValueSerializer[Any](kind)
        stored = codec.encode(value)
        assert repr(codec.encode(codec.decode(stored))) == repr(stored) or kind is Any, kind
        lines.append(stored.hex())
    return [*lines, msgspec.json.encode(type_schema(WithDefaults)).decode()]


if __name__ == "__main__":
    print("\n".join(_lines()))
