"""Stored keys with another max parallelism."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptFile, StateError
from stateflow.state.binary_columns import from_list
from stateflow.state.rehash import Rehash
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

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


KINDS = {
    "value": _id("seen"),
    "event timer": _id("\0event timers") + TIME,
    "processing timer": _id("\0processing timers") + TIME,
    "expiry": _id("seen\0expiry") + TIME,
    "event expiry": _id("seen\0event expiry") + TIME,
}
"""What docs/format.md has between the key group and the key."""


def _stored(kind: str, groups: int, key: tuple[list[str], tuple[Any, ...]], rest: bytes) -> bytes:
    types, values = key
    return struct.pack(">H", key_group(values, types, groups)) + KINDS[kind] + encode_key(values) + b"\0" + rest


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
    rests = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.binary(max_size=12)), min_size=1, max_size=4)
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
        (["bigint"], b"\0\1" + KINDS["event timer"][:-1]),
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
