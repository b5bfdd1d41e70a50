"""Joins and co-groups of `flink_cases`: rows, declarations, and the rows that Flink's tests expect."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Literal

from stateflow import (
    EventTimeSessionWindows,
    JoinContext,
    OutputTag,
    ProcessJoinFunction,
    RowKind,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.windows.assigners import WindowAssigner
from tests.spark.jobs.flink_rows import WATERMARK, Change, Group, Out, Pair, Timed, ms, on_side

LATE_LEFT, LATE_RIGHT = OutputTag("late-left", Timed), OutputTag("late-right", Timed)


class EmitPair(ProcessJoinFunction[Timed, Timed, Pair]):
    """Emits the pair."""

    def process_element(self, left: Timed, right: Timed, ctx: JoinContext) -> Iterator[Pair]:
        yield Pair(left.key, left.at, right.at)


def pair(left: Timed, right: Timed) -> Pair:
    """A function of a window join."""
    return Pair(left.key, left.at, right.at)


def group(key: str, window: TimeWindow, left: list[Timed], right: list[Timed]) -> Iterator[Group]:
    """A function of a co-group."""
    yield Group(key, window.start, len(left), len(right))


def change(left: Timed | None, right: Timed | None) -> Change:
    """A function of an outer join."""
    row = left or right
    assert row is not None
    return Change(row.key, RowKind.INSERT, left.value if left else None, right.value if right else None)


def _rows(keys: str, *times: int) -> list[Timed]:
    return [Timed(key, 0, at) for key, at in zip(keys, times, strict=True)]


INPUTS = {
    "pairs": (_rows("aaabbaaa", 0, 1, 2, 3, 5, 6, 7, 8), _rows("aabbaa", 0, 1, 3, 5, 6, 8)),
    "groups": (_rows("aaabbbaaa", *range(9)), _rows("aabccc", 0, 1, 3, 6, 7, 8)),
    "joined-sessions": (_rows("aaa", 0, 4, 20), _rows("aa", 2, 40)),
    "interval": (_rows("aaaa", 1, 2, 3, 4), []),
    # A row of each side is without a partner before one arrives.
    "outer": (
        [Timed("x", 1), Timed("v", 4), Timed("y", 2), Timed("z", 3)],
        [Timed("y", 10), Timed("w", 30), Timed("y", 20), Timed("v", 40)],
    ),
}
"""The rows of both sides by case, which arrive in turn."""
LATE_INPUT = [
    *on_side("left", [*_rows("aa", 1, 2), Timed(WATERMARK, 0, 4)]),
    *on_side("right", _rows("a", 1)),
    *on_side("left", _rows("aaa", 1, 2, 3)),
    *on_side("right", _rows("aaa", 1, 2, 3)),
]
"""An input of its own, in batches of four rows: the watermark is 3 after the first one."""

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
    "session-join": [("a", 0, 2), ("a", 4, 2)],
    # Late rows are dropped.
    "late-join": [("a", 1, 1), ("a", 2, 1), ("a", 3, 3)],
    "co-group": [("a", 0, 3, 2), ("a", 6, 3, 0), ("b", 3, 3, 1), ("c", 6, 0, 3)],
    "session-group": [("a", 0, 2, 1), ("a", 20, 1, 0), ("a", 40, 0, 1)],
    # Of each window the rows of its last millisecond that has one.
    "evicted-group": [("a", 0, 1, 0), ("a", 6, 1, 0), ("b", 3, 1, 0), ("c", 6, 0, 1)],
    "interval": [("a", x, y) for x in (1, 2, 3, 4) for y in (1, 2, 3, 4) if abs(x - y) <= 1],
    "interval-exclusive": [("a", 1, 3), ("a", 2, 4)],
    "late-interval": [("a", 1, 1), ("a", 2, 1), ("a", 3, 3)],
    "late-left": [("a", 0, at, "left") for at in (1, 2)],
    "late-right": [("a", 0, at, "right") for at in (1, 2)],
}
_MATCHED = [(2, 10), (2, 20), (4, 40)]
OUTER: dict[Literal["left", "right", "full"], list[tuple[int | None, int | None]]] = {
    "left": [*_MATCHED, (1, None), (3, None)],
    "right": [*_MATCHED, (None, 30)],
    "full": [*_MATCHED, (1, None), (3, None), (None, 30)],
}
"""What the changes of outer joins add up to, by the kind of the join."""


def inputs() -> dict[str, list[Timed]]:
    """The rows by case, but `LATE_INPUT`."""
    found = {}
    for name, (left, right) in INPUTS.items():
        in_turn = zip_longest(on_side("left", left), on_side("right", right))
        found[name] = [row for rows in in_turn for row in rows if row is not None]
    return found


def declare_joins(rows: DataStream, late: DataStream, out: Out) -> None:
    """Declares a table for each of `JOINS`, and ``outer-…`` for each of `OUTER`.

    Args:
        late: the rows of `LATE_INPUT`, as those of the case ``late``.
    """
    _declare_window_joins(_sides(rows), _sides(late), out)
    left, right = (side.key_by("key") for side in _sides(rows))
    of_bounds = left.interval_join(left).between(ms(-1), ms(1))
    out(of_bounds.process(EmitPair(), output=Pair, uid="interval"), "interval", "interval")
    exclusive = left.interval_join(left).between(ms(1), ms(3)).lower_bound_exclusive().upper_bound_exclusive()
    out(exclusive.process(EmitPair(), output=Pair, uid="interval-exclusive"), "interval-exclusive", "interval")
    for how in OUTER:
        changes = left.regular_join(right, how=how).apply(change, output=Change, uid=f"outer-{how}")
        out(changes.as_append_only(), f"outer-{how}", "outer")
    left, right = (side.key_by("key") for side in _sides(late))
    bounded = left.interval_join(right).between(ms(-1), ms(1))
    with_late = bounded.side_output_left_late_data(LATE_LEFT).side_output_right_late_data(LATE_RIGHT)
    joined = with_late.process(EmitPair(), output=Pair, uid="late-interval")
    out(joined, "late-interval", "late")
    out(joined.get_side_output(LATE_LEFT), "late-left", "late")
    out(joined.get_side_output(LATE_RIGHT), "late-right", "late")


_Sides = tuple[DataStream, DataStream]


def _sides(rows: DataStream) -> _Sides:
    return rows.filter(lambda row: row.side == "left"), rows.filter(lambda row: row.side == "right")


def _declare_window_joins(of_all: _Sides, of_late: _Sides, out: Out) -> None:
    three: WindowAssigner[Any] = TumblingEventTimeWindows.of(ms(3))
    sessions: WindowAssigner[Any] = EventTimeSessionWindows.with_gap(ms(3))
    (left, right), (late_left, late_right) = of_all, of_late
    joined = left.join(right).where("key").equal_to("key")
    out(joined.window(three).apply(pair, output=Pair, uid="window-join"), "window-join", "pairs")
    out(joined.window(sessions).apply(pair, output=Pair, uid="session-join"), "session-join", "joined-sessions")
    twice = left.join(left).where("key").equal_to("key").window(three)
    out(twice.apply(pair, output=Pair, uid="self-join"), "self-join", "pairs")
    with_late = late_left.join(late_right).where("key").equal_to("key").window(three)
    out(with_late.apply(pair, output=Pair, uid="late-join"), "late-join", "late")
    grouped = left.co_group(right).where("key").equal_to("key")
    out(grouped.window(three).apply(group, output=Group, uid="co-group"), "co-group", "groups")
    evicted = grouped.window(three).evictor(TimeEvictor.of(ms(1)))
    out(evicted.apply(group, output=Group, uid="evicted-group"), "evicted-group", "groups")
    out(grouped.window(sessions).apply(group, output=Group, uid="session-group"), "session-group", "joined-sessions")
