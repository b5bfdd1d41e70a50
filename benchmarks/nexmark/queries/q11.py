"""The bids of each bidder in each session, which a pause of ten seconds ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import DataStream, EventTimeSessionWindows


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    bidder: int
    dateTime: datetime


class BidsOfBidder(msgspec.Struct):
    """How many bids a bidder has in a window."""

    bidder: int
    bid_count: int
    starttime: datetime
    endtime: datetime


COUNT = {"bid_count": ("count", "bidder"), "starttime": ("window_start",), "endtime": ("window_end",)}


def timestamp(milliseconds: int) -> datetime:
    """Returns a time of a window as a column without time zone."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS)
    sessions = bids.key_by("bidder").window(EventTimeSessionWindows.with_gap(timedelta(seconds=10)))
    return sessions.aggregate_columns(COUNT, output=BidsOfBidder, uid="sessions")
