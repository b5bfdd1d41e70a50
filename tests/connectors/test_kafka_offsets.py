"""Positions in Kafka as Spark writes them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors.kafka.client import Partition, format_offsets, parse_offsets

_PARTITIONS = st.tuples(st.sampled_from(["a", "b.c", "Ä"]), st.integers(0, 3))
_OFFSETS = st.dictionaries(_PARTITIONS, st.integers(0, 1 << 40))


@given(_OFFSETS)
def test_offsets_survive_and_have_the_form_of_spark(offsets: dict[Partition, int]) -> None:
    text = format_offsets(offsets)
    assert parse_offsets(text) == offsets
    assert {(t, int(n)): o for t, numbers in json.loads(text).items() for n, o in numbers.items()} == offsets


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "1", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"-1": 1}}', '{"a": {"0": -2}}', '{"a": {"0": 1.5}}',
     '{"a": {"\u0661": 1}}', '{"a":' * 100_000],
)  # fmt: skip
def test_other_texts_are_no_positions(text: str) -> None:
    with pytest.raises(ValueError):
        parse_offsets(text)
