"""Every bid with a value of a table that does not change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


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


@cache
def _table(path: str) -> pa.Table:
    """Returns the table, which each worker reads once."""
    types = {"key": pa.int64(), "value": pa.string()}
    names = csv.ReadOptions(column_names=[*types])
    return csv.read_csv(
        path, read_options=names, convert_options=csv.ConvertOptions(column_types=types)
    ).combine_chunks()


@dataclass(frozen=True)
class WithValue:
    """Joins bids with the table.

    Attributes:
        path: a CSV file of keys and values.
    """

    path: str

    def __call__(self, bids: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the bids whose auction has a value, with it."""
        table, auctions = _table(self.path), bids.column("auction")
        keys = pc.subtract(auctions, pc.multiply(pc.divide(auctions, 10_000), 10_000))
        found = pc.index_in(keys, value_set=table["key"].chunk(0))
        values = table["value"].chunk(0).take(found)
        return bids.append_column("value", values).filter(found.is_valid())


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(WithValue(tables.side_input), output=BidWithValue)
