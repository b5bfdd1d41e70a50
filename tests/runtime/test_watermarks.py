"""How far event time has advanced: per source and per operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import WatermarkStrategy
from stateflow.checkpoint.log.documents import SourceWatermark
from stateflow.clock import epoch_milliseconds
from stateflow.runtime.executor import SourceTime
from stateflow.runtime.task.row_conversion import event_times, latest_time
from stateflow.runtime.task.vector_operator import watermarks_before_rows
from stateflow.runtime.watermarks import (
    NO_TIME,
    SeenTimes,
    advance_source_watermarks,
    combine_watermarks,
    operator_watermarks,
)

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=5)).with_timestamp_column("at")
WITH_IDLENESS = STRATEGY.with_idleness(timedelta(milliseconds=10))


def _of(uid: str, watermark: int | None, active_at: int = 0, idle: bool = False) -> SourceWatermark:
    return SourceWatermark(uid=uid, watermark=watermark, active_at=active_at, idle=idle)


def test_a_source_s_watermark_stays_below_its_latest_row_and_never_decreases() -> None:
    first = advance_source_watermarks([], {"s": STRATEGY}, SeenTimes({"s": 100}), 1)
    assert first == [_of("s", 94, 1)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, SeenTimes({"s": 90}), 2) == [_of("s", 94, 2)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, SeenTimes({"s": 110}), 2) == [_of("s", 104, 2)]


def test_a_source_without_new_rows_is_never_idle_or_after_the_declared_time() -> None:
    before = [_of("p", 50, 100), _of("s", 50, 100)]
    found = advance_source_watermarks(before, {"p": WITH_IDLENESS, "s": STRATEGY}, SeenTimes({}), 10**9)
    assert found == [_of("p", 50, 100, idle=True), _of("s", 50, 100)]
    at_once = STRATEGY.with_idleness(timedelta())
    assert advance_source_watermarks(before, {"s": at_once}, SeenTimes({}), 101) == [_of("s", 50, 100, idle=True)]
    found = advance_source_watermarks(before, {"p": WITH_IDLENESS, "s": STRATEGY}, SeenTimes({}), 109)
    assert found == [_of("p", 50, 100), _of("s", 50, 100)]
    assert advance_source_watermarks(found, {"p": WITH_IDLENESS}, SeenTimes({}), 110) == [_of("p", 50, 100, idle=True)]
    assert advance_source_watermarks(found, {"p": WITH_IDLENESS}, SeenTimes({"p": 60}), 111) == [_of("p", 54, 111)]
    first = advance_source_watermarks([], {"p": WITH_IDLENESS}, SeenTimes({}), 100)
    assert first == [_of("p", None, 100)], "one that never had a row waits from the first batch on"
    assert advance_source_watermarks(first, {"p": WITH_IDLENESS}, SeenTimes({}), 110) == [
        _of("p", None, 100, idle=True)
    ]


def test_input_without_event_times_keeps_a_source_from_being_idle() -> None:
    before = [_of("p", 50, 100)]
    assert advance_source_watermarks(before, {"p": WITH_IDLENESS}, SeenTimes(active="p"), 200) == [_of("p", 50, 200)]
    splits = {"p": {"0": None, "1": NO_TIME}}
    (found,) = advance_source_watermarks([], {"p": WITH_IDLENESS}, SeenTimes(of_splits=splits), 100)
    (found,) = advance_source_watermarks([found], {"p": WITH_IDLENESS}, SeenTimes(of_splits=splits), 200)
    assert [(split.watermark, split.active_at, split.idle) for split in found.splits] == [
        (None, 100, True),
        (None, 200, False),
    ]


def test_a_source_that_a_later_version_adds_holds_the_watermark_back() -> None:
    strategies = {"a": STRATEGY, "b": STRATEGY}
    chain = SimpleNamespace(uid="op", watermark_sources=frozenset(strategies), sources=frozenset(strategies))
    for known, wanted in (([_of("a", 50)], 10), ([_of("a", 50), _of("b", 20)], 20)):
        assert operator_watermarks([chain], {"op": 10}, known) == {"op": wanted}  # type: ignore[list-item]
    assert operator_watermarks([chain], {"op": 10}, [_of("a", 50)], ended={"b"}) == {"op": 50}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("before", "sources", "wanted"),
    [
        (None, [], None), (None, [_of("a", 10), _of("b", 7)], 7), (None, [_of("a", 10), _of("b", 7, idle=True)], 10),
        (8, [_of("a", 10), _of("b", 7)], 8), (8, [_of("a", 10), _of("b", None)], 8),
        (None, [_of("a", 10), _of("b", None)], None), (8, [_of("a", 10, idle=True), _of("b", 9, idle=True)], 8),
    ],
    ids=["none", "smallest", "idle-is-ignored", "never-back", "unknown-waits", "unknown-from-the-start", "all-idle"],
)  # fmt: skip
def test_an_operator_s_watermark_is_the_smallest_of_its_sources_that_are_not_idle(
    before: int | None, sources: list[SourceWatermark], wanted: int | None
) -> None:
    assert combine_watermarks(before, sources) == wanted


def test_event_time_is_in_milliseconds() -> None:
    at = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert epoch_milliseconds(at) == epoch_milliseconds(at.replace(tzinfo=None)) == -1
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns")):
        times = pa.array([at.replace(tzinfo=UTC if kind.tz else None), None], kind)
        assert (latest_time(times), event_times(times).tolist()) == (-1, [-1, NO_TIME])
    assert latest_time(pa.array([3, None, 7], pa.int64())) == 7
    assert latest_time(pa.array([None], pa.int64())) is None


_BATCHES = st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 100), min_size=1), max_size=6)


@given(_BATCHES, st.sampled_from([STRATEGY, WITH_IDLENESS]))
def test_a_source_with_splits_has_the_lowest_watermark_of_those_that_are_not_idle(
    batches: list[dict[str, int | None]], strategy: WatermarkStrategy
) -> None:
    known: list[SourceWatermark] = []
    reached: dict[str, int] = {}
    active: dict[str, int] = {}
    watermark: int | None = None
    for now, batch in enumerate(batches):
        now *= 7
        known = advance_source_watermarks(known, {"s": strategy}, SeenTimes({}, {"s": batch}), now)
        # The oracle keeps what is known of a split as long as each batch has it.
        reached = {split: at for split, at in reached.items() if split in batch}
        active = {split: active.get(split, now) for split in batch}
        for split, time in batch.items():
            if time is not None:
                reached[split] = max(time - 6, reached.get(split, time - 6))
                active[split] = now
        wait = strategy.idleness
        idle = {s for s in batch if batch[s] is None and wait is not None and now - active[s] >= wait}
        waiting = batch.keys() - idle
        if waiting and waiting <= reached.keys():
            lowest = min(reached[split] for split in waiting)
            watermark = lowest if watermark is None else max(watermark, lowest)
        (found,) = known
        assert (found.watermark, found.idle) == (watermark, not waiting)
        assert {split.name: split.watermark for split in found.splits} == {s: reached.get(s) for s in batch}
    # A batch without rows keeps the splits.
    again = advance_source_watermarks(known, {"s": strategy}, SeenTimes(), 1000)
    assert [s.name for each in again for s in each.splits] == [s.name for each in known for s in each.splits]


def test_the_slowest_source_holds_back_the_watermark_before_a_row() -> None:
    sources = (SourceTime(0, 0, 5), SourceTime(1, 10, 3))
    times, origins, first_rows = np.array([20, 30, 40]), np.array([0, 1, 0]), np.zeros(3, np.int64)
    assert watermarks_before_rows(sources, 2, times, origins, first_rows).tolist() == [3, 19, 19]
