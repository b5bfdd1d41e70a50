"""The bids for every 123rd auction."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.nexmark.tables import Tables
from stateflow import DataStream


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    price: int


def of_some_auctions(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the bids for every 123rd auction."""
    return bids.filter(pa.array(np.asarray(bids.column("auction")) % 123 == 0))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(of_some_auctions)
