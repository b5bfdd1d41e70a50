"""Windows compared with a model of Flink that works row by row, at any batch size, parallelism and restore.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/windows/test_random_windows.py``.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import AggregateFunction, MemoryStateBackend, OutputTag, RocksDBStateBackend
from stateflow.api.aggregates.partial import PartialAggregation
from stateflow.api.state_backends import StateBackend
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from stateflow.api.windows.evictors import Evictor, EvictorContext, TimestampedRow
from stateflow.api.windows.functions import ProcessAllWindowFunction, ProcessWindowFunction, WindowContext
from stateflow.runtime.task.vector_operator import WindowVectorOperator
from stateflow.state.kinds import timers as sizes
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.time_window import TimeWindow

LOWEST = -(1 << 63)
KEPT = 2
"""How many rows of a window are left after an eviction."""


class Row(msgspec.Struct, frozen=True):
    """A row: its number is unique."""

    key: str
    at: int
    number: int
    bit: int
    is_even: bool
    third: int


class Fired(msgspec.Struct, frozen=True):
    """An evaluation of a window."""

    key: str
    start: int
    end: int
    numbers: list[int]


@dataclass(frozen=True)
class Kind:
    """Windows of a size that begin every `slide`; sessions with a gap of `size` if `slide` is 0."""

    size: int
    slide: int
    offset: int = 0

    def windows(self, at: int) -> list[tuple[int, int]]:
        if not self.slide:
            return [(at, at + self.size)]
        starts = range(at, at - self.size, -1)
        return [(start, start + self.size) for start in starts if (start - self.offset) % self.slide == 0]


@dataclass
class Key:
    """The open windows of a key, with the rows of each, and which are due to fire."""

    open: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    due: set[tuple[int, int]] = field(default_factory=set)
    fired: list[Fired] = field(default_factory=list)


@dataclass
class Model:
    """Flink, with a watermark before each row of a key: the row's time less the out-of-orderness, less one."""

    kind: Kind
    bound: int
    lateness: int
    evicts: bool = False
    latest: int | None = None
    keys: dict[str, Key] = field(default_factory=lambda: defaultdict(Key))
    late: list[int] = field(default_factory=list)

    def batch(self, rows: Iterable[Row]) -> None:
        before = LOWEST if self.latest is None else self.latest - self.bound - 1
        for name in list(self.keys):
            self.advance(name, before)
        for row in sorted(rows, key=lambda row: row.at):
            watermark = max(before, row.at - self.bound - 1)
            self.advance(row.key, watermark)
            self.add(row, watermark)
            self.latest = row.at if self.latest is None else max(self.latest, row.at)

    def advance(self, name: str, watermark: int) -> None:
        key = self.keys[name]
        for window in sorted(key.due, key=lambda window: (window[1], window[0])):
            if window[1] - 1 <= watermark:
                self.fire(name, window)
        for window in [each for each in key.open if each[1] - 1 + self.lateness <= watermark]:
            del key.open[window]

    def fire(self, name: str, window: tuple[int, int]) -> None:
        key = self.keys[name]
        key.due.discard(window)
        if self.evicts:
            key.open[window] = sorted(key.open[window])[-KEPT:]
        key.fired.append(Fired(name, *window, sorted(key.open[window])))

    def add(self, row: Row, watermark: int) -> None:
        key, is_late = self.keys[row.key], True
        for window in self.kind.windows(row.at):
            rows = [row.number]
            if not self.kind.slide:
                for other in [each for each in key.open if each[0] <= window[1] and window[0] <= each[1]]:
                    rows += key.open.pop(other)
                    key.due.discard(other)
                    window = min(window[0], other[0]), max(window[1], other[1])
            if window[1] - 1 + self.lateness <= watermark:
                continue
            is_late = False
            key.open[window] = key.open.get(window, []) + rows
            if window[1] - 1 <= watermark:
                self.fire(row.key, window)
            else:
                key.due.add(window)
        # Between windows that leave gaps, a row without a window is late by its own time.
        if is_late and row.at + self.lateness <= watermark:
            self.late.append(row.number)


HIGHEST = (1 << 63) - 1
KEYS = "abc"
METHODS = ["process", "aggregate", "evict", "columns", "partials"]


def _numbers(bits: int) -> list[int]:
    """Returns the rows whose `Row.bit` is in a sum."""
    return [number for number in range(64) if bits >> number & 1]


