"""Joins compared with nested loops in plain Python, at any batch size, parallelism and restore.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/joins/test_random_joins.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import OutputTag
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing import KeyedHarness
from tests.joins.joined_rows import (
    LATE_LEFT,
    LATE_RIGHT,
    Declare,
    EmitPair,
    Keyed,
    Left,
    Pair,
    Right,
    harness,
    ms,
    pair_of,
)
from tests.support.examples import one_in

KEYS = (None, "a", "b", "c")
"""A row without a key has no partner, as in SQL; it is late as others are."""
LATE: tuple[OutputTag[Any], ...] = (LATE_LEFT, LATE_RIGHT)
Batch = tuple[list[Left], list[Right]]


@dataclass(frozen=True)
class History:
    """Batches of rows; and, before each, the parallelism of a restore, or 0."""

    bound: int
    batches: tuple[tuple[Batch, int], ...]
    arrow_rows: int | None = None


def _numbered(
    batches: list[tuple[list[tuple[str | None, int]], list[tuple[str | None, int]], int]],
) -> Iterator[tuple[Batch, int]]:
    number = 0
    for first, second, parallelism in batches:
        left = [Left(key, at, n) for n, (key, at) in enumerate(first, number)]
        right = [Right(key, at, str(n)) for n, (key, at) in enumerate(second, number + len(left))]
        number += len(left) + len(right)
        yield (left, right), parallelism


rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 40)), max_size=6)
histories = st.builds(
    lambda bound, batches, arrow: History(bound, tuple(_numbered(batches)), arrow),
    st.sampled_from([0, 1, 5, 20, 100]),
    st.lists(st.tuples(rows, rows, st.sampled_from([0, 0, 0, 1, 3])), min_size=1, max_size=6),
    st.sampled_from([None, 1, 3]),
)
intervals = st.tuples(st.integers(-15, 15), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@dataclass
class Played:
    """What a harness emitted for a history, and the watermark before each batch."""

    pairs: Counter[Pair]
    late: list[object]
    watermarks: list[int]


def play(history: History, declare: Declare, other: Declare, tags: tuple[OutputTag[Any], ...] = ()) -> Played:
    """Runs the batches; at each restore, the operator changes to the other one."""
    arrow = history.arrow_rows
    more: dict[str, Any] = {} if arrow is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": arrow}
    played = Played(Counter(), [], [])
    h = harness(declare, history.bound, side_outputs=tags, **more)
    for (left, right), parallelism in history.batches:
        if parallelism:
            played.late += [row for tag in tags for row in h.side_output(tag)]
            with h:
                declare, other = other, declare
                h = KeyedHarness.restore(h.snapshot(), declare, parallelism=parallelism)
        played.watermarks.append(-(1 << 63) if h.watermark is None else h.watermark)
        played.pairs.update(h.push_both(left, right))
    with h:
        played.pairs.update(h.drain())
        played.late += [row for tag in tags for row in h.side_output(tag)]
        # No row and no timer is left.
        assert h.state_entries() == [] and h.timers() == []
    return played


def timed(history: History, played: Played) -> tuple[list[tuple[Left, int]], list[tuple[Right, int]]]:
    """All rows of each side, with the watermark before their batch."""
    batches = list(zip((batch for batch, _ in history.batches), played.watermarks, strict=True))
    return (
        [(row, watermark) for (left, _), watermark in batches for row in left],
        [(row, watermark) for (_, right), watermark in batches for row in right],
    )


def _interval(lower: int, upper: int, by_columns: bool) -> Declare:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        join = left.interval_join(right).between(ms(lower), ms(upper))
        join = join.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
        if by_columns:
            return join.select(Pair, {"key": "left.key", "left": "left.at", "right": "right.at"}, uid="join")
        return join.process(EmitPair(), output=Pair, uid="join")

    return declare


@one_in(4)
@given(histories, intervals, st.tuples(st.booleans(), st.booleans()))
@example(
    History(0, (((([Left("a", 0, 0), Left("a", 40, 1)]), [Right("a", 0, "2"), Right("a", 40, "3")]), 0),)),
    (0, 0),
    (False, False),
)
def test_interval_joins_have_the_pairs_of_nested_loops(
    history: History, bounds: tuple[int, int], by_columns: tuple[bool, bool]
) -> None:
    lower, upper = bounds
    first, other = (_interval(lower, upper, each) for each in by_columns)
    played = play(history, first, other, LATE)
    lefts, rights = timed(history, played)
    late = [row for rows in (lefts, rights) for row, watermark in rows if (row.at or 0) < watermark]
    assert sorted(map(repr, played.late)) == sorted(map(repr, late))
    found: Counter[Pair] = Counter()
    for left, arrived in lefts:
        for right, came in rights:
            assert left.at is not None and right.at is not None
            is_late = left.at < arrived or right.at < came
            # A row is removed when the watermark reaches the last time of a match: as in Flink, before a row of it.
            removed = left.at + max(upper, 0) <= came and arrived < came
            removed |= right.at + max(-lower, 0) <= arrived and came < arrived
            if (
                left.key is not None
                and left.key == right.id
                and lower <= right.at - left.at <= upper
                and not is_late
                and not removed
            ):
                found[pair_of(left, right)] += 1
    assert played.pairs == found
