"""Every bid with the directories of its URL."""

from __future__ import annotations

import msgspec

from benchmarks.nexmark.queries.q21 import Bid
from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream


class BidWithDirectories(msgspec.Struct):
    """A bid with three directories."""

    auction: int
    bidder: int
    price: int
    channel: str
    dir1: str | None
    dir2: str | None
    dir3: str | None


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    directories = [f"get(split(url, '/'), {at}) AS dir{at - 2}" for at in (3, 4, 5)]
    return select(tables.bids(Bid), BidWithDirectories, ["auction", "bidder", "price", "channel", *directories])
