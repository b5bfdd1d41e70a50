"""Every bid, in files partitioned by day and minute."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream

PARTITION_BY = ("dt", "hm")


class PartitionedBid(msgspec.Struct):
    """A bid with its day and its minute."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime
    extra: str
    dt: str
    hm: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    partition = ["date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm"]
    return select(tables.bids(Bid), PartitionedBid, ["*", *partition])
