"""Cases of Flink's tests of its window operator, with the same rows, watermarks and results.

`test_late_rows_flink_cases.py` has those of late rows and of the removal of windows. Rows of one batch are added by
event time, so rows that come in another order are in batches of their own where the order counts. Flink's case of
`GlobalWindows.createWithEndOfStreamTrigger` is a global window with an event-time trigger here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stateflow.api.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from stateflow.api.windows.evictors import CountEvictor
from stateflow.api.windows.triggers import ContinuousEventTimeTrigger, CountTrigger, EventTimeTrigger, PurgingTrigger
from stateflow.testing import KeyedHarness
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import LATE, Assigner, Declare, Timed, Total, Windowed, ms, processing, reducing

Make = Callable[[Assigner, Declare], KeyedHarness]
both = pytest.mark.parametrize("make", [reducing, processing])

OUT_OF_ORDER = [
    *(Timed("key2", 1, at) for at in (3999, 3000)),
    *(Timed("key1", 1, at) for at in (20, 0, 999)),
    *(Timed("key2", 1, at) for at in (1998, 1999, 1000)),
]


def _results(h: KeyedHarness, watermarks: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Advances the watermark step by step; returns key and sum of what fires at each."""
    found = {}
    for watermark in watermarks:
        fired = h.advance_watermark(watermark)
        assert all(each.end - 1 == watermark for each in fired)
        found[watermark] = sorted((each.key, each.total) for each in fired)
    return found


@both
def test_sliding_event_time_windows(make: Make) -> None:
    with make(SlidingEventTimeWindows.of(ms(3000), ms(1000)), lambda w: w) as h:
        h.push(*OUT_OF_ORDER)
        assert _results(h, [999, 1999, 2999]) == {
            999: [("key1", 3)],
            1999: [("key1", 3), ("key2", 3)],
            2999: [("key1", 3), ("key2", 3)],
        }
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            assert _results(restored, [3999, 4999, 5999, 6999, 7999]) == {
                3999: [("key2", 5)],
                4999: [("key2", 2)],
                5999: [("key2", 2)],
                6999: [],
                7999: [],
            }
            assert restored.state_entries() == []


@both
def test_tumbling_event_time_windows(make: Make) -> None:
    with make(TumblingEventTimeWindows.of(ms(3000)), lambda w: w) as h:
        h.push(*OUT_OF_ORDER)
        assert _results(h, [999, 1999]) == {999: [], 1999: []}
        with KeyedHarness.restore(h.snapshot()) as restored:
            assert _results(restored, [2999, 3999, 4999, 5999, 6999]) == {
                2999: [("key1", 3), ("key2", 3)],
                3999: [],
                4999: [],
                5999: [("key2", 2)],
                6999: [],
            }


@both
def test_session_windows(make: Make) -> None:
    with make(EventTimeSessionWindows.with_gap(ms(3000)), lambda w: w) as h:
        h.push(Timed("key2", 1, 0), Timed("key2", 2, 1000), Timed("key2", 3, 2500))
        h.push(Timed("key1", 1, 10), Timed("key1", 2, 1000))
        with KeyedHarness.restore(h.snapshot()) as restored:
            restored.push(Timed("key1", 3, 2500), Timed("key2", 4, 5501), Timed("key2", 5, 6000))
            restored.push(Timed("key2", 5, 6000), Timed("key2", 6, 6050))
            fired = [Total("key1", 6, 10, 5500), Total("key2", 6, 0, 5500), Total("key2", 20, 5501, 9050)]
            assert sorted(restored.advance_watermark(12000)) == fired
            restored.push(Timed("key2", 10, 15000), Timed("key2", 20, 15000))
            assert restored.advance_watermark(17999) == [Total("key2", 30, 15000, 18000)]
            assert restored.state_entries() == [] and restored.timers() == []


