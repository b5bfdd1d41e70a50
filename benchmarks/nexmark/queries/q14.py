"""Bids of some prices, with the part of the day, and how often the letter c is in them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.queries.q1 import with_euro
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream, precision

_LOWEST, _HIGHEST = Decimal(1_000_000), Decimal(50_000_000)


class ClassifiedBid(msgspec.Struct):
    """A bid with the part of its day, and a count of letters."""

    auction: int
    bidder: int
    price: Annotated[Decimal, precision(23, scale=3)]
    bidTimeType: str
    dateTime: datetime
    extra: str
    c_counts: int


def classified(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the bids of some prices, with their parts of the day and counts of letters."""
    in_euro = with_euro(bids)
    price = in_euro.column("price")
    some = in_euro.filter(pc.and_(pc.greater(price, _LOWEST), pc.less(price, _HIGHEST)))
    return some.append_column("bidTimeType", _parts_of_day(some.column("dateTime"))).append_column(
        "c_counts", pc.count_substring(some.column("extra"), "c")
    )


def _parts_of_day(times: pa.Array) -> pa.Array:
    hour = pc.hour(times)
    is_day = pc.and_(pc.greater_equal(hour, 8), pc.less_equal(hour, 18))
    is_night = pc.or_(pc.less_equal(hour, 6), pc.greater_equal(hour, 20))
    return pc.if_else(is_day, "dayTime", pc.if_else(is_night, "nightTime", "otherTime"))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(classified, output=ClassifiedBid)
