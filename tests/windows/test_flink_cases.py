"""Cases of Flink's tests of its window operator, with the same rows, watermarks and results.

A batch has the rows between two watermarks there, so that the same rows are late. Rows of one batch are added by event
time, so rows that come in another order are in batches of their own where the order counts. Flink's case of
`GlobalWindows.createWithEndOfStreamTrigger` is a global window with an event-time trigger here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
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
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.api.windows.trigger import Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.triggers import ContinuousEventTimeTrigger, CountTrigger, EventTimeTrigger, PurgingTrigger
from stateflow.errors import StateError
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import (
    LATE,
    Assigner,
    Declare,
    Sum,
    Timed,
    Total,
    Windowed,
    added,
    by_columns,
    ms,
    processing,
    reducing,
)

Make = Callable[[Assigner, Declare], KeyedHarness]
both = pytest.mark.parametrize("make", [reducing, processing])
all_ways = pytest.mark.parametrize("make", [reducing, processing, by_columns])

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


@all_ways
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


@all_ways
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


@all_ways
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


@all_ways
def test_sessions_that_touch_are_one(make: Make) -> None:
    """Flink's `TimeWindow.intersects` includes the bounds."""
    with make(EventTimeSessionWindows.with_gap(ms(3000)), lambda w: w) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 3000), Timed("a", 4, 6001))
        assert h.drain() == [Total("a", 3, 0, 6000), Total("a", 4, 6001, 9001)]


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


@all_ways
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


@all_ways
def test_sliding_processing_time_windows(make: Make) -> None:
    with make(SlidingProcessingTimeWindows.of(ms(3000), ms(1000)), lambda w: w) as h:
        h.push(Timed("a", 1))
        assert [(each.total, each.end) for each in h.advance_processing_time(1000)] == [(1, 1000)]
        h.push(Timed("a", 2))
        assert [(each.total, each.end) for each in h.advance_processing_time(2000)] == [(3, 2000)]
        assert [(each.total, each.end) for each in h.advance_processing_time(4000)] == [(3, 3000), (2, 4000)]


@all_ways
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


purging = pytest.mark.parametrize("purges", [False, True])

SESSIONS: Assigner = EventTimeSessionWindows.with_gap(ms(3000))


def _one(*times: int) -> list[Timed]:
    return [Timed("key2", 1, at) for at in times]


def _with(lateness: int = 0, *, purges: bool = False) -> Declare:
    """Returns what declares the late output, the allowed lateness and the trigger."""
    trigger = EventTimeTrigger.create()

    def declare(windows: Windowed) -> Windowed:
        windows = windows.trigger(PurgingTrigger.of(trigger) if purges else trigger)
        return windows.allowed_lateness(ms(lateness)).side_output_late_data(LATE)

    return declare


# -- windows of a fixed length ----------------------------------------------------------------------------------------


@all_ways
def test_a_row_for_an_ended_window_goes_to_the_late_output(make: Make) -> None:
    with make(TumblingEventTimeWindows.of(ms(2000)), _with()) as h:
        h.push(*_one(1000))
        assert h.advance_watermark(1985) == []
        h.push(*_one(1980))
        assert h.advance_watermark(1999) == [Total("key2", 2, 0, 2000)]
        assert h.push(*_one(1998, 2001)) == []
        assert h.side_output(LATE) == _one(1998)
        assert h.advance_watermark(2999) == []
        assert h.advance_watermark(3999) == [Total("key2", 1, 2000, 4000)]
        assert h.state_entries() == [] and h.timers() == []


@all_ways
def test_a_row_is_late_if_all_its_sliding_windows_have_ended(make: Make) -> None:
    with make(SlidingEventTimeWindows.of(ms(3000), ms(1000)), _with()) as h:
        h.push(*_one(1000))
        assert h.advance_watermark(1999) == [Total("key2", 1, -1000, 2000)]
        h.push(*_one(2000))
        assert h.advance_watermark(3000) == [Total("key2", 2, 0, 3000)]
        # The first of the three windows of 2400 has ended.
        h.push(Timed("key1", 1, 3001), *_one(2400, 2400), Timed("key1", 1, 3001), *_one(3900))
        assert h.side_output(LATE) == []
        assert sorted(h.advance_watermark(6000), key=lambda total: (total.end, total.key)) == [
            *(Total("key1", 2, 1000, 4000), Total("key2", 5, 1000, 4000)),
            *(Total("key1", 2, 2000, 5000), Total("key2", 4, 2000, 5000)),
            *(Total("key1", 2, 3000, 6000), Total("key2", 1, 3000, 6000)),
        ]
        assert h.push(Timed("key1", 1, 3001)) == []
        assert h.side_output(LATE) == [Timed("key1", 1, 3001)]
        assert h.advance_watermark(25_000) == []
        assert h.state_entries() == [] and h.timers() == []


