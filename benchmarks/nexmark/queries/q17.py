"""Bids and prices of each auction and day."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream

KEYS = ("auction", "day")


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    price: int
    dateTime: datetime


class RankedBid(msgspec.Struct):
    """A bid of a day. The column of the rank of its price has the price; those of other ranks are null."""

    auction: int
    day: str
    price: int
    rank1: int | None
    rank2: int | None
    rank3: int | None


class Totals(msgspec.Struct):
    """Counts and prices of bids."""

    auction: int
    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    min_price: int
    max_price: int
    sum_price: int


class Statistics(msgspec.Struct):
    """Counts and prices of bids, with the average rounded down."""

    auction: int
    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    min_price: int
    max_price: int
    avg_price: int
    sum_price: int


_COLUMNS = [
    *("auction", "date_format(dateTime, 'yyyy-MM-dd') AS day", "price"),
    "CASE WHEN price < 10000 THEN price END AS rank1",
    "CASE WHEN price >= 10000 AND price < 1000000 THEN price END AS rank2",
    "CASE WHEN price >= 1000000 THEN price END AS rank3",
]
_AGGREGATES = {
    "total_bids": ("count", "price"),
    "rank1_bids": ("count", "rank1"),
    "rank2_bids": ("count", "rank2"),
    "rank3_bids": ("count", "rank3"),
    "min_price": ("min", "price"),
    "max_price": ("max", "price"),
    "sum_price": ("sum", "price"),
}


def with_average(totals: Totals) -> Statistics:
    """Adds the average."""
    return Statistics(**msgspec.structs.asdict(totals), avg_price=totals.sum_price // totals.total_bids)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = select(tables.bids(Bid), RankedBid, _COLUMNS)
    totals = bids.key_by(*KEYS).aggregate_columns(_AGGREGATES, output=Totals, uid="totals")
    return totals.map(with_average, output=Statistics)
