"""What functions of windows see and keep: window, key, times, state of a window and of its key, and what is evicted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

from stateflow import AggregateFunction, DeadLetters, ListStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.assigners import EventTimeSessionWindows, GlobalWindows, TumblingEventTimeWindows
from stateflow.api.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from stateflow.api.windows.functions import ProcessWindowFunction, WindowContext, WindowOpenContext
from stateflow.api.windows.triggers import CountTrigger
from stateflow.errors import StateError, UserCodeError
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import LATE, Sum, Timed, Total, Windowed, added, ms, processing

TENS = TumblingEventTimeWindows.of(ms(10))


class Many(msgspec.Struct, frozen=True):
    """Values of several rows."""

    values: list[int]


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


def test_a_state_of_a_function_may_be_a_list() -> None:
    class Remember(Counting):
        def open(self, ctx: WindowOpenContext) -> None:
            self.seen = ctx.global_state.get_list_state(ListStateDescriptor("seen", int))

        def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
            self.seen.add(sum(row.value for row in elements))
            yield Total(key, sum(self.seen.get()), ctx.window.start)

        def clear(self, ctx: WindowContext) -> None:
            """Keeps the list, which is of the key."""

    with processing(TENS, function=Remember()) as h:
        h.push(Timed("a", 1, 3), Timed("a", 2, 13), Timed("a", 4, 23))
        assert [row.total for row in h.drain()] == [1, 3, 7]
        assert h.state("seen", "a") == [1, 2, 4]


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


@pytest.mark.parametrize("after", [False, True])
def test_an_evictor_of_a_session_removes_rows_of_its_content(after: bool) -> None:
    def declare(windows: Windowed) -> Windowed:
        return windows.trigger(CountTrigger.of(1)).evictor(CountEvictor.of(1, do_evict_after=after))

    with processing(EventTimeSessionWindows.with_gap(ms(10)), declare) as h:
        found = [row.total for row in h.push(Timed("a", 1, 0), Timed("a", 2, 5), Timed("a", 4, 7))]
        assert found == ([1, 3, 6] if after else [1, 2, 4])
        assert h.drain() == [] and h.state_entries() == [] and h.timers() == []


def test_windows_that_merge_have_no_state_of_their_own() -> None:
    with processing(EventTimeSessionWindows.with_gap(ms(10)), function=Counting()) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, 0))
    assert e.value.hint and "global_state" in e.value.hint


class Collect(AggregateFunction[Timed, list[int], Many]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Timed, accumulator: list[int]) -> list[int]:
        accumulator.append(value.value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> Many:
        return Many(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return acc_a + acc_b


def test_later_rows_do_not_change_an_emitted_result() -> None:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(GlobalWindows.create()).trigger(CountTrigger.of(1))
        return windows.aggregate(Collect(), accumulator=list[int], output=Many, uid="w")

    with KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at")) as h:
        assert [row.values for row in h.push(Timed("a", 1), Timed("a", 2))] == [[1], [1, 2]]


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


def test_an_error_of_a_window_function_names_operator_and_key() -> None:
    class Failing(Sum):
        def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
            raise ValueError(key)

    with processing(TENS, function=Failing()) as h:
        h.push(Timed("a", 1, 3))
        with pytest.raises(UserCodeError) as e:
            h.drain()
    assert e.value.facts["operator"] == "w" and e.value.facts["key"] == "{'key': 'a'}"


def test_a_window_function_that_returns_no_rows_is_named() -> None:
    def one(key: str, window: TimeWindow, rows: Iterable[Timed]) -> Any:
        return Total(key, 1)

    class One(Sum):
        def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Any:
            return Total(key, 1)

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(TENS).apply(one, output=Total, uid="w")

    plain = KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at"))
    for harness in (plain, processing(TENS, function=One())):
        with harness as h:
            h.push(Timed("a", 1, 3))
            with pytest.raises(UserCodeError) as e:
                h.drain()
        assert str(e.value.facts["where"]).startswith(f"{__file__}:") and "list" in e.value.hint


def test_a_row_without_event_time_is_refused() -> None:
    with processing(TENS) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, None))
    assert e.value.facts["operator"] == "w" and "at=None" in str(e.value.facts["row"])
