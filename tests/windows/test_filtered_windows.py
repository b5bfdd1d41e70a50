"""Aggregates of windows with a filter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from stateflow import TumblingEventTimeWindows
from stateflow.errors import JobDefinitionError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.support.errors import raises


class Row(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int
    is_high: bool | None


class Counted(msgspec.Struct, frozen=True):
    key: str
    start: int
    rows: int
    high: int
    total: int | None


TENS = TumblingEventTimeWindows.of(timedelta(milliseconds=10))
FIGURES = {
    "start": ("window_start",),
    "rows": ("count", "value"),
    "high": ("count", "value", "is_high"),
    "total": ("sum", "value", "is_high"),
}
INPUT = KeyedInput(Row, "key", event_time="at", out_of_orderness=timedelta(0))


def test_rows_in_which_the_filter_is_false_or_null_are_ignored() -> None:
    def declare(rows: Any) -> Any:
        return rows.window(TENS).aggregate_columns(FIGURES, output=Counted, uid="w")

    with KeyedHarness(declare, INPUT) as h:
        h.push(Row("a", 1, 5, is_high=True), Row("a", 2, 6, is_high=False), Row("a", 3, 7, is_high=None))
        h.push(Row("a", 4, 8, is_high=True), Row("a", 11, 9, is_high=False))
        h.drain()
        assert h.output == [Counted("a", 0, 4, 2, 13), Counted("a", 10, 1, 0, None)]


def test_distinct_values_of_a_window_are_refused() -> None:
    wanted = FIGURES | {"high": ("count_distinct", "value")}
    with raises(JobDefinitionError, given="count_distinct"):
        KeyedHarness(lambda rows: rows.window(TENS).aggregate_columns(wanted, output=Counted, uid="w"), INPUT)
