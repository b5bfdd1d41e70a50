"""Cases of Flink's tests of its window operator: late rows, and when windows are removed.

A batch here has the rows between two watermarks there, so that the same rows are late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.assigners import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext
from stateflow.api.windows.trigger import Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.triggers import EventTimeTrigger, PurgingTrigger
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
    ms,
    processing,
    reducing,
)

Make = Callable[[Assigner, Declare], KeyedHarness]
both = pytest.mark.parametrize("make", [reducing, processing])
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


@both
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


@both
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

    # Rows advance the watermark: the harness takes none that is no timestamp.
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
