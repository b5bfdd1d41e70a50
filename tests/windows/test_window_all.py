"""Windows over all rows of a stream: what functions without a key get, and the parts of a window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pytest

from stateflow import (
    CountEvictor,
    CountTrigger,
    GlobalWindows,
    KeyedProcessFunction,
    ProcessAllWindowFunction,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WindowContext,
    WindowOpenContext,
)
from stateflow.errors import JobDefinitionError, UserCodeError
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.windows.timed_rows import Timed, ms

ROWS = KeyedInput(Timed, event_time="at", out_of_orderness=ms(0))
TENS = TumblingEventTimeWindows.of(ms(10))


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


class Fails(ProcessAllWindowFunction[Timed, Found]):
    """A function with an error."""

    def process(self, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Found]:
        raise ValueError(ctx.window.start)


def test_an_error_of_a_function_names_its_line() -> None:
    with KeyedHarness(lambda rows: rows.window_all(TENS).process(Fails(), output=Found, uid="w"), ROWS) as h:
        with pytest.raises(UserCodeError) as e:
            h.push(_row("a", 1), _row("b", 12))
        assert "test_window_all.py" in str(e.value.facts["where"])


def test_a_function_object_of_a_harness_needs_a_key() -> None:
    class Nothing(KeyedProcessFunction[Timed, Found]):
        pass

    with pytest.raises(JobDefinitionError) as e:
        KeyedHarness(Nothing(), ROWS, output=Found)
    assert e.value.facts["function"] == "Nothing"
