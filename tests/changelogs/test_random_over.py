"""Aggregates over the rows before each row, compared with plain Python, at any batch size, parallelism and restore."""

from __future__ import annotations

import math
from datetime import timedelta
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import Unbounded
from stateflow.api.over.frames import Position, Preceding, SlidingFrame
from stateflow.api.over.frames import Row as FrameRow
from stateflow.errors import IncompatibleState, JobDefinitionError, StateError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.support.errors import raises
from tests.support.examples import one_in


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


class WithoutTotal(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int | None
    number: int
    n: int
    least: int | None
    most: int | None
    average: float | None


LIMIT = 1 << 63
WANTED = {
    "n": ("count", "value"), "total": ("sum", "value"), "least": ("min", "value"), "most": ("max", "value"),
    "average": ("mean", "value"),
}  # fmt: skip
BOUND = 1000


def frames_of(ordered: list[Any], preceding: Preceding) -> list[list[Any]]:
    """Returns the frame of each row of a key."""
    found = []
    for at, row in enumerate(ordered):
        frame = ordered[: at + 1]
        if preceding is Unbounded.RANGE:
            frame = [each for each in ordered if each.at <= row.at]
        elif isinstance(preceding, timedelta):
            earliest = row.at - preceding // timedelta(milliseconds=1)
            frame = [each for each in ordered if earliest <= each.at <= row.at]
        elif isinstance(preceding, int):
            frame = frame[-preceding - 1 :]
        found.append(frame)
    return found


def plain(rows: list[Row], preceding: Preceding) -> list[Out]:
    found = []
    for key in {row.key for row in rows}:
        # Stable: rows of the same time in the order of arrival.
        ordered = sorted((row for row in rows if row.key == key), key=lambda row: row.at)
        for row, frame in zip(ordered, frames_of(ordered, preceding), strict=True):
            values = [each.value for each in frame if each.value is not None]
            some = (sum(values), min(values), max(values), sum(values) / len(values)) if values else (None,) * 4
            found.append(Out(row.key, row.at, row.value, row.number, len(values), *some))
    return found


VALUES = st.none() | st.integers(-5, 5) | st.sampled_from([LIMIT - 1, -LIMIT, 5 * 10**18])


@pytest.mark.long(reason="draws many histories")
@one_in(3)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30), VALUES), max_size=7),
            st.sampled_from([0, 0, 1, 3]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(
        [Unbounded.RANGE, Unbounded.ROW, 0, 1, 3, timedelta(0), timedelta(milliseconds=5), timedelta(milliseconds=20)]
    ),
)
def test_each_row_has_the_aggregates_of_earlier_rows(
    batches: list[tuple[list[tuple[str, int, int | None]], int]], preceding: Preceding
) -> None:
    numbers = count()
    rows_of_batches = [[Row(*step, next(numbers)) for step in steps] for steps, _ in batches]
    expected = plain([row for rows in rows_of_batches for row in rows], preceding)
    # The sum of a frame is an error if it exceeds 64 bits; all other aggregates have no such limit.
    fits = all(row.total is None or -LIMIT <= row.total < LIMIT for row in expected)
    wanted = {name: spec for name, spec in WANTED.items() if fits or name != "total"}
    output = Out if fits else WithoutTotal

    def declare(rows: Any) -> Any:
        return rows.over_columns(wanted, output=output, preceding=preceding, uid="over")

    found = list[Any]()
    # No row is later than declared, so the result does not depend on batches.
    bound = timedelta(milliseconds=BOUND)
    h = KeyedHarness(declare, KeyedInput(Row, "key", event_time="at", out_of_orderness=bound))
    for rows, (_, parallelism) in zip(rows_of_batches, batches, strict=True):
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        found += h.push(*rows)
    with h:
        found += h.drain()
        assert h.timers() == []
        # The rows of a range leave it with time.
        assert not isinstance(preceding, timedelta) or h.state_entries() == []
    found.sort(key=lambda row: row.number)
    expected.sort(key=lambda row: row.number)
    assert found == [msgspec.convert(row, output, from_attributes=True) for row in expected]


