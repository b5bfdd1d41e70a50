"""Joins of windows by columns: the pairs of nested loops, and the state of the operators that call a function."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import CountTrigger, EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError, StateError
from tests.joins.joined_rows import Declare, Keyed, Left, Pair, Right, harness, ms, pair_of, unkeyed
from tests.joins.test_random_joins import History, histories, play, timed
from tests.support.examples import one_in

COLUMNS = {"key": "left.key", "left": "left.at", "right": "right.at"}


def _windows(left: Keyed, right: Keyed, size: int, slide: int) -> Any:
    joined = unkeyed(left).join(unkeyed(right)).where("key").equal_to("id")
    return joined.window(SlidingEventTimeWindows.of(ms(size), ms(slide)))


def _declared(size: int, slide: int) -> tuple[Declare, Declare]:
    """The join by rows and by columns."""

    def by_rows(left: Keyed, right: Keyed) -> DataStream:
        joined: DataStream = _windows(left, right, size, slide).apply(pair_of, output=Pair, uid="join")
        return joined

    def by_columns(left: Keyed, right: Keyed) -> DataStream:
        joined: DataStream = _windows(left, right, size, slide).select(Pair, COLUMNS, uid="join")
        return joined

    return by_rows, by_columns


def _ends(row: Left | Right, size: int, slide: int) -> set[int]:
    """The last milliseconds of the windows of a row."""
    assert row.at is not None
    return {start + size - 1 for start in range(row.at // slide * slide, row.at - size, -slide)}


sizes = st.tuples(st.integers(1, 30), st.integers(5, 30))


@pytest.mark.long(reason="draws many histories")
@one_in(6)
@given(histories, st.permutations([0, 1]), sizes)
def test_window_joins_by_columns_have_the_pairs_of_nested_loops(
    history: History, order: list[int], windows: tuple[int, int]
) -> None:
    """At each restore, the operator changes between the join by rows and the one by columns."""
    first, other = (_declared(*windows)[at] for at in order)
    played = play(history, first, other)
    lefts, rights = timed(history, played)
    wanted = Counter(
        pair_of(left, right)
        for left, arrived in lefts
        for right, came in rights
        if left.key == right.id is not None
        for end in _ends(left, *windows) & _ends(right, *windows)
        if end > max(arrived, came)
    )
    assert played.pairs == wanted


class Bounded(msgspec.Struct, frozen=True):
    key: str | None
    number: int
    start: datetime
    end: int
    time: datetime


def test_bounds_of_the_window_are_columns_and_a_condition_decides_about_pairs() -> None:
    columns = {"key": "left.key", "start": "window_start", "end": "window_end", "time": "window_time"}

    def declare(left: Keyed, right: Keyed) -> DataStream:
        joined: DataStream = _windows(left, right, 10, 10).select(
            Bounded, columns, where=lambda left, right: pc.less(left["at"], right["at"]), uid="join"
        )
        return joined

    with harness(declare, 5) as h:
        # One window ends within the batch, and one after it.
        h.push_both([Left("k", 1, 1), Left("k", 9, 2), Left("k", 31, 3)], [Right("k", 2), Right("k", 32)])
        epoch = datetime.fromisoformat("1970-01-01")
        assert h.output == [Bounded("k", 1, epoch, 10, epoch + timedelta(milliseconds=9))]
        h.drain()
        assert [(row.number, row.end) for row in h.output] == [(1, 10), (3, 40)]


def test_a_large_window_is_joined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from stateflow.api.joins.pairs import PairLimits
    from stateflow.api.joins.window_join import WindowColumnJoin

    monkeypatch.setattr(WindowColumnJoin, "limits", PairLimits(3, 40))
    _, by_columns = _declared(10, 10)
    with harness(by_columns, 5) as h:
        lefts = [Left(key, 1, n) for key in "ab" for n in range(5)]
        rights = [Right(key, 2, str(n)) for key in "ab" for n in range(5)]
        for at in range(0, 10, 2):
            h.push_both(lefts[at : at + 2], rights[at : at + 2])
        h.drain()
        assert Counter(h.output) == Counter(pair_of(x, y) for x in lefts for y in rights if x.key == y.id)


def test_a_row_without_event_time_or_with_one_out_of_range_is_refused() -> None:
    _, by_columns = _declared(10, 10)
    for at in (None, 1 << 62):
        with harness(by_columns) as h, pytest.raises(StateError):
            h.push_both([Left("k", at)], [])


def test_windows_that_need_each_row_are_refused() -> None:
    plain = TumblingEventTimeWindows.of(ms(10))

    def joined(left: Keyed, right: Keyed) -> Any:
        return unkeyed(left).join(unkeyed(right)).where("key").equal_to("id")

    def triggered(left: Keyed, right: Keyed) -> Any:
        return joined(left, right).window(plain).trigger(CountTrigger.of(3)).select(Pair, COLUMNS, uid="join")

    def late(left: Keyed, right: Keyed) -> Any:
        return joined(left, right).window(plain).allowed_lateness(ms(5)).select(Pair, COLUMNS, uid="join")

    def sessions(left: Keyed, right: Keyed) -> Any:
        windows: EventTimeSessionWindows[object] = EventTimeSessionWindows.with_gap(ms(5))
        return joined(left, right).window(windows).select(Pair, COLUMNS, uid="join")

    for declare in (triggered, late, sessions):
        with pytest.raises(JobDefinitionError):
            harness(declare)
