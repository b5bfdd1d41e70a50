"""Bids and prices of each auction and day."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q10 import days
from benchmarks.nexmark.queries.q15 import ranks
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

KEYS = ("auction", "day")


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    price: int
    dateTime: datetime


class RankedBid(msgspec.Struct):
    """A bid of a day. The column of the rank of its price has the price; those of other ranks are null."""

    auction: int
    day: str
    price: int
    rank1: int | None
    rank2: int | None
    rank3: int | None


class Totals(msgspec.Struct):
    """Counts and prices of bids."""

    auction: int
    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    min_price: int
    max_price: int
    sum_price: int


class Statistics(msgspec.Struct):
    """Counts and prices of bids, with the average rounded down."""

    auction: int
    day: str
    total_bids: int
    rank1_bids: int
    rank2_bids: int
    rank3_bids: int
    min_price: int
    max_price: int
    avg_price: int
    sum_price: int


_AGGREGATES = {
    "total_bids": ("count", "price"),
    "rank1_bids": ("count", "rank1"),
    "rank2_bids": ("count", "rank2"),
    "rank3_bids": ("count", "rank3"),
    "min_price": ("min", "price"),
    "max_price": ("max", "price"),
    "sum_price": ("sum", "price"),
}


def ranked(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns bids with their days, and their prices in the columns of their ranges."""
    price = bids.column("price")
    columns = {"auction": bids.column("auction"), "day": days(bids.column("dateTime")), "price": price}
    none = pa.scalar(None, price.type)
    return pa.RecordBatch.from_pydict(
        columns | {name: pc.if_else(is_in, price, none) for name, is_in in ranks(price).items()}
    )


def with_average(totals: pa.RecordBatch) -> pa.RecordBatch:
    """Adds the average."""
    average = pc.divide(totals.column("sum_price"), totals.column("total_bids"))
    return totals.append_column("avg_price", average)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).transform_columns(ranked, output=RankedBid)
    totals = bids.key_by(*KEYS).aggregate_columns(_AGGREGATES, output=Totals, uid="totals")
    return totals.transform_columns(with_average, output=Statistics)