# -- sessions ---------------------------------------------------------------------------------------------------------


def _two_sessions(h: KeyedHarness) -> None:
    """Pushes the rows of two sessions, which both have fired at 14600: the first one is made of two by its last row."""
    h.push(*_one(1000))
    assert h.advance_watermark(1999) == []
    h.push(*_one(2000))
    assert h.advance_watermark(4998) == []
    h.push(*_one(4500, 8500))
    assert h.advance_watermark(7400) == []
    h.push(*_one(7000))
    assert h.advance_watermark(11_501) == [Total("key2", 5, 1000, 11_500)]
    h.push(*_one(11_600))
    assert h.advance_watermark(14_600) == [Total("key2", 1, 11_600, 14_600)]


def _check_removed(h: KeyedHarness) -> None:
    assert h.advance_watermark(100_000) == []
    assert h.state_entries() == [] and h.timers() == []


@both
@purging
def test_late_rows_of_ended_sessions_are_no_session(make: Make, purges: bool) -> None:
    with make(SESSIONS, _with(purges=purges)) as h:
        _two_sessions(h)
        # Each of them alone, and in one batch.
        assert h.push(*_one(10_000)) == h.push(*_one(10_100, 10_200)) == []
        assert h.side_output(LATE) == _one(10_000, 10_100, 10_200)
        assert h.push(*_one(14_500)) == []
        assert h.advance_watermark(20_000) == [Total("key2", 1, 14_500, 17_500)]
        _check_removed(h)


LATENESS = [
    # The second session accepts rows.
    (10, False, Total("key2", 2, 10_000, 14_600), Total("key2", 3, 10_000, 17_500)),
    (10, True, Total("key2", 1, 10_000, 14_600), Total("key2", 1, 10_000, 17_500)),
    # Both sessions do.
    (10_000, False, Total("key2", 7, 1000, 14_600), Total("key2", 8, 1000, 17_500)),
    (10_000, True, Total("key2", 1, 1000, 14_600), Total("key2", 1, 1000, 17_500)),
]
"""Allowed lateness, whether the trigger purges, and what fires at a late row and at the end of the session."""


@both
@pytest.mark.parametrize(("lateness", "purges", "at_once", "at_end"), LATENESS)
def test_a_late_row_merges_the_sessions_that_accept_rows(
    make: Make, lateness: int, purges: bool, at_once: Total, at_end: Total
) -> None:
    with make(SESSIONS, _with(lateness, purges=purges)) as h:
        _two_sessions(h)
        assert h.push(*_one(10_000)) == [at_once]
        window = TimeWindow(at_once.start, at_once.end)
        assert [(timer.time, timer.namespace) for timer in h.timers()] == [(window.max_timestamp + lateness, window)]
        with KeyedHarness.restore(h.snapshot(), parallelism=2) as restored:
            # The session ends later again.
            assert restored.push(*_one(14_500)) == []
            assert restored.advance_watermark(20_000) == [at_end]
            _check_removed(restored)
            assert restored.side_output(LATE) == []


# -- removal ----------------------------------------------------------------------------------------------------------


@both
@purging
@pytest.mark.parametrize(
    ("assigner", "window", "lateness"),
    [
        (TumblingEventTimeWindows.of(ms(2000)), TimeWindow(0, 2000), 1),
        (TumblingEventTimeWindows.of(ms(2000)), TimeWindow(0, 2000), 100),
        (SESSIONS, TimeWindow(1000, 4000), 10),
    ],
)
def test_a_fired_window_is_removed_after_the_allowed_lateness_without_a_result(
    make: Make, purges: bool, assigner: Assigner, window: TimeWindow, lateness: int
) -> None:
    with make(assigner, _with(lateness, purges=purges)) as h:
        h.push(*_one(1000))
        assert h.advance_watermark(1599) == []
        assert h.advance_watermark(window.max_timestamp) == [Total("key2", 1, window.start, window.end)]
        assert [timer.time for timer in h.timers()] == [window.max_timestamp + lateness]
        assert h.advance_watermark(window.max_timestamp + lateness) == []
        assert h.state_entries() == [] and h.timers() == []


