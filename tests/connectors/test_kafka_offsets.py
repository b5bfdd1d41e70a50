"""Positions in Kafka as Spark writes them, and what is lost after one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors.kafka.offsets import Partition, format_offsets, gaps_after, parse_offsets

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


@given(st.data())
def test_gaps_are_the_records_between_a_position_and_the_first_that_exists(data: st.DataObject) -> None:
    stored = {
        ("t", number): range(*sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
        for number in range(data.draw(st.integers(0, 3)))
    }
    position = data.draw(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 4)), st.integers(0, 9)))
    gaps = gaps_after(
        position, {p: each.start for p, each in stored.items()}, {p: each.stop for p, each in stored.items()}
    )
    found = {(gap.topic, gap.partition): (gap.start, gap.end) for gap in gaps}
    expected: dict[Partition, tuple[int, int | None]] = {}
    for partition, start in position.items():
        each = stored.get(partition)
        if each is None:
            expected[partition] = start, None
        elif start < each.start:
            expected[partition] = start, each.start
        elif start > each.stop:
            expected[partition] = start, each.stop
    assert found == expected