@both
def test_sessions_that_touch_are_one(make: Make) -> None:
    """Flink's `TimeWindow.intersects` includes the bounds."""
    with make(EventTimeSessionWindows.with_gap(ms(3000)), lambda w: w) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 3000), Timed("a", 4, 6001))
        assert h.drain() == [Total("a", 3, 0, 6000), Total("a", 4, 6001, 9001)]


def test_a_row_that_connects_two_sessions_merges_their_content_and_timers() -> None:
    with processing(EventTimeSessionWindows.with_gap(ms(1000))) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 1900))
        assert [timer.time for timer in h.timers()] == [999, 2899]
        h.push(Timed("a", 4, 950))
        assert [(timer.time, timer.namespace) for timer in h.timers()] == [(2899, TimeWindow(0, 2900))]
        assert h.advance_watermark(5000) == [Total("a", 7, 0, 2900)]


@both
def test_sessions_with_a_gap_of_each_row(make: Make) -> None:
    assigner: Assigner = EventTimeSessionWindows.with_dynamic_gap(lambda row: ms(5000 if row.value == 2 else 1000))
    with make(assigner, lambda w: w) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 900), Timed("a", 4, 5800), Timed("a", 8, 9000))
        assert h.drain() == [Total("a", 7, 0, 6800), Total("a", 8, 9000, 10000)]


class PointSessions(EventTimeSessionWindows[Timed]):
    """Sessions in which rows with the value 33 have no gap."""

    def assign_windows(self, row: Timed, timestamp: int) -> list[TimeWindow]:
        return [TimeWindow(timestamp, timestamp)] if row.value == 33 else super().assign_windows(row, timestamp)


@both
def test_rows_without_a_gap_are_part_of_the_session_that_they_are_in(make: Make) -> None:
    with make(PointSessions.with_gap(ms(3000)), lambda w: w) as h:
        h.push(Timed("key2", 1, 0), Timed("key2", 33, 1000))
        with KeyedHarness.restore(h.snapshot()) as restored:
            restored.push(
                Timed("key2", 33, 2500), Timed("key1", 1, 10), Timed("key1", 2, 1000), Timed("key1", 33, 2500)
            )
            fired = [Total("key1", 36, 10, 4000), Total("key2", 67, 0, 3000)]
            assert sorted(restored.advance_watermark(12_000)) == fired
            assert restored.state_entries() == [] and restored.timers() == []


@both
def test_a_purging_count_trigger_counts_the_rows_of_merged_sessions(make: Make) -> None:
    trigger = PurgingTrigger.of(CountTrigger.of(4))
    with make(EventTimeSessionWindows.with_gap(ms(3000)), lambda w: w.trigger(trigger)) as h:
        rows = [Timed("key2", value, at) for value, at in ((1, 0), (2, 1000), (3, 2500), (4, 3500))]
        assert h.push(*rows, Timed("key1", 1, 10), Timed("key1", 2, 1000)) == [Total("key2", 10, 0, 6500)]
        with KeyedHarness.restore(h.snapshot()) as restored:
            rows = [Timed("key1", value, at) for value, at in ((3, 2500), (1, 6000), (2, 6500), (3, 7000))]
            assert restored.push(*rows) == []
            # Two sessions of three rows become one.
            assert restored.push(Timed("key1", 10, 4500)) == [Total("key1", 22, 10, 10_000)]


@both
def test_a_continuous_trigger_continues_with_the_rows_of_extended_sessions(make: Make) -> None:
    trigger = ContinuousEventTimeTrigger.of(ms(2000))
    with make(EventTimeSessionWindows.with_gap(ms(3000)), lambda w: w.trigger(trigger)) as h:
        h.push(Timed("key1", 1, 1500), Timed("key2", 1, 0), Timed("key2", 3, 2500), Timed("key2", 2, 1000))
        assert sorted(h.advance_watermark(2500)) == [Total("key1", 1, 1500, 4500), Total("key2", 6, 0, 5500)]
        h.push(Timed("key2", 5, 4000))
        assert h.advance_watermark(3000) == []
        with KeyedHarness.restore(h.snapshot()) as restored:
            restored.push(Timed("key1", 2, 4000), Timed("key2", 4, 3500))
            fired = [Total("key1", 3, 1500, 7000), Total("key2", 15, 0, 7000)]
            assert sorted(restored.advance_watermark(4000)) == fired