class AtEachEvent(Trigger[Timed]):
    """Fires for each row and timer: also for the timer that removes the window."""

    def __init__(self, result: TriggerResult) -> None:
        self._result = result

    def on_element(self, row: Timed, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return self._result

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return self._result

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return self._result

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """Has nothing to remove."""


@both
@pytest.mark.parametrize("result", [TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE])
def test_a_trigger_that_fires_at_the_removal_of_a_window_gets_what_is_left(make: Make, result: TriggerResult) -> None:
    trigger = AtEachEvent(result)
    with make(TumblingEventTimeWindows.of(ms(2000)), lambda w: w.trigger(trigger).allowed_lateness(ms(1))) as h:
        assert h.push(*_one(1000)) == [Total("key2", 1, 0, 2000)]
        assert h.advance_watermark(1999) == []
        left = [] if result.is_purge else [Total("key2", 1, 0, 2000)]
        assert h.advance_watermark(2000) == left
        assert h.state_entries() == [] and h.timers() == []


class Nothing(ProcessWindowFunction[Timed, Total]):
    """Emits nothing."""

    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> list[Total]:
        return []


def test_the_rows_of_a_window_without_results_are_kept_until_its_removal() -> None:
    def at_each_event(windows: Windowed) -> Windowed:
        return windows.trigger(AtEachEvent(TriggerResult.FIRE)).allowed_lateness(ms(1))

    with processing(TumblingEventTimeWindows.of(ms(2000)), at_each_event, Nothing()) as h:
        assert h.push(*_one(1000)) == []
        for watermark in (1599, 1699, 1799, 1999):
            assert h.advance_watermark(watermark) == []
            assert list(h.state("window-contents", "key2", namespace=TimeWindow(0, 2000))) == _one(1000)
        assert h.advance_watermark(2000) == [] and h.state_entries() == [] and h.timers() == []


def test_a_window_is_not_removed_before_its_end_if_its_end_and_the_lateness_exceed_64_bits() -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(TumblingEventTimeWindows.of(ms(1000))).allowed_lateness(ms(2000))
        return windows.reduce(added, Sum(), output=Total, uid="w")

    # Rows advance the watermark: the harness takes only timestamps.
    last = (1 << 63) - 1
    with KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at", out_of_orderness=ms(0))) as h:
        assert h.push(*_one(last - 1750)) == h.push(*_one(last - 1500)) == []
        assert [(each.total, each.end > last - 1500) for each in h.drain()] == [(2, True)]


def test_a_row_whose_window_ends_beyond_64_bits_fails_the_run() -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(TumblingEventTimeWindows.of(ms(1000))).reduce(added, Sum(), output=Total, uid="w")

    with KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at")) as h, pytest.raises(StateError) as e:
        h.push(*_one((1 << 63) - 10))
    assert e.value.facts["operator"] == "w" and e.value.hint


LAST_OF_9999 = 253_402_300_799_999


@both
@pytest.mark.parametrize("lateness", [ms(2000), timedelta.max])
def test_a_window_that_is_removed_after_the_year_9999_fires_at_its_end(make: Make, lateness: timedelta) -> None:
    with make(TumblingEventTimeWindows.of(ms(1000)), lambda w: w.allowed_lateness(lateness)) as h:
        h.push(*_one(LAST_OF_9999 - 1750))
        assert h.advance_watermark(LAST_OF_9999 - 1500) == []
        assert h.advance_watermark(LAST_OF_9999 - 1000) == [Total("key2", 1, LAST_OF_9999 - 1999, LAST_OF_9999 - 999)]
        assert h.push(*_one(LAST_OF_9999 - 1001)) == [Total("key2", 2, LAST_OF_9999 - 1999, LAST_OF_9999 - 999)]
        assert h.drain() == [] and h.state_entries() == [] and h.timers() == []
