"""A bidder's longest runs of bids for an auction with an average price below 10,000, which do not overlap."""

from __future__ import annotations

from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.cep0 import Bid
from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import AfterMatchSkipStrategy, DataStream, MatchedRows, Pattern


class Run(msgspec.Struct):
    """A run of bids."""

    auction: int
    bidder: int
    start_tstamp: datetime
    end_tstamp: datetime
    avg_price: int


def keeps_average_low(bid: Bid, matched: MatchedRows[Bid]) -> bool:
    """Whether the average of a run is below 10,000 with a bid."""
    before = matched.rows("low")
    return sum(each.price for each in before) + bid.price < 10_000 * (len(before) + 1)


def runs(skip: AfterMatchSkipStrategy) -> Pattern:
    """Returns the pattern of a run, which ends with the row after it."""
    low = Pattern.begin("low", keeps_average_low, skip=skip).one_or_more().consecutive().greedy()
    return low.next("next")


def run(match: dict[str, list[Bid]]) -> Run:
    """Returns the result of a match."""
    low = match["low"]
    average = sum(bid.price for bid in low) // len(low)
    return Run(low[0].auction, low[0].bidder, low[0].dateTime, low[-1].dateTime, average)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return matched_runs(tables, AfterMatchSkipStrategy.skip_past_last_row())


def matched_runs(tables: Tables, skip: AfterMatchSkipStrategy) -> DataStream:
    """Returns the runs that a strategy leaves."""
    bids = tables.bids(Bid).assign_timestamps_and_watermarks(WATERMARKS).key_by("auction", "bidder")
    return bids.match_pattern(runs(skip)).select(run, output=Run, uid="runs")
