"""Bids, bidders and auctions of each channel and day, by ranges of prices."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pyarrow as pa

from benchmarks.nexmark.queries.q10 import days, minutes
from benchmarks.nexmark.queries.q15 import AGGREGATES, ranks
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("channel", "day")


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    bidder: int
    price: int
    channel: str
    dateTime: datetime


class BidOfDay(msgspec.Struct):
    """A bid with its day and its minute, and whether its price is in each of three ranges."""

    channel: str
    day: str
    minute: str
    auction: int
    bidder: int
    rank1: bool
    rank2: bool
    rank3: bool


class Statistics(msgspec.Struct):
    """Bids, and different bidders and auctions: of all prices, and of each range."""

    channel: str
    day: str
    minute: str
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


def of_day(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns bids with their days, minutes and ranges."""
    columns = {name: bids.column(name) for name in ("channel", "auction", "bidder")}
    times = bids.column("dateTime")
    columns |= {"day": days(times), "minute": minutes(times)} | ranks(bids.column("price"))
    return pa.RecordBatch.from_pydict(columns)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).transform_columns(of_day, output=BidOfDay)
    aggregates = {"minute": ("max", "minute"), **AGGREGATES}
    return bids.key_by(*KEYS).aggregate_columns(aggregates, output=Statistics, uid="statistics")
