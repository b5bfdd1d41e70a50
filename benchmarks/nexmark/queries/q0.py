"""Every bid, unchanged."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime
    extra: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid)
