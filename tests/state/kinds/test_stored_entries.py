"""Stored entries that are not what a reader expects."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from stateflow.errors import CorruptFile
from stateflow.query.state import check_entry
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import state_id
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.schema import type_schema
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