@both
def test_a_continuous_trigger_of_a_global_window_begins_with_its_first_row(make: Make) -> None:
    with make(GlobalWindows.create(), lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(3000)))) as h:
        h.push(Timed("key1", 1, 0), Timed("key2", 1, 3000))
        h.push(*(Timed("key2", 1, at) for at in (3999, 1998, 1999, 1000)), Timed("key1", 1, 20), Timed("key1", 1, 999))
        assert h.advance_watermark(1000) == h.advance_watermark(2000) == []
        assert h.advance_watermark(3000) == [Total("key1", 3)]
        assert h.advance_watermark(4000) == h.advance_watermark(5000) == []
        assert sorted(h.advance_watermark(6000)) == [Total("key1", 3), Total("key2", 5)]
        assert h.advance_watermark(7000) == h.advance_watermark(8000) == []


@both
def test_an_event_time_trigger_of_a_global_window_fires_at_the_end_of_the_input(make: Make) -> None:
    with make(GlobalWindows.create(), lambda w: w.trigger(EventTimeTrigger.create())) as h:
        h.push(*OUT_OF_ORDER)
        assert h.advance_watermark(1_000_000) == []
        assert sorted(h.drain()) == [Total("key1", 3), Total("key2", 5)]


@both
def test_a_count_trigger_purges_the_global_window(make: Make) -> None:
    with make(GlobalWindows.create(), lambda w: w.trigger(PurgingTrigger.of(CountTrigger.of(4)))) as h:
        h.push(Timed("key2", 1), Timed("key2", 1), Timed("key1", 1), Timed("key1", 1))
        h.push(Timed("key1", 1), Timed("key2", 1))
        with KeyedHarness.restore(h.snapshot(), parallelism=2) as restored:
            assert restored.push(Timed("key1", 1)) == [Total("key1", 4)]
            assert restored.push(*[Timed("key2", 1)] * 6) == [Total("key2", 4), Total("key2", 4)]
            assert restored.push(*[Timed("key2", 1)] * 3) == [Total("key2", 4)]
            assert restored.state_entries() == []


def test_a_count_trigger_without_purging_fires_with_all_rows_so_far() -> None:
    with reducing(GlobalWindows.create(), lambda w: w.trigger(CountTrigger.of(2))) as h:
        assert h.push(*[Timed("a", 1)] * 5) == [Total("a", 2), Total("a", 4)]
        assert h.push(Timed("a", 1)) == [Total("a", 6)]


def test_an_evictor_keeps_the_last_rows_of_a_window() -> None:
    def last_four_every_two(windows: Windowed) -> Windowed:
        return windows.trigger(CountTrigger.of(2)).evictor(CountEvictor.of(4))

    with processing(GlobalWindows.create(), last_four_every_two) as h:
        assert h.push(Timed("a", 1), Timed("a", 2), Timed("b", 16)) == [Total("a", 3)]
        assert h.push(Timed("a", 4), Timed("a", 8)) == [Total("a", 15)]
        assert h.push(Timed("a", 16), Timed("a", 32)) == [Total("a", 60)]
        # The rows before the last four are not stored any longer.
        assert sorted(row.value for row in h.state("window-contents", "a")) == [4, 8, 16, 32]


@both
def test_processing_time_windows(make: Make) -> None:
    with make(TumblingProcessingTimeWindows.of(ms(3000)), lambda w: w) as h:
        h.advance_processing_time(3)
        h.push(Timed("key2", 1), Timed("key2", 1), Timed("key1", 1))
        h.advance_processing_time(1000)
        h.push(Timed("key1", 1))
        assert sorted(h.advance_processing_time(3000)) == [Total("key1", 2, 0, 3000), Total("key2", 2, 0, 3000)]
        h.push(Timed("key1", 1), Timed("key1", 1))
        assert h.advance_processing_time(5998) == []
        assert h.advance_processing_time(9000) == [Total("key1", 2, 3000, 6000)]
        assert h.state_entries() == []


