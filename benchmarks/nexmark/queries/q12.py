"""The bids of each bidder in each ten seconds of processing time."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from benchmarks.nexmark.queries.q11 import COUNT, BidsOfBidder
from benchmarks.nexmark.tables import Tables
from stateflow import DataStream, TumblingProcessingTimeWindows


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    bidder: int


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    windows = tables.bids(Bid).key_by("bidder").window(TumblingProcessingTimeWindows.of(timedelta(seconds=10)))
    return windows.aggregate_columns(COUNT, output=BidsOfBidder, uid="windows")
