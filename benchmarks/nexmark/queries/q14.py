"""Bids of some prices, with the part of the day, and how often the letter c is in them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.queries.q1 import EURO
from benchmarks.nexmark.tables import Tables, select
from stateflow import precision
from stateflow.api.streams.data_stream import DataStream

_PART_OF_DAY = """
    CASE
        WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
        ELSE 'otherTime'
    END
"""


class ClassifiedBid(msgspec.Struct):
    """A bid with the part of its day, and a count of letters."""

    auction: int
    bidder: int
    price: Annotated[Decimal, precision(23, scale=3)]
    bidTimeType: str
    dateTime: datetime
    extra: str
    c_counts: int


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    columns = [
        *("auction", "bidder", f"{EURO} AS price", f"{_PART_OF_DAY} AS bidTimeType", "dateTime", "extra"),
        "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts",
    ]
    return select(tables.bids(Bid), ClassifiedBid, columns, where=f"{EURO} > 1000000 AND {EURO} < 50000000")
