"""The bids for every 123rd auction."""

from __future__ import annotations

import msgspec

from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    price: int


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return select(tables.bids(Bid), Bid, ["*"], where="auction % 123 = 0")
