"""Calls of windows by columns have limited sizes: of overlapping windows, of late rows, of texts, and of due timers."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

import msgspec
import pytest

from stateflow import RocksDBStateBackend, SlidingEventTimeWindows, TumblingEventTimeWindows
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.column_time_windows import TimeWindowAggregates
from stateflow.runtime.task.vector_operator import WindowVectorOperator
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.testing import KeyedHarness, KeyedInput
from tests.windows.timed_rows import Timed, ms


class Summed(msgspec.Struct, frozen=True):
    key: str
    start: int
    total: int
    first: int
    last: int


COLUMNS = {
    "start": ("window_start",),
    "total": ("sum", "value"),
    "first": ("first", "value"),
    "last": ("last", "value"),
}


def test_a_key_with_thousands_of_overlapping_windows_is_processed_in_calls_of_limited_size() -> None:
    size, slide, limit = 2000, 1, 1 << 14

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(size), ms(slide)))
        return windows.aggregate_columns(COLUMNS, output=Summed, uid="w")

    rows = [Timed("a", number, number * 2 + number % 2) for number in range(1, 1500)] + [Timed("b", 1, 3)]
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
        for start in range(row.at - size + 1, row.at + 1):
            wanted[row.key, start].append(row.value)
    parts: list[int] = []
    assigned = TimeWindowAggregates._assigned_by_tree

    def counted(*given: object) -> object:
        made = assigned(*given)  # type: ignore[arg-type]
        parts.append(len(made.of))
        return made

    with (
        patch.object(WindowVectorOperator, "additions_at_once", limit),
        patch.object(TimeWindowAggregates, "_assigned_by_tree", counted),
        KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at", out_of_orderness=ms(5))) as h,
    ):
        h.push(*rows)
        h.drain()
        found = {(row.key, row.start): (row.total, row.first, row.last) for row in h.output}
        assert len(h.output) == len(found) and h.state_entries() == [] and h.timers() == []
    assert found == {window: (sum(values), values[0], values[-1]) for window, values in wanted.items()}
    # Each slice in each of its windows are three million.
    assert len(parts) >= 4 and max(parts) < 2 * limit


@pytest.mark.parametrize("windows_of_row", [16, 200])
def test_late_rows_are_processed_in_calls_of_limited_size(windows_of_row: int) -> None:
    size, limit, count = 10 * windows_of_row, 1 << 12, 600

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(size), ms(10))).allowed_lateness(ms(size))
        return windows.aggregate_columns(COLUMNS, output=Summed, uid="w")

    assignments: list[int] = []
    assigned = TimeWindowAggregates._assigned

    def counted(*given: object) -> object:
        made = assigned(*given)  # type: ignore[arg-type]
        assignments.append(len(made.of))
        return made

    with KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at")) as h:
        h.push(Timed("a", 1, 5))
        h.advance_watermark(size - 1)
        first = len(h.output)
        with (
            patch.object(WindowVectorOperator, "additions_at_once", limit),
            patch.object(TimeWindowAggregates, "_assigned", counted),
        ):
            h.push(*(Timed("a", 1, 3 if number % 2 else 7) for number in range(count)))
        assert len(h.output) - first == count * windows_of_row
        fired = [row for row in h.output[first:] if row.start == 0]
    assert [row.total for row in fired] == list(range(2, count + 2))
    assert sum(assignments) == count * windows_of_row
    assert len(assignments) >= count * windows_of_row // limit and max(assignments) <= limit


class Note(msgspec.Struct, frozen=True):
    key: str
    text: str
    at: int


class Noted(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    last: str


class Counted(msgspec.Struct, frozen=True):
    key: str
    start: int
    last: int


NOTES = {"start": ("window_start",), "last": ("last", "text")}
MIB = 1 << 20


def test_texts_of_many_windows_are_processed_in_calls_of_limited_size() -> None:
    """Each key has a short text and a long one in a slice: its windows have 1 MiB, those of all keys 100 MiB."""
    windows_of_row, text = 16, "x" * (64 << 10)

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(windows_of_row), ms(1)))
        return windows.aggregate_columns(NOTES, output=Noted, uid="w")

    bytes_of_calls: list[int] = []
    assigned = TimeWindowAggregates._assigned

    def counted(*given: object) -> object:
        made = assigned(*given)  # type: ignore[arg-type]
        bytes_of_calls.append(len(made.of) * len(text))
        return made

    notes = [Note(str(number), each, 0) for number in range(100) for each in ("", text)]
    with (
        patch.object(WindowVectorOperator, "additions_at_once", 20 * MIB // 128),
        patch.object(TimeWindowAggregates, "_assigned", counted),
        KeyedHarness(declare, KeyedInput(Note, "key", event_time="at"), backend=RocksDBStateBackend()) as h,
    ):
        h.push(*notes)
        h.drain()
        wanted = [Noted(str(number), -at, text) for number in range(100) for at in range(windows_of_row)]
        assert sorted(h.output) == sorted(wanted)
    assert sum(bytes_of_calls) == 100 * MIB
    assert 10 * MIB < max(bytes_of_calls) <= 20 * MIB


@pytest.mark.parametrize(("aggregate", "copies"), [("last", 2), ("count_distinct", 1)])
def test_due_windows_are_read_in_calls_of_limited_size(aggregate: str, copies: int) -> None:
    """The state of windows may be large although the rows of a batch are small: it follows from all earlier ones.

    A text is in what is read, and that of `last` also in what is emitted.
    """
    text, keys = "x" * (8 << 10), 9_000
    output = Noted if aggregate == "last" else Counted

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(TumblingEventTimeWindows.of(ms(10)))
        return windows.aggregate_columns({**NOTES, "last": (aggregate, "text")}, output=output, uid="w")

    due_of_calls: list[int] = []
    on_timers = TimeWindowAggregates.on_timers

    def counted(self: TimeWindowAggregates, domain: object, due: DueTimers, state: object) -> object:
        due_of_calls.append(len(due.of))
        return on_timers(self, domain, due, state)  # type: ignore[arg-type]

    with (
        patch.object(TimeWindowAggregates, "on_timers", counted),
        KeyedHarness(declare, KeyedInput(Note, "key", event_time="at"), backend=RocksDBStateBackend()) as h,
    ):
        for first in range(0, keys, 1500):
            h.push(*(Note(str(key), text, 0) for key in range(first, first + 1500)))
        h.drain()
        assert {row.key for row in h.output} == {str(key) for key in range(keys)} and len(h.output) == keys
    assert sum(due_of_calls) == keys
    # The first call does not know the size yet.
    assert max(due_of_calls[1:]) * copies * len(text) <= 16 * MIB
    assert min(due_of_calls[1:-1]) * copies * len(text) > 15 * MIB
