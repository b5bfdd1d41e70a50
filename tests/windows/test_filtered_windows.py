"""Aggregates of windows with a filter."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest

from stateflow import TumblingEventTimeWindows
from stateflow.testing import KeyedHarness, KeyedInput


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


class Every(msgspec.Struct, frozen=True):
    key: str
    at: int
    text: str | None
    raw: bytes | None
    flag: bool | None
    day: date | None
    naive: datetime | None
    zoned: Annotated[datetime, msgspec.Meta(tz=True)] | None
    whole: int | None


class Distinct(msgspec.Struct, frozen=True):
    key: str
    count: int


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


def test_distinct_values_are_counted_in_rows_that_pass_the_filter() -> None:
    wanted = FIGURES | {"rows": ("count_distinct", "value"), "high": ("count_distinct", "value", "is_high")}

    def declare(rows: Any) -> Any:
        return rows.window(TENS).aggregate_columns(wanted, output=Counted, uid="w")

    with KeyedHarness(declare, INPUT) as h:
        h.push(Row("a", 1, 5, is_high=True), Row("a", 2, 5, is_high=True), Row("a", 3, 7, is_high=None))
        h.push(Row("a", 4, 7, is_high=True), Row("a", 5, 8, is_high=False), Row("a", 11, 5, is_high=False))
        h.drain()
        assert h.output == [Counted("a", 0, 3, 2, 17), Counted("a", 10, 1, 0, None)]


@pytest.mark.parametrize("column", ["text", "raw", "flag", "day", "naive", "zoned", "whole"])
def test_distinct_values_of_every_type_are_counted_and_stored_in_order(column: str) -> None:
    def declare(rows: Any) -> Any:
        return rows.window(TENS).aggregate_columns({"count": ("count_distinct", column)}, output=Distinct, uid="w")

    day = datetime(2026, 1, 2, tzinfo=UTC)
    values = [
        Every(
            "a",
            at,
            str(n),
            str(n).encode(),
            n == 1,
            day.date().replace(day=n),
            day.replace(tzinfo=None, day=n),
            day.replace(day=n),
            n,
        )
        for at, n in enumerate([2, 1, 2])
    ]
    none = Every("a", 3, None, None, None, None, None, None, None)
    with KeyedHarness(declare, KeyedInput(Every, "key", event_time="at", out_of_orderness=timedelta(0))) as h:
        h.push(values[0], none)
        h.push(*values[1:])
        (entry,) = h.state_entries()
        stored = entry.value["count__values"]
        assert len(stored) == 2 and stored == sorted(stored)
        h.drain()
        assert h.output == [Distinct("a", 2)]
