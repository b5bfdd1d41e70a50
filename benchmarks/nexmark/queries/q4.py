"""The average of the winning bids of all auctions, by category."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q9 import WinningBids, winning_bids
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("id",)


class Auction(msgspec.Struct):
    """What the query needs of an auction."""

    id: int
    dateTime: datetime
    expires: datetime
    category: int


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    price: int
    dateTime: datetime


class Winning(msgspec.Struct):
    """The winning bid of an auction."""

    id: int
    price: int


class Prices(msgspec.Struct):
    """Winning bids of a category."""

    id: int
    total: int
    count: int


class Average(msgspec.Struct):
    """The average winning bid of a category."""

    id: int
    final: int


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    function = WinningBids(Auction, Bid, lambda auction, bid: Winning(auction.category, bid.price))
    categories = winning_bids(auctions, bids, function, Winning).key_by("id")
    prices = categories.aggregate_columns(
        {"total": ("sum", "price"), "count": ("count", "price")}, output=Prices, uid="prices"
    )
    return prices.map(lambda of: Average(of.id, of.total // of.count), output=Average)
