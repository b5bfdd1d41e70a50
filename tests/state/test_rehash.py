"""Stored keys with another max parallelism."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptFile
from stateflow.state.rehash import Rehash
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_group

COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=20),
    "binary": st.binary(max_size=20),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=True),
    "date": st.dates(),
    "timestamp_ntz": st.datetimes(),
}
KEYS = st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3).flatmap(
    lambda types: st.tuples(st.just(types), st.tuples(*(COLUMNS[name] for name in types)))
)
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


@given(
    KEYS,
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.binary(max_size=12)), min_size=1, max_size=5),
    st.integers(1, 1 << 15),
    st.integers(1, 1 << 15),
)
def test_a_key_gets_the_group_of_the_new_max_parallelism(
    key: tuple[list[str], tuple[Any, ...]], entries: list[tuple[str, bytes]], before: int, after: int
) -> None:
    types, values = key
    rehash = Rehash(types, ["other", "seen"], after)
    for kind, rest in entries:
        stored = KINDS[kind] + encode_key(values) + b"\0" + rest
        old, new = (struct.pack(">H", key_group(values, types, groups)) for groups in (before, after))
        assert rehash(old + stored) == new + stored


@pytest.mark.parametrize(
    "stored",
    [
        b"\0\1" + _id("unknown") + encode_key((7,)),
        b"\0\1" + _id("seen") + encode_key((7,))[:-1],
        b"\0\1" + _id("seen"),
        b"\0\1",
        b"",
    ],
)
def test_a_key_of_no_state_is_refused(stored: bytes) -> None:
    with pytest.raises(CorruptFile):
        Rehash(["bigint"], ["seen"], 4)(stored)
