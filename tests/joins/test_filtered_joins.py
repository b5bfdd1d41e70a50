"""Rows that a function drops after watermarks are assigned: the watermark advances as if they had passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateflow import DeadLetters
from stateflow.api.streams.data_stream import DataStream
from tests.joins.joined_rows import LATE_LEFT, LATE_RIGHT, EmitPair, Keyed, Left, Pair, Right, harness, ms, unkeyed

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


BOUNDS = (-5, 5)
HISTORY: list[Batch] = [
    ([Left("a", 10)], [Right("a", 10, "x")]),
    # Each side's whole batch is dropped, and both have reached 30 then.
    ([Left(DROPPED, 31)], []),
    ([], [Right(DROPPED, 31)]),
    ([Left("a", 12), Left("a", 40)], [Right("a", 40, "y")]),
    ([], [Right("a", 29, "x"), Right("a", 41, "y")]),
]
# Both sides have reached 30 before these rows.
LATE = sorted(map(repr, [Left("a", 12), Right("a", 29, "x")]))
PAIRS = Counter(Pair("a", left, right, 0, text) for left, right, text in ((10, 10, "x"), (40, 40, "y"), (40, 41, "y")))


def _check(drop: Drop) -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return _interval(*_sides(left, right, drop), BOUNDS)

    with harness(declare, 0, side_outputs=(LATE_LEFT, LATE_RIGHT)) as h:
        for left, right in HISTORY:
            h.push_both(left, right)
        h.drain()
        assert Counter(h.output) == PAIRS
        assert sorted(map(repr, [*h.side_output(LATE_LEFT), *h.side_output(LATE_RIGHT)])) == LATE


@pytest.mark.parametrize("drop", DROPS)
def test_watermarks_come_from_the_rows_before_any_function_that_drops_them(drop: str) -> None:
    _check(DROPS[drop])


@pytest.mark.spark
@pytest.mark.usefixtures("harnesses_on_spark")
@pytest.mark.parametrize("drop", ON_SPARK)
@pytest.mark.slow(reason="starts Python workers of Spark for each filter")
def test_spark_takes_the_watermarks_from_the_rows_before_filters(drop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The harness refuses what only Spark can run, since its own batches are without it.
    monkeypatch.setattr("stateflow.testing.harness.batches.check_no_transforms", lambda plan: None)
    _check(ON_SPARK[drop])
