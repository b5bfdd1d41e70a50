"""Windows by columns of a job that is changed while windows are open, compared with windows on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.testing import KeyedHarness, KeyedInput
from tests.windows.timed_rows import Timed, ms

Declare = Callable[[KeyedStream[DataStream]], DataStream]
INPUT = KeyedInput(Timed, "key", event_time="at")
COLUMNS: dict[str, Sequence[str]] = {
    "start": ("window_start",),
    "end": ("window_end",),
    "rows": ("count", "key"),
    "total": ("sum", "value"),
}


class Made(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    end: int
    rows: int
    total: int | None


class Sum(ProcessWindowFunction[Timed, Made]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Made]:
        values = [row.value for row in elements]
        yield Made(key, ctx.window.start, ctx.window.end, len(values), sum(values))


def _by(method: str, assigner: Any, lateness: timedelta = timedelta(0)) -> Declare:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(assigner).allowed_lateness(lateness)
        if method == "rows":
            return windows.process(Sum(), output=Made, uid="w")
        return windows.aggregate_columns(COLUMNS, output=Made, uid="w")

    return declare


TENS = TumblingEventTimeWindows.of(ms(10))
ROWS = st.lists(st.builds(Timed, st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 80)), max_size=4)
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 30))


@given(st.tuples(SIZES, SIZES), st.tuples(*[st.sampled_from([0, 0, 5, 40])] * 2), st.lists(ROWS, min_size=1), st.data())
@example(((10, 10), (60, 60)), (0, 0), [[Timed("a", 1, 1), Timed("a", 2, 2)], [Timed("a", 3, 100)]], None)
def test_windows_of_another_size_or_slide_fire_as_those_of_rows(
    sizes: tuple[tuple[int, int], tuple[int, int]],
    lateness: tuple[int, int],
    batches: list[list[Timed]],
    data: st.DataObject | None,
) -> None:
    at = 1 if data is None else data.draw(st.integers(0, len(batches)))
    before, after = (SlidingEventTimeWindows.of(ms(size), ms(slide)) for size, slide in sizes)
    found = {}
    for method in ("rows", "columns"):
        h = KeyedHarness(_by(method, before, ms(lateness[0])), INPUT)
        made = [row for batch in batches[:at] for row in h.push(*batch)]
        with h:
            restored = KeyedHarness.restore(h.snapshot(), _by(method, after, ms(lateness[1])))
        with restored as h:
            made += [row for batch in batches[at:] for row in h.push(*batch)]
            made += h.drain()
            # A window of rows whose lateness was changed, and that gets no more rows, is never removed.
            assert method == "rows" or lateness[0] > lateness[1] or h.state_entries() == []
            assert h.timers() == []
        found[method] = {key: [row for row in made if row.key == key] for key in "ab"}
    assert found["rows"] == found["columns"]


@pytest.mark.parametrize("assigner", [TENS, EventTimeSessionWindows.with_gap(ms(10))])
@pytest.mark.parametrize("row", [None, Timed("a", 4, 2)])
def test_windows_are_removed_after_the_allowed_lateness_was_raised(assigner: Any, row: Timed | None) -> None:
    with KeyedHarness(_by("columns", assigner), INPUT) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 2))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, _by("columns", assigner, ms(50))) as h:
        if row is not None:
            h.push(row)
        h.advance_watermark(30)
        assert [made.total for made in h.output] == [3 if row is None else 7]
        assert len(h.timers()) == 1 and h.state_entries()
        h.advance_watermark(80)
        assert h.state_entries() == [] and h.timers() == []
    with KeyedHarness.restore(snapshot, _by("columns", assigner, ms(50))) as h:
        h.advance_watermark(1000)
        assert h.state_entries() == [] and h.timers() == []


@pytest.mark.parametrize("assigner", [TENS, EventTimeSessionWindows.with_gap(ms(10))])
def test_an_aggregate_that_is_added_counts_from_zero_in_open_windows(assigner: Any) -> None:
    class Less(msgspec.Struct, frozen=True):
        key: str
        largest: int

    def fewer(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(assigner).aggregate_columns({"largest": ("max", "value")}, output=Less, uid="w")

    with KeyedHarness(fewer, INPUT) as h:
        h.push(Timed("a", 1, 0), Timed("b", 2, 0))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, _by("columns", assigner)) as h:
        h.push(Timed("b", 5, 0))
        h.drain()
        assert sorted((row.key, row.rows, row.total) for row in h.output) == [("a", 0, None), ("b", 1, 5)]


@pytest.mark.parametrize("assigner", [TENS, EventTimeSessionWindows.with_gap(ms(10))])
def test_a_lateness_without_end_keeps_windows_until_the_input_ends(assigner: Any) -> None:
    with KeyedHarness(_by("columns", assigner, timedelta.max), INPUT) as h:
        h.push(Timed("a", 1, 0))
        h.advance_watermark(1_000_000)
        h.push(Timed("a", 2, 0))
        assert [row.total for row in h.output] == [1, 3]
        h.drain()
        assert h.state_entries() == [] and h.timers() == []
