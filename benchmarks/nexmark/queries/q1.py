"""Every bid, with its price in another currency."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.tables import Tables, select
from stateflow import precision
from stateflow.api.streams.data_stream import DataStream

EURO = "CAST(0.908 * price AS DECIMAL(23, 3))"


class BidInEuro(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: Annotated[Decimal, precision(23, scale=3)]
    dateTime: datetime
    extra: str


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    columns = ["auction", "bidder", f"{EURO} AS price", "dateTime", "extra"]
    return select(tables.bids(Bid), BidInEuro, columns)
