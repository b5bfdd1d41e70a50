"""Rows that a function drops after watermarks are assigned: the watermark advances as if they had passed.

An oracle in plain Python computes the watermarks of all rows of each batch, and joins those that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import DeadLetters
from stateflow.api.streams.data_stream import DataStream
from tests.joins.joined_rows import LATE_LEFT, LATE_RIGHT, EmitPair, Keyed, Left, Pair, Right, harness, ms, unkeyed
from tests.support.examples import one_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DROPPED = "dropped"
"""The key of rows that a filter drops."""
Batch = tuple[Sequence[Left], Sequence[Right]]
Drop = Callable[[DataStream, str], DataStream]


def _raise_if_dropped(row: Left | Right, key: str) -> Left | Right:
    if getattr(row, key) == DROPPED:
        raise ValueError(DROPPED)
    return row


def _kept(batch: pa.RecordBatch, key: str) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(batch.column(key), DROPPED))


def _where(frame: DataFrame, key: str) -> DataFrame:
    return frame.where(f"{key} <> '{DROPPED}'")


DROPS: dict[str, Drop] = {
    "filter": lambda rows, key: rows.filter(lambda row: getattr(row, key) != DROPPED),
    "flat_map": lambda rows, key: rows.flat_map(lambda row: [] if getattr(row, key) == DROPPED else [row]),
    "dead-letters": lambda rows, key: rows.map(
        lambda row: _raise_if_dropped(row, key), on_error=DeadLetters(budget=1000)
    ),
    "transform_columns": lambda rows, key: rows.transform_columns(
        lambda batch: _kept(batch, key), output=rows.schema.row_class
    ),
}
"""Ways to drop rows, given the stream and its key column."""
ON_SPARK: dict[str, Drop] = {**DROPS, "transform": lambda rows, key: rows.transform(lambda frame: _where(frame, key))}


def _sides(left: Keyed, right: Keyed, drop: Drop) -> tuple[Keyed, Keyed]:
    return drop(unkeyed(left), "key").key_by("key"), drop(unkeyed(right), "id").key_by("id")


def _interval(left: Keyed, right: Keyed, bounds: tuple[int, int]) -> DataStream:
    join = left.interval_join(right).between(ms(bounds[0]), ms(bounds[1]))
    join = join.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
    return join.process(EmitPair(), output=Pair, uid="join")


@dataclass
class Played:
    """The joined pairs by their times and values, and the rows that were late."""

    pairs: Counter[Pair]
    late: list[str]


def _play(batches: Sequence[Batch], bound: int, bounds: tuple[int, int], drop: Drop) -> Played:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return _interval(*_sides(left, right, drop), bounds)

    with harness(declare, bound, side_outputs=(LATE_LEFT, LATE_RIGHT)) as h:
        for left, right in batches:
            h.push_both(left, right)
        h.drain()
        late = [*h.side_output(LATE_LEFT), *h.side_output(LATE_RIGHT)]
        return Played(Counter(h.output), sorted(map(repr, late)))


def _watermarks(batches: Sequence[Batch], bound: int) -> Iterator[int]:
    """Yields the watermark before each batch, from all rows of those before: the lowest of both sides, never less."""
    reached = [-(1 << 63)] * 2
    for batch in batches:
        yield min(reached)
        for side, rows in enumerate(batch):
            times = [row.at for row in rows if isinstance(row, Left | Right) and row.at is not None]
            reached[side] = max([reached[side], *(time - bound - 1 for time in times)])


def _expected(batches: Sequence[Batch], bound: int, bounds: tuple[int, int]) -> Played:
    arrived = list(zip(batches, _watermarks(batches, bound), strict=True))
    lefts = [(row, at) for (rows, _), at in arrived for row in rows if row.key != DROPPED]
    rights = [(row, at) for (_, rows), at in arrived for row in rows if row.id != DROPPED]
    late = [repr(row) for rows in (lefts, rights) for row, at in rows if (row.at or 0) < at]
    pairs: Counter[Pair] = Counter()
    for left, came in lefts:
        for right, followed in rights:
            x, y = left.at or 0, right.at or 0
            # A row is removed when the watermark reaches the last time of a match, as in Flink.
            removed = x + max(bounds[1], 0) <= followed and came < followed
            removed |= y + max(-bounds[0], 0) <= came and followed < came
            on_time = x >= came and y >= followed and not removed
            if left.key == right.id and bounds[0] <= y - x <= bounds[1] and on_time:
                pairs[Pair(left.key, left.at, right.at, left.number, right.text)] += 1
    return Played(pairs, sorted(late))


keys = st.sampled_from(["a", "b", DROPPED])
lefts = st.builds(Left, keys, st.integers(0, 40), st.integers(0, 3))
rights = st.builds(Right, keys, st.integers(0, 40), st.sampled_from("xy"))
one_row: st.SearchStrategy[Batch] = st.one_of(lefts.map(lambda row: ([row], [])), rights.map(lambda row: ([], [row])))
some_rows = st.tuples(st.lists(lefts, max_size=4), st.lists(rights, max_size=4))
histories = st.one_of(st.lists(one_row, max_size=12), st.lists(some_rows, max_size=5))
intervals = st.tuples(st.integers(-15, 15), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@one_in(3)
@given(histories, st.sampled_from([0, 3, 20]), intervals, st.sampled_from(sorted(DROPS)))
def test_watermarks_come_from_the_rows_before_any_function_that_drops_them(
    batches: list[Batch], bound: int, bounds: tuple[int, int], drop: str
) -> None:
    assert _play(batches, bound, bounds, DROPS[drop]) == _expected(batches, bound, bounds)


HISTORY: list[Batch] = [
    ([Left("a", 10)], [Right("a", 10, "x")]),
    # Each side's whole batch is dropped, and both have reached 30 then.
    ([Left(DROPPED, 31)], []),
    ([], [Right(DROPPED, 31)]),
    ([Left("a", 12), Left("a", 40)], [Right("a", 40, "y")]),
    ([], [Right("a", 29, "x"), Right("a", 41, "y")]),
]


@pytest.mark.spark
@pytest.mark.usefixtures("harnesses_on_spark")
@pytest.mark.parametrize("drop", sorted(ON_SPARK))
@pytest.mark.slow(reason="starts Python workers of Spark for each filter")
def test_spark_takes_the_watermarks_from_the_rows_before_filters(drop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The harness refuses what only Spark can run, since its own batches are without it.
    monkeypatch.setattr("stateflow.testing.harness.batches.check_no_transforms", lambda plan: None)
    expected = _expected(HISTORY, 0, (-5, 5))
    assert expected.late == sorted(map(repr, [Left("a", 12), Right("a", 29, "x")])), "the case shows both sides"
    assert _play(HISTORY, 0, (-5, 5), ON_SPARK[drop]) == expected


# -- Flink's cases, at one row a batch --------------------------------------------------------------------------------
