"""Windows by columns that overlap many times: parts of windows, sums, work for late rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows, precision
from stateflow.api.aggregates.aggregate import Accumulators
from stateflow.api.functions.vectorized import Array
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.api.windows.column_time_windows import SliceRanges, merge_nodes
from stateflow.api.windows.column_windows import Slicing, accumulate_parts
from stateflow.errors import StateError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.windows.timed_rows import LATE, Assigner, Timed, Total, ms


class Work:
    """Merges texts, and counts how many."""

    def __init__(self) -> None:
        self.merged = 0

    def merge(self, some: Accumulators, starts: Array, of: Array) -> Accumulators:
        texts = some["text"].to_pylist()
        self.merged += len(texts)
        edges = [*starts.tolist(), len(texts)]
        return {"text": pa.array(["".join(texts[a:b]) for a, b in pairwise(edges)], pa.string())}


def _texts(count: int) -> Accumulators:
    return {"text": pa.array([f"{number}," for number in range(count)], pa.string())}


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 2), st.integers(-60, 60)), min_size=1, max_size=60, unique=True),
)
def test_each_window_has_its_slices_in_order_in_few_parts(
    size: int, slide: int, given_slices: list[tuple[int, int]]
) -> None:
    slicing = Slicing(size * slide, slide, 1)
    every = sorted({(key, int(slicing.slices(np.array([at]))[0])) for key, at in given_slices})
    of, slices = (np.array(column, np.int64) for column in zip(*every, strict=True))
    ranges = SliceRanges.of_slices(slicing, of, slices)
    wanted: dict[tuple[int, int], str] = defaultdict(str)
    for number, (key, at) in enumerate(every):
        for start in slicing.windows(np.array([at]))[1].tolist():
            wanted[key, start] += f"{number},"
    window, nodes = ranges.nodes(len(of))
    longest = int((ranges.until - ranges.first).max())
    accumulators, positions = merge_nodes(_texts(len(of)), of, nodes, Work().merge)
    merged = accumulators["text"].to_pylist()
    found: dict[tuple[int, int], str] = defaultdict(str)
    for number, position in zip(window.tolist(), positions.tolist(), strict=True):
        found[int(ranges.of[number]), int(ranges.starts[number])] += merged[position]
    assert found == wanted
    # The sum of slices that no window has together may be too large for its column.
    assert all(any(f",{each}" in f",{text}" for text in wanted.values()) for each in merged)
    assert len(nodes) <= len(wanted) * 2 * max(longest.bit_length(), 1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_a_window_that_fires_many_times_needs_work_in_proportion(sizes: Sequence[int]) -> None:
    window = np.repeat(np.arange(len(sizes)), sizes)
    parts, work = _texts(len(window)), Work()
    found = accumulate_parts(parts, window, np.ones(len(window), bool), work.merge)
    texts, at = parts["text"].to_pylist(), 0
    for size in sizes:
        for number in range(size):
            assert found.accumulators["text"][at + number].as_py() == "".join(texts[at : at + number + 1])
        at += size
    assert work.merged <= 2 * len(window) * max(sizes).bit_length()


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


class LimitedWork(Work):
    """Refuses to merge texts that no window fires with."""

    def __init__(self, fired: set[str]) -> None:
        super().__init__()
        self.fired = fired

    def merge(self, some: Accumulators, starts: Array, of: Array) -> Accumulators:
        made = super().merge(some, starts, of)
        if not set(made["text"].to_pylist()) <= self.fired:
            raise StateError("a text is too long")
        return made


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=4))
def test_if_sums_are_limited_those_that_windows_fire_with_suffice(cuts: Sequence[Sequence[bool]]) -> None:
    window = np.repeat(np.arange(len(cuts)), [len(each) for each in cuts])
    parts = _texts(len(window))
    texts, wanted, at = parts["text"].to_pylist(), [], 0
    for each in cuts:
        ends = [number for number, cut in enumerate(each, 1) if cut or number == len(each)]
        wanted += ["".join(texts[at : at + end]) for end in ends]
        at += len(each)
    found = accumulate_parts(parts, window, np.concatenate(cuts), LimitedWork({*wanted}).merge)
    assert found.accumulators["text"].to_pylist() == wanted


LATE_COLUMNS = {"total": ("sum", "value"), "start": ("window_start",), "end": ("window_end",)}


def _late_sums(assigner: Assigner, lateness: int) -> KeyedHarness:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        windows = rows.window(assigner).allowed_lateness(ms(lateness)).side_output_late_data(LATE)
        return windows.aggregate_columns(LATE_COLUMNS, output=Total, uid="w")

    return KeyedHarness(declare, KeyedInput(Timed, "key", event_time="at"), side_outputs=(LATE,))


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