@pytest.mark.parametrize("preceding", [Unbounded.RANGE, Unbounded.ROW, 1, timedelta(milliseconds=5)])
@pytest.mark.parametrize("value", [LIMIT // 2, -LIMIT // 2 - 1])
def test_a_sum_of_more_than_64_bits_is_refused(preceding: Preceding, value: int) -> None:
    def declare(rows: Any) -> Any:
        return rows.over_columns(WANTED, output=Out, preceding=preceding, uid="over")

    with KeyedHarness(declare, KeyedInput(Row, "key", event_time="at")) as h:
        h.push(Row("a", 1, value, 0), Row("a", 2, value, 1))
        assert [row.total for row in h.advance_watermark(1)] == [value]
        with raises(StateError, sum=str(2 * value)):
            h.advance_watermark(2)


def _counts_in_batches(*batches: list[tuple[str, int]]) -> list[dict[tuple[str, int], int]]:
    """The counts that each batch emits, with an out-of-orderness of zero; a last one ends the input."""
    of_batches = [[Row(key, at, 1, 0) for key, at in batch] for batch in batches]

    def declare(rows: Any) -> Any:
        return rows.over_columns({"n": ("count", "value")}, output=Counted, uid="over")

    with KeyedHarness(declare, KeyedInput(Row, "key", event_time="at", out_of_orderness=timedelta())) as h:
        emitted = [*(h.push(*rows) for rows in of_batches), h.drain()]
    return [{(row.key, row.at): row.n for row in rows} for rows in emitted]


def test_a_row_is_emitted_with_a_later_row_of_its_key_or_in_a_later_batch() -> None:
    # Within a batch, rows are aggregated in the order of their times.
    assert _counts_in_batches([("a", 2), ("a", 1)]) == [{("a", 1): 1}, {("a", 2): 2}]
    assert _counts_in_batches([("a", 2)], [("a", 1)]) == [{}, {}, {("a", 2): 1}]
    assert _counts_in_batches([("a", 1), ("b", 5)], []) == [{}, {("a", 1): 1}, {("b", 5): 1}]
    # The rows of the next batch are not known when its timers fire.
    assert _counts_in_batches([("a", 1)], [("b", 5)], []) == [{}, {}, {("a", 1): 1}, {("b", 5): 1}]


class Float(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: float
    number: int


class FloatOut(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: float
    number: int
    n: int
    total: float
    least: float
    most: float
    average: float


def plain_floats(frame: list[float]) -> tuple[int, float, float, float, float]:
    """NaN is the largest float, as for aggregates by columns."""
    numbers = [value for value in frame if not math.isnan(value)]
    most = max(numbers) if len(numbers) == len(frame) else math.nan
    total = sum(frame)
    return (len(frame), total, min(numbers, default=math.nan), most, total / len(frame))


FLOATS = st.sampled_from([0.5, -1.0, 2.0, math.nan, math.inf, -math.inf])


@one_in(3)
@given(
    st.lists(st.tuples(st.integers(0, 12), FLOATS), min_size=1, max_size=25),
    st.integers(1, 9),
    st.sampled_from([Unbounded.RANGE, Unbounded.ROW, 2, timedelta(milliseconds=3)]),
)
def test_floats_that_are_not_finite_leave_a_frame(
    steps: list[tuple[int, float]], size: int, preceding: Preceding
) -> None:
    rows = [Float("a", at, value, number) for number, (at, value) in enumerate(steps)]

    def declare(given_rows: Any) -> Any:
        return given_rows.over_columns(WANTED, output=FloatOut, preceding=preceding, uid="over")

    bound = timedelta(milliseconds=BOUND)
    found = []
    with KeyedHarness(declare, KeyedInput(Float, "key", event_time="at", out_of_orderness=bound)) as h:
        for at in range(0, len(rows), size):
            h.push(*rows[at : at + size])
        found = h.drain()
    ordered = sorted(rows, key=lambda row: row.at)
    expected = [
        FloatOut("a", row.at, row.value, row.number, *plain_floats([each.value for each in frame]))
        for row, frame in zip(ordered, frames_of(ordered, preceding), strict=True)
    ]
    assert list(map(repr, found)) == list(map(repr, expected))


class CountingMap(dict[int, FrameRow]):
    accesses = 0

    def get(self, key: int) -> Any:  # type: ignore[override]
        self.accesses += 1
        return super().get(key)

    def put(self, key: int, value: FrameRow) -> None:
        self.accesses += 1
        self[key] = value

    def remove(self, key: int) -> None:
        self.accesses += 1
        del self[key]


@pytest.mark.parametrize("leaves", ["one", "all"])
def test_each_row_is_read_and_written_a_few_times_whatever_the_size_of_the_frame(leaves: str) -> None:
    for size in (50, 500):
        rows, position = CountingMap(), Position()
        frame = SlidingFrame(rows, position)  # type: ignore[arg-type]
        for time in range(2000):
            frame.push(time, [1])
            if leaves == "one" or time % size == 0:
                frame.remove_before(time - size)
                assert [summary.count for summary in frame.summaries()] == [position.end - position.first]
        assert rows.accesses < 8 * 2000


def test_state_of_another_frame_is_refused() -> None:
    def declare(preceding: Preceding) -> Any:
        return lambda rows: rows.over_columns(WANTED, output=Out, preceding=preceding, uid="over")

    with KeyedHarness(declare(3), KeyedInput(Row, "key", event_time="at")) as h:
        h.push(Row("a", 5, 1, 0))
        h.advance_watermark(9)
        snapshot = h.snapshot()
    with raises(IncompatibleState, stored="rows 3 preceding of value", declared="rows 4 preceding of value"):
        KeyedHarness.restore(snapshot, declare(4))
    KeyedHarness.restore(snapshot, declare(3)).close()


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
        ({"aggregates": {"n": ("count", "value")}, "preceding": 2.5}, "at", {"given": "2.5"}),
        ({"aggregates": {"n": ("count", "value")}, "preceding": True}, "at", {"given": "True"}),
        ({"aggregates": {"n": ("count", "value")}, "preceding": None}, "at", {"given": "None"}),
        (
            {"aggregates": {"n": ("count", "value")}, "preceding": timedelta(microseconds=1)},
            "at",
            {"given": "0:00:00.000001"},
        ),
        # The sum of values that may all be null.
        ({"aggregates": {"n": ("sum", "value")}}, "at", {"column": "n", "output": "Counted"}),
        ({"aggregates": {}}, "at", {}),
        ({"aggregates": {"m": ("count", "value")}}, "at", {}),
    ],
)
def test_what_is_not_possible_is_refused(arguments: dict[str, Any], event_time: str, facts: dict[str, Any]) -> None:
    with raises(JobDefinitionError, **facts):
        KeyedHarness(
            lambda rows: rows.over_columns(output=Counted, uid="over", **arguments),
            KeyedInput(Row, "key", event_time=event_time),
        )
