"""Every bid, in files partitioned by day and minute."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

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


def days(times: pa.Array) -> pa.Array:
    """Returns the days of times as texts: 2015-07-15."""
    return times.cast(pa.date32()).cast(pa.string())


def minutes(times: pa.Array) -> pa.Array:
    """Returns the times of day without seconds as texts: 13:30."""
    return pc.utf8_slice_codeunits(times.cast(pa.string()), len("2015-07-15 "), len("2015-07-15 13:30"))


def partitioned(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns bids with their partitions."""
    times = bids.column("dateTime")
    return bids.append_column("dt", days(times)).append_column("hm", minutes(times))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(partitioned, output=PartitionedBid)
