"""When triggers fire: at intervals, at differences, after merges, and by rules of their own."""

from __future__ import annotations

import math

from stateflow import ReducingStateDescriptor, RuntimeContext
from stateflow.api.windows.assigners import EventTimeSessionWindows, GlobalWindows, TumblingEventTimeWindows
from stateflow.api.windows.trigger import OnMergeContext, Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    PurgingTrigger,
)
from stateflow.testing import KeyedHarness
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import Assigner, Timed, Total, ms, reducing


def _totals(rows: list[Total]) -> list[int]:
    return [row.total for row in rows]


def test_a_continuous_event_time_trigger_fires_at_multiples_of_its_interval_and_at_the_end() -> None:
    windows = TumblingEventTimeWindows.of(ms(100))
    with reducing(windows, lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(40)))) as h:
        h.push(Timed("a", 1, 10))
        assert h.advance_watermark(39) == []
        assert _totals(h.advance_watermark(40)) == [1]
        h.push(Timed("a", 2, 50))
        assert _totals(h.advance_watermark(80)) == [3]
        assert _totals(h.advance_watermark(98)) == []
        assert _totals(h.advance_watermark(99)) == [3]
        assert h.state_entries() == [] and h.timers() == []


def test_a_continuous_event_time_trigger_fires_at_each_multiple_at_the_end_of_the_input() -> None:
    windows = TumblingEventTimeWindows.of(ms(100))
    with reducing(windows, lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(40)))) as h:
        h.push(Timed("a", 1, 10), Timed("a", 2, 50))
        assert _totals(h.drain()) == [3, 3, 3]
        assert h.state_entries() == [] and h.timers() == []


def test_a_continuous_trigger_of_a_session_continues_after_a_merge() -> None:
    windows: Assigner = EventTimeSessionWindows.with_gap(ms(100))
    with reducing(windows, lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(50)))) as h:
        h.push(Timed("a", 1, 10), Timed("a", 2, 130))
        h.push(Timed("a", 4, 70))
        assert _totals(h.advance_watermark(50)) == [7]
        assert _totals(h.advance_watermark(229)) == [7, 7, 7, 7]
        assert h.state_entries() == [] and h.timers() == []


def test_a_continuous_processing_time_trigger_fires_in_the_first_batch_after_each_interval() -> None:
    with reducing(GlobalWindows.create(), lambda w: w.trigger(ContinuousProcessingTimeTrigger.of(ms(100)))) as h:
        h.advance_processing_time(130)
        h.push(Timed("a", 1))
        assert h.advance_processing_time(199) == []
        assert _totals(h.advance_processing_time(250)) == [1]
        h.push(Timed("a", 2))
        assert _totals(h.advance_processing_time(300)) == [3]


def test_continuous_triggers_end_with_the_window_or_the_input() -> None:
    day = TumblingEventTimeWindows.of(ms(100))
    with reducing(day, lambda w: w.trigger(ContinuousProcessingTimeTrigger.of(ms(40)))) as h:
        h.advance_processing_time(10_000)
        h.push(Timed("a", 1, 10))
        assert _totals(h.advance_processing_time(20_000)) == []
    with reducing(GlobalWindows.create(), lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(40)))) as h:
        h.advance_processing_time(10_000)
        h.push(Timed("a", 1, 10))
        assert _totals(h.advance_watermark(85)) == [1, 1]
        # At 120, and at the end of the window, which is that of the input.
        assert _totals(h.drain()) == [1, 1]


def test_a_delta_trigger_compares_with_the_row_that_fired_last() -> None:
    trigger = PurgingTrigger.of(DeltaTrigger.of(9, lambda first, second: second.value - first.value, Timed))
    with reducing(GlobalWindows.create(), lambda w: w.trigger(trigger)) as h:
        assert h.push(Timed("a", 0), Timed("a", 9)) == []
        assert _totals(h.push(Timed("a", 10), Timed("a", 11))) == [19]
        with KeyedHarness.restore(h.snapshot()) as restored:
            assert _totals(restored.push(Timed("a", 19), Timed("a", 20))) == [50]


def test_a_delta_trigger_does_not_fire_for_nan() -> None:
    trigger = DeltaTrigger.of(9, lambda first, second: math.nan if second.value < 0 else second.value, Timed)
    with reducing(GlobalWindows.create(), lambda w: w.trigger(trigger)) as h:
        assert _totals(h.push(Timed("a", 0), Timed("a", -1), Timed("a", 10))) == [9]


class EveryThird(Trigger[Timed]):
    """Fires for the third row of a window, also if its rows were in several windows before; then never again."""

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_reducing_state(ReducingStateDescriptor("rows-seen", lambda a, b: a + b, int))

    def on_element(self, row: Timed, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        self.count.add(1)
        return TriggerResult.FIRE_AND_PURGE if self.count.get() == 3 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self.count)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self.count.clear()


def test_the_state_of_a_users_trigger_is_merged_with_its_windows_and_removed_with_them() -> None:
    with reducing(EventTimeSessionWindows.with_gap(ms(10)), lambda w: w.trigger(EveryThird())) as h:
        assert h.push(Timed("a", 1, 0), Timed("a", 2, 18)) == []
        assert h.push(Timed("a", 4, 9)) == [Total("a", 7, 0, 28)]
        assert h.push(Timed("a", 8, 20)) == []
        assert h.drain() == [] and h.state_entries() == [] and h.timers() == []


def test_a_count_trigger_counts_the_rows_of_merged_sessions() -> None:
    with reducing(EventTimeSessionWindows.with_gap(ms(10)), lambda w: w.trigger(CountTrigger.of(3))) as h:
        h.push(Timed("a", 1, 0), Timed("a", 2, 18))
        assert h.push(Timed("a", 4, 9)) == [Total("a", 7, 0, 28)]
