"""Bids, bidders and auctions of each day, by ranges of prices."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q10 import days
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("day",)


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime


class BidOfDay(msgspec.Struct):
    """A bid with its day, and whether its price is in each of three ranges."""

    day: str
    auction: int
    bidder: int
    rank1: bool
    rank2: bool
    rank3: bool


class Statistics(msgspec.Struct):
    """Bids, and different bidders and auctions: of all prices, and of each range."""

    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    total_bidders: int
    rank1_bidders: int
    rank2_bidders: int
    rank3_bidders: int
    total_auctions: int
    rank1_auctions: int
    rank2_auctions: int
    rank3_auctions: int


AGGREGATES = {
    f"{rank or 'total'}_{name}": (kind, column, *([rank] if rank else []))
    for name, kind, column in (
        ("bids", "count", "auction"),
        ("bidders", "count_distinct", "bidder"),
        ("auctions", "count_distinct", "auction"),
    )
    for rank in ("", "rank1", "rank2", "rank3")
}
"""By column of the result: kind, column, and the column of the rank that a bid has to have."""


def ranks(prices: pa.Array) -> dict[str, pa.Array]:
    """Returns whether prices are in each of three ranges."""
    low, high = pc.less(prices, 10_000), pc.greater_equal(prices, 1_000_000)
    return {"rank1": low, "rank2": pc.invert(pc.or_(low, high)), "rank3": high}


def of_day(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns bids with their days and ranges."""
    columns = {"day": days(bids.column("dateTime")), "auction": bids.column("auction"), "bidder": bids.column("bidder")}
    return pa.RecordBatch.from_pydict(columns | ranks(bids.column("price")))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).transform_columns(of_day, output=BidOfDay)
    return bids.key_by(*KEYS).aggregate_columns(AGGREGATES, output=Statistics, uid="statistics")
