"""Windows that are aggregated by columns: every aggregate, bounds, processing time, late rows, stored content."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stateflow import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
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
from stateflow.api.windows.column_windows import BoundColumns
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow
from tests.support.errors import raises
from tests.windows.timed_rows import Timed, ms

Money = Annotated[Decimal, precision(10, 2)]
Zoned = Annotated[datetime, msgspec.Meta(tz=True)]


class Bid(msgspec.Struct, frozen=True):
    auction: int
    bidder: str
    price: int | None
    score: float
    fee: Money
    at: int | None


class Figures(msgspec.Struct, frozen=True):
    auction: int
    bidder: str
    bids: int
    total: int | None
    low: int | None
    high: str | None
    mean: float
    spread: float | None
    fees: Annotated[Decimal, precision(20, 2)] | None
    first: int | None
    last: int | None
    bidders: int
    start: datetime
    end: int
    time: Zoned


FIGURES: dict[str, Sequence[str]] = {
    "bids": ("count", "at"),
    "total": ("sum", "price"),
    "low": ("min", "price"),
    "high": ("max", "bidder"),
    "mean": ("mean", "score"),
    "spread": ("variance", "score"),
    "fees": ("sum", "fee"),
    "first": ("first", "price"),
    "last": ("last", "price"),
    "bidders": ("approx_distinct", "price"),
    "start": ("window_start",),
    "end": ("window_end",),
    "time": ("window_time",),
}


def _bids(count: int) -> list[Bid]:
    return [
        Bid(n % 3, "xy"[n % 2], None if n % 5 == 0 else n * 7 % 11, n / 3, Decimal(n * 37) / 100, n * 3)
        for n in range(count)
    ]


def _expected(bids: Sequence[Bid], size: int, slide: int) -> set[tuple[object, ...]]:
    windows: dict[tuple[int, str, int], list[Bid]] = defaultdict(list)
    for bid in bids:
        assert bid.at is not None
        for start in range(bid.at - size + 1, bid.at + 1):
            if start % slide == 0:
                windows[bid.auction, bid.bidder, start].append(bid)
    found: set[tuple[object, ...]] = set()
    for (auction, bidder, start), rows in windows.items():
        prices = [row.price for row in rows if row.price is not None]
        scores = [row.score for row in rows]
        summed = (sum(prices), min(prices), prices[0], prices[-1]) if prices else (None,) * 4
        mean, spread = statistics.mean(scores), statistics.variance(scores) if len(scores) > 1 else None
        fees = sum(row.fee for row in rows)
        of = (auction, bidder, start, start + size, len(rows))
        found.add((*of, summed, len(set(prices)), fees, _rounded(mean), _rounded(spread)))
    return found


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 9)


def _made(row: Figures) -> tuple[object, ...]:
    start = int(row.start.replace(tzinfo=UTC).timestamp() * 1000)
    assert row.high == row.bidder and row.time.timestamp() * 1000 == row.end - 1
    summed = (row.total, row.low, row.first, row.last)
    of = (row.auction, row.bidder, start, row.end, row.bids)
    return (*of, summed, row.bidders, row.fees, _rounded(row.mean), _rounded(row.spread))


@pytest.mark.parametrize("rows_of_batch", [1, 7, 100])
@pytest.mark.parametrize(("size", "slide"), [(30, 30), (40, 15), (10, 25)])
def test_every_aggregate_of_a_window_is_that_of_its_rows(size: int, slide: int, rows_of_batch: int) -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(SlidingEventTimeWindows.of(ms(size), ms(slide)))
        return windows.aggregate_columns(FIGURES, output=Figures, uid="w")

    given = KeyedInput(Bid, ("auction", "bidder"), event_time="at", out_of_orderness=ms(6))
    bids = _bids(100)
    with KeyedHarness(stream, given, parallelism=2) as h:
        for at in range(0, len(bids), rows_of_batch):
            h.push(*bids[at : at + rows_of_batch][::-1])
        h.drain()
        assert len(h.output) == len(_expected(bids, size, slide))
        assert {_made(row) for row in h.output} == _expected(bids, size, slide)
        assert h.state_entries() == [] and h.timers() == []


class Counted(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    end: int
    total: int


COUNTED: dict[str, Sequence[str]] = {"start": ("window_start",), "end": ("window_end",), "total": ("sum", "value")}
LATE = OutputTag("late", Timed)


def _harness(assigner: Any, **more: Any) -> KeyedHarness:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(assigner)
        if assigner.is_event_time:
            windows = windows.allowed_lateness(ms(more.pop("lateness", 0))).side_output_late_data(LATE)
        return windows.aggregate_columns(COUNTED, output=Counted, uid="w")

    return KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at"), side_outputs=(LATE,))


def test_windows_of_processing_time_end_by_the_time_of_the_batch() -> None:
    with _harness(TumblingProcessingTimeWindows.of(ms(10))) as h:
        h.advance_processing_time(12)
        assert h.push(Timed("a", 1), Timed("b", 2)) == []
        h.advance_processing_time(18)
        assert h.push(Timed("a", 4)) == [] and len(h.timers()) == 2
        h.advance_processing_time(19)
        assert sorted(h.output) == [Counted("a", 10, 20, 5), Counted("b", 10, 20, 2)]
        assert h.state_entries() == [] and h.timers() == []


def test_sessions_of_processing_time_merge_over_batches() -> None:
    with _harness(ProcessingTimeSessionWindows.with_gap(ms(10))) as h:
        h.advance_processing_time(12)
        assert h.push(Timed("a", 1), Timed("b", 2)) == []
        h.advance_processing_time(18)
        assert h.push(Timed("a", 4), Timed("a", 8)) == []
        h.advance_processing_time(21)
        assert h.output == [Counted("b", 12, 22, 2)]
        h.advance_processing_time(27)
        assert h.output[1:] == [Counted("a", 12, 28, 13)]
        assert h.state_entries() == [] and h.timers() == []


def test_a_session_stores_its_content_in_the_namespace_of_its_first_window() -> None:
    with _harness(EventTimeSessionWindows.with_gap(ms(10))) as h:
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
        assert h.output == [Counted("a", 3, 40, 31)]


def test_each_late_row_that_is_allowed_fires_its_window_again() -> None:
    with _harness(TumblingEventTimeWindows.of(ms(10)), lateness=5) as h:
        h.push(Timed("a", 1, 3))
        h.advance_watermark(12)
        assert h.output == [Counted("a", 0, 10, 1)]
        assert h.push(Timed("a", 2, 4), Timed("b", 8, 7), Timed("a", 4, 5)) in (
            [Counted("a", 0, 10, 3), Counted("a", 0, 10, 7), Counted("b", 0, 10, 8)],
            [Counted("b", 0, 10, 8), Counted("a", 0, 10, 3), Counted("a", 0, 10, 7)],
        )
        h.advance_watermark(14)
        assert h.state_entries() == [] and h.push(Timed("a", 16, 9)) == []
        assert h.side_output(LATE) == [Timed("a", 16, 9)]


def test_a_window_is_stored_with_its_accumulators_and_a_timer() -> None:
    with _harness(TumblingEventTimeWindows.of(ms(10))) as h:
        h.push(Timed("a", 3, 12), Timed("b", 1, 3))
        entry = next(each for each in h.state_entries() if each.key == ("a",))
        assert (entry.state, entry.namespace) == ("window-contents", TimeWindow(10, 20))
        stored = h.state("window-contents", "a", namespace=TimeWindow(10, 20))
        assert stored.total__sum == 3
        assert {(each.time, each.namespace) for each in h.timers()} == {
            (19, TimeWindow(10, 20)),
            (9, TimeWindow(0, 10)),
        }


def test_windows_after_windows_use_the_time_of_the_window() -> None:
    class PerKey(msgspec.Struct, frozen=True):
        key: str
        at: int
        total: int

    class Biggest(msgspec.Struct, frozen=True):
        at: int
        total: int
        keys: int

    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        tens = TumblingEventTimeWindows.of(ms(10))
        made = {"at": ("window_time",), "total": ("sum", "value")}
        sums = rows.window(tens).aggregate_columns(made, output=PerKey, uid="sums")
        largest = {"total": ("max", "total"), "keys": ("count", "key")}
        by_time = sums.key_by("at").window(tens)
        return by_time.aggregate_columns(largest, output=Biggest, uid="largest")

    with KeyedHarness(stream, KeyedInput(Timed, "key", event_time="at"), parallelism=2) as h:
        for at in range(0, 40, 4):
            h.push(Timed("a", at, at), Timed("b", 2, at + 1), Timed("c", 50, at))
        h.drain()
        assert sorted((row.at, row.total, row.keys) for row in h.output) == [
            (9, 150, 3),
            (19, 100, 3),
            (29, 150, 3),
            (39, 100, 3),
        ]


def test_a_sum_of_more_digits_than_its_column_names_its_key() -> None:
    """Another key has the largest sum there is, which Python's context of decimals rounds up."""
    kind = Annotated[Decimal, precision(38, scale=4)]
    row = msgspec.defstruct("Fee", [("key", str), ("fee", kind)])
    total = msgspec.defstruct("Fees", [("key", str), ("total", kind)])
    largest = Decimal(f"{10**38 - 1}E-4")
    fees = [("a", largest), ("b", largest), ("b", Decimal("0.0001"))]

    def sums(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.aggregate_columns({"total": ("sum", "fee")}, output=total, uid="sums")

    with KeyedHarness(sums, KeyedInput(row, "key"), parallelism=1) as h:
        assert [(each.key, each.total) for each in h.push(row("a", largest))] == [("a", largest)]
    with KeyedHarness(sums, KeyedInput(row, "key"), parallelism=1) as h, pytest.raises(StateError) as e:
        h.push(*(row(*fee) for fee in fees))
    assert e.value.facts["key"] == repr([{"key": "b"}]) and Decimal(str(e.value.facts["sum"])) == Decimal(10**34)


@pytest.mark.parametrize("at", [None, 1 << 62])
def test_a_row_without_a_usable_event_time_is_an_error(at: int | None) -> None:
    with _harness(TumblingEventTimeWindows.of(ms(10))) as h, pytest.raises(StateError) as e:
        h.push(Timed("a", 1, 1), Timed("a", 1, at))
    assert e.value.facts["operator"] == "w" and e.value.hint


def _keyed() -> KeyedStream[DataStream]:
    rows = StreamExecutionEnvironment().from_collection([Timed("a", 1)], row_class=Timed, uid="rows")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    return rows.assign_timestamps_and_watermarks(strategy).key_by("key")


TENS = TumblingEventTimeWindows.of(ms(10))


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
    with raises(SchemaMismatch, column="end", milliseconds=last) as refused:
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


def test_windows_of_processing_time_are_aggregated_before_the_shuffle_without_event_time() -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        made = rows.window(TumblingProcessingTimeWindows.of(ms(1000))).aggregate_columns(
            COUNTED, output=Counted, uid="w"
        )
        assert isinstance(made._node, ProcessNode) and isinstance(made._node.inputs[0].node, ReducedNode)
        return made

    with KeyedHarness(stream, KeyedInput(Timed, "key")) as h:
        h.push(Timed("a", 1), Timed("a", 2), Timed("b", 4))
        h.push(Timed("a", 8))
        h.advance_processing_time(1000)
        assert sorted((row.key, row.total) for row in h.output) == [("a", 11), ("b", 4)]


def test_partial_results_have_the_latest_event_time_and_the_number_of_their_rows() -> None:
    rows = _keyed().window(SlidingEventTimeWindows.of(ms(9), ms(6), ms(2)))
    made = rows.aggregate_columns(COUNTED, output=Counted, uid="w")
    assert isinstance(made._node, ProcessNode)
    node = made._node.inputs[0].node
    assert isinstance(node, ReducedNode)
    given = [Timed("a", 1, 2), Timed("a", 2, 4), Timed("a", 4, 5), Timed("b", 8, 4), Timed("a", 16, -1), Timed("a", 32)]
    table = pa.Table.from_batches(node.reduction.apply([to_batch(given, RowSchema.of(Timed))]))
    found = table.select(["key", "at", "_sf_rows", "total__low"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        ("a", 0, 2, 48),
        ("a", 4, 2, 3),
        ("a", 5, 1, 4),
        ("b", 4, 1, 8),
    ]


def _ordered(*order: str) -> KeyedStream[DataStream]:
    rows = StreamExecutionEnvironment().from_collection([Timed("a", 1)], row_class=Timed, uid="rows")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    return rows.assign_timestamps_and_watermarks(strategy).key_by("key", order_by=order)


@pytest.mark.parametrize(
    "assigner", [SlidingEventTimeWindows.of(ms(20), ms(10)), EventTimeSessionWindows.with_gap(ms(9))]
)
@pytest.mark.parametrize("aggregate", ["first", "last"])
def test_first_and_last_by_another_order_than_that_of_the_windows_are_refused(assigner: Any, aggregate: str) -> None:
    columns = COUNTED | {"total": (aggregate, "value")}
    for order in ((), ("at", "value")):
        _ordered(*order).window(assigner).aggregate_columns(columns, output=Counted, uid="w")
    _ordered("value").window(assigner).aggregate_columns(COUNTED, output=Counted, uid="w")
    with pytest.raises(JobDefinitionError) as e:
        _ordered("value").window(assigner).aggregate_columns(columns, output=Counted, uid="w")
    assert e.value.facts["aggregates"] == ["total"] and e.value.hint


def test_first_and_last_of_tumbling_windows_are_in_the_declared_order() -> None:
    def stream(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.window(TENS).aggregate_columns(COUNTED | {"total": ("first", "value")}, output=Counted, uid="w")

    with KeyedHarness(stream, KeyedInput(Timed, "key", order_by=("value",), event_time="at")) as h:
        h.push(Timed("a", 2, 1), Timed("a", 4, 11), Timed("a", 1, 5), Timed("a", 3, 12))
        h.drain()
        assert h.output == [Counted("a", 0, 10, 1), Counted("a", 10, 20, 3)]


class FirstAndLast(msgspec.Struct, frozen=True, order=True):
    key: str
    start: int
    first: int
    last: int


FIRST_AND_LAST: dict[str, Sequence[str]] = {
    "start": ("window_start",),
    "first": ("first", "value"),
    "last": ("last", "value"),
}
ARRIVALS = [Timed("a", number, at) for number, at in enumerate([9000, 5000, 5000, 9000, 7000])]


def _aggregating(assigner: Any) -> Callable[[KeyedStream[DataStream]], DataStream]:
    return lambda rows: rows.window(assigner).aggregate_columns(FIRST_AND_LAST, output=FirstAndLast, uid="w")


def _first_and_last(assigner: Any, order_by: tuple[str, ...] = ()) -> KeyedHarness:
    given = KeyedInput(Timed, "key", order_by=order_by, event_time="at", out_of_orderness=ms(10_000))
    return KeyedHarness(_aggregating(assigner), given)


def _in_batches(h: KeyedHarness, rows: Sequence[Timed], cuts: Sequence[int]) -> list[FirstAndLast]:
    for start, until in pairwise((0, *cuts, len(rows))):
        with h:
            h.push(*rows[start:until])
            h = KeyedHarness.restore(h.snapshot(), parallelism=1 + start % 2)
    with h:
        return sorted(h.drain())


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(ms(10_000)),
        SlidingEventTimeWindows.of(ms(10_000), ms(10_000)),
        SlidingEventTimeWindows.of(ms(10_000), ms(5_000)),
        SlidingEventTimeWindows.of(ms(10_000), ms(200)),
        EventTimeSessionWindows.with_gap(ms(5_000)),
    ],
)
@pytest.mark.parametrize("cuts", [(1,), (2, 3), (3,), (1, 2, 3, 4)])
def test_first_and_last_of_event_time_windows_do_not_depend_on_batches(assigner: Any, cuts: Sequence[int]) -> None:
    found = _in_batches(_first_and_last(assigner), ARRIVALS, cuts)
    assert (1, 3) in {(row.first, row.last) for row in found}
    assert found == _in_batches(_first_and_last(assigner), ARRIVALS, ())


def test_first_and_last_have_event_times_of_microseconds() -> None:
    class At(msgspec.Struct, frozen=True):
        key: str
        value: int
        at: Zoned

    with KeyedHarness(_aggregating(TENS), KeyedInput(At, "key", event_time="at", out_of_orderness=ms(10))) as h:
        for microsecond in (2, 1, 3, 2):
            h.push(At("a", microsecond, datetime(1970, 1, 1, microsecond=microsecond, tzinfo=UTC)))
        assert h.drain() == [FirstAndLast("a", 0, 1, 3)]


@pytest.mark.parametrize("assigner", [TumblingEventTimeWindows.of(ms(10_000)), EventTimeSessionWindows.with_gap(ms(9))])
def test_first_and_last_stored_without_event_times_are_before_later_rows(
    assigner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("stateflow.api.streams.windowed_stream.BY_TIME", {})
        with _first_and_last(assigner) as h:
            h.push(Timed("a", 1, 9000), Timed("b", 2, 9000))
            snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, _aggregating(assigner)) as h:
        h.push(Timed("a", 3, 8995), Timed("a", 4, 9001))
        h.push(Timed("a", 5, 9000), Timed("c", 6, 9000))
        found = {(row.key, row.first, row.last) for row in h.drain()}
        assert found == {("a", 1, 4), ("b", 2, 2), ("c", 6, 6)}
        assert h.state_entries() == [] and h.timers() == []


@pytest.mark.parametrize("order", ["value", "at"])
def test_first_and_last_of_tumbling_windows_in_another_order_depend_on_batches(order: str) -> None:
    rows = [Timed("a", 4, 1), Timed("a", 3, 2), Timed("a", 2, 3), Timed("a", 1, 4)]
    found = _in_batches(_first_and_last(TENS, (order,)), rows, (2,))
    assert found == [FirstAndLast("a", 0, 3, 2) if order == "value" else FirstAndLast("a", 0, 4, 1)]