class Sums(msgspec.Struct, frozen=True):
    """The rows of a window by columns."""

    start: int
    end: int
    bits: int
    count: int
    first: int
    last: int
    rough: int
    thirds: int
    of_even: int
    last_even: int | None
    mean: float
    spread: float | None
    time: int

    @property
    def fired(self) -> Fired:
        numbers = _numbers(self.bits)
        assert (self.count, self.rough, self.time) == (len(numbers), len(numbers), self.end - 1)
        assert math.isclose(self.mean, statistics.fmean(numbers))
        assert (self.spread is None) == (len(numbers) == 1)
        assert self.spread is None or math.isclose(self.spread, statistics.variance(map(float, numbers)), abs_tol=1e-9)
        assert self.thirds == len({number % 3 for number in numbers})
        assert self.of_even == len({number % 3 for number in numbers if number % 2 == 0})
        return Fired(getattr(self, "key", ""), self.start, self.end, numbers)

    def check_order(self, times: Mapping[int, int]) -> None:
        """Checks the values that depend on the order of rows: by event time, then by arrival."""
        numbers = sorted(_numbers(self.bits), key=lambda number: (times[number], number))
        even = [None, *(number for number in numbers if number % 2 == 0)]
        assert (self.first, self.last, self.last_even) == (numbers[0], numbers[-1], even[-1])


class KeyedSums(Sums, frozen=True):
    """The same of a window of a key."""

    key: str


class Added(msgspec.Struct, frozen=True):
    """The rows of a window that are aggregated before the shuffle."""

    key: str
    start: int
    end: int
    bits: int
    count: int
    low: int
    high: int
    even: int

    @property
    def fired(self) -> Fired:
        numbers = _numbers(self.bits)
        even = sum(number % 2 == 0 for number in numbers)
        assert (self.count, self.low, self.high, self.even) == (len(numbers), numbers[0], numbers[-1], even)
        return Fired(self.key, self.start, self.end, numbers)


WINDOW = {"start": ("window_start",), "end": ("window_end",), "bits": ("sum", "bit"), "count": ("count", "key")}
COLUMNS = WINDOW | {
    "first": ("first", "number"),
    "last": ("last", "number"),
    "rough": ("approx_distinct", "number"),
    "thirds": ("count_distinct", "third"),
    "of_even": ("count_distinct", "third", "is_even"),
    "last_even": ("last", "number", "is_even"),
    "mean": ("mean", "number"),
    "spread": ("variance", "number"),
    "time": ("window_time",),
}
PARTIALS = WINDOW | {"low": ("min", "number"), "high": ("max", "number"), "even": ("count", "at", "is_even")}
LATE = OutputTag("late", Row)


def _fired(key: str, window: TimeWindow, elements: Iterable[Row | list[int]]) -> Iterator[Fired]:
    """Yields the rows of a window: the rows themselves, or one list of their numbers."""
    found = (each if isinstance(each, list) else [each.number] for each in elements)
    yield Fired(key, window.start, window.end, sorted(number for numbers in found for number in numbers))


class Emit(ProcessWindowFunction[Any, Fired]):
    def process(self, key: str, ctx: WindowContext, elements: Iterable[Any]) -> Iterator[Fired]:
        return _fired(key, ctx.window, elements)


class EmitAll(ProcessAllWindowFunction[Any, Fired]):
    def process(self, ctx: WindowContext, elements: Iterable[Any]) -> Iterator[Fired]:
        return _fired("", ctx.window, elements)


class KeepNewest(Evictor[Row]):
    """Keeps the two rows of a window that came last, whatever their order is after sessions were merged."""

    def evict_before(
        self, rows: Sequence[TimestampedRow[Row]], window: TimeWindow, ctx: EvictorContext
    ) -> Sequence[TimestampedRow[Row]]:
        assert ctx.current_watermark() >= window.max_timestamp and ctx.current_processing_time() >= 0
        return sorted(rows, key=lambda row: row.row.number)[-KEPT:]

    def evict_after(
        self, rows: Sequence[TimestampedRow[Row]], window: TimeWindow, ctx: EvictorContext
    ) -> Sequence[TimestampedRow[Row]]:
        return rows


class CollectNumbers(AggregateFunction[Row, list[int], list[int]]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Row, accumulator: list[int]) -> list[int]:
        return [*accumulator, value.number]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return [*acc_a, *acc_b]


# -- histories --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """Batches of rows; and, before each, the parallelism of a restore, or 0."""

    kind: Kind
    bound: int
    lateness: int
    batches: tuple[tuple[tuple[tuple[str, int], ...], int], ...]
    arrow_rows: int | None
    has_key: bool = True


kinds = st.one_of(
    st.builds(lambda size, offset: Kind(size, size, offset % size), st.integers(1, 20), st.integers(0, 19)),
    st.builds(Kind, st.integers(1, 20), st.integers(1, 20)),
    st.builds(Kind, st.integers(1, 10), st.just(0)),
)
batches = st.tuples(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 60)), max_size=8).map(tuple),
    st.sampled_from([0, 0, 0, 1, 3]),
)
histories = st.builds(
    History,
    kinds,
    st.sampled_from([0, 1, 5, 20, 100]),
    st.sampled_from([0, 0, 3, 30]),
    st.lists(batches, min_size=1, max_size=6).map(tuple),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)


def _assigner(kind: Kind) -> WindowAssigner[Any]:
    size, slide, offset = (timedelta(milliseconds=n) for n in (kind.size, kind.slide, kind.offset))
    if not kind.slide:
        return EventTimeSessionWindows.with_gap(size)
    if kind.slide == kind.size:
        return TumblingEventTimeWindows.of(size, offset)
    return SlidingEventTimeWindows.of(size, slide, offset)


