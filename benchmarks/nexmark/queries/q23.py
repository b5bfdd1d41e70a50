"""The bids of persons who also sell, each with its person and the person's auctions."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q9 import Auction
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    bidder: int
    price: int
    channel: str
    url: str
    extra: str


class Person(msgspec.Struct):
    """A person."""

    id: int
    name: str
    emailAddress: str
    creditCard: str
    city: str
    state: str
    extra: str


class Seller(Person):
    """A person, and an auction of the person."""

    itemName: str
    description: str
    initialBid: int
    reserve: int
    auction_dateTime: datetime
    expires: datetime
    seller: int
    category: int
    auction_extra: str


class BidOfSeller(msgspec.Struct):
    """A bid, its person, and an auction of the person."""

    bidder: int
    price: int
    channel: str
    url: str
    bid_extra: str
    person_id: int
    name: str
    emailAddress: str
    creditCard: str
    city: str
    state: str
    person_extra: str
    itemName: str
    description: str
    initialBid: int
    reserve: int
    auction_dateTime: datetime
    expires: datetime
    seller: int
    category: int
    auction_extra: str


_OF_SELLER = {
    "id": "left.id",
    "extra": "left.extra",
    "auction_dateTime": "right.dateTime",
    "auction_extra": "right.extra",
}
_OF_BID = {"bid_extra": "left.extra", "person_id": "right.id", "person_extra": "right.extra"}


def query(tables: Tables) -> DataStream:
    """Returns the result.

    The small tables are joined first: so a bid is stored once, without its person.
    """
    bids, persons, auctions = tables.views(bid=Bid, person=Person, auction=Auction)
    of_persons = persons.key_by("id").regular_join(auctions.key_by("seller"))
    sellers = of_persons.select(Seller, _OF_SELLER, uid="sellers")
    return bids.key_by("bidder").regular_join(sellers.key_by("id")).select(BidOfSeller, _OF_BID, uid="bids")
