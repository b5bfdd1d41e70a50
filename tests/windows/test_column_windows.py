"""Windows that a job may not declare, and windows by columns: aggregates, bounds, filters, shared slices, sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Annotated, Any
from unittest.mock import patch

import msgspec
import numpy as np
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
    RocksDBStateBackend,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    precision,
)
from stateflow.api.graph import ProcessNode, ReducedNode
from stateflow.api.schema import RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.streams.windowed_stream import WindowedStream
from stateflow.api.windows.column_time_windows import TimeWindowAggregates
from stateflow.api.windows.column_windows import BoundColumns
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.runtime.task.vector_operator import WindowVectorOperator
from stateflow.state.kinds.window_timers import DueTimers
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises
from tests.windows.timed_rows import LATE, Assigner, Sum, Timed, Total, by_columns, ms

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


class Counted(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    end: int
    total: int


COUNTED: dict[str, Sequence[str]] = {"start": ("window_start",), "end": ("window_end",), "total": ("sum", "value")}


def test_a_session_stores_its_content_in_the_namespace_of_its_first_window() -> None:
    with by_columns(SESSIONS) as h:
        h.push(Timed("a", 1, 3), Timed("a", 8, 30))
        h.push(Timed("a", 2, 8))
        session = {"start": 3, "end": 18, "state_start": 3, "state_end": 13}
        other = {"start": 30, "end": 40, "state_start": 30, "state_end": 40}
        assert [msgspec.to_builtins(each) for each in h.state("merging-window-set", "a")] == [session, other]
        assert h.state("window-contents", "a", namespace=TimeWindow(3, 13)).total__sum == 3
        assert [(each.time, each.namespace) for each in h.timers()] == [
            (17, TimeWindow(3, 18)),
            (39, TimeWindow(30, 40)),
        ]
        h.push(Timed("a", 4, 20), Timed("a", 16, 11))
        h.drain()
        assert h.output == [Total("a", 31, 3, 40)]


@pytest.mark.parametrize("at", [None, 1 << 62])
def test_a_row_without_a_usable_event_time_is_an_error(at: int | None) -> None:
    with by_columns(TENS) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, 1), Timed("a", 1, at))
    assert e.value.facts["operator"] == "w" and e.value.hint


class Tens(TumblingEventTimeWindows):
    def assign_windows(self, row: object, timestamp: int) -> list[TimeWindow]:
        return []


@pytest.mark.parametrize(
    ("declare", "columns"),
    [
        (lambda rows: rows.window(TENS).trigger(CountTrigger.of(3)), COUNTED),
        (lambda rows: rows.window(TENS).evictor(CountEvictor.of(3)), COUNTED),
        (lambda rows: rows.window(GlobalWindows.create()), COUNTED),
        (lambda rows: rows.window(Tens.of(ms(10))), COUNTED),
        (lambda rows: rows.window(EventTimeSessionWindows.with_dynamic_gap(lambda row: ms(1))), COUNTED),
        (lambda rows: rows.window(TENS), COUNTED | {"start": ("start",)}),
        (lambda rows: rows.window(TENS), COUNTED | {"start": ("window_start", "value")}),
        (lambda rows: rows.window(TENS), COUNTED | {"more": ("window_end",)}),
        (lambda rows: rows.window(TENS), COUNTED | {"key": ("window_end",)}),
        (lambda rows: rows.window(TENS), {"start": ("window_start",), "end": ("window_end",)}),
        (lambda rows: rows.window(TENS), COUNTED | {"total": ("mean", "value")}),
    ],
)
def test_what_cannot_be_aggregated_by_columns_is_refused_with_a_hint(
    declare: Callable[[Any], Any], columns: Mapping[str, Sequence[str]]
) -> None:
    with pytest.raises(JobDefinitionError) as e:
        declare(_keyed()).aggregate_columns(columns, output=Counted, uid="w")
    assert e.value.facts["operator"] == "w" and e.value.hint


class Ended(msgspec.Struct):
    end: datetime
    number: int


def test_a_window_that_ends_after_the_year_9999_is_an_error_that_is_not_retried() -> None:
    last = 253_402_300_800_000
    columns = BoundColumns.of({"end": ("window_end",), "number": ("window_end",)}, RowSchema.of(Ended))
    found = columns.columns(np.array([last - 10]), np.array([last - 1]))
    assert found["end"].to_pylist() == [datetime(9999, 12, 31, 23, 59, 59, 999000)]  # noqa: DTZ001 - no zone
    with raises(SchemaMismatch, column="end", epoch_ms=last) as refused:
        columns.columns(np.array([0, last - 10]), np.array([1, last]))
    assert not refused.value.retryable
    only = BoundColumns.of({"number": ("window_end",)}, RowSchema.of(Ended))
    assert only.columns(np.array([last - 10]), np.array([last]))["number"].to_pylist() == [last]


Windowed = WindowedStream[DataStream]


@pytest.mark.parametrize(
    ("assigner", "declare", "columns", "is_divided"),
    [
        (TENS, lambda windows: windows, COUNTED, True),
        (SlidingEventTimeWindows.of(ms(9), ms(6), ms(2)), lambda windows: windows, COUNTED, True),
        (SlidingEventTimeWindows.of(ms(5), ms(6)), lambda windows: windows, COUNTED, False),
        (TENS, lambda windows: windows.allowed_lateness(ms(1)), COUNTED, False),
        (TENS, lambda windows: windows.side_output_late_data(OutputTag("late", Timed)), COUNTED, False),
        (TENS, lambda windows: windows, COUNTED | {"total": ("last", "value")}, False),
        (TENS, lambda windows: windows, COUNTED | {"total": ("approx_distinct", "value")}, False),
        (EventTimeSessionWindows.with_gap(ms(5)), lambda windows: windows, COUNTED, False),
        (TumblingProcessingTimeWindows.of(ms(5)), lambda windows: windows, COUNTED, False),
    ],
)
def test_rows_are_aggregated_before_the_shuffle_where_that_changes_no_result(
    assigner: Any, declare: Callable[[Windowed], Windowed], columns: Mapping[str, Sequence[str]], is_divided: bool
) -> None:
    made = declare(_keyed().window(assigner)).aggregate_columns(columns, output=Counted, uid="w")
    assert isinstance(made._node, ProcessNode)
    (edge,) = made._node.inputs
    assert isinstance(edge.node, ReducedNode) == is_divided


@pytest.mark.parametrize(
    "assigner", [SlidingEventTimeWindows.of(ms(20), ms(10)), EventTimeSessionWindows.with_gap(ms(9))]
)
@pytest.mark.parametrize("aggregate", ["first", "last"])
def test_first_and_last_by_another_order_than_that_of_the_windows_are_refused(assigner: Any, aggregate: str) -> None:
    columns = COUNTED | {"total": (aggregate, "value")}
    for order in ((), ("at", "value")):
        _stream().key_by("key", order_by=order).window(assigner).aggregate_columns(columns, output=Counted, uid="w")
    _stream().key_by("key", order_by=("value",)).window(assigner).aggregate_columns(COUNTED, output=Counted, uid="w")
    with pytest.raises(JobDefinitionError) as e:
        _stream().key_by("key", order_by=("value",)).window(assigner).aggregate_columns(
            columns, output=Counted, uid="w"
        )
    assert e.value.facts["aggregates"] == ["total"] and e.value.hint


def test_first_and_last_of_tumbling_windows_are_in_the_declared_order() -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(TENS).aggregate_columns(COUNTED | {"total": ("first", "value")}, output=Counted, uid="w")

    with KeyedHarness(stream, KeyedInput(Timed, "key", order_by=("value",), event_time="at")) as h:
        h.push(Timed("a", 2, 1), Timed("a", 4, 11), Timed("a", 1, 5), Timed("a", 3, 12))
        h.drain()
        assert h.output == [Counted("a", 0, 10, 1), Counted("a", 10, 20, 3)]


class Row(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int
    is_high: bool | None


class Filtered(msgspec.Struct, frozen=True):
    key: str
    start: int
    rows: int
    high: int
    total: int | None


FILTERED = {
    "start": ("window_start",),
    "rows": ("count", "value"),
    "high": ("count", "value", "is_high"),
    "total": ("sum", "value", "is_high"),
}
FILTERED_INPUT = KeyedInput(Row, "key", event_time="at", out_of_orderness=timedelta(0))


@pytest.mark.parametrize(("kind", "rows", "high"), [("count", 5, 3), ("count_distinct", 3, 2)])
def test_rows_in_which_the_filter_is_false_or_null_are_ignored(kind: str, rows: int, high: int) -> None:
    figures = FILTERED | {"rows": (kind, "value"), "high": (kind, "value", "is_high")}

    def declare(given_rows: Any) -> Any:
        return given_rows.window(TENS).aggregate_columns(figures, output=Filtered, uid="w")

    with KeyedHarness(declare, FILTERED_INPUT) as h:
        h.push(Row("a", 1, 5, is_high=True), Row("a", 2, 5, is_high=True), Row("a", 3, 7, is_high=None))
        h.push(Row("a", 4, 7, is_high=True), Row("a", 5, 8, is_high=False), Row("a", 11, 5, is_high=False))
        h.drain()
        assert h.output == [Filtered("a", 0, rows, high, 17), Filtered("a", 10, 1, 0, None)]


class Amount(msgspec.Struct, frozen=True):
    key: str
    at: int
    value: int
    price: Annotated[Decimal, precision(38, 0)]


class Amounts(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    total: int | None
    price: Annotated[Decimal, precision(38, 0)] | None


LARGE = 5 * 10**18


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 0, LARGE), ("a", 1_000_000, LARGE), ("a", 1_001_000, 1)],
        [("a", 0, 1), ("a", 1_000, 1), ("b", 0, LARGE), ("c", 0, LARGE)],
    ],
    ids=["of distant times", "of other keys"],
)
def test_sums_of_slices_that_no_window_contains_are_not_limited(rows: list[tuple[str, int, int]]) -> None:
    columns = {"start": ("window_start",), "total": ("sum", "value"), "price": ("sum", "price")}

    def declare(given_rows: KeyedStream[DataStream]) -> DataStream:
        windows = given_rows.window(SlidingEventTimeWindows.of(ms(20_000), ms(1_000)))
        return windows.aggregate_columns(columns, output=Amounts, uid="w")

    wanted: dict[tuple[str, int], int] = defaultdict(int)
    for key, at, value in rows:
        for start in range(at - 19_000, at + 1_000, 1_000):
            wanted[key, start] += value
    with KeyedHarness(declare, KeyedInput(Amount, "key", event_time="at")) as h:
        h.push(*(Amount(key, at, value, Decimal(value * 10**19)) for key, at, value in rows))
        h.drain()
        assert sorted(h.output) == [
            Amounts(*window, value, Decimal(value * 10**19)) for window, value in sorted(wanted.items())
        ]


def _late_sums(assigner: Assigner, lateness: int) -> KeyedHarness:
    return by_columns(assigner, lambda windows: windows.allowed_lateness(ms(lateness)).side_output_late_data(LATE))


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(ms(20)), EventTimeSessionWindows.with_gap(ms(20))])
def test_only_the_sums_that_late_rows_fire_are_limited(assigner: Assigner) -> None:
    changes = [-1, 0, 1, 1, -1, -1, -1, 1, 1, 1, -1]
    values = [change << 62 for change in changes]
    with _late_sums(assigner, 1000) as h:
        h.push(Timed("a", values[0], 0))
        h.advance_watermark(60)
        h.push(*(Timed("a", value, 0) for value in values[1:]), Timed("b", 1 << 62, 0), Timed("b", -1 << 62, 0))
        fired = {key: [row.total for row in h.output if row.key == key] for key in "ab"}
        assert fired == {"a": list(accumulate(values)), "b": [1 << 62, 0]}
        with pytest.raises(StateError, match="exceeds 64 bits") as raised:
            h.push(*(Timed("a", value << 62, 0) for value in (1, 1, -1)))
        assert raised.value.facts["sum"] == str(1 << 63)


@pytest.mark.parametrize("lateness", [0, 1])
def test_sums_of_rows_that_are_too_late_are_not_limited(lateness: int) -> None:
    with _late_sums(TumblingEventTimeWindows.of(ms(10)), lateness) as h:
        h.advance_watermark(50)
        late = [Timed("a", 1 << 62, at) for at in (3, 3, 4)]
        h.push(*late, Timed("a", 7, 52))
        h.drain()
        assert h.output == [Total("a", 7, 50, 60)] and h.side_output(LATE) == late


class Summed(msgspec.Struct, frozen=True):
    key: str
    start: int
    total: int
    first: int
    last: int


SUMMED = {"start": ("window_start",), "total": ("sum", "value"), "first": ("first", "value"), "last": ("last", "value")}


@contextmanager
def _additions_of_calls(method: str) -> Iterator[list[int]]:
    """The accumulators of the windows of each call."""
    found: list[int] = []
    assigned = getattr(TimeWindowAggregates, method)

    def counted(*given: object) -> object:
        made = assigned(*given)
        found.append(len(made.of))
        return made

    with patch.object(TimeWindowAggregates, method, counted):
        yield found


def test_a_key_with_hundreds_of_overlapping_windows_is_processed_in_calls_of_limited_size() -> None:
    size, limit = 400, 1 << 12

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(size), ms(1)))
        return windows.aggregate_columns(SUMMED, output=Summed, uid="w")

    rows = [Timed("a", number, number * 2 + number % 2) for number in range(1, 400)] + [Timed("b", 1, 3)]
    wanted: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
        for start in range(row.at - size + 1, row.at + 1):
            wanted[row.key, start].append(row.value)
    with (
        patch.object(WindowVectorOperator, "additions_at_once", limit),
        _additions_of_calls("_assigned_by_tree") as additions,
        KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at", out_of_orderness=ms(5))) as h,
    ):
        h.push(*rows)
        h.drain()
        found = {(row.key, row.start): (row.total, row.first, row.last) for row in h.output}
        assert len(h.output) == len(found) and h.state_entries() == [] and h.timers() == []
    assert found == {window: (sum(values), values[0], values[-1]) for window, values in wanted.items()}
    assert len(additions) >= 4 and max(additions) < 2 * limit


def test_late_rows_are_processed_in_calls_of_limited_size() -> None:
    windows_of_row, limit, count = 16, 1 << 12, 600

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(10 * windows_of_row), ms(10))).allowed_lateness(ms(200))
        return windows.aggregate_columns(SUMMED, output=Summed, uid="w")

    with KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at")) as h:
        h.push(Timed("a", 1, 5))
        h.advance_watermark(10 * windows_of_row - 1)
        first = len(h.output)
        with (
            patch.object(WindowVectorOperator, "additions_at_once", limit),
            _additions_of_calls("_assigned") as additions,
        ):
            h.push(*(Timed("a", 1, 3 if number % 2 else 7) for number in range(count)))
        fired = [row.total for row in h.output[first:] if row.start == 0]
        assert fired == list(range(2, count + 2)) and len(h.output) - first == count * windows_of_row
    assert sum(additions) == count * windows_of_row and max(additions) <= limit


class Note(msgspec.Struct, frozen=True):
    key: str
    text: str
    at: int


class Noted(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    last: str


NOTES = {"start": ("window_start",), "last": ("last", "text")}
MIB = 1 << 20


def test_due_windows_are_read_in_calls_of_limited_size() -> None:
    """The state of windows may be large although the rows of a batch are small: it follows from all earlier ones."""
    text, keys = "x" * (8 << 10), 6_000

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(TumblingEventTimeWindows.of(ms(10)))
        return windows.aggregate_columns(NOTES, output=Noted, uid="w")

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
    # A text is in what is read, and in what is emitted.
    assert max(due_of_calls[1:]) * 2 * len(text) <= 16 * MIB
    assert min(due_of_calls[1:-1]) * 2 * len(text) > 15 * MIB


def test_texts_of_overlapping_windows_are_processed_in_calls_of_limited_size() -> None:
    """Each key has a short text and a long one: its windows have 256 KiB, those of all keys 25 MiB."""
    windows_of_row, text, keys = 16, "x" * (16 << 10), 100

    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(windows_of_row), ms(1)))
        return windows.aggregate_columns(NOTES, output=Noted, uid="w")

    with (
        patch.object(WindowVectorOperator, "additions_at_once", 5 * MIB // 128),
        _additions_of_calls("_assigned") as additions,
        KeyedHarness(declare, KeyedInput(Note, "key", event_time="at"), backend=RocksDBStateBackend()) as h,
    ):
        h.push(*(Note(str(number), each, 0) for number in range(keys) for each in ("", text)))
        h.drain()
        wanted = [Noted(str(number), -at, text) for number in range(keys) for at in range(windows_of_row)]
        assert sorted(h.output) == sorted(wanted)
    assert sum(additions) == keys * windows_of_row
    assert 2 * MIB < max(additions) * len(text) <= 5 * MIB
