"""Cases of Flink's tests of windows and joins, each with a table of its own, as one job.

A watermark of Flink's case is a row of the key `WATERMARK`, a millisecond later, at the end of a batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow import (
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    JoinContext,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TimeWindow,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    WindowContext,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

WATERMARK = "watermark"
LONG = timedelta(hours=1)


class Timed(msgspec.Struct, frozen=True):
    """A row with event time in milliseconds; `case` is the name of its input."""

    key: str
    value: int
    at: int = 0
    case: str = ""


class Total(msgspec.Struct, frozen=True):
    """The sum of a window."""

    key: str
    total: int
    start: int
    end: int


class Pair(msgspec.Struct, frozen=True):
    """The times of two joined rows."""

    key: str
    left: int
    right: int


class Group(msgspec.Struct, frozen=True):
    """The numbers of rows of both sides of a window."""

    key: str
    start: int
    left: int
    right: int


LATE = OutputTag("late", Timed)
Windows = WindowedStream[DataStream]


def ms(milliseconds: int) -> timedelta:
    """Returns a duration."""
    return timedelta(milliseconds=milliseconds)


class Sum(ProcessWindowFunction[Timed, Total]):
    """Emits the sum of the values."""

    def process(self, key: str, ctx: WindowContext, elements: Iterable[Timed]) -> Iterator[Total]:
        start, end = (0, 0) if isinstance(ctx.window, GlobalWindow) else (ctx.window.start, ctx.window.end)
        yield Total(key, sum(row.value for row in elements), start, end)


class EmitPair(ProcessJoinFunction[Timed, Timed, Pair]):
    """Emits the pair."""

    def process_element(self, left: Timed, right: Timed, ctx: JoinContext) -> Iterator[Pair]:
        yield Pair(left.key, left.at, right.at)


def added(first: Timed, second: Timed) -> Timed:
    """A reduce function."""
    return Timed(first.key, first.value + second.value, second.at)


def pair(left: Timed, right: Timed) -> Pair:
    """A function of a window join."""
    return Pair(left.key, left.at, right.at)


def group(key: str, window: TimeWindow, left: list[Timed], right: list[Timed]) -> Iterator[Group]:
    """A function of a co-group."""
    yield Group(key, window.start, len(left), len(right))


@dataclass(frozen=True)
class WindowCase:
    """Rows, windows and the sums that Flink's test expects."""

    rows: list[Timed]
    assigner: WindowAssigner[Any]
    expected: list[tuple[Any, ...]]
    change: Callable[[Windows], Windows] = lambda windows: windows


def gap_of(row: Timed) -> timedelta:
    """The gap of a session, by row."""
    return ms(5000 if row.value == 2 else 1000)


def purging_with_lateness(windows: Windows) -> Windows:
    """Declares a trigger and lateness."""
    trigger = PurgingTrigger.of(EventTimeTrigger.create())
    return windows.trigger(trigger).allowed_lateness(ms(500)).side_output_late_data(LATE)


OUT_OF_ORDER = [
    *(Timed("key2", 1, at) for at in (3999, 3000)),
    *(Timed("key1", 1, at) for at in (20, 0, 999)),
    *(Timed("key2", 1, at) for at in (1998, 1999, 1000)),
]
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
    "lateness": WindowCase(
        [
            *(Timed("key2", 1, 500), Timed(WATERMARK, 0, 1501), Timed("key2", 1, 1300), Timed(WATERMARK, 0, 2301)),
            *(Timed("key2", 1, 1997), Timed(WATERMARK, 0, 6001), Timed("key2", 1, 1998)),
        ],
        TumblingEventTimeWindows.of(ms(2000)),
        [("key2", 2, 0, 2000), ("key2", 1, 0, 2000)],
        purging_with_lateness,
    ),
}
LATE_ROWS = [("key2", 1, 1998, "")]

