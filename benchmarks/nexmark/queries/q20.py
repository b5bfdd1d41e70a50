"""The bids for auctions of category 10, each with its auction."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q9 import Auction
from benchmarks.nexmark.queries.q18 import Bid
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class BidWithAuction(msgspec.Struct):
    """A bid and its auction."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    bid_dateTime: datetime
    bid_extra: str
    itemName: str
    description: str
    initialBid: int
    reserve: int
    auction_dateTime: datetime
    expires: datetime
    seller: int
    category: int
    auction_extra: str


_COLUMNS = {
    "bid_dateTime": "left.dateTime",
    "bid_extra": "left.extra",
    "auction_dateTime": "right.dateTime",
    "auction_extra": "right.extra",
}


def of_category(auctions: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the auctions of category 10."""
    return auctions.filter(pc.equal(auctions.column("category"), 10))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    chosen = auctions.transform_columns(of_category).key_by("id")
    return bids.key_by("auction").regular_join(chosen).select(BidWithAuction, _COLUMNS, uid="bids")
