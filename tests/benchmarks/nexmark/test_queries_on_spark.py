"""The queries' jobs on Spark: a driver that is killed, and measured runs of this project and of Spark SQL."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pyarrow.compute as pc
import pytest

from benchmarks.nexmark.correctness import KILLED_AT, Variant, result
from benchmarks.nexmark.flink_tables import write_side_input
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.programs import OURS, SPARK, Load, measure_ours, measure_spark
from benchmarks.nexmark.queries import q12
from benchmarks.nexmark.reference import bids_by_arrival
from benchmarks.nexmark.rules import BID, Stream
from benchmarks.nexmark.tables import Tables
from stateflow import StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing import KeyedHarness, KeyedInput

pytestmark = [pytest.mark.slow, pytest.mark.spark]
FEW = Slices(Stream(events_per_second=40), 3_000, 500)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = tmp_path_factory.mktemp("nexmark")
    (folder / "events").mkdir()
    for number in range(FEW.files):
        write_slice(FEW, folder / "events", number)
    return Load(folder / "events", write_side_input(folder), files_per_batch=2)


@pytest.mark.parametrize("query", [query for query in OURS if query != "q12"])
def test_final_rows_after_a_kill_are_those_of_plain_python(load: Load, query: str) -> None:
    expected = RESULTS[query](Events(generate(FEW.stream, 0, FEW.events)))
    assert expected or query == "q23"
    assert result(query, load, Variant(3, 2, KILLED_AT)) == expected


@pytest.mark.parametrize("query", ["q10", "q14", "q11"])
def test_a_measured_run_takes_time_of_the_clock_and_of_processors(load: Load, query: str) -> None:
    for taken in (measure_ours(query, load), measure_spark(query, load)):
        assert taken.seconds > 0
        assert taken.cpu_seconds > 0


@pytest.mark.parametrize("query", SPARK)
def test_spark_runs_each_of_its_queries(load: Load, query: str) -> None:
    assert measure_spark(query, load).seconds > 0


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
        for at in np.unique(arrivals):
            h.advance_processing_time(int(at))
            h.push(*(q12.Bid(bidder) for bidder, arrival in zip(bidders, arrivals, strict=True) if arrival == at))
        h.advance_processing_time(int(arrivals[-1]) + 60_000)
        expected = bids_by_arrival(events.filter(pc.equal(events["event_type"], BID)), arrivals)
        assert len({row.starttime for row in h.output}) > 2
        assert Counter(map(msgspec.structs.astuple, h.output)) == expected
