"""The last bid of each bidder for each auction."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("bidder", "auction")


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    dateTime: datetime
    extra: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).key_by(*KEYS).deduplicate(keep="last", order_by="dateTime", uid="last-bids")
