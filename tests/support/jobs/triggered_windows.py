"""Readings in windows with gaps, triggers and evictors of their own, and with aggregates over the readings before each.

``job.folder`` has ``readings.jsonl`` and gets ``tables/``. The readings of a meter are in order, not those of a sensor.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    OnMergeContext,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingState,
    ReducingStateDescriptor,
    RuntimeContext,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowContext,
)
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Reading(msgspec.Struct):
    """A value of a sensor that a meter reads, at a time in milliseconds since 1970."""

    sensor: str
    meter: str
    at: int
    value: int
    number: int


class Sum(msgspec.Struct):
    key: str
    start: int
    end: int
    value: int


class Numbers(msgspec.Struct):
    """The numbers of the readings of a window; of the global window, start and end are 0."""

    key: str
    start: int
    end: int
    numbers: list[int]


class WithEarlier(msgspec.Struct):
    sensor: str
    meter: str
    at: int
    value: int
    number: int
    count: int
    total: int


class EmitSum(ProcessWindowFunction[Reading, Sum]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Reading]) -> Iterator[Sum]:
        yield Sum(key, ctx.window.start, ctx.window.end, sum(row.value for row in elements))


class EmitNumbers(ProcessWindowFunction[Reading, Numbers]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Reading]) -> Iterator[Numbers]:
        is_global = isinstance(ctx.window, GlobalWindow)
        start, end = (0, 0) if is_global else (ctx.window.start, ctx.window.end)
        yield Numbers(key, start, end, sorted(row.number for row in elements))


def plus(first: int, second: int) -> int:
    return first + second


class EveryThird(Trigger[Reading]):
    """Fires with each third row of a session, and at its end."""

    _rows: ReducingState[int]

    def open(self, ctx: RuntimeContext) -> None:
        self._rows = ctx.get_reducing_state(ReducingStateDescriptor("rows-of-session", plus, int))

    def on_element(self, row: Reading, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp)
        self._rows.add(1)
        return TriggerResult.CONTINUE if (self._rows.get() or 0) % 3 else TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._rows)
        ctx.register_event_time_timer(window.max_timestamp)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)
        self._rows.clear()


def added(first: Reading, second: Reading) -> Reading:
    return Reading(first.sensor, first.meter, first.at, first.value + second.value, first.number)


def difference(first: Reading, second: Reading) -> int:
    return abs(second.value - first.value)


def gap_after(row: Reading) -> timedelta:
    return ms(10 + row.value % 3 * 10)


def ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


EARLIER = {"count": ("count", "number"), "total": ("sum", "value")}


def build(env: StreamExecutionEnvironment) -> None:
    folder = Path(env.parameter("folder"))
    stream = timed(env, Reading, "readings", ms(20))
    sensors, meters = stream.key_by("sensor"), stream.key_by("meter")
    hours = TumblingEventTimeWindows.of(ms(60))

    sliding = sensors.window(SlidingEventTimeWindows.of(ms(60), ms(20)))
    gaps = sensors.window(EventTimeSessionWindows.with_dynamic_gap(gap_after))
    early = meters.window(EventTimeSessionWindows.with_gap(ms(30))).trigger(EveryThird())
    fours = meters.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(4)))
    jumps = meters.window(GlobalWindows.create()).trigger(PurgingTrigger.of(DeltaTrigger.of(20, difference, Reading)))
    # A window of a millisecond is open until the next batch.
    clock = sensors.window(TumblingProcessingTimeWindows.of(ms(1)))
    windows = {
        "gaps": gaps,
        "early": early,
        "fours": fours,
        "jumps": jumps,
        "continuous": sensors.window(hours).trigger(ContinuousEventTimeTrigger.of(ms(20))),
        "newest": meters.window(hours).evictor(CountEvictor.of(2)),
        "recent": sensors.window(hours).evictor(TimeEvictor.of(ms(15))),
        "clock": clock,
    }
    tables = {name: each.process(EmitNumbers(), output=Numbers, uid=name) for name, each in windows.items()}
    tables["sliding"] = sliding.reduce(added, EmitSum(), output=Sum, uid="sliding")
    for name, preceding in (("rows", 2), ("range", ms(30))):
        tables[name] = sensors.over_columns(EARLIER, output=WithEarlier, preceding=preceding, uid=name)
    for name, table in tables.items():
        table.sink_to(FolderSink(folder / "tables" / name), uid=f"{name}-table")
