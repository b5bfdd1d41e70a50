"""For each seller, the average winning bid of up to eleven closed auctions, in the order of the winning bids."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from benchmarks.nexmark.queries.q9 import WinningBids, milliseconds, winning_bids
from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import (
    Context,
    DataStream,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    RuntimeContext,
)

EARLIER_AUCTIONS = 10


class Auction(msgspec.Struct):
    """An auction."""

    id: int
    seller: int
    dateTime: datetime
    expires: datetime


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    price: int
    dateTime: datetime


class Winner(msgspec.Struct):
    """A closed auction with the price and time of its winning bid."""

    seller: int
    auction: int
    price: int
    bid_time: datetime


class Average(msgspec.Struct):
    """An average selling price."""

    seller: int
    avg_price: int


class SellingPrices(KeyedCoProcessFunction[Auction, Winner, Average]):
    """Averages the winning bids of a seller.

    A winning bid waits while an auction is open that began before the bid: its winning bid may be earlier.
    """

    def open(self, ctx: RuntimeContext) -> None:
        self.opened = ctx.get_map_state(MapStateDescriptor("opened", int, tuple[int, int]))
        self.waiting = ctx.get_map_state(MapStateDescriptor("waiting", int, list[tuple[int, int]]))
        self.earlier = ctx.get_list_state(ListStateDescriptor("earlier", int))

    def process_element1(self, row: Auction, ctx: Context) -> None:
        expires = milliseconds(row.expires)
        self.opened.put(row.id, (milliseconds(row.dateTime), expires))
        ctx.timer_service().register_event_time_timer(expires)

    def process_element2(self, row: Winner, ctx: Context) -> None:
        time = milliseconds(row.bid_time)
        self.waiting.put(time, [*(self.waiting.get(time) or ()), (row.auction, row.price)])

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Average]:
        timers = ctx.timer_service()
        watermark = timers.current_watermark()
        earliest = watermark + 1
        # One call for all auctions that the watermark has closed: a seller may have hundreds of open auctions.
        for auction, (opened, expires) in list(self.opened.items()):
            if expires <= watermark:
                self.opened.remove(auction)
                timers.delete_event_time_timer(expires)
            else:
                earliest = min(earliest, opened)
        yield from self._averages(ctx.get_current_key(), earliest)

    def _averages(self, seller: int, earliest: int) -> Iterator[Average]:
        """Yields the averages for winning bids before a time: by the watermark, no open auction began before it."""
        prices = list(self.earlier.get())
        for time, winners in list(self.waiting.items()):
            if time >= earliest:
                break
            self.waiting.remove(time)
            for _, price in sorted(winners):
                prices = [*prices[-EARLIER_AUCTIONS:], price]
                yield Average(seller, sum(prices) // len(prices))
        self.earlier.update(prices[-EARLIER_AUCTIONS:])


def winner(auction: Auction, bid: Bid) -> Winner:
    """Returns an auction with its winning bid."""
    return Winner(auction.seller, auction.id, bid.price, bid.dateTime)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    winners = winning_bids(auctions, bids, WinningBids(Auction, Bid, winner), Winner).key_by("seller")
    sellers = auctions.assign_timestamps_and_watermarks(WATERMARKS).key_by("seller")
    return sellers.connect(winners).process(SellingPrices(), output=Average, uid="selling-prices")
