"""Bids, bidders and auctions of each day, by ranges of prices."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream

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


DAY = "date_format(dateTime, 'yyyy-MM-dd') AS day"
RANKS = ("price < 10000 AS rank1", "price >= 10000 AND price < 1000000 AS rank2", "price >= 1000000 AS rank3")
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


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = select(tables.bids(Bid), BidOfDay, [DAY, "auction", "bidder", *RANKS])
    return bids.key_by(*KEYS).aggregate_columns(AGGREGATES, output=Statistics, uid="statistics")
