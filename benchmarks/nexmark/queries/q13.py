"""Every bid with a value of a table that does not change."""

from __future__ import annotations

from datetime import datetime

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.nexmark.tables import Tables
from stateflow.api.streams.data_stream import DataStream


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime


class BidWithValue(msgspec.Struct):
    """A bid with the value of its auction."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime
    value: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    path = tables.side_input

    def with_value(bids: DataFrame) -> DataFrame:
        values = bids.sparkSession.read.schema("key bigint, value string").csv(path)
        return bids.join(F.broadcast(values), F.expr("auction % 10000 = key"))

    return tables.bids(Bid).transform(with_value, output=BidWithValue)