@both
def test_sliding_processing_time_windows(make: Make) -> None:
    with make(SlidingProcessingTimeWindows.of(ms(3000), ms(1000)), lambda w: w) as h:
        h.push(Timed("a", 1))
        assert [(each.total, each.end) for each in h.advance_processing_time(1000)] == [(1, 1000)]
        h.push(Timed("a", 2))
        assert [(each.total, each.end) for each in h.advance_processing_time(2000)] == [(3, 2000)]
        assert [(each.total, each.end) for each in h.advance_processing_time(4000)] == [(3, 3000), (2, 4000)]


@both
def test_processing_time_sessions(make: Make) -> None:
    with make(ProcessingTimeSessionWindows.with_gap(ms(3000)), lambda w: w) as h:
        h.advance_processing_time(3)
        h.push(Timed("a", 1))
        h.advance_processing_time(1000)
        h.push(Timed("a", 2))
        assert h.advance_processing_time(3999) == [Total("a", 3, 3, 4000)]
        h.push(Timed("a", 4))
        assert h.advance_processing_time(20_000) == [Total("a", 4, 3999, 6999)]


@both
def test_sessions_of_processing_time_with_a_gap_of_each_row(make: Make) -> None:
    assigner: Assigner = ProcessingTimeSessionWindows.with_dynamic_gap(lambda row: ms(5000 if row.value == 2 else 1000))
    with make(assigner, lambda w: w) as h:
        h.advance_processing_time(3)
        h.push(Timed("a", 1))
        h.advance_processing_time(900)
        h.push(Timed("a", 2))
        assert h.advance_processing_time(5800) == []
        h.push(Timed("a", 4))
        assert h.advance_processing_time(20_000) == [Total("a", 7, 3, 6800)]


def test_late_rows_fire_a_window_again_until_its_removal() -> None:
    def purging(windows: Windowed) -> Windowed:
        trigger = PurgingTrigger.of(EventTimeTrigger.create())
        return windows.trigger(trigger).allowed_lateness(ms(500)).side_output_late_data(LATE)

    with reducing(TumblingEventTimeWindows.of(ms(2000)), purging) as h:
        h.push(Timed("key2", 1, 500))
        h.advance_watermark(1500)
        h.push(Timed("key2", 1, 1300))
        assert h.advance_watermark(2300) == [Total("key2", 2, 0, 2000)]
        # Late, but not later than allowed: a pane of its own, because the trigger has purged the rows before.
        assert h.push(Timed("key2", 1, 1997)) == [Total("key2", 1, 0, 2000)]
        assert h.advance_watermark(6000) == []
        assert h.push(Timed("key2", 1, 1998)) == [] and h.side_output(LATE) == [Timed("key2", 1, 1998)]


def test_a_window_without_a_late_output_drops_late_rows() -> None:
    with reducing(TumblingEventTimeWindows.of(ms(2000))) as h:
        h.advance_watermark(1999)
        assert h.push(Timed("a", 1, 1999)) == [] and h.state_entries() == [] and h.timers() == []


def test_tumbling_windows_begin_at_an_offset() -> None:
    with reducing(TumblingEventTimeWindows.of(ms(1000), ms(100))) as h:
        h.push(Timed("a", 1, 99), Timed("a", 2, 100), Timed("a", 4, 1099))
        assert h.drain() == [Total("a", 1, -900, 100), Total("a", 6, 100, 1100)]
    with reducing(TumblingEventTimeWindows.of(ms(1000), ms(-100))) as h:
        h.push(Timed("a", 1, 899), Timed("a", 2, 900), Timed("a", 4, -101))
        assert h.drain() == [Total("a", 4, -1100, -100), Total("a", 1, -100, 900), Total("a", 2, 900, 1900)]
