"""The bids of each bidder in each session, which a pause of ten seconds ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import AggregateFunction, EventTimeSessionWindows, ProcessWindowFunction, WindowContext
from stateflow.api.streams.data_stream import DataStream


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    bidder: int
    dateTime: datetime


class BidsOfBidder(msgspec.Struct):
    """How many bids a bidder has in a window."""

    bidder: int
    bid_count: int
    starttime: datetime
    endtime: datetime


class Count(AggregateFunction[object, int, int]):
    """Counts rows."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: object, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


class EmitCount(ProcessWindowFunction[int, BidsOfBidder]):
    """Adds bidder and window to a count."""

    def process(self, key: int, ctx: WindowContext, elements: Iterable[int]) -> Iterator[BidsOfBidder]:
        window = ctx.window
        for count in elements:
            yield BidsOfBidder(key, count, timestamp(window.start), timestamp(window.end))


def timestamp(milliseconds: int) -> datetime:
    """Returns a time of a window as a column without time zone."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS)
    sessions = bids.key_by("bidder").window(EventTimeSessionWindows.with_gap(timedelta(seconds=10)))
    return sessions.aggregate(Count(), EmitCount(), accumulator=int, output=BidsOfBidder, uid="sessions")
