"""Prices of a bidder for an auction that drop by more than 50 within five seconds."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from benchmarks.nexmark.queries.cep0 import Bid
from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import AfterMatchSkipStrategy, DataStream, MatchedRows, Pattern


class Drop(msgspec.Struct):
    """A drop of the price."""

    auction: int
    bidder: int
    drop_time: datetime
    drop_diff: int


def stays(bid: Bid, matched: MatchedRows[Bid]) -> bool:
    """Whether a price is not lower than the first one by 50."""
    high = matched.first("high")
    return high is not None and bid.price > high.price - 50


def drops(bid: Bid, matched: MatchedRows[Bid]) -> bool:
    """Whether a price is lower than the first one by more than 50."""
    high = matched.first("high")
    return high is not None and bid.price < high.price - 50


DROP = (
    Pattern.begin("high", skip=AfterMatchSkipStrategy.skip_past_last_row())
    .next("between", stays)
    .one_or_more()
    .consecutive()
    .greedy()
    .optional()
    .next("low", drops)
    .within(timedelta(seconds=5))
)


def drop(match: dict[str, list[Bid]]) -> Drop:
    """Returns the result of a match."""
    high, low = match["high"][0], match["low"][0]
    return Drop(low.auction, low.bidder, low.dateTime, high.price - low.price)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS).key_by("auction", "bidder")
    return bids.match_pattern(DROP).select(drop, output=Drop, uid="drops")
