"""A bidder's prices for an auction that fall, and then rise for the first time."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import AfterMatchSkipStrategy, DataStream, MatchedRows, Pattern


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime


class Fall(msgspec.Struct):
    """A fall of prices."""

    auction: int
    bidder: int
    start_tstamp: datetime
    bottom_tstamp: datetime
    end_tstamp: datetime


def falls(bid: Bid, matched: MatchedRows[Bid]) -> bool:
    """Whether a price is lower than the one before."""
    before = matched.last("down") or matched.last("first")
    return before is not None and bid.price < before.price


def rises(bid: Bid, matched: MatchedRows[Bid]) -> bool:
    """Whether a price is higher than the last but one of those that fell, as `LAST(DOWN.price, 1)` of SQL."""
    fallen = matched.rows("down")
    return len(fallen) > 1 and bid.price > fallen[-2].price


FALL = (
    Pattern.begin("first", skip=AfterMatchSkipStrategy.skip_to_last("up"))
    .next("down", falls)
    .one_or_more()
    .consecutive()
    .greedy()
    .next("up", rises)
)


def fall(match: dict[str, list[Bid]]) -> Fall:
    """Returns the result of a match."""
    first, up = match["first"][0], match["up"][-1]
    return Fall(first.auction, first.bidder, first.dateTime, match["down"][-1].dateTime, up.dateTime)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS).key_by("auction", "bidder")
    return bids.match_pattern(FALL).select(fall, output=Fall, uid="falls")
