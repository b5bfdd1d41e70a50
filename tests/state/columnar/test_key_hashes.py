"""Hashes of many encoded keys at once."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.state.rehash import PADDING, hash_keys, hash_short
from stateflow.types.key_encoding import encode_key
from stateflow.types.key_groups import key_hash


@given(st.lists(st.tuples(st.binary(max_size=31), st.integers(0, (1 << 64) - 1))))
def test_short_inputs_have_the_hashes_of_the_library(inputs: list[tuple[bytes, int]]) -> None:
    lengths = np.array([len(text) for text, _ in inputs], np.int64)
    data = np.frombuffer(b"".join(text for text, _ in inputs) + PADDING, np.uint8)
    seeds = np.array([seed for _, seed in inputs], np.uint64)
    found = hash_short(data, np.cumsum(lengths) - lengths, lengths, seeds)
    assert found.tolist() == [xxhash.xxh64_intdigest(text, seed) for text, seed in inputs]


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


@pytest.mark.parametrize(
    ("name", "key"),
    [("int", encode_key((1 << 31,))), ("bigint", encode_key((True,))), ("string", encode_key(("a\0b",)))],
)
def test_unusual_values_have_no_valid_hash(name: str, key: bytes) -> None:
    assert _hashes([name], [key, encode_key(("usual",) if name == "string" else (7,))])[1] == [False, True]
