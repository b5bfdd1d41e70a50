"""Each auction with its winning bid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

import msgspec

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import (
    Context,
    DataStream,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OnTimerContext,
    RuntimeContext,
    ValueStateDescriptor,
)


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


class AuctionWithBid(Auction):
    """An auction and its winning bid."""

    auction: int
    bidder: int
    price: int
    bid_dateTime: datetime
    bid_extra: str


class AnyAuction(Protocol):
    """What winning bids need of an auction."""

    dateTime: datetime
    expires: datetime


class AnyBid(Protocol):
    """What winning bids need of a bid."""

    price: int
    dateTime: datetime


A = TypeVar("A", bound=AnyAuction)
B = TypeVar("B", bound=AnyBid)
Out = TypeVar("Out")


class WinningBids(KeyedCoProcessFunction[A, B, Out], Generic[A, B, Out]):
    """Emits each auction with its highest bid when it expires: of equal bids, the first.

    Args:
        auction_class, bid_class: the rows.
        emit: returns the row of an auction and its winning bid.
    """

    def __init__(self, auction_class: type[A], bid_class: type[B], emit: Callable[[A, B], Out]) -> None:
        self._classes = auction_class, bid_class
        self._emit = emit

    def open(self, ctx: RuntimeContext) -> None:
        auction_class, bid_class = self._classes
        self.auction = ctx.get_state(ValueStateDescriptor("auction", auction_class))
        self.highest = ctx.get_state(ValueStateDescriptor("highest", bid_class))
        # Bids may come before their auction.
        self.early = ctx.get_list_state(ListStateDescriptor("early", bid_class))
        self.is_closed = ctx.get_state(ValueStateDescriptor("closed", bool))

    def process_element1(self, row: A, ctx: Context) -> None:
        self.auction.update(row)
        for bid in self.early.get():
            self._add(row, bid)
        self.early.clear()
        ctx.timer_service().register_event_time_timer(milliseconds(row.expires))

    def process_element2(self, row: B, ctx: Context) -> None:
        auction = self.auction.value()
        if auction is not None:
            self._add(auction, row)
        elif not self.is_closed.value():
            self.early.add(row)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Out]:
        auction, bid = self.auction.value(), self.highest.value()
        if auction is not None and bid is not None:
            yield self._emit(auction, bid)
        self.auction.clear()
        self.highest.clear()
        self.is_closed.update(True)

    def _add(self, auction: A, bid: B) -> None:
        highest = self.highest.value()
        is_higher = highest is None or bid.price > highest.price
        if is_higher and auction.dateTime <= bid.dateTime <= auction.expires:
            self.highest.update(bid)


def milliseconds(time: datetime) -> int:
    """Returns a column without time zone as a time of a timer."""
    return round(time.replace(tzinfo=UTC).timestamp() * 1000)


def winning_bids(auctions: DataStream, bids: DataStream, function: WinningBids[A, B, Out], output: type) -> DataStream:
    """Returns the winning bids of auctions, with what `function` emits."""
    opened = auctions.assign_timestamps_and_watermarks(WATERMARKS).key_by("id")
    placed = bids.assign_timestamps_and_watermarks(WATERMARKS).key_by("auction")
    return opened.connect(placed).process(function, output=output, uid="winning-bids")


def with_bid(auction: Auction, bid: Bid) -> AuctionWithBid:
    """Returns an auction with its bid."""
    return AuctionWithBid(*msgspec.structs.astuple(auction), *msgspec.structs.astuple(bid))


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    auctions, bids = tables.views(auction=Auction, bid=Bid)
    return winning_bids(auctions, bids, WinningBids(Auction, Bid, with_bid), AuctionWithBid)
