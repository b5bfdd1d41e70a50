"""What functions of windows see and keep, with a key and without, when triggers fire, and what is evicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from stateflow import (
    AggregateFunction,
    DeadLetters,
    ProcessAllWindowFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.assigners import EventTimeSessionWindows, GlobalWindows, TumblingEventTimeWindows
from stateflow.api.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext, WindowOpenContext
from stateflow.api.windows.trigger import OnMergeContext, Trigger, TriggerContext, TriggerResult
from stateflow.api.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    PurgingTrigger,
)
from stateflow.errors import StateError
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import LATE, Sum, Timed, Total, Windowed, added, ms, processing, reducing

TENS = TumblingEventTimeWindows.of(ms(10))


class Counting(ProcessWindowFunction[Timed, Total]):
    """Emits how often a window and its key have fired, as ``100 * key + window``."""

    def open(self, ctx: WindowOpenContext) -> None:
        add = lambda a, b: a + b  # noqa: E731 - shorter
        self.of_window = ctx.window_state.get_reducing_state(ReducingStateDescriptor("of window", add, int))
        self.of_key = ctx.global_state.get_reducing_state(ReducingStateDescriptor("of key", add, int))

    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
        assert key == ctx.get_current_key()
        self.of_window.add(1)
        self.of_key.add(1)
        ctx.output(LATE, Timed(key, ctx.current_watermark()))
        yield Total(key, 100 * (self.of_key.get() or 0) + (self.of_window.get() or 0), ctx.window.start)

    def clear(self, ctx: WindowContext) -> None:
        self.of_window.clear()


def test_a_function_has_state_of_its_window_and_state_of_its_key() -> None:
    with processing(TENS, lambda w: w.allowed_lateness(ms(100)), Counting()) as h:
        h.push(Timed("a", 1, 3), Timed("a", 1, 13))
        assert h.advance_watermark(19) == [Total("a", 101, 0), Total("a", 201, 10)]
        assert h.push(Timed("a", 1, 5), Timed("b", 1, 5)) == [Total("a", 302, 0), Total("b", 101, 0)]
        assert h.side_output(LATE) == [Timed(key, 19) for key in "aaab"]
        h.advance_watermark(1000)
        # The state of the key is the function's own; that of the windows was removed by `clear`.
        assert {(entry.state, entry.key, entry.value) for entry in h.state_entries()} == {
            ("of key", ("a",), 3),
            ("of key", ("b",), 1),
        }


def test_a_name_is_of_a_window_or_of_a_key() -> None:
    class Both(Counting):
        def open(self, ctx: WindowOpenContext) -> None:
            for store in (ctx.window_state, ctx.global_state):
                store.get_state(ValueStateDescriptor("same", int))

    with processing(TENS, function=Both()) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, 3))
    assert e.value.facts["name"] == "same"


class Span(AggregateFunction[Timed, list[int], int]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Timed, accumulator: list[int]) -> list[int]:
        return [*accumulator, value.value]

    def get_result(self, accumulator: list[int]) -> int:
        return max(accumulator) - min(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


class EmitSpan(ProcessWindowFunction[int, Total]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[int]) -> Iterator[Total]:
        (span,) = elements
        yield Total(key, span, ctx.window.start, ctx.window.end)


@pytest.mark.parametrize("evictor", [None, CountEvictor.of(3)])
def test_an_aggregate_is_passed_to_the_window_function(evictor: Evictor[Timed] | None) -> None:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(EventTimeSessionWindows.with_gap(ms(10)))
        windows = windows.evictor(evictor) if evictor else windows
        return windows.aggregate(Span(), EmitSpan(), accumulator=list[int], output=Total, uid="w")

    with KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at")) as h:
        h.push(Timed("a", 5, 0), Timed("a", 9, 15), Timed("a", 6, 30))
        h.push(Timed("a", 7, 8))
        assert h.drain() == [Total("a", 4, 0, 25), Total("a", 0, 30, 40)]


def test_reduce_emits_rows_without_a_window_function() -> None:
    with KeyedHarness(
        lambda rows: rows.window(TENS).reduce(added, uid="w"), KeyedInput(Timed, "key", event_time="at")
    ) as h:
        h.push(Timed("a", 1, 3), Timed("a", 2, 4))
        assert h.drain() == [Timed("a", 3, 4)]


def test_windows_that_merge_have_no_state_of_their_own() -> None:
    with processing(EventTimeSessionWindows.with_gap(ms(10)), function=Counting()) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, 0))
    assert e.value.hint and "global_state" in e.value.hint


def test_apply_calls_a_plain_function() -> None:
    def spans(key: str, window: TimeWindow, rows: Iterable[Timed]) -> list[Total]:
        return [Total(key, len(list(rows)), window.start, window.end)]

    with KeyedHarness(
        lambda rows: rows.window(TENS).apply(spans, output=Total, uid="w"), KeyedInput(Timed, "key", event_time="at")
    ) as h:
        h.push(Timed("a", 1, 3), Timed("a", 2, 4))
        assert h.drain() == [Total("a", 2, 0, 10)]


@pytest.mark.parametrize(
    ("evictor", "sums", "kept"),
    [
        (CountEvictor.of(2), [3, 6, 12], [4, 8]),
        (CountEvictor.of(2, do_evict_after=True), [3, 7, 14], [4, 8]),
        (TimeEvictor.of(ms(10)), [3, 6, 8], [8]),
        (TimeEvictor.of(ms(10), do_evict_after=True), [3, 7, 14], [8]),
        (DeltaEvictor.of(5, lambda row, last: last.value - row.value), [3, 7, 12], [4, 8]),
        # NaN is not at least the threshold.
        (
            DeltaEvictor.of(5, lambda row, last: math.nan if row.value == 1 else last.value - row.value),
            [3, 7, 13],
            [1, 4, 8],
        ),
    ],
)
def test_evictors_remove_rows_before_or_after_the_evaluation(
    evictor: Evictor[Timed], sums: list[int], kept: list[int]
) -> None:
    def declare(windows: Windowed) -> Windowed:
        return windows.trigger(CountTrigger.of(1)).evictor(evictor)

    with processing(GlobalWindows.create(), declare) as h:
        h.push(Timed("a", 1, 0))
        found = [row.total for row in h.push(Timed("a", 2, 5), Timed("a", 4, 12), Timed("a", 8, 30))]
        assert found == sums
        assert [row.value for row in h.state("window-contents", "a")] == kept


def test_a_row_that_fails_becomes_a_dead_letter_and_changes_no_window() -> None:
    def fragile(first: Timed, second: Timed) -> Timed:
        if second.value < 0:
            raise ValueError(second.value)
        return added(first, second)

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(EventTimeSessionWindows.with_gap(ms(10))).reduce(
            fragile, Sum(), output=Total, uid="w", on_error=DeadLetters(budget=1)
        )

    with KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at")) as h:
        h.push(Timed("a", 1, 0), Timed("a", -1, 5), Timed("a", 2, 12))
        assert len(h.dead_letters) == 1
        # The failed row would have connected the two sessions.
        assert h.drain() == [Total("a", 1, 0, 10), Total("a", 2, 12, 22)]


def test_a_row_without_event_time_is_refused() -> None:
    with processing(TENS) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, None))
    assert e.value.facts["operator"] == "w" and "at=None" in str(e.value.facts["row"])


ROWS = KeyedInput(Timed, event_time="at", out_of_orderness=ms(0))


def _row(key: str, at: int) -> Timed:
    return Timed(key, 0, at)


class Found(msgspec.Struct, frozen=True):
    """A window, how many came before it, and the keys of its rows."""

    start: int
    number: int
    keys: list[str]


class Number(ProcessAllWindowFunction[Timed, Found]):
    """Numbers the windows."""

    def open(self, ctx: WindowOpenContext) -> None:
        self.windows = ctx.global_state.get_state(ValueStateDescriptor("windows", int))

    def process(self, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Found]:
        assert ctx.get_current_key() == 0
        number = self.windows.value() or 0
        self.windows.update(number + 1)
        yield Found(ctx.window.start, number, sorted(row.key for row in elements))


def test_all_keys_are_in_one_window_whose_function_has_state_and_no_key() -> None:
    with KeyedHarness(lambda rows: rows.window_all(TENS).process(Number(), output=Found, uid="w"), ROWS) as h:
        assert h.push() == []
        assert h.push(_row("a", 1), _row("b", 2), _row("c", 12)) == [Found(0, 0, ["a", "b"])]
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as more:
            assert more.push(_row("a", 13), _row("d", 25)) == [Found(10, 1, ["a", "c"])]
            assert more.drain() == [Found(20, 2, ["d"])]


def _newest(window: TimeWindow, rows: Iterable[Timed]) -> list[Found]:
    return [Found(0, 0, [row.key for row in rows])]


def test_triggers_and_evictors_see_the_rows_of_all_keys() -> None:
    windows = GlobalWindows.create()
    with KeyedHarness(
        lambda rows: (
            rows.window_all(windows)
            .trigger(CountTrigger.of(2))
            .evictor(CountEvictor.of(3))
            .apply(_newest, output=Found, uid="w")
        ),
        ROWS,
    ) as h:
        assert h.push(_row("a", 1), _row("b", 2), _row("c", 3)) == [Found(0, 0, ["a", "b"])]
        assert h.push(_row("d", 4)) == [Found(0, 0, ["b", "c", "d"])]


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
        # At the end of the input at each multiple, too.
        h.push(Timed("a", 1, 110), Timed("a", 2, 150))
        assert _totals(h.drain()) == [3, 3, 3]
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
