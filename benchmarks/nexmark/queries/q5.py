"""The auctions with most bids in each ten seconds, every two seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import (
    AggregateFunction,
    DataStream,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowContext,
)

_SIZE, _SLIDE = timedelta(seconds=10), timedelta(seconds=2)


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    dateTime: datetime


class BidsOfAuction(msgspec.Struct):
    """How many bids an auction has in a window, and the last instant of the window."""

    auction: int
    num: int
    dateTime: datetime


class MostBids(msgspec.Struct):
    """An auction with most bids."""

    auction: int
    num: int


class Greatest(AggregateFunction[BidsOfAuction, list[MostBids], list[MostBids]]):
    """Keeps the auctions with most bids."""

    def create_accumulator(self) -> list[MostBids]:
        return []

    def add(self, value: BidsOfAuction, accumulator: list[MostBids]) -> list[MostBids]:
        most = accumulator[0].num if accumulator else 0
        if value.num < most:
            return accumulator
        added = MostBids(value.auction, value.num)
        return [*accumulator, added] if value.num == most else [added]

    def get_result(self, accumulator: list[MostBids]) -> list[MostBids]:
        return accumulator

    def merge(self, a: list[MostBids], b: list[MostBids]) -> list[MostBids]:
        most = max(auction.num for auction in a + b)
        return [auction for auction in a + b if auction.num == most]


class EmitAll(ProcessWindowFunction[list[MostBids], MostBids]):
    """Emits each auction."""

    def process(self, key: datetime, ctx: WindowContext, elements: Iterable[list[MostBids]]) -> Iterator[MostBids]:
        for auctions in elements:
            yield from auctions


def most_bids(counts: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows with most bids of each window: no other row of the batch can be in the result."""
    numbers = np.asarray(counts.column("num"))
    windows, window = np.unique(np.asarray(counts.column("dateTime")), return_inverse=True)
    most = np.zeros(len(windows), np.int64)
    np.maximum.at(most, window, numbers)
    return counts.filter(pa.array(numbers == most[window]))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS)
    windows = bids.key_by("auction").window(SlidingEventTimeWindows.of(_SIZE, _SLIDE))
    columns = {"num": ("count", "auction"), "dateTime": ("window_time",)}
    counts = windows.aggregate_columns(columns, output=BidsOfAuction, uid="counts")
    # Windows end every two seconds: those that end at the same time are one window of this length.
    ends = counts.transform_columns(most_bids).key_by("dateTime").window(TumblingEventTimeWindows.of(_SLIDE))
    return ends.aggregate(Greatest(), EmitAll(), accumulator=list[MostBids], output=MostBids, uid="most-bids")