LEFT = [Timed(key, 0, at) for key, at in zip("aaabbaaa", (0, 1, 2, 3, 5, 6, 7, 8), strict=True)]
RIGHT = [Timed(key, 0, at) for key, at in zip("aabbaa", (0, 1, 3, 5, 6, 8), strict=True)]
FIRST = [Timed(key, 0, at) for key, at in zip("aaabbbaaa", range(9), strict=True)]
SECOND = [Timed(key, 0, at) for key, at in zip("aabccc", (0, 1, 3, 6, 7, 8), strict=True)]
ONE_TO_FOUR = [Timed("key", 0, at) for at in (1, 2, 3, 4)]
JOINS: dict[str, list[tuple[Any, ...]]] = {
    "window-join": [
        *(("a", x, y) for x in (0, 1, 2) for y in (0, 1)),
        *(("b", x, y) for x in (3, 5) for y in (3, 5)),
        *(("a", x, y) for x in (6, 7, 8) for y in (6, 8)),
    ],
    "self-join": [
        *(("a", x, y) for times in ((0, 1, 2), (6, 7, 8)) for x in times for y in times),
        *(("b", x, y) for x in (3, 5) for y in (3, 5)),
    ],
    "co-group": [("a", 0, 3, 2), ("a", 6, 3, 0), ("b", 3, 3, 1), ("c", 6, 0, 3)],
    "interval": [("key", x, y) for x in (1, 2, 3, 4) for y in (1, 2, 3, 4) if abs(x - y) <= 1],
    "interval-exclusive": [("key", 1, 3), ("key", 2, 4)],
}


BATCHES = 4


def inputs() -> list[Timed]:
    """The rows of all inputs but `lateness`, in an order in which each batch has a part of each of them."""
    named = {name: case.rows for name, case in WINDOWS.items() if name != "lateness"}
    named |= {"left": LEFT, "right": RIGHT, "first": FIRST, "second": SECOND, "four": ONE_TO_FOUR}
    placed = [
        (at * BATCHES // len(rows), msgspec.structs.replace(row, case=name))
        for name, rows in named.items()
        for at, row in enumerate(rows)
    ]
    return [row for _, row in sorted(placed, key=lambda each: each[0])]


def build(env: StreamExecutionEnvironment) -> None:
    """Declares the job."""
    home, on_spark = Path(env.parameter("home")), env.parameter("spark") == "yes"

    def source(uid: str, rows: list[Timed], size: int, bound: timedelta) -> DataStream:
        scripted: Any = ScriptedSource(Timed, rows, home / f"{uid}.ledger", slice_rows=size)
        if on_spark:
            # A job without Spark must not import it.
            from stateflow.connectors.python import PythonSource

            scripted = PythonSource(scripted)
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_column("at")
        return env.from_source(scripted, uid=uid).assign_timestamps_and_watermarks(strategy)

    def out(stream: DataStream, uid: str) -> None:
        stream.sink_to(FolderSink(home / uid), uid=f"{uid}-out")

    rows = inputs()
    every = source("rows", rows, -(-len(rows) // BATCHES), LONG)
    # A watermark passes between batches.
    late = source("late-rows", WINDOWS["lateness"].rows, 2, ms(0))

    def of(name: str) -> DataStream:
        return late if name == "lateness" else every.filter(lambda row: row.case == name)

    for name, case in WINDOWS.items():
        for method in ("reduced", "processed"):
            windows, uid = case.change(of(name).key_by("key").window(case.assigner)), f"{name}-{method}"
            if method == "reduced":
                totals = windows.reduce(added, Sum(), output=Total, uid=uid)
            else:
                totals = windows.process(Sum(), output=Total, uid=uid)
            out(totals.filter(lambda row: row.key != WATERMARK), uid)
            if name == "lateness":
                out(totals.get_side_output(LATE), f"late-{method}")

    three = TumblingEventTimeWindows.of(ms(3))
    joined = of("left").join(of("right")).where("key").equal_to("key").window(three)
    out(joined.apply(pair, output=Pair, uid="window-join"), "window-join")
    twice = of("left").join(of("left")).where("key").equal_to("key").window(three)
    out(twice.apply(pair, output=Pair, uid="self-join"), "self-join")
    grouped = of("first").co_group(of("second")).where("key").equal_to("key").window(three)
    out(grouped.apply(group, output=Group, uid="co-group"), "co-group")
    four = of("four").key_by("key")
    out(four.interval_join(four).between(ms(-1), ms(1)).process(EmitPair(), output=Pair, uid="interval"), "interval")
    exclusive = four.interval_join(four).between(ms(1), ms(3)).lower_bound_exclusive().upper_bound_exclusive()
    out(exclusive.process(EmitPair(), output=Pair, uid="interval-exclusive"), "interval-exclusive")
