"""Aggregates over the rows before each row, compared with plain Python, at any batch size, parallelism and restore."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import JobDefinitionError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.support.errors import raises


class Row(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int | None
    number: int


class Out(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int | None
    number: int
    n: int
    total: int | None
    least: int | None
    most: int | None
    average: float | None


WANTED = {
    "n": ("count", "value"),
    "total": ("sum", "value"),
    "least": ("min", "value"),
    "most": ("max", "value"),
    "average": ("mean", "value"),
}
Preceding = int | timedelta | None
BOUND = 1000


def plain(rows: list[Row], preceding: Preceding) -> list[Out]:
    found = []
    for key in {row.key for row in rows}:
        # Stable: rows of the same time in the order of arrival.
        ordered = sorted((row for row in rows if row.key == key), key=lambda row: row.at)
        for at, row in enumerate(ordered):
            frame = ordered[: at + 1]
            if isinstance(preceding, timedelta):
                earliest = row.at - preceding // timedelta(milliseconds=1)
                frame = [each for each in ordered if earliest <= each.at <= row.at]
            elif preceding is not None:
                frame = frame[-preceding - 1 :]
            values = [each.value for each in frame if each.value is not None]
            some = (sum(values), min(values), max(values), sum(values) / len(values)) if values else (None,) * 4
            found.append(Out(row.key, row.at, row.value, row.number, len(values), *some))
    return found


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.none() | st.integers(-5, 5)), max_size=7),
            st.sampled_from([0, 0, 1, 3]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, 0, 1, 3, timedelta(0), timedelta(milliseconds=5), timedelta(milliseconds=20)]),
)
def test_each_row_has_the_aggregates_of_earlier_rows(
    batches: list[tuple[list[tuple[str, int, int | None]], int]], preceding: Preceding
) -> None:
    def declare(rows: Any) -> Any:
        return rows.over_columns(WANTED, output=Out, preceding=preceding, uid="over")

    given_rows, found = list[Row](), list[Out]()
    # No row is later than declared, so the result does not depend on batches.
    bound = timedelta(milliseconds=BOUND)
    h = KeyedHarness(declare, KeyedInput(Row, "key", event_time="at", out_of_orderness=bound))
    for steps, parallelism in batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        rows = [Row(*step, number) for number, step in enumerate(steps, len(given_rows))]
        given_rows += rows
        found += h.push(*rows)
    with h:
        found += h.drain()
        assert h.timers() == []
    assert sorted(found, key=lambda row: row.number) == sorted(plain(given_rows, preceding), key=lambda row: row.number)


def test_a_late_row_is_dropped() -> None:
    def declare(rows: Any) -> Any:
        return rows.over_columns({"n": ("count", "value")}, output=Counted, uid="over")

    with KeyedHarness(declare, KeyedInput(Row, "key", event_time="at")) as h:
        h.push(Row("a", 10, 1, 0))
        assert [row.n for row in h.advance_watermark(10)] == [1]
        h.push(Row("a", 9, 1, 1), Row("a", 11, 1, 2))
        assert [(row.number, row.n) for row in h.advance_watermark(20)] == [(2, 2)]


class Counted(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int | None
    number: int
    n: int


@pytest.mark.parametrize(
    ("arguments", "event_time", "facts"),
    [
        ({"aggregates": {"n": ("count", "value")}}, "", {"uid": "over"}),
        ({"aggregates": {"n": ("median", "value")}}, "at", {"name": "n", "given": "('median', 'value')"}),
        ({"aggregates": {"n": ("sum", "key")}}, "at", {"aggregate": "sum", "column": "key"}),
        ({"aggregates": {"n": ("count", "value")}, "preceding": -1}, "at", {"given": "-1"}),
        ({"aggregates": {"m": ("count", "value")}}, "at", {}),
    ],
)
def test_what_is_not_possible_is_refused(arguments: dict[str, Any], event_time: str, facts: dict[str, Any]) -> None:
    with raises(JobDefinitionError, **facts):
        KeyedHarness(
            lambda rows: rows.over_columns(output=Counted, uid="over", **arguments),
            KeyedInput(Row, "key", event_time=event_time),
        )
