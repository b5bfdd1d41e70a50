"""The queries' jobs without Spark: their final rows are those of plain Python, whatever the batches."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.nexmark.changelog import Rows
from benchmarks.nexmark.correctness import table_rows
from benchmarks.nexmark.flink_tables import write_side_input
from benchmarks.nexmark.generator import SCHEMA, generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.reference import bids_by_arrival
from benchmarks.nexmark.rules import AUCTION, BID, PERSON, Stream
from benchmarks.nexmark.tables import TABLES, Tables, event_class, event_column
from stateflow import DeltaSink, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import ManualClock, epoch_milliseconds
from tests.support.local_jobs import Growing, LocalJobs

# Few events of a long time: several windows, and sessions that end.
EVENTS = generate(Stream(events_per_second=40), 0, 3_000)
START = datetime(2015, 7, 15)  # noqa: DTZ001 - as in the events


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def auction(number: int, seller: int, opened: int, expires: int) -> dict[str, Any]:
    own = {"auction_id": number, "auction_seller": seller, "auction_expires": at(expires)}
    return {"event_type": AUCTION, "dateTime": at(opened), "extra": "", **own}


def bid(number: int, price: int, seconds: int, bidder: int = 1) -> dict[str, Any]:
    own = {"bid_auction": number, "bid_price": price, "bid_bidder": bidder}
    return {"event_type": BID, "dateTime": at(seconds), "extra": "", **own}


def table(*events: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=SCHEMA)


class CollectedTables(Tables):
    """Tables over events in memory, and selections in Python instead of Spark's."""

    def __init__(
        self, env: StreamExecutionEnvironment, events: pa.Table, side_input: str = "", *, is_bounded: bool = True
    ) -> None:
        super().__init__(env, side_input)
        self._events = events
        self._is_bounded = is_bounded

    def views(self, **row_classes: type[msgspec.Struct]) -> tuple[DataStream, ...]:
        row_class = event_class(row_classes)
        columns = [self._events[field.name].to_pylist() for field in msgspec.structs.fields(row_class)]
        rows = [row_class(*row) for row in zip(*columns, strict=True)]
        if self._is_bounded:
            events = self.env.from_collection(rows, row_class, uid="events")
        else:
            events = self.env.from_source(Growing(rows, row_class), uid="events")
        return tuple(_view(events, table, each) for table, each in row_classes.items())


def _view(events: DataStream, table: str, row_class: type[msgspec.Struct]) -> DataStream:
    columns = [event_column(table, field.name) for field in msgspec.structs.fields(row_class)]
    number = TABLES[table]
    of_table = events.filter(lambda event: getattr(event, "event_type") == number)  # noqa: B009 - a class of any columns
    return of_table.map(lambda event: row_class(*(getattr(event, name) for name in columns)), output=row_class)


class QueryRun:
    """Runs a query over given numbers of events, one run after another, and collects its result."""

    def __init__(
        self, folder: Path, query: str, clock: ManualClock | None = None, *, parallelism: int, rows: int
    ) -> None:
        module = import_module(f"benchmarks.nexmark.queries.{query}")
        self.events = EVENTS
        self._query, self._keys = module.query, getattr(module, "KEYS", ())
        self._jobs = LocalJobs(folder, clock, parallelism=parallelism, source__max_rows_per_batch=rows)
        self._name, self._table = query, folder / "table"
        self._side_input = str(write_side_input(folder))

    def run(self, counts: Sequence[int]) -> Rows:
        """Returns the rows of all runs so far, in the table of the result."""
        for count in counts:
            self._jobs.run(partial(self._declare, count))
        return table_rows(self._name, self._table)

    def _declare(self, count: int, env: StreamExecutionEnvironment) -> None:
        events = self.events.slice(0, count)
        tables = CollectedTables(env, events, self._side_input, is_bounded=count == len(self.events))
        sink = DeltaSink(self._table, mode="upsert" if self._keys else "append", keys=self._keys)
        self._query(tables).sink_to(sink, uid="result")


LONG = "q3 q4 q5 q6 q8 q9 q11 q15 q16 q17 q18 q19 q20 cep0 cep1 cep2 cep3".split()
_long = pytest.mark.long(reason="runs queries over thousands of events")


@pytest.mark.parametrize(
    "query", [*(pytest.param(query, marks=_long) for query in LONG), "q1", "q2", "q13", "q14", "q21", "q22"]
)
def test_final_rows_are_those_of_plain_python(tmp_path: Path, query: str) -> None:
    job = QueryRun(tmp_path, query, parallelism=3, rows=900)
    expected = RESULTS[query](Events(EVENTS))
    assert expected
    # The second run continues from the checkpoint of the first one.
    assert job.run([1_000, len(EVENTS)]) == expected


def test_windows_of_processing_time_are_those_of_the_arrivals(tmp_path: Path) -> None:
    clock = ManualClock()
    job = QueryRun(tmp_path, "q12", clock, parallelism=2, rows=10_000)
    arrivals = np.zeros(len(EVENTS), np.int64)
    before = 0
    for count in (700, 1_900, len(EVENTS)):
        arrivals[before:count] = epoch_milliseconds(clock.now())
        job.run([count])
        before = count
        clock.sleep(timedelta(seconds=7))
    clock.sleep(timedelta(seconds=60))
    assert job.run([len(EVENTS)]) == bids_by_arrival(EVENTS, arrivals)


def test_bids_of_sellers_are_joined_with_each_of_their_auctions(tmp_path: Path) -> None:
    person = {"event_type": PERSON, "dateTime": START, "extra": "", "person_id": 7}
    person |= {f"person_{name}": name for name in ("name", "emailAddress", "creditCard", "city", "state")}
    bids = [bid(1, 5, 1, 7), bid(1, 6, 1, 8), bid(9, 7, 1, 7), bid(9, 7, 1, 9)]
    events = table(person, auction(1, 7, 0, 9), bids[0], auction(2, 7, 0, 9), auction(3, 9, 0, 9), *bids[1:])
    job = QueryRun(tmp_path, "q23", parallelism=2, rows=2)
    job.events = _without_nulls(events)
    expected = RESULTS["q23"](Events(job.events))
    assert expected.total() == 4
    assert job.run([4, len(events)]) == expected


def _without_nulls(events: pa.Table) -> pa.Table:
    """Fills what the events of a test leave out, which generated ones have."""
    fillers = {pa.string(): "x", pa.int64(): 0, pa.timestamp("ms"): START}
    columns = [
        pc.fill_null(column, pa.scalar(fillers[column.type], column.type)) if column.type in fillers else column
        for column in events.columns
    ]
    return pa.table(columns, names=events.schema.names)
