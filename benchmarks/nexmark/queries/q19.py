"""The ten highest bids of each auction."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q18 import Bid
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("auction", "rank_number")


class RankedBid(msgspec.Struct):
    """A bid with its rank."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    dateTime: datetime
    extra: str
    rank_number: int


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions = tables.bids(Bid).key_by("auction")
    order = [("price", "desc")]
    return auctions.top_n(10, order_by=order, output=RankedBid, rank="rank_number", uid="highest-bids")
