"""What is new and what is lost after a position of offsets by partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors.partition_offsets import Gap, gaps_after, has_new_rows, shorten_texts


@given(st.data())
def test_gaps_are_the_rows_between_a_position_and_the_first_that_exists(data: st.DataObject) -> None:
    stored = {
        ("t", number): range(*sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
        for number in range(data.draw(st.integers(0, 3)))
    }
    position = data.draw(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 4)), st.integers(0, 9)))
    gaps = gaps_after(
        position, {p: each.start for p, each in stored.items()}, {p: each.stop for p, each in stored.items()}
    )
    found = {gap.partition: (gap.start, gap.end) for gap in gaps}
    expected: dict[tuple[str, int], tuple[int, int | None]] = {}
    for partition, start in position.items():
        each = stored.get(partition)
        if each is None:
            expected[partition] = start, None
        elif start < each.start:
            expected[partition] = start, each.start
        elif start > each.stop:
            expected[partition] = start, each.stop
    assert found == expected


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (17, "t-0: 7 records [10, 17)"),
        (3, "t-0: ends at 3, before the position 10"),
        (None, "t-0: no longer exists; the position is 10"),
    ],
    ids=["removed", "created-again", "vanished"],
)
def test_a_gap_is_described_with_its_offsets(end: int | None, text: str) -> None:
    assert Gap("t", 10, end).describe("t-0", counted="records") == text


def test_of_many_partitions_the_first_are_shown_and_the_others_counted() -> None:
    names = [f"p{number}" for number in range(9)]
    assert [shorten_texts(names[:count]) for count in (0, 5)] == [[], names[:5]]
    assert shorten_texts(names) == [*names[:5], "and 4 more partitions"]


_OFFSETS = st.dictionaries(st.sampled_from("ab"), st.integers(0, 3))


@given(position=_OFFSETS, ends=_OFFSETS)
def test_only_a_position_of_the_same_partitions_has_or_has_no_new_rows(
    position: dict[str, int], ends: dict[str, int]
) -> None:
    comparable = position.keys() == ends.keys() and all(ends[name] >= at for name, at in position.items())
    assert has_new_rows(position, ends) == (position != ends if comparable else None)