def _windowed(history: History, method: str) -> Callable[[Any], DataStream]:
    lateness, assigner = timedelta(milliseconds=history.lateness), _assigner(history.kind)

    def declare(rows: Any) -> DataStream:
        windows = rows.window(assigner) if history.has_key else rows.window_all(assigner)
        emit, sums = (Emit(), KeyedSums) if history.has_key else (EmitAll(), Sums)
        made: DataStream
        if method == "partials":
            made = windows.aggregate_columns(PARTIALS, output=Added, uid="w")
            return made
        windows = windows.allowed_lateness(lateness).side_output_late_data(LATE)
        if method == "columns":
            made = windows.aggregate_columns(COLUMNS, output=sums, uid="w")
        elif method == "aggregate":
            made = windows.aggregate(CollectNumbers(), emit, accumulator=list[int], output=Fired, uid="w")
        else:
            windows = windows.evictor(KeepNewest()) if method == "evict" else windows
            made = windows.process(emit, output=Fired, uid="w")
        return made

    return declare


def _emitted(row: Fired | Sums | Added, times: Mapping[int, int]) -> Fired:
    if isinstance(row, Sums):
        row.check_order(times)
    return row if isinstance(row, Fired) else row.fired


def _by_pairs(aggregation: PartialAggregation, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Aggregates two rows at a time, as if each pair were read by a task of its own."""
    for batch in batches:
        for start in range(0, len(batch), 2):
            yield from aggregation._aggregated([batch.slice(start, 2)])


def _check(history: History, method: str, backend: StateBackend) -> None:
    if method == "partials":
        history = replace(history, has_key=True)
    # So that a key of an operator by columns may be in several Arrow batches, and a call has few keys.
    few = history.arrow_rows or 1 << 17
    with (
        patch.multiple(WindowVectorOperator, rows_at_once=few, additions_at_once=few),
        patch.multiple(sizes, _FIRST_BY_COLUMNS=few, MOST_BY_COLUMNS=few),
        patch("stateflow.api.windows.column_time_windows._FEW", 16 if history.arrow_rows is None else 1),
        patch.object(
            PartialAggregation, "apply", PartialAggregation.apply if history.arrow_rows is None else _by_pairs
        ),
    ):
        _check_windows(history, method, backend)


def _check_windows(history: History, method: str, backend: StateBackend) -> None:
    # Rows are aggregated before the shuffle only if late ones are dropped; their number is not compared here.
    lateness, outputs = (0, ()) if method == "partials" else (history.lateness, (LATE,))
    model = Model(history.kind, history.bound, lateness, method == "evict")
    fired, late, number = defaultdict(list), [], 0
    times: dict[int, int] = {}
    arrow = history.arrow_rows
    more: dict[str, Any] = {} if arrow is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": arrow}
    key, keys = ("key", KEYS) if history.has_key else ((), ("",))
    given_rows = KeyedInput(Row, key, event_time="at", out_of_orderness=timedelta(milliseconds=history.bound))
    h = KeyedHarness(_windowed(history, method), given_rows, side_outputs=outputs, backend=backend, **more)
    for batch, parallelism in history.batches:
        if parallelism:
            late += [row for tag in outputs for row in h.side_output(tag)]
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        rows = [Row(name, at, n, 1 << n, n % 2 == 0, n % 3) for n, (name, at) in enumerate(batch, number)]
        number += len(rows)
        times |= {row.number: row.at for row in rows}
        for each in (_emitted(row, times) for row in h.push(*rows)):
            fired[each.key].append(each)
        model.batch(rows if history.has_key else [msgspec.structs.replace(row, key="") for row in rows])
    with h:
        for each in (_emitted(row, times) for row in h.drain()):
            fired[each.key].append(each)
        late += [row for tag in outputs for row in h.side_output(tag)]
        for name in keys:
            model.advance(name, HIGHEST)
        # No content, session or timer is left.
        assert h.state_entries() == [] and h.timers() == []
    assert fired.keys() <= {*keys}
    assert {name: fired[name] for name in keys} == {name: model.keys[name].fired for name in keys}
    assert not outputs or sorted(row.number for row in late) == sorted(model.late)


@pytest.mark.long(reason="draws many histories")
@given(histories, st.sampled_from(METHODS))
@example(
    History(Kind(10, 0), 0, 30, (((("a", 5), ("a", 25)), 0), ((("a", 40),), 0), ((("a", 15),), 3)), None), "process"
)
def test_windows_fire_with_the_rows_and_in_the_order_of_flink(history: History, method: str) -> None:
    _check(history, method, MemoryStateBackend())


@pytest.mark.slow(reason="RocksDB takes ten times as long as dictionaries")
@given(histories, st.sampled_from(METHODS))
def test_windows_are_the_same_in_rocksdb(history: History, method: str) -> None:
    _check(history, method, RocksDBStateBackend())
