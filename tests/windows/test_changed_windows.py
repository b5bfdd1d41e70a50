"""Windows by columns of a job that is changed while windows are open, compared with windows on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.errors import IncompatibleState
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


def _by(method: str, assigner: Any, lateness: timedelta | None = None) -> Declare:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(assigner)
        windows = windows if lateness is None else windows.allowed_lateness(lateness)
        if method == "rows":
            return windows.process(Sum(), output=Made, uid="w")
        return windows.aggregate_columns(COLUMNS, output=Made, uid="w")

    return declare


TENS = TumblingEventTimeWindows.of(ms(10))
ROWS = st.lists(st.builds(Timed, st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 80)), max_size=4)
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 30))


@pytest.mark.long(reason="draws many histories")
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
            assert h.state_entries() == [] and h.timers() == []
        found[method] = {key: [row for row in made if row.key == key] for key in "ab"}
    assert found["rows"] == found["columns"]


SESSIONS: Any = EventTimeSessionWindows.with_gap(ms(10))
by_both = pytest.mark.parametrize("method", ["rows", "columns"])


@by_both
@pytest.mark.parametrize("assigner", [TENS, SESSIONS])
@pytest.mark.parametrize("lateness", [(50, 20), (20, 50)])
def test_windows_that_have_fired_are_removed_after_the_allowed_lateness_was_changed(
    assigner: Any, lateness: tuple[int, int], method: str
) -> None:
    before, after = lateness
    with KeyedHarness(_by(method, assigner, ms(before)), INPUT) as h:
        h.push(Timed("a", 1, 0))
        h.advance_watermark(15)
        assert [made.total for made in h.output] == [1] and h.state_entries()
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, _by(method, assigner, ms(after))) as h:
        h.advance_watermark(15 + min(lateness))
        assert not h.push(Timed("a", 2, 5)) or after > before
        h.advance_watermark(100)
        assert h.state_entries() == [] and h.timers() == []


GLOBAL = GlobalWindows.create()
KINDS = [
    (TENS, SESSIONS),
    (SESSIONS, SlidingEventTimeWindows.of(ms(10), ms(5))),
    (TENS, TumblingProcessingTimeWindows.of(ms(10))),
    (ProcessingTimeSessionWindows.with_gap(ms(10)), SESSIONS),
]


@pytest.mark.parametrize(
    ("before", "after", "method"),
    [(*kinds, method) for kinds in KINDS for method in ("rows", "columns")] + [(GLOBAL, TENS, "rows")],
)
def test_windows_of_another_kind_are_refused_while_windows_are_stored(before: Any, after: Any, method: str) -> None:
    with KeyedHarness(_by(method, before), INPUT) as h:
        h.push(Timed("a", 1, 0))
        snapshot = h.snapshot()
    with pytest.raises(IncompatibleState) as e:
        KeyedHarness.restore(snapshot, _by(method, after))
    assert e.value.facts["operator"] == "w" and e.value.hint
    assert e.value.facts["stored"] != e.value.facts["declared"]


@pytest.mark.parametrize("assigner", [TENS, SESSIONS])
@pytest.mark.parametrize("kind", ["min", "mean", "last"])
def test_an_aggregate_that_open_windows_have_no_value_for_is_refused_at_the_start(assigner: Any, kind: str) -> None:
    def of(*names: str) -> Declare:
        wanted = {"rows": ("count", "key"), "more": (kind, "value")}
        types = {"key": str, "rows": int, "more": float if kind == "mean" else int}
        output = msgspec.defstruct("Some", [(name, types[name]) for name in ("key", *names)], frozen=True)

        def declare(rows: KeyedStream[DataStream]) -> DataStream:
            return rows.window(assigner).aggregate_columns({n: wanted[n] for n in names}, output=output, uid="w")

        return declare

    with KeyedHarness(of("rows"), INPUT) as h:
        h.push(Timed("a", 1, 0))
        snapshot = h.snapshot()
    with pytest.raises(IncompatibleState) as e:
        KeyedHarness.restore(snapshot, of("rows", "more"))
    assert e.value.facts["operator"] == "w" and "more__" in str(e.value.facts["field"]) and e.value.hint
    with KeyedHarness(of("rows", "more"), INPUT) as h:
        h.push(Timed("a", 1, 0))
        snapshot = h.snapshot()
    # An aggregate may be removed, and columns may be in another order.
    for names in (("rows",), ("more", "rows")):
        with KeyedHarness.restore(snapshot, of(*names)) as h:
            h.push(Timed("a", 4, 3))
            assert [row.rows for row in h.drain()] == [2]


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
