"""The queries' jobs on Spark, with a driver that is killed; Spark's own queries; and measured runs of both."""

from __future__ import annotations

import os
from collections import Counter
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from benchmarks.nexmark.changelog import Value
from benchmarks.nexmark.correctness import KILLED_AT, Variant, result, result_of_spark
from benchmarks.nexmark.flink_tables import write_side_input
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.programs import OURS, SPARK, Load, measure_ours, measure_spark
from benchmarks.nexmark.queries import q12
from benchmarks.nexmark.reference import bids_by_arrival
from benchmarks.nexmark.rules import BID, PERSON, Stream
from benchmarks.nexmark.tables import Tables
from stateflow import StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing import KeyedHarness, KeyedInput
from tests.benchmarks.nexmark.test_reference import at, auction, bid, table

pytestmark = [pytest.mark.slow(reason="runs a benchmark"), pytest.mark.spark]
FEW = Slices(Stream(events_per_second=40), 3_000, 500)
# Some have more than a thousand persons.
MANY = Slices(Stream(), 60_000, 20_000)
CLOSED_BY_WATERMARKS = ("q4", "q5", "q6", "q7", "q8", "q11")
"""Queries of Spark that emit rows when a watermark has passed them."""


def written(slices: Slices, folder: Path) -> Load:
    (folder / "events").mkdir()
    for number in range(slices.files):
        write_slice(slices, folder / "events", number)
    return Load(folder / "events", write_side_input(folder), files_per_batch=2)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    return written(FEW, tmp_path_factory.mktemp("nexmark"))


@pytest.fixture(scope="module")
def load_with_an_end(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The same events, and then two batches of events a day later: the second has a watermark after all others."""
    load = written(FEW, tmp_path_factory.mktemp("nexmark"))
    day = 86_400
    person = {"event_type": PERSON, "dateTime": at(day), "extra": "", "person_id": 0}
    # No bid is for the auction: the rows that are open at the end have nothing to emit.
    events = table(person, auction(1, 0, day, 2 * day), bid(2, 1, day))
    for number in range(3):
        _write(events, load.events, FEW.files + number)
    return load


def _write(events: pa.Table, folder: Path, number: int) -> None:
    """Writes a file that Spark reads after those of lower numbers, because it is newer."""
    path = folder / f"{number:05d}.parquet"
    parquet.write_table(events, path)
    os.utime(path, (1_700_000_000 + number,) * 2)


@pytest.mark.parametrize("query", [query for query in OURS if query != "q12"])
def test_final_rows_after_a_kill_are_those_of_plain_python(load: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected or query == "q23"
    assert result(query, load, Variant(3, 2, KILLED_AT)) == expected


@pytest.mark.parametrize("query", ["q10", "q14", "q11", "q4"])
def test_a_measured_run_takes_time_of_the_clock_and_of_processors(load: Load, query: str) -> None:
    for taken in (measure_ours(query, load), measure_spark(query, load)):
        assert taken.seconds > 0
        assert taken.cpu_seconds > 0


@pytest.mark.parametrize("query", [query for query in SPARK if query not in ("q12", "q23")])
def test_final_rows_of_spark_are_those_of_plain_python(load: Load, load_with_an_end: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected
    assert result_of_spark(query, load_with_an_end if query in CLOSED_BY_WATERMARKS else load) == expected


def test_bids_of_bidders_in_windows_of_spark_are_all_bids(load: Load) -> None:
    counts: Counter[Value] = Counter()
    for bidder, count, start, end in result_of_spark("q12", load).elements():
        assert isinstance(count, int) and isinstance(start, datetime) and isinstance(end, datetime)
        assert end - start == timedelta(seconds=10)
        counts[bidder] += count
    assert counts == Counter(bid["bidder"] for bid in Events(generate(FEW.stream, 0, FEW.events)).bids)


def test_final_rows_of_spark_are_equal_for_bids_of_sellers(tmp_path: Path) -> None:
    """q23 has rows only when there are more than a thousand persons."""
    expected = RESULTS["q23"](Events(generate(MANY.stream, 0, MANY.events)))
    assert expected
    assert result_of_spark("q23", written(MANY, tmp_path)) == expected


def test_a_function_of_spark_emits_a_waiting_price_when_a_timer_expires(tmp_path: Path) -> None:
    """Auction 2 has no bid, and its seller has no further row: only a timer ends the wait of auction 1."""
    batches = [
        [auction(1, 7, 0, 100), auction(2, 7, 0, 300), bid(1, 10, 50)],
        *([auction(seconds, 8, seconds, 900), bid(3, 1, seconds)] for seconds in (200, 400, 600)),
    ]
    (tmp_path / "events").mkdir()
    for number, events in enumerate(batches):
        _write(table(*events), tmp_path / "events", number)
    load = Load(tmp_path / "events", write_side_input(tmp_path), files_per_batch=1)
    assert result_of_spark("q6", load) == RESULTS["q6"](Events(table(*chain(*batches)))) == Counter([(7, 10)])


class GivenBids(Tables):
    """A stream of bids as the only table."""

    def __init__(self, bids: DataStream) -> None:
        super().__init__(StreamExecutionEnvironment())
        self._bids = bids

    def views(self, **row_classes: type[msgspec.Struct]) -> tuple[DataStream, ...]:
        assert row_classes == {"bid": q12.Bid}
        return (self._bids,)


@pytest.mark.usefixtures("harnesses_on_spark")
def test_windows_of_processing_time_on_spark_are_those_of_the_arrivals() -> None:
    events = generate(FEW.stream, 0, FEW.events)
    bidders = [row["bid_bidder"] for row in events.to_pylist() if row["event_type"] == BID]
    with KeyedHarness(lambda bids: q12.query(GivenBids(bids)), KeyedInput(q12.Bid), parallelism=3) as h:
        arrivals = np.arange(len(bidders)) // 500 * 7_000
        for now in np.unique(arrivals):
            h.advance_processing_time(int(now))
            h.push(*(q12.Bid(bidder) for bidder, arrival in zip(bidders, arrivals, strict=True) if arrival == now))
        h.advance_processing_time(int(arrivals[-1]) + 60_000)
        expected = bids_by_arrival(events.filter(pc.equal(events["event_type"], BID)), arrivals)
        assert len({row.starttime for row in h.output}) > 2
        assert Counter(map(msgspec.structs.astuple, h.output)) == expected
