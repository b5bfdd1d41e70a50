"""Queries of Nexmark in plain Python: those that Flink cannot run, or whose result depends on the clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.changelog import Rows
from benchmarks.nexmark.randomness import Numbers
from benchmarks.nexmark.rules import AUCTION, BID

_EARLIER_AUCTIONS = 10
_WINDOW_MS = 10_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - Flink's TIMESTAMP has no time zone


@dataclass(frozen=True)
class _Auction:
    seller: int
    opened: datetime
    expires: datetime


@dataclass(frozen=True)
class _Winner:
    price: int
    at: datetime


def average_selling_prices(events: pa.Table) -> Rows:
    """Returns the result of q6 for events in order: for each auction that has a winning bid, its seller and an average.

    The average is that of the winning bids of this auction and up to ten earlier ones of the seller, by the times of
    these bids, rounded down. Of equal prices the first bid wins, and winning bids of the same time are in the order of
    their auctions.
    """
    auctions = {
        number: _Auction(seller, opened, expires)
        for number, seller, opened, expires in _rows(
            events, AUCTION, ["auction_id", "auction_seller", "dateTime", "auction_expires"]
        )
    }
    by_seller: defaultdict[int, list[_Winner]] = defaultdict(list)
    for number, winner in sorted(_winners(events, auctions).items()):
        by_seller[auctions[number].seller].append(winner)
    result: Rows = Counter()
    for seller, winners in by_seller.items():
        prices = [winner.price for winner in sorted(winners, key=lambda winner: winner.at)]
        for end in range(1, len(prices) + 1):
            frame = prices[max(end - 1 - _EARLIER_AUCTIONS, 0) : end]
            result[(seller, sum(frame) // len(frame))] += 1
    return result


def bids_by_arrival(events: pa.Table, arrivals_ms: Numbers) -> Rows:
    """Returns the result of q12 when event n arrives at `arrivals_ms[n]`, in milliseconds since the epoch."""
    is_bid = pc.equal(events["event_type"], BID)
    starts = arrivals_ms[is_bid.to_numpy()] // _WINDOW_MS * _WINDOW_MS
    bidders = events["bid_bidder"].filter(is_bid).to_pylist()
    counts = Counter(zip(bidders, starts.tolist(), strict=True))
    return Counter(
        {(bidder, count, _time(start), _time(start + _WINDOW_MS)): 1 for (bidder, start), count in counts.items()}
    )


def _winners(events: pa.Table, auctions: dict[int, _Auction]) -> dict[int, _Winner]:
    winners: dict[int, _Winner] = {}
    for number, price, at in _rows(events, BID, ["bid_auction", "bid_price", "dateTime"]):
        # A bid can come before its auction, at the same time.
        auction, winner = auctions.get(number), winners.get(number)
        if auction is None or not auction.opened <= at <= auction.expires:
            continue
        if winner is None or price > winner.price:
            winners[number] = _Winner(price, at)
    return winners


def _rows(events: pa.Table, event_type: int, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    some = events.select(columns).filter(pc.equal(events["event_type"], event_type))
    return zip(*(some[name].to_pylist() for name in columns), strict=True)


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
