"""Windows that a job may not declare, and what the errors name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stateflow import (
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError
from tests.windows.timed_rows import Assigner, Sum, Timed, Total, ms

WRONG: Any = "of another type"
TENS = TumblingEventTimeWindows.of(ms(10))
SESSIONS: Assigner = EventTimeSessionWindows.with_gap(ms(10))


class Other(msgspec.Struct, frozen=True):
    key: str


def _delta() -> Trigger[Timed]:
    return DeltaTrigger.of(1, lambda first, second: second.value - first.value, Timed)


def _stream(has_time: bool = True) -> DataStream:
    rows = StreamExecutionEnvironment().from_collection([Timed("a", 1)], row_class=Timed, uid="rows")
    if has_time:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
        rows = rows.assign_timestamps_and_watermarks(strategy)
    return rows


def _keyed(has_time: bool = True) -> KeyedStream[DataStream]:
    return _stream(has_time).key_by("key")


@pytest.mark.parametrize(
    ("declare", "fact"),
    [
        (lambda: TumblingEventTimeWindows.of(WRONG), "given"),
        (lambda: TumblingEventTimeWindows.of(timedelta()), "given"),
        (lambda: TumblingEventTimeWindows.of(timedelta(microseconds=1)), "given"),
        (lambda: TumblingEventTimeWindows.of(ms(10), ms(10)), "offset_ms"),
        (lambda: SlidingEventTimeWindows.of(ms(10), ms(0)), "given"),
        (lambda: SlidingEventTimeWindows.of(ms(10), ms(3), ms(-3)), "offset_ms"),
        (lambda: EventTimeSessionWindows.with_gap(ms(-1)), "given"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(WRONG), "given"),
        (lambda: CountTrigger.of(0), "given"),
        (lambda: PurgingTrigger.of(WRONG), "given"),
        (lambda: DeltaTrigger.of(1, WRONG, Timed), "given"),
        (lambda: CountEvictor.of(-1), "given"),
        (lambda: TimeEvictor.of(ms(0)), "given"),
        (lambda: DeltaEvictor.of(1, WRONG), "given"),
        (lambda: _keyed().window(WRONG), "given"),
        (lambda: _keyed(has_time=False).window(TENS), "assigner"),
        (lambda: _keyed().window(TENS).trigger(WRONG), "given"),
        (lambda: _keyed().window(SESSIONS).trigger(_delta()), "trigger"),
        (lambda: _keyed().window(SESSIONS).trigger(PurgingTrigger.of(_delta())), "trigger"),
        (lambda: _keyed().window(TENS).evictor(WRONG), "given"),
        (lambda: _keyed().window(TENS).allowed_lateness(ms(-1)), "given"),
        (lambda: _keyed().window(TumblingProcessingTimeWindows.of(ms(1))).allowed_lateness(ms(1)), "assigner"),
        (lambda: _keyed().window(TENS).side_output_late_data(OutputTag("late", Other)), "given"),
        (lambda: _keyed().window(TENS).reduce(WRONG, uid="w"), "uid"),
        (lambda: _keyed().window(TENS).aggregate(WRONG, accumulator=int, output=Total, uid="w"), "uid"),
        (lambda: _keyed().window(TENS).process(WRONG, output=Total, uid="w"), "uid"),
        (lambda: _keyed().window(TENS).apply(WRONG, output=Total, uid="w"), "uid"),
        (lambda: _stream().window_all(WRONG), "given"),
        (lambda: _stream(has_time=False).window_all(TENS), "assigner"),
        (lambda: _stream().window_all(TENS).process(Sum(), output=Total, uid="w"), "wanted"),  # type: ignore[arg-type]
        (lambda: _stream().window_all(TENS).reduce(max, Sum(), uid="w"), "wanted"),  # type: ignore[arg-type]
        (lambda: _stream().window_all(TENS).apply(WRONG, output=Total, uid="w"), "uid"),
        (lambda: _stream().window_all(TENS).aggregate_columns({"a": ("sum", "no")}, output=Total, uid="w"), "operator"),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_hint(declare: Callable[[], Any], fact: str) -> None:
    with pytest.raises(JobDefinitionError) as e:
        declare()
    assert fact in e.value.facts and e.value.hint


def test_a_late_output_is_that_of_the_last_setting_and_a_setting_does_not_change_its_stream() -> None:
    windows = _keyed().window(TENS)
    first, second = OutputTag("first", Timed), OutputTag("second", Timed)
    stream = windows.side_output_late_data(first).side_output_late_data(second).process(Sum(), output=Total, uid="w")
    assert stream.get_side_output(second).schema.row_class is Timed
    changed = windows.allowed_lateness(ms(5))
    assert (changed._settings.allowed_lateness, windows._settings.allowed_lateness) == (5, 0)


def test_a_trigger_that_never_fires_is_the_default_of_global_windows() -> None:
    trigger: Trigger[Any] = GlobalWindows.create().default_trigger()
    assert type(trigger).__name__ == "NeverTrigger" and trigger.can_merge()
