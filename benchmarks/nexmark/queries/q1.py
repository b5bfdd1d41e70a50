"""Every bid, with its price in another currency."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.queries.q0 import Bid
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream, precision


class BidInEuro(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: Annotated[Decimal, precision(23, scale=3)]
    dateTime: datetime
    extra: str


def with_euro(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns bids with their prices in euro, as exact decimals."""
    price = pc.multiply(bids.column("price").cast(pa.decimal128(19)), pa.scalar(Decimal("0.908")))
    return bids.set_column(bids.schema.get_field_index("price"), "price", price)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(with_euro, output=BidInEuro)
