"""Stored entries that are not what a reader expects."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from stateflow.errors import CorruptFile
from stateflow.query.state import check_entry
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.schema import type_schema
from stateflow.state.stored_key import (
    StoredKey,
    TimeDomain,
    decode_expiry_key,
    decode_group,
    encode_expiry_key,
    encode_group,
    encode_time,
    expiry_id,
    from_time_order,
    state_id,
    to_time_order,
)
from stateflow.types.key_encoding import encode_key
from stateflow.types.serializers import check_untyped

NAMES = state_names(
    [StateSchema(name=kind, kind=kind, value_type="int", type=type_schema(int)) for kind in ("value", "list")]
)


@pytest.mark.parametrize("kind", ["value", "list"])
@pytest.mark.parametrize("key", [b"", encode_key(("a",)), encode_key(("a", 1))])
def test_an_entry_with_too_few_key_columns_is_a_corrupt_file(kind: str, key: bytes) -> None:
    position = bytes(12) if kind == "list" else b""
    with pytest.raises(CorruptFile):
        check_entry(NAMES, 2, b"\0\0" + state_id(kind) + key + position, b"\x01\x07")


_GROUP, _EVENT, _ZERO = b"\1\2", state_id("\0event timers"), bytes([0x80, *bytes(7)])


@pytest.mark.parametrize(
    ("stored", "tail", "wanted"),
    [
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\0", 0, StoredKey(("a",))),
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\2n\0" + b"\2m\0", 0, StoredKey(("a",), "n", "m")),
        (_GROUP + b"\xaa\xbb\xcc\xdd" + b"\2a\0" + b"\0" + bytes(12), 12, StoredKey(("a",))),
        (_GROUP + _EVENT + _ZERO + b"\2a\0" + b"\0", 0, StoredKey(("a",), time=0, domain=TimeDomain.EVENT_TIME)),
    ],
)
def test_the_parts_of_a_stored_key_are_at_their_offsets(stored: bytes, tail: int, wanted: StoredKey) -> None:
    assert StoredKey.decode(stored, 1, tail) == wanted
    assert decode_group(stored) == 0x102 and encode_group(0x102) == _GROUP


def test_a_timer_in_time_order_begins_with_time_and_key_group() -> None:
    stored = _GROUP + _EVENT + encode_time(-1) + b"\2a\0" + b"\0"
    assert to_time_order(stored) == b"\x7f" + b"\xff" * 7 + _GROUP + b"\2a\0\0"
    assert from_time_order(_EVENT, to_time_order(stored)) == stored


def test_an_expiry_entry_leads_to_its_value() -> None:
    value = _GROUP + state_id("s") + b"\2a\0" + b"\0"
    expiry = encode_expiry_key(value, expiry_id("s", "event"), 0)
    assert expiry == _GROUP + state_id("s\0event expiry") + _ZERO + b"\2a\0\0"
    assert decode_expiry_key(expiry, state_id("s")) == (0, value)


def test_the_check_of_a_large_value_decodes_nothing() -> None:
    lists = b"\x01\xdd" + struct.pack(">I", 1_000_000) + b"\x90" * 1_000_000
    tracemalloc.start()
    try:
        check_untyped(lists)
        for wrong in (lists[:-1], lists + b"\xc0", lists[:-1] + b"\xc1", b"\x01" + b"\x91" * (2 << 20), b"\4" + lists):
            with pytest.raises(CorruptFile):
                check_untyped(wrong)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
