"""Windows of `flink_cases`: rows, declarations, and the rows that Flink's tests expect."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stateflow import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    OnMergeContext,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    RuntimeContext,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowContext,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import WindowAssigner
from tests.spark.jobs.flink_rows import WATERMARK, Out, Timed, Total, ms

LATE = OutputTag("late", Timed)
Windows = WindowedStream[DataStream]


class Sum(ProcessWindowFunction[Timed, Total]):
    """Emits the sum of the values."""

    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
        start, end = (0, 0) if isinstance(ctx.window, GlobalWindow) else (ctx.window.start, ctx.window.end)
        yield Total(key, sum(row.value for row in elements), start, end)


class SumOfAll(ProcessAllWindowFunction[Timed, Total]):
    """Emits the sum of the values of all keys."""

    def process(self, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
        yield Total("all/", sum(row.value for row in elements), ctx.window.start, ctx.window.end)


class ThirdRow(Trigger[Timed]):
    """Fires once, for the third row of a window, also if its rows were in several windows before."""

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


def added(first: Timed, second: Timed) -> Timed:
    """A reduce function."""
    return Timed(first.key, first.value + second.value, second.at)


BOTH = ("reduced", "processed")


@dataclass(frozen=True)
class WindowCase:
    """Rows, windows and the sums that Flink's test expects.

    Attributes:
        methods: a window with an evictor cannot be reduced.
    """

    rows: list[Timed]
    assigner: WindowAssigner[Any]
    expected: list[tuple[Any, ...]]
    change: Callable[[Windows], Windows] = lambda windows: windows
    methods: tuple[str, ...] = BOTH


def gap_of(row: Timed) -> timedelta:
    """The gap of a session, by row."""
    return ms(5000 if row.value == 2 else 1000)


def difference(first: Timed, second: Timed) -> float:
    """The difference of two values."""
    return second.value - first.value


def late_output(windows: Windows) -> Windows:
    """Declares lateness."""
    return windows.allowed_lateness(ms(500)).side_output_late_data(LATE)


OUT_OF_ORDER = [
    *(Timed("key2", 1, at) for at in (3999, 3000)),
    *(Timed("key1", 1, at) for at in (20, 0, 999)),
    *(Timed("key2", 1, at) for at in (1998, 1999, 1000)),
]
LATE_INPUT = [
    *(Timed("key2", 1, 500), Timed(WATERMARK, 0, 1501), Timed("key2", 1, 1300), Timed(WATERMARK, 0, 2301)),
    *(Timed("key2", 1, 1997), Timed(WATERMARK, 0, 6001), Timed("key2", 1, 1998)),
]
LATE_ROWS = [("key2", 1, 1998, "")]
LATE_CASES = ("lateness", "again")
"""Cases over `LATE_INPUT`, an input of its own: its watermark passes between batches of two rows."""
POWERS = [Timed("ab"[n % 2], 1 << n, n) for n in range(8)]
"""The sum of some of these rows says which ones they are."""

WINDOWS = {
    "sliding": WindowCase(
        OUT_OF_ORDER,
        SlidingEventTimeWindows.of(ms(3000), ms(1000)),
        [
            *(("key1", 3, end - 3000, end) for end in (1000, 2000, 3000)),
            *(
                ("key2", total, end - 3000, end)
                for end, total in zip(range(2000, 8000, 1000), (3, 3, 5, 2, 2), strict=False)
            ),
        ],
    ),
    "tumbling": WindowCase(
        OUT_OF_ORDER,
        TumblingEventTimeWindows.of(ms(3000)),
        [("key1", 3, 0, 3000), ("key2", 3, 0, 3000), ("key2", 2, 3000, 6000)],
    ),
    "sessions": WindowCase(
        [
            *(Timed("key2", value, at) for value, at in ((1, 0), (2, 1000), (3, 2500))),
            *(Timed("key1", value, at) for value, at in ((1, 10), (2, 1000), (3, 2500))),
            *(
                Timed("key2", value, at)
                for value, at in ((4, 5501), (5, 6000), (5, 6000), (6, 6050), (10, 15000), (20, 15000))
            ),
        ],
        EventTimeSessionWindows.with_gap(ms(3000)),
        [("key1", 6, 10, 5500), ("key2", 6, 0, 5500), ("key2", 20, 5501, 9050), ("key2", 30, 15000, 18000)],
    ),
    "dynamic": WindowCase(
        [Timed("a", 1, 0), Timed("a", 2, 900), Timed("a", 4, 5800), Timed("a", 8, 9000)],
        EventTimeSessionWindows.with_dynamic_gap(gap_of),
        [("a", 7, 0, 6800), ("a", 8, 9000, 10000)],
    ),
    "offset": WindowCase(
        [Timed("a", 1, 899), Timed("a", 2, 900), Timed("a", 4, -101)],
        TumblingEventTimeWindows.of(ms(1000), ms(-100)),
        [("a", 4, -1100, -100), ("a", 1, -100, 900), ("a", 2, 900, 1900)],
    ),
    "counted": WindowCase(
        [*[Timed("key2", 1)] * 2, *[Timed("key1", 1)] * 3, Timed("key2", 1), Timed("key1", 1), *[Timed("key2", 1)] * 9],
        GlobalWindows.create(),
        [("key1", 4, 0, 0), *[("key2", 4, 0, 0)] * 3],
        lambda windows: windows.trigger(PurgingTrigger.of(CountTrigger.of(4))),
    ),
    "not-purged": WindowCase(
        [Timed("a", 1)] * 6,
        GlobalWindows.create(),
        [("a", 2, 0, 0), ("a", 4, 0, 0), ("a", 6, 0, 0)],
        lambda windows: windows.trigger(CountTrigger.of(2)),
    ),
    "delta": WindowCase(
        [Timed("a", value) for value in (0, 9, 10, 11, 19, 20)],
        GlobalWindows.create(),
        [("a", 19, 0, 0), ("a", 50, 0, 0)],
        lambda windows: windows.trigger(PurgingTrigger.of(DeltaTrigger.of(9, difference, Timed))),
    ),
    "continuous": WindowCase(
        [Timed("a", 1, 10), Timed("a", 2, 50)],
        TumblingEventTimeWindows.of(ms(100)),
        # At 40 and 80, and at the end of the window.
        [("a", 3, 0, 100)] * 3,
        lambda windows: windows.trigger(ContinuousEventTimeTrigger.of(ms(40))),
    ),
    "merged": WindowCase(
        [Timed("a", 1, 0), Timed("a", 2, 18), Timed("a", 4, 9), Timed("a", 8, 20)],
        EventTimeSessionWindows.with_gap(ms(10)),
        [("a", 7, 0, 28)],
        lambda windows: windows.trigger(ThirdRow()),
    ),
    "evicted": WindowCase(
        [Timed("a", 1), Timed("a", 2), Timed("b", 16), *(Timed("a", value) for value in (4, 8, 16, 32))],
        GlobalWindows.create(),
        [("a", 3, 0, 0), ("a", 15, 0, 0), ("a", 60, 0, 0)],
        lambda windows: windows.trigger(CountTrigger.of(2)).evictor(CountEvictor.of(4)),
        ("processed",),
    ),
    "evicted-by-time": WindowCase(
        OUT_OF_ORDER,
        TumblingEventTimeWindows.of(ms(3000)),
        # Of each window the rows of the last 500 ms: 1998 and 1999, and 3999.
        [("key1", 1, 0, 3000), ("key2", 2, 0, 3000), ("key2", 1, 3000, 6000)],
        lambda windows: windows.evictor(TimeEvictor.of(ms(500))),
        ("processed",),
    ),
    "lateness": WindowCase(
        LATE_INPUT,
        TumblingEventTimeWindows.of(ms(2000)),
        [("key2", 2, 0, 2000), ("key2", 1, 0, 2000)],
        lambda windows: late_output(windows).trigger(PurgingTrigger.of(EventTimeTrigger.create())),
    ),
    "again": WindowCase(
        LATE_INPUT, TumblingEventTimeWindows.of(ms(2000)), [("key2", 2, 0, 2000), ("key2", 3, 0, 2000)], late_output
    ),
}
TABLES: dict[str, list[tuple[Any, ...]]] = {
    **{f"{name}-{method}": case.expected for name, case in WINDOWS.items() for method in case.methods},
    **{f"late-{name}-{method}": LATE_ROWS for name in LATE_CASES for method in BOTH},
}
ALL_MS = 3000
"""Length of the windows over all rows of the job."""


@dataclass(frozen=True)
class ClockCase:
    """Windows of processing time, which are short, so that they have ended when the batch has.

    Attributes:
        size: of a window, in milliseconds; of a session, its gap.
        slide: windows begin at its multiples; 0 for sessions.
    """

    assigner: WindowAssigner[Any]
    size: int
    slide: int


CLOCK = {
    "clock-tumbling": ClockCase(TumblingProcessingTimeWindows.of(ms(2)), 2, 2),
    "clock-sliding": ClockCase(SlidingProcessingTimeWindows.of(ms(6), ms(2)), 6, 2),
    "clock-sessions": ClockCase(ProcessingTimeSessionWindows.with_gap(ms(2)), 2, 0),
}


def inputs() -> dict[str, list[Timed]]:
    """The rows by case, but `LATE_INPUT`."""
    return {"powers": POWERS} | {name: case.rows for name, case in WINDOWS.items() if name not in LATE_CASES}


def declare_windows(rows: DataStream, late: DataStream, out: Out) -> None:
    """Declares a table for each of `TABLES` and `CLOCK`.

    Args:
        late: the rows of `LATE_INPUT`, as those of the case ``late``.
    """
    for name, case in WINDOWS.items():
        source, input_name = (late, "late") if name in LATE_CASES else (rows, name)
        keyed = source.key_by("key")
        for method in case.methods:
            windows, uid = case.change(keyed.window(case.assigner)), f"{name}-{method}"
            if method == "reduced":
                totals = windows.reduce(added, Sum(), output=Total, uid=uid)
            else:
                totals = windows.process(Sum(), output=Total, uid=uid)
            out(totals, uid, input_name)
            if source is late:
                out(totals.get_side_output(LATE), f"late-{uid}", input_name)
    of_all = rows.window_all(TumblingEventTimeWindows.of(ms(ALL_MS)))
    out(of_all.reduce(added, SumOfAll(), output=Total, uid="all-reduced"), "all-reduced", "all")
    out(of_all.process(SumOfAll(), output=Total, uid="all-processed"), "all-processed", "all")
    for name, by_clock in CLOCK.items():
        windows = rows.key_by("key").window(by_clock.assigner)
        out(windows.reduce(added, Sum(), output=Total, uid=name), name, "powers")
