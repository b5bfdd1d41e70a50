"""Cases of Flink's tests of window joins and co-groups, with the same rows and results; and rules of windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from stateflow import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    TimeEvictor,
    TimeWindow,
    TumblingEventTimeWindows,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.joins.joined_streams import WindowedCoGroup, WindowedJoin
from stateflow.api.windows.assigners import WindowAssigner
from stateflow.errors import JobDefinitionError, UserCodeError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.joined_rows import Keyed, Left, Pair, Right, harness, ms, pair_of, unkeyed


class Group(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    left: list[int]
    right: list[int]


THREE = TumblingEventTimeWindows.of(ms(3))
FIRST = [Left(key, at) for key, at in zip("aaabbbaaa", range(9), strict=True)]
SECOND = [Right(key, at) for key, at in [("a", 0), ("a", 1), ("b", 3), ("c", 6), ("c", 7), ("c", 8)]]


def _group(key: str, window: TimeWindow, left: list[Left], right: list[Right]) -> Iterator[Group]:
    yield Group(key, max(window.start, -1), sorted(row.at or 0 for row in left), sorted(row.at or 0 for row in right))


def _joined(
    assigner: WindowAssigner[Any],
    change: Callable[[WindowedJoin[DataStream]], WindowedJoin[DataStream]] = lambda windows: windows,
) -> Callable[[Keyed, Keyed], DataStream]:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        windows = unkeyed(left).join(unkeyed(right)).where("key").equal_to("id").window(assigner)
        return change(windows).apply(pair_of, output=Pair, uid="join")

    return declare


def _grouped(
    assigner: WindowAssigner[Any],
    change: Callable[[WindowedCoGroup[DataStream]], WindowedCoGroup[DataStream]] = lambda windows: windows,
) -> Callable[[Keyed, Keyed], DataStream]:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        windows = unkeyed(left).co_group(unkeyed(right)).where("key").equal_to("id").window(assigner)
        return change(windows).apply(_group, output=Group, uid="group")

    return declare


GROUPS = [Group("a", 0, [0, 1, 2], [0, 1]), Group("a", 6, [6, 7, 8], []), Group("b", 3, [3, 4, 5], [3])]
GROUPS += [Group("c", 6, [], [6, 7, 8])]


@pytest.mark.parametrize(("bound", "size"), [(None, 100), (0, 1), (100, 4)])
def test_co_group_has_windows_with_rows_of_one_side(bound: int | None, size: int) -> None:
    with harness(_grouped(THREE), bound) as h:
        for at in range(0, 9, size):
            h.push_both(FIRST[at : at + size], [row for row in SECOND if at <= (row.at or 0) < at + size])
        h.drain()
        assert sorted(h.output) == GROUPS
        assert h.state_entries() == [] and h.timers() == []


def test_join_has_the_pairs_of_each_window() -> None:
    left = [Left(key, at) for key, at in zip("aaabbaaa", [0, 1, 2, 3, 5, 6, 7, 8], strict=True)]
    right = [Right(key, at) for key, at in zip("aabbaa", [0, 1, 3, 5, 6, 8], strict=True)]
    wanted = [(x, y) for x in (0, 1, 2) for y in (0, 1)] + [(x, y) for x in (3, 5) for y in (3, 5)]
    wanted += [(x, y) for x in (6, 7, 8) for y in (6, 8)]
    with harness(_joined(THREE)) as h:
        h.push_both(left[:4], right[:3])
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            restored.push_both(left[4:], right[3:])
            restored.drain()
            assert sorted((pair.left, pair.right) for pair in restored.output) == wanted


def test_a_stream_joined_with_itself() -> None:
    rows = [Left(key, at) for key, at in zip("aaabbaaa", [0, 1, 2, 3, 5, 6, 7, 8], strict=True)]

    def declare(keyed: Keyed) -> DataStream:
        stream = unkeyed(keyed)
        windows = stream.join(stream).where("key").equal_to("key").window(THREE)
        return windows.apply(lambda x, y: Pair(x.key, x.at, y.at), output=Pair, uid="join")

    with KeyedHarness(declare, KeyedInput(Left, "key", event_time="at", out_of_orderness=ms(0))) as h:
        h.push(*rows)
        h.drain()
        wanted = [(x, y) for times in ([0, 1, 2], [3, 5], [6, 7, 8]) for x in times for y in times]
        assert sorted((pair.left, pair.right) for pair in h.output) == wanted


def test_sessions_of_both_streams_merge() -> None:
    with harness(_grouped(EventTimeSessionWindows.with_gap(ms(3)))) as h:
        h.push_both([Left("a", 0), Left("a", 4)], [])
        h.push_both([Left("a", 20)], [Right("a", 2), Right("a", 40)])
        h.drain()
        assert sorted(h.output) == [Group("a", 0, [0, 4], [2]), Group("a", 20, [20], []), Group("a", 40, [], [40])]
        assert h.state_entries() == []


def test_triggers_and_evictors_count_the_rows_of_both_streams() -> None:
    purging = PurgingTrigger.of(CountTrigger.of(3))
    with harness(_grouped(GlobalWindows.create(), lambda windows: windows.trigger(purging))) as h:
        h.push_both([Left("a", 1), Left("a", 2)], [Right("a", 3), Right("a", 4)])
        assert h.output == [Group("a", -1, [1, 2], [3])]
    with harness(_grouped(THREE, lambda windows: windows.evictor(CountEvictor.of(2)))) as h:
        h.push_both([Left("a", 0), Left("a", 1)], [Right("a", 2)])
        assert h.drain() == [Group("a", 0, [1], [2])]
    with harness(_grouped(THREE, lambda windows: windows.evictor(TimeEvictor.of(ms(1))))) as h:
        h.push_both([Left("a", 0), Left("a", 1)], [Right("a", 2)])
        assert h.drain() == [Group("a", 0, [], [2])]


def test_allowed_lateness_joins_late_rows_again() -> None:
    with harness(_joined(THREE, lambda windows: windows.allowed_lateness(ms(5)))) as h:
        h.push_both([Left("a", 0)], [Right("a", 1)])
        assert [(pair.left, pair.right) for pair in h.advance_watermark(2)] == [(0, 1)]
        assert sorted((pair.left, pair.right) for pair in h.push_both([], [Right("a", 2)])) == [(0, 1), (0, 2)]
        h.advance_watermark(7)
        assert h.push_both([Left("a", 0)], []) == [] and h.state_entries() == []


def test_an_error_of_the_function_names_the_operator() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        windows = unkeyed(left).co_group(unkeyed(right)).where("key").equal_to("id").window(THREE)
        return windows.apply(lambda key, window, x, y: 5, output=Group, uid="group")  # type: ignore[arg-type, return-value]

    with harness(declare) as h, pytest.raises(UserCodeError) as caught:
        h.push_both([Left("a", 0)], [])
        h.drain()
    assert caught.value.facts["operator"] == "group"


def test_wrong_declarations_are_refused() -> None:
    def refused(declare: Callable[[DataStream, DataStream], object]) -> None:
        with pytest.raises(JobDefinitionError):
            harness(lambda left, right: declare(unkeyed(left), unkeyed(right)))  # type: ignore[arg-type, return-value]

    refused(lambda left, right: left.join("right"))  # type: ignore[arg-type]
    refused(lambda left, right: left.join(right).where())
    refused(lambda left, right: left.join(right).where("key").equal_to("text2"))
    refused(lambda left, right: left.join(right).where("key").equal_to("at").window(THREE))
    refused(lambda left, right: left.join(right).where("key").equal_to("id").window("hour"))  # type: ignore[arg-type]
    windows = _joined(THREE, lambda windows: windows.trigger(3))  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError):
        harness(windows)
    with pytest.raises(JobDefinitionError):
        KeyedHarness(_joined(THREE), KeyedInput(Left, "key"), KeyedInput(Right, "id", event_time="at"))
