"""Every bid with the directories of its URL."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q21 import Bid
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class BidWithDirectories(msgspec.Struct):
    """A bid with three directories."""

    auction: int
    bidder: int
    price: int
    channel: str
    dir1: str | None
    dir2: str | None
    dir3: str | None


def with_directories(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the bids with the fourth to sixth part of their URLs; null for parts that a URL does not have."""
    parts = pc.split_pattern(bids.column("url"), "/", max_splits=6)
    directories = pc.list_slice(parts, 3, 6, return_fixed_size_list=True)
    found = bids.drop_columns(["url"])
    for at in range(3):
        found = found.append_column(f"dir{at + 1}", pc.list_element(directories, at))
    return found


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(with_directories, output=BidWithDirectories)
