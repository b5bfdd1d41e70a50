"""The bids for auctions of category 10, each with its auction."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q9 import Auction
from benchmarks.nexmark.queries.q18 import Bid
from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream


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


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    of_category = select(auctions, Auction, ["*"], where="category = 10").key_by("id")
    return bids.key_by("auction").regular_join(of_category).select(BidWithAuction, _COLUMNS, uid="bids")
