"""The bids of persons who also sell, each with its person and the person's auctions."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q9 import Auction
from benchmarks.nexmark.tables import Tables
from stateflow.api.streams.data_stream import DataStream


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


class BidOfPerson(msgspec.Struct):
    """A bid and its person."""

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


class BidOfSeller(BidOfPerson):
    """A bid, its person, and an auction of the person."""

    itemName: str
    description: str
    initialBid: int
    reserve: int
    auction_dateTime: datetime
    expires: datetime
    seller: int
    category: int
    auction_extra: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids, persons, auctions = tables.views(bid=Bid, person=Person, auction=Auction)
    of_persons = bids.key_by("bidder").regular_join(persons.key_by("id"))
    named = {"bid_extra": "left.extra", "person_id": "right.id", "person_extra": "right.extra"}
    with_person = of_persons.select(BidOfPerson, named, uid="persons")
    of_sellers = with_person.key_by("bidder").regular_join(auctions.key_by("seller"))
    renamed = {"auction_dateTime": "right.dateTime", "auction_extra": "right.extra"}
    return of_sellers.select(BidOfSeller, renamed, uid="sellers")
