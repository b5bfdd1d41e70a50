"""Each auction with its winning bid."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import (
    Context,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OnTimerContext,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.streams.data_stream import DataStream


class Auction(msgspec.Struct):
    """An auction."""

    id: int
    itemName: str
    description: str
    initialBid: int
    reserve: int
    dateTime: datetime
    expires: datetime
    seller: int
    category: int
    extra: str


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    bidder: int
    price: int
    dateTime: datetime
    extra: str


class AuctionWithBid(msgspec.Struct):
    """An auction and its winning bid."""

    id: int
    itemName: str
    description: str
    initialBid: int
    reserve: int
    dateTime: datetime
    expires: datetime
    seller: int
    category: int
    extra: str
    auction: int
    bidder: int
    price: int
    bid_dateTime: datetime
    bid_extra: str


class WinningBids(KeyedCoProcessFunction[Auction, Bid, AuctionWithBid]):
    """Emits each auction with its highest bid when it expires: of equal bids, the first."""

    def open(self, ctx: RuntimeContext) -> None:
        self.auction = ctx.get_state(ValueStateDescriptor("auction", Auction))
        self.highest = ctx.get_state(ValueStateDescriptor("highest", Bid))
        # Bids may come before their auction.
        self.early = ctx.get_list_state(ListStateDescriptor("early", Bid))
        self.is_closed = ctx.get_state(ValueStateDescriptor("closed", bool))

    def process_element1(self, row: Auction, ctx: Context) -> None:
        self.auction.update(row)
        for bid in self.early.get():
            self._add(row, bid)
        self.early.clear()
        ctx.timer_service().register_event_time_timer(milliseconds(row.expires))

    def process_element2(self, row: Bid, ctx: Context) -> None:
        auction = self.auction.value()
        if auction is not None:
            self._add(auction, row)
        elif not self.is_closed.value():
            self.early.add(row)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[AuctionWithBid]:
        auction, bid = self.auction.value(), self.highest.value()
        if auction is not None and bid is not None:
            yield AuctionWithBid(*msgspec.structs.astuple(auction), *msgspec.structs.astuple(bid))
        self.auction.clear()
        self.highest.clear()
        self.is_closed.update(True)

    def _add(self, auction: Auction, bid: Bid) -> None:
        highest = self.highest.value()
        is_higher = highest is None or bid.price > highest.price
        if is_higher and auction.dateTime <= bid.dateTime <= auction.expires:
            self.highest.update(bid)


def milliseconds(time: datetime) -> int:
    """Returns a column without time zone as a time of a timer."""
    return round(time.replace(tzinfo=UTC).timestamp() * 1000)


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    opened = auctions.assign_timestamps_and_watermarks(WATERMARKS).key_by("id")
    placed = bids.assign_timestamps_and_watermarks(WATERMARKS).key_by("auction")
    return opened.connect(placed).process(WinningBids(), output=AuctionWithBid, uid="winning-bids")
